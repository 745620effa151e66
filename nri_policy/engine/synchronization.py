"""Synchronisation: finding every running container its place again; spec placement.md §10.

Owns the order, the recognition of a stored grant and the reading of a cpuset as a grant. Nobody is
disturbed for a container that cannot be placed: what is left is what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.admission import keep, noted, squeeze
from nri_policy.engine.event import StoredGrant, Synchronized
from nri_policy.engine.grant import Grant
from nri_policy.engine.layout import Layout
from nri_policy.engine.placement import (
    RefusalError,
    make_room,
    memory_request,
    place,
    plain_grant,
)
from nri_policy.engine.state import State
from nri_policy.pools.tree import Pool
from nri_policy.settings import Level, Priority
from nri_policy.workload.pod import Container, QoS, Resources, shares_of
from nri_policy.workload.request import Isolation, Request, Sort


class Candidate(Struct, frozen=True, kw_only=True):
    """A running container to be placed, and the grant that it held before."""

    container: Container
    request: Request
    cpus: CPUSet  # what it runs on now, empty where that is unknown
    mems: CPUSet
    held: Grant | None = None  # its pool is an id of the layout that places it now
    same: bool = True  # it asks for what `held` was given for
    squeezed: Request | None = None  # what `held` is for since the machine could not give it more


_PAGE = 1 << 16  # bytes; the largest page of any kernel
_NO_LIMIT = 1 << 62  # bytes; what cgroup v1 shows for none

_RequestOf = Callable[[Container], Request]

# What only steers a choice, and what stands for it where a request is compared or stored.
_STEERING: dict[str, Any] = {
    "isolated": Isolation.NO,
    "burst_level": Level.SYSTEM,
    "priority": Priority.NONE,
    "hints": (),
    "strict_hints": False,
    "pick_by_hints": False,
    "affinities": (),
    "because": "",
}


class Restored(Struct):
    """What became of candidates, as far as somebody should hear of it."""

    refused: list[str] = field(default_factory=list)  # who fits nowhere, in a `strict` change
    flagged: list[str] = field(default_factory=list)  # what is odd about those that stay
    notes: list[str] = field(default_factory=list)  # on those that were placed


def to_store(state: State, container_id: str) -> StoredGrant:
    """Return what has to be remembered of a container for it to get its grant back."""
    placed = state.placed[container_id]
    return StoredGrant(
        pod_uid=placed.container.pod.uid,
        full_name=placed.container.full_name,
        resized=placed.container.resized,
        request=_entitlement(placed.request),
        pool=state.layout.tree.pools[placed.grant.pool].name,
        grant=placed.grant,
        deadline=state.cold.get(container_id),
        resources=placed.container.resources,
    )


def recalled(
    container: Container, held: Mapping[str, StoredGrant]
) -> tuple[Container, StoredGrant | None]:
    """Return a container that the runtime lists as it was known, and its stored grant, if any."""
    stored = held.get(container.id)
    if stored is None:
        return container, None
    if (stored.pod_uid, stored.full_name) != (container.pod.uid, container.full_name):
        return container, None
    known = replace(container, resized=stored.resized)
    if stored.resources is not None:
        known = replace(known, resources=stored.resources)
    return seen(known, stored.request.milli, container), stored


def seen(known: Container, milli: int, listed: Container) -> Container:
    """Return a *known* container as the runtime lists it now, which may tell of a missed resize.

    Its CPU shares may be those that we have set for *milli* rather than what it asked for.
    """
    old, new = known.resources, listed.resources
    merged = replace(
        old,
        cpu_shares=old.cpu_shares if new.cpu_shares == shares_of(milli) else new.cpu_shares,
        cpu_quota=new.cpu_quota,
        cpu_period=new.cpu_period,
        memory_limit=new.memory_limit,
    )
    state = max(known.state, listed.state)
    if not new.cpu_shares or _amounts(merged) == _amounts(old):  # no shares: it does not say
        return replace(known, state=state)
    return replace(known, state=state, resources=merged, resized=True)


def not_older(known: Resources, milli: int, listed: Resources, found: Resources) -> Resources:
    """Return what the runtime lists, or what is *known* where its cgroup was *found* to have that.

    A runtime may list what a container was created with (CRI-O after its restart). Its shares may
    be those that we have set for *milli*; the kernel may not say.
    """
    if _limits(found) != _limits(known):
        return listed
    ours = found.cpu_shares in (known.cpu_shares, shares_of(milli))
    if _limits(listed) == _limits(known) and not ours:
        return listed
    return replace(
        listed,
        cpu_shares=known.cpu_shares,
        cpu_quota=known.cpu_quota,
        cpu_period=known.cpu_period,
        memory_limit=known.memory_limit,
    )


def has(found: Resources, asked: Resources, milli: int) -> bool:
    """Return whether a cgroup was *found* to have what was *asked* for, as far as it says.

    Its shares may be those that we have set for *milli*.
    """
    same_shares = found.cpu_shares in (0, asked.cpu_shares, shares_of(milli))
    return same_shares and _limits(found) == _limits(asked)


def _limits(resources: Resources) -> tuple[int | None, int]:
    """Return the limits of CPU and memory, as exactly as the kernel keeps them."""
    memory = resources.memory_limit
    return resources.cpu_limit, 0 if memory >= _NO_LIMIT else memory // _PAGE


def _amounts(resources: Resources) -> tuple[int, int | None, int]:
    return resources.cpu_request, resources.cpu_limit, resources.memory_limit


def holding(candidate: Candidate, stored: StoredGrant, pools: Mapping[str, int]) -> Candidate:
    """Return *candidate* with its *stored* grant, if *pools* (ids by name) still has its pool."""
    if stored.pool not in pools:
        return candidate
    held = replace(stored.grant, pool=pools[stored.pool])
    return replace(candidate, held=held, same=same_entitlement(candidate.request, stored.request))


def resumed(layout: Layout, picture: Synchronized, request_of: _RequestOf) -> State:
    """Return the state that *picture* was taken of: all that was held then, in the same order.

    ValueError or KeyError where it is no picture of a state on *layout*.
    """
    state = State(layout)
    pools = {pool.name: pool.id for pool in layout.tree.pools}
    for listed in picture.containers:
        stored = picture.held[listed.id]
        asked = stored.resources or listed.resources
        container = replace(listed, resized=stored.resized, resources=asked)
        candidate = Candidate(
            container=container,
            request=with_entitlement(request_of(container), stored.request),
            cpus=parsed(listed.resources.cpus),
            mems=parsed(listed.resources.mems),
        )
        grant = replace(stored.grant, pool=pools[stored.pool])
        keep(state, container, candidate.request, grant)
        state.told[container.id] = candidate.cpus, candidate.mems
        if container.id in state.cold:
            state.cold[container.id] = stored.deadline
    return state


def same_entitlement(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same: what only steers a choice moves no one who chose."""
    return _entitlement(one) == _entitlement(other)


