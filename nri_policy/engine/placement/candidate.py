"""Grants from cpusets: reads the cpuset of a running container as a grant; spec placement.md §10.

Decides which container owns a CPU when no grant is stored. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.choice import plain_grant
from nri_policy.engine.choice.memory_request import memory_request
from nri_policy.engine.event import StoredGrant
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.grant import Grant
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.tree import Pool
from nri_policy.settings import FullCores
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request, Sort


class Candidate(Struct, frozen=True, kw_only=True):
    """A running container to be placed, and the grant that it held before."""

    container: Container
    request: Request
    cpus: CPUSet  # what it runs on now, empty where that is unknown
    mems: CPUSet
    held: Grant | None = None  # its pool is an id of the layout that places it now
    same: bool = True  # `held` was given for an equal request
    there: bool = False  # the reserved CPUs are the same as when `held` was given
    degraded: Request | None = None  # the reduced request that `held` was given for
    explanation: Explanation | None = None  # of `held`; None: unknown
    moved_by: str = ""  # the cause of a move, in words; empty: a start of the daemon

    @property
    def booked(self) -> Request:
        """What `held` is booked for."""
        return self.degraded or self.request


def with_stored_grant(
    candidate: Candidate, stored: StoredGrant, pools: Mapping[str, int], *, there: bool
) -> Candidate:
    """Return *candidate* with its *stored* grant, if *pools* (ids by name) still has its pool.

    *there*: the reserved CPUs are the same as when it was stored.
    """
    if stored.pool not in pools:
        return candidate
    held = read_stored_grant(stored, pools)
    same = candidate.request.entitlement == stored.entitlement
    return replace(candidate, held=held, same=same, there=there)


def read_stored_grant(stored: StoredGrant, pools: Mapping[str, int]) -> Grant:
    """Return a *stored* grant on the tree of *pools*; raises KeyError if its pool is missing.

    Without a home, if the tree has no pool of the home's name.
    """
    home = None if stored.home is None else pools.get(stored.home)
    return replace(stored.grant, pool=pools[stored.pool], home=home)


def find_unshared(cpusets: Iterable[CPUSet]) -> CPUSet:
    """Return the CPUs in exactly one of *cpusets*."""
    once, more = EMPTY, EMPTY
    for cpus in cpusets:
        more |= once & cpus
        once |= cpus
    return once - more


def read_grant(state: State, candidate: Candidate, alone: CPUSet) -> Grant | None:
    """Return the grant that gives the container the cpuset it has, None where there is none."""
    layout, request, cpus = state.layout, candidate.request, candidate.cpus
    top = layout.tree.top
    mems = EMPTY if request.memory_preserve else candidate.mems & layout.memory.nodes
    grant = plain_grant(request, top.id, mems)
    if request.sort is Sort.PRESERVE:
        return replace(grant, preserved=cpus)
    if request.sort is Sort.RESERVED:
        if cpus == layout.capacity.reserved:
            return grant
        request = replace(request, sort=Sort.NORMAL)  # the reserved CPUs had no room
        grant = plain_grant(request, top.id, mems)
    if request.exclusive:
        own = _own(state, request, cpus, alone)
        if own is None or not cpus <= top.cpus:
            return None
        pool = layout.tree.around(cpus)
        mems = mems if candidate.mems else _zone_of_unpinned(state, candidate, pool)
        grant = replace(grant, exclusive=own, isolated=own <= layout.capacity.isolated, mems=mems)
    elif request.preemptible and cpus == layout.capacity.reserved:
        pool = top
    else:
        alike = [
            pool for pool in layout.tree.pools if cpus and _usual_cpus(state, request, pool) == cpus
        ]
        if not alike:
            return None
        pool = alike[0]
    return replace(grant, pool=pool.id)


def _usual_cpus(state: State, request: Request, pool: Pool) -> CPUSet:
    """Return the CPUs that a container has which shares those of *pool*."""
    free = state.supply.free_cpus() & pool.cpus
    return state.layout.picker.first_threads(free) if request.hide_hyperthreads else free


def _own(state: State, request: Request, cpus: CPUSet, alone: CPUSet) -> CPUSet | None:
    """Return the exclusive CPUs among *cpus*; None if *cpus* cannot be the container's grant."""
    layout, whole_cores = state.layout, request.steering.full_cores is FullCores.REQUIRE
    if request.hide_hyperthreads and (len(cpus) < request.exclusive or whole_cores):
        cpus = _find_hidden(state, request, cpus)
        if not cpus:
            return None
    for sort in (layout.capacity.isolated, layout.capacity.sharable):
        own = cpus & sort
        if request.shares and sort is layout.capacity.sharable:
            own &= alone
        if own != cpus and not request.shares:
            continue
        if len(own) == request.exclusive:
            return own
        if whole_cores:  # rounded up to cores, unless its grant is older than the setting
            with suppress(ValueError):
                rounded = layout.picker.pick(request.exclusive, own, whole_cores=True)
                if request.shares or rounded == own:
                    return rounded
        if request.shares and len(own) > request.exclusive and sort is layout.capacity.sharable:
            return layout.picker.pick(request.exclusive, own)
    return None


def _find_hidden(state: State, request: Request, shown: CPUSet) -> CPUSet:
    """Return the CPUs of a container that sees only one thread of each core; empty: too few.

    It sees the lowest of its threads: some above them were booked with these.
    """
    cores = [core.cpus for core in state.layout.machine.cores if not core.cpus.isdisjoint(shown)]
    free = state.supply.free_cpus() | state.supply.free_isolated_cpus()
    lower = (core & CPUSet(range((core & shown).lowest)) for core in cores)
    threads = (CPUSet.union(cores) - CPUSet.union(lower)) & free
    if len(threads) < request.exclusive:
        return EMPTY
    if request.steering.full_cores is FullCores.REQUIRE:
        return threads
    return state.layout.picker.pick(request.exclusive, threads, (shown & free,))


def _zone_of_unpinned(state: State, candidate: Candidate, pool: Pool) -> CPUSet:
    """Return a zone for a container whose memory was never pinned, if there is room in it.

    The kubelet's static CPU manager leaves memory unpinned; such containers keep their CPUs anyway.
    """
    memory = memory_request(
        candidate.container, candidate.request, aligned=state.layout.aligned, cold=False
    )
    zone = None if memory is None else state.memory.offers(memory).zone(pool.id)
    if memory is None or zone is None or state.memory.free(zone) < memory.amount:
        return EMPTY
    return zone
