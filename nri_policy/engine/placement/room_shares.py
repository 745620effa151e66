"""Room shares: divides the room of a pod among its containers; spec placement.md §3.3.

A room is an exclusive grant of a pod. A container that stands for the pod holds it, and it is
booked, kept and stored like that of a container. Its tenants book no CPUs, and of the memory only
their huge pages, whose nodes are in their zones beside the room's. A slice is a part of the room's
CPUs; all tenants with a shared part share the rest, the CPUs in no slice.

Rule 1: slices are disjoint, and together with the rest they are the room. Rule 2: after each event
every sharer has the whole rest, or shares its pool's CPUs if there is no rest (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nri_policy.engine.choice.choice import Choice, ChoiceFacts, check_hints, explain
from nri_policy.engine.choice.exclusive_cpus import take
from nri_policy.engine.choice.memory_request import pages_request
from nri_policy.engine.choice.placement_notes import note_missing_pages
from nri_policy.engine.choice.shortage import Lack, PlacementError, memory_shortage
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Grant, HeldGrant
from nri_policy.engine.placement.booking import book
from nri_policy.engine.placement.rebooking import make_room
from nri_policy.engine.state.state import Placed, State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.wording import counted
from nri_policy.pools.memory_offer import MemoryShortageError, Offer
from nri_policy.settings import FullCores
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request, Sort


def place_in_room(
    state: State, container: Container, request: Request, held: HeldGrant | None
) -> Choice | None:
    """Book a container's share of its pod's room (§3.3); None if the container is no tenant.

    Reserved and preserved containers are never tenants, nor are those that use claims. A tenant
    keeps as many CPUs that it *held* as possible. Raises PlacementError.
    """
    room = state.rooms.get(container.pod.id)
    if room is None or request.sort is not Sort.NORMAL or container.stands_in or container.claims:
        return None
    own = EMPTY
    if request.exclusive:
        try:
            own = _slice(state, room, container, request, held)
        except PlacementError as refusal:
            raise explain(state, container, ChoiceFacts(), refusal) from None
    grant = tenant_with(room, request, own, rest_of(state, room) - own)
    check_hints(state, container, request, grant, ChoiceFacts())
    notes: tuple[str, ...] = ()
    if grant.shares:
        notes = ("its pod's room has no CPUs left to share: it shares others",)
    mems = EMPTY if held is None else held.grant.mems
    try:
        offer = _offer_pages(state, room, container, request, mems)
    except MemoryShortageError as error:
        pool = state.layout.tree.pools[grant.pool]
        short = memory_shortage(request, pool, error.shortage)
        raise explain(state, container, ChoiceFacts(), short) from error
    if offer is not None:
        grant = replace(grant, mems=grant.mems | offer.zone)
        notes += note_missing_pages(state, request, offer)
    findings = ChoiceFacts(notes=notes)
    choice = Choice(grant=grant, kind=DecisionKind.TENANT, offer=offer, findings=findings)
    book(state, container, request, choice)
    settle(state, container.pod.id)
    return choice


def _offer_pages(
    state: State, room: Placed, container: Container, request: Request, held: CPUSet
) -> Offer | None:
    """Return the offer of huge pages to a tenant of *room*, None if it asks for none (§3.3).

    On nodes of the room's zone if they fit there. Pages do not move, so the zone includes all
    nodes *held* before. Raises MemoryShortageError.
    """
    memory = pages_request(state, container, request)
    if memory is None:
        return None
    offer = state.memory.offer(room.grant.pool, memory, held)
    having = state.layout.memory.with_pages_of(memory.hugepages)
    zone = (room.grant.mems | held) & having
    if not zone or not (held or state.memory.has_pages(zone, memory.hugepages)):
        zone = (room.grant.mems | offer.zone) & having
    return replace(offer, booking=replace(offer.booking, zone=zone or room.grant.mems))


def tenants(state: State, pod_id: str) -> Iterator[Placed]:
    """Yield the tenants of a pod's room, the oldest first."""
    placed = (state.placed[each] for each in state.of_pod(pod_id))
    found = [each for each in placed if each.grant.tenant]
    yield from sorted(found, key=lambda each: (each.container.created, each.container.id))