def _entitlement(request: Request) -> Request:
    return replace(request, **_STEERING)


def with_entitlement(request: Request, entitlement: Request) -> Request:
    """Return what was asked for with *entitlement*, and is steered as in *request*."""
    steering = {name: getattr(request, name) for name in _STEERING}
    return replace(entitlement, **steering)


def restore(
    state: State,
    candidates: Sequence[Candidate],
    *,
    forced: bool = False,
    strict: bool = False,
) -> Restored:
    """Place all *candidates*, first those that can stay as they are.

    They run already: who fits nowhere gets what the others leave, unless the change is *strict*,
    and can be refused for it. In a *forced* one CPUs are gone: who has lost some goes on with what
    is left of its own.
    """
    result, homeless = Restored(), []
    flagged = result.flagged
    left = sorted(_keep_all(state, candidates, flagged, forced=forced), key=_order)
    remains = {c.container.id: _remain(state, c) for c in left} if forced else {}
    for candidate in left:
        before, name = state.snapshot(), candidate.container.full_name
        try:
            if remains.get(candidate.container.id):
                state.drop(candidate.container.id)
            choice = place(state, candidate.container, candidate.request, candidate.held)
            result.notes += [f"{name}: {note}" for note in choice.findings.notes]
            _note_move(state, candidate)
        except RefusalError as refusal:
            state.restore(before)
            held = candidate.held
            if remains.get(candidate.container.id):
                flagged.append(f"{name}: {refusal}; it has fewer now")
            elif candidate.squeezed and held is not None and _possible(state, candidate, held):
                left_to_it = replace(candidate, request=candidate.squeezed)
                result.notes += [
                    *_keep(state, left_to_it, held),
                    f"{name}: {refusal}; it keeps less",
                ]
            elif not candidate.same and held is not None and _possible(state, candidate, held):
                flagged += [*_keep(state, candidate, held), f"{name}: {refusal}; it keeps its own"]
            elif strict:
                result.refused.append(f"{name}: {refusal}")
            else:
                homeless.append((candidate, refusal))
    for candidate, why in homeless:
        texts = squeeze(state, candidate.container, candidate.request, why)
        flagged += [f"{candidate.container.full_name}: {text}" for text in texts]
        _note_move(state, candidate)
    _warm(state, left)
    make_room(state, "others keep the CPUs that were left there")
    return result


