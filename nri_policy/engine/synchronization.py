"""Synchronisation: finding every running container its place again; spec placement.md §10.

Owns the order and the reading of a cpuset as a grant. A container that cannot be placed is named in
the outcome, and nobody else is disturbed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.explanation import Outcome
from nri_policy.engine.grant import Grant
from nri_policy.engine.placement import Choice, RefusalError, book, make_room, place
from nri_policy.engine.state import State
from nri_policy.pools.tree import Pool
from nri_policy.workload.pod import Container, QoS
from nri_policy.workload.request import Request, Sort


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A running container to be placed, and the grant that it held on an earlier layout."""

    container: Container
    request: Request
    cpus: CPUSet  # what it runs on now, empty where that is unknown
    held: Grant | None = None  # its pool is an id of the layout that places it now


def restore(state: State, candidates: Sequence[Candidate]) -> list[tuple[Candidate, RefusalError]]:
    """Place all *candidates*, first those that can stay as they are; return what fits nowhere."""
    alone = _claimed_once(candidate.cpus for candidate in candidates)
    left = list(candidates)
    # exclusive CPUs first: what is left of a pool after them is what its sharers can be recognised
    # by
    for exclusive in (True, False):
        rest = []
        for candidate in left:
            grant = None
            if (candidate.request.exclusive > 0) == exclusive:
                grant = candidate.held or _read(state, candidate, alone)
            if grant is not None and _possible(state, grant):
                choice = Choice(grant=grant, outcome=Outcome.KEPT)
                book(state, candidate.container, candidate.request, choice)
            else:
                rest.append(candidate)
        left = rest
    refused = []
    for candidate in sorted(left, key=_order):
        try:
            place(state, candidate.container, candidate.request, candidate.held)
        except RefusalError as refusal:
            refused.append((candidate, refusal))
    make_room(state, "others keep the CPUs that were left there")
    return refused


def _order(candidate: Candidate) -> tuple[int, int, int]:
    """Guaranteed exclusive by size, Guaranteed shared, Burstable, BestEffort, each oldest first."""
    request = candidate.request
    if request.exclusive:
        return 0, -request.exclusive, candidate.container.created
    qos = (QoS.GUARANTEED, QoS.BURSTABLE, QoS.BEST_EFFORT).index(request.qos)
    return 1 + qos, 0, candidate.container.created


def _possible(state: State, grant: Grant) -> bool:
    """Whether *grant* can be booked as it is without breaking an invariant of §2."""
    if not grant.mems <= CPUSet.union(state.layout.tree.top.memory.values()):
        return False
    if grant.sort is Sort.RESERVED:
        left = 1000 * len(state.layout.capacity.reserved) - state.reserved_milli
        return grant.shared <= max(0, left)
    if grant.sort is Sort.PRESERVE:
        return True
    cpus = state.layout.tree.pools[grant.pool].cpus
    slack = state.supply.slack(grant.pool, grant.shared, grant.shares and not grant.guest, False)
    if grant.isolated:
        return grant.exclusive <= state.supply.free_isolated_cpus() & cpus and slack.permits(EMPTY)
    return grant.exclusive <= state.supply.free_cpus() & cpus and slack.permits(grant.exclusive)


def _claimed_once(cpusets: Iterable[CPUSet]) -> CPUSet:
    """Return the CPUs that are in exactly one of *cpusets*."""
    once, more = EMPTY, EMPTY
    for cpus in cpusets:
        more |= once & cpus
        once |= cpus
    return once - more


def parsed(text: str) -> CPUSet:
    """Return the set that the runtime's text names, empty where it names none."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return EMPTY


def _read(state: State, candidate: Candidate, alone: CPUSet) -> Grant | None:
    """Return the grant that gives the container the cpuset it has, None where there is none."""
    layout, request, cpus = state.layout, candidate.request, candidate.cpus
    top = layout.tree.top
    grant = Grant(
        pool=top.id,
        sort=request.sort,
        exclusive=EMPTY,
        isolated=False,
        shared=request.shared,
        shares=request.shares,
        guest=request.guest,
        mems=layout.zones.offer(top, request.memory_kinds),
    )
    if request.sort is Sort.PRESERVE:
        return grant
    if request.sort is Sort.RESERVED:
        return grant if cpus == layout.capacity.reserved else None
    if request.exclusive:
        own = _own(state, request, cpus, alone)
        pool = _around(state, cpus)
        if own is None or pool is None:
            return None
        grant = replace(grant, exclusive=own, isolated=own <= layout.capacity.isolated)
    elif request.guest and cpus == layout.capacity.reserved:
        pool = top
    else:
        free = state.supply.free_cpus()
        pool = next((p for p in layout.tree.pools if cpus and p.cpus & free == cpus), None)
        if pool is None:
            return None
    mems = layout.zones.offer(pool, request.memory_kinds)
    return replace(grant, pool=pool.id, mems=mems)


def _own(state: State, request: Request, cpus: CPUSet, alone: CPUSet) -> CPUSet | None:
    """Return which of *cpus* are the container's own, None where they cannot be its grant."""
    layout = state.layout
    if request.hide_hyperthreads and len(cpus) < request.exclusive:
        # it shows one thread a core: the others were booked with it, whichever they were
        cores = [core.cpus for core in layout.machine.cores if not core.cpus.isdisjoint(cpus)]
        free = state.supply.free_cpus() | state.supply.free_isolated_cpus()
        threads = CPUSet.union(cores) & free
        if len(threads) < request.exclusive:
            return None
        cpus = layout.picker.pick(request.exclusive, threads, (cpus & free,))
    for sort in (layout.capacity.isolated, layout.capacity.sharable):
        own = cpus & sort
        if request.shares and sort is layout.capacity.sharable:
            own &= alone
        if len(own) == request.exclusive and (request.shares or own == cpus):
            return own
        if request.shares and len(own) > request.exclusive and sort is layout.capacity.sharable:
            return layout.picker.pick(request.exclusive, own)
    return None


def _around(state: State, cpus: CPUSet) -> Pool | None:
    """Return the deepest pool that holds *cpus*."""
    return next((pool for pool in state.layout.tree.pools if cpus <= pool.cpus), None)