def slices_of(state: State, pod_id: str) -> CPUSet:
    """Return the CPUs of a room that are in slices, be it only until the end of a resize."""
    taken = EMPTY
    for each in tenants(state, pod_id):
        taken |= each.grant.exclusive
        if each.container.id in state.resizing:
            taken |= state.resizing[each.container.id].kept
    return taken


def rest_of(state: State, room: Placed) -> CPUSet:
    """Return the CPUs of a room outside of all slices."""
    return room.grant.exclusive - slices_of(state, room.container.id)


def tenant_with(room: Placed, request: Request, own: CPUSet, rest: CPUSet) -> Grant:
    """Return the grant of a tenant with the slice *own*, while *rest* is shared."""
    grant = Grant(
        pool=room.grant.pool,
        sort=Sort.NORMAL,
        exclusive=own,
        isolated=bool(own) and room.grant.isolated,
        shared=0,
        shares=False,
        preemptible=False,
        mems=EMPTY if request.memory_preserve else room.grant.mems,
        tenant=True,
    )
    return _share(room, request, grant, rest)


def _share(room: Placed, request: Request, grant: Grant, rest: CPUSet) -> Grant:
    """Return a tenant's *grant* with the *rest* if it shares, or with its pool's CPUs instead."""
    if grant.exclusive and not request.shares:
        return grant
    if rest:
        pool = room.grant.pool
        return replace(grant, pool=pool, rest=rest, shares=False, preemptible=False)
    if grant.shares:  # in the room or in its pool
        return grant
    return replace(grant, rest=EMPTY, shares=True, preemptible=True)


def _slice(
    state: State, room: Placed, container: Container, request: Request, held: HeldGrant | None
) -> CPUSet:
    """Return exclusive CPUs of *room*: those held, or had before; then those near to its hints."""
    layout, free, steering = state.layout, rest_of(state, room), request.steering
    pool = layout.tree.pools[room.grant.pool]
    if steering.strict_hints:
        free &= layout.topology_hints.bounds(steering.hints).cpus
    if len(free) < request.exclusive:
        text = (
            f"its pod's room of {counted(len(room.grant.exclusive), 'CPU')} has {len(free)} left"
            f" for its {counted(request.exclusive, 'exclusive CPU')}"
        )
        if steering.full_cores is FullCores.REQUIRE:
            text += " (full cores: each container of the room has whole ones)"
        available = 1000 * len(free)
        raise PlacementError(Lack.CPU, request, pool=pool.name, available=available, detail=text)
    before = room.grant.ended.get(container.name, EMPTY) if held is None else held.grant.exclusive
    near = CPUSet.union(layout.topology_hints.localities(steering.hints)) - before
    order = (each - before - near for each in layout.classes[steering.priority])
    classes = tuple(filter(None, (before, near, *order)))
    return take(layout, request, pool, free, classes, None)


def settle(state: State, pod_id: str) -> None:
    """Let the sharers of a pod's room, if it has one, share what its slices leave."""
    room = state.rooms.get(pod_id)
    if room is None:
        return
    rest, displaced = rest_of(state, room), False
    for each in tenants(state, pod_id):
        mems = EMPTY
        if not each.request.memory_preserve:
            mems = state.zone_of_tenant(each.container.id, room.grant.mems)
        grant = _share(room, each.request, replace(each.grant, mems=mems), rest)
        displaced = displaced or grant.shares
        if grant != each.grant:
            state.rebook(each, grant, "its pod's room changed")
    if displaced:
        make_room(state, "other containers keep the last CPUs there")


def settle_all(state: State) -> None:
    """Do so for all rooms."""
    for pod_id in [*state.rooms]:
        settle(state, pod_id)


def leave(state: State, container_id: str) -> Placed:
    """Take the grant of a container that ended back; a restart gets its slice again, if free."""
    placed = state.drop(container_id)
    room = state.rooms.get(placed.container.pod.id)
    if room is not None and placed.grant.tenant and placed.grant.exclusive:
        ended = {**room.grant.ended, placed.container.name: placed.grant.exclusive}
        state.enter(replace(room, grant=replace(room.grant, ended=ended)))
    return placed