def _note_move(state: State, candidate: Candidate) -> None:
    """Let the explanation of a running container that was placed anew say why it did not stay."""
    placed = state.placed[candidate.container.id]
    if (
        not candidate.cpus
        or state.cpus(placed.grant, placed.request.hide_hyperthreads) == candidate.cpus
    ):
        return
    why = "those are not to be had any more"
    if candidate.held is None:
        why = "nothing is known of its grant, and no place of this policy has just those"
    elif not candidate.same:
        why = "it is entitled to something else now"
    noted(state, candidate.container.id, f"it ran on CPUs {candidate.cpus} before: {why}")


def _warm(state: State, candidates: Iterable[Candidate]) -> None:
    """Give dram to those of *candidates* that were placed anew long after their start."""
    for candidate in candidates:
        container_id, mems = candidate.container.id, candidate.mems
        if container_id in state.cold and mems and not state.layout.memory.is_cold(mems):
            state.warm(container_id)


def _keep_all(
    state: State, candidates: Sequence[Candidate], flagged: list[str], *, forced: bool
) -> list[Candidate]:
    """Book what can be kept, what was held before what is read; return who is left."""
    alone = _claimed_once(candidate.cpus for candidate in candidates)
    left = list(candidates)
    # exclusive CPUs first: what is left of a pool after them is what its sharers can be recognised
    # by
    for known, exclusive in ((True, True), (True, False), (False, True), (False, False)):
        rest = []
        for candidate in left:
            grant = None
            if (candidate.request.exclusive > 0) == exclusive:
                if known and candidate.same:
                    grant = candidate.held
                elif not known and candidate.held is None:
                    grant = _read(state, candidate, alone)
            kept = grant is not None and (not forced or _whole(candidate.request, grant))
            if grant is not None and kept and _possible(state, candidate, grant):
                flagged += _keep(state, candidate, grant)
            else:
                rest.append(candidate)
        left = rest
    return left


def _remain(state: State, candidate: Candidate) -> bool:
    """Book what is left of the exclusive CPUs of a container; False if nothing is."""
    held = candidate.held
    if held is None or not held.exclusive:
        return False
    free = state.supply.free_isolated_cpus() if held.isolated else state.supply.free_cpus()
    rest = replace(held, exclusive=held.exclusive & free & state.layout.capacity.available)
    if not rest.exclusive or not _possible(state, candidate, rest):
        return False
    _keep(state, candidate, rest)
    return True


def _keep(state: State, candidate: Candidate, grant: Grant) -> list[str]:
    """Book a grant that is held already; return what is odd about that."""
    texts = keep(state, candidate.container, candidate.request, grant)
    return [f"{candidate.container.full_name}: {text}" for text in texts]


def _order(candidate: Candidate) -> tuple[int, int, int]:
    """Guaranteed exclusive by size, Guaranteed shared, Burstable, BestEffort, each oldest first."""
    request = candidate.request
    if request.exclusive:
        return 0, -request.exclusive, candidate.container.created
    qos = (QoS.GUARANTEED, QoS.BURSTABLE, QoS.BEST_EFFORT).index(request.qos)
    return 1 + qos, 0, candidate.container.created


def _whole(request: Request, grant: Grant) -> bool:
    """Whether *grant* is all that was asked for: less is what hotplug left of it."""
    return len(grant.exclusive) == request.exclusive and grant.shared == request.shared


def _possible(state: State, candidate: Candidate, grant: Grant) -> bool:
    """Whether *grant* can be booked as it is without breaking an invariant of §2."""
    request = candidate.request
    nodes = state.layout.memory.nodes
    if not request.memory_preserve and nodes:
        # where memory is not pinned, the runtime cannot tell a zone
        told = grant.mems or not state.layout.settings.pin_memory
        if not (told and grant.mems <= nodes):
            return False
    if grant.sort is Sort.RESERVED:
        left = 1000 * len(state.layout.capacity.reserved) - state.reserved_milli
        there = candidate.cpus == state.cpus(grant, request.hide_hyperthreads)
        return there or grant.shared <= max(0, left)  # it stays where they are overbooked already
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
    mems = EMPTY if request.memory_preserve else candidate.mems & layout.memory.nodes
    grant = plain_grant(request, top.id, mems)
    if request.sort is Sort.PRESERVE:
        return grant
    if request.sort is Sort.RESERVED:
        return grant if cpus == layout.capacity.reserved else None
    if request.exclusive:
        own = _own(state, request, cpus, alone)
        if own is None or not cpus <= top.cpus:
            return None
        pool = layout.tree.around(cpus)
        mems = mems if candidate.mems else _unpinned(state, candidate, pool)
        grant = replace(grant, exclusive=own, isolated=own <= layout.capacity.isolated, mems=mems)
    elif request.guest and cpus == layout.capacity.reserved:
        pool = top
    else:
        free = state.supply.free_cpus()
        alike = [pool for pool in layout.tree.pools if cpus and pool.cpus & free == cpus]
        if not alike:
            return None
        pool = alike[0]
    return replace(grant, pool=pool.id)


def _own(state: State, request: Request, cpus: CPUSet, alone: CPUSet) -> CPUSet | None:
    """Return which of *cpus* are the container's own, None where they cannot be its grant."""
    layout = state.layout
    if request.hide_hyperthreads and len(cpus) < request.exclusive:
        # it shows the lowest of its threads of each core: some above them were booked with these
        cores = [core.cpus for core in layout.machine.cores if not core.cpus.isdisjoint(cpus)]
        free = state.supply.free_cpus() | state.supply.free_isolated_cpus()
        lower = (core & CPUSet(range((core & cpus).lowest)) for core in cores)
        threads = (CPUSet.union(cores) - CPUSet.union(lower)) & free
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


def _unpinned(state: State, candidate: Candidate, pool: Pool) -> CPUSet:
    """Return a zone for a container whose memory nobody has pinned yet, if there is room in it.

    The kubelet's static CPU manager leaves containers so: they keep their CPUs all the same.
    """
    memory = memory_request(state, candidate.container, candidate.request, cold=False)
    zone = None if memory is None else state.memory.offers(memory).zone(pool.id)
    if memory is None or zone is None or state.memory.free(zone) < memory.amount:
        return EMPTY
    return zone
