"""Announcement: the updates that the runtime must get; spec placement.md §9.

Only differences from what the runtime has are sent. A returned placement counts as sent: it is in
`State.sent` and `State.quotas` afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nri_policy.engine.grant import Decision, Placement
from nri_policy.engine.state.quota import NO_QUOTA, quota_of
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import shares_of
from nri_policy.workload.request import Sort


def announce_placed(
    state: State, container_id: str, free: CPUSet, done: str, *, with_shares: bool
) -> Decision:
    """Return the decision about a container for which *done* was: "placed" or "resized".

    With the updates for others, after the free CPUs were *free* before.
    """
    placed = state.placed[container_id]
    return Decision(
        container_id=container_id,
        grant=placed.grant,
        placement=announce(state, container_id, "asked for", with_shares=with_shares),
        changes=announce_since(state, free, f"{placed.explanation.container} was {done}"),
        explanation=placed.explanation,
    )


def announce(state: State, container_id: str, cause: str, *, with_shares: bool) -> Placement | None:
    """Return the update for a container, None if the runtime has it already; it counts as sent."""
    placed = state.placed[container_id]
    settings, grant, request = state.layout.settings, placed.grant, placed.request
    now = cpus, mems = state.target(placed)
    before, told = state.sent.get(container_id), state.quotas.get(container_id)
    quota = quota_of(placed.container, request, grant, told, pinned=settings.pin_cpu)
    changed = quota != told and NO_QUOTA in (quota, told)  # it knows a change between two limits
    if before == now and not changed and not with_shares:
        return None
    if before is not None and before[1] and mems and before[1] != mems:
        cause = f"{cause}; its memory was on nodes {before[1]} before"
    state.sent[container_id] = now
    state.common.pop(grant.pool, None)
    if quota is not None:
        state.quotas[container_id] = quota
    return Placement(
        cpus=cpus,
        mems=mems,
        shares=shares_of(request.milli)
        if with_shares and cpus and grant.sort is not Sort.PRESERVE
        else None,
        cause=cause,
        quota=quota if changed or (with_shares and quota == NO_QUOTA) else None,
    )


def announce_all(state: State, container_ids: Iterable[str], cause: str) -> dict[str, Placement]:
    """Return the updates for those containers whose place differs from what the runtime has."""
    return {
        each: placement
        for each in container_ids
        if (placement := announce(state, each, cause, with_shares=False)) is not None
    }


def announce_since(state: State, free: CPUSet, cause: str) -> dict[str, Placement]:
    """Return the updates for other containers, after the free CPUs were *free* before.

    Some share free CPUs that changed; some moved, perhaps only to another pool or other memory.
    """
    moved = _announce_moved(state, cause) if state.moved else {}
    changes = _announce_sharers(state, free ^ state.supply.free_cpus(), cause)
    changes |= moved
    if state.unowned:
        changes |= announce_all(state, state.unowned, cause)
    return changes


def _announce_moved(state: State, cause: str) -> dict[str, Placement]:
    """Return the updates for the containers that moved in this event.

    Each has the cause that was noted when it moved, or else *cause*.
    """
    return {
        each: placement
        for each, why in state.moved.items()
        if (placement := announce(state, each, why or cause, with_shares=False)) is not None
    }


def _announce_sharers(state: State, changed: CPUSet, cause: str) -> dict[str, Placement]:
    """Return the updates for the containers that share in a pool with *changed* CPUs.

    In the order of the pools' ids, because their order of use is not in the journal. Every creation
    calls this, so the common placement of a pool's sharers is looked up once, and cached for later
    events.
    """
    placements: dict[str, Placement] = {}
    if not changed or not state.layout.settings.pin_cpu:
        return placements
    pools, free = state.layout.tree.pools, state.supply.free_cpus()
    for pool in sorted(state.sharing):
        if pools[pool].cpus.isdisjoint(changed):
            continue
        cpus = (pools[pool].cpus & free) or state.layout.capacity.reserved
        members = state.sharing[pool]
        known = state.common.get(pool) or _find_common(state, members)
        if known is None:
            placements |= _announce_members(state, members, cpus, cause)
            continue
        if known[0] != cpus:
            known, sent = (cpus, known[1]), state.sent
            for each in members:
                sent[each] = known
            # they have the very same objects in common
            alike = Placement(cpus=cpus, mems=known[1], shares=None, cause=cause)
            placements |= dict.fromkeys(members, alike)
        state.common[pool] = known
    return placements


def _find_common(
    state: State, members: Mapping[str, CPUSet | None]
) -> tuple[CPUSet, CPUSet] | None:
    """Return the common placement that the runtime has of all *members*; None if they differ.

    *members* have the memory that each should have.
    """
    ordinary = members.keys().isdisjoint
    if not (ordinary(state.resizing) and ordinary(state.quotas)):
        return None  # a container in a resize keeps CPUs, so it differs from the others
    sent = [*map(state.sent.get, members)]
    known = sent[0]
    # comparing an object with itself is fast: lists do not look into it
    if known is None or sent.count(known) < len(sent):
        return None
    return known if [*members.values()].count(known[1]) == len(sent) else None


def _announce_members(
    state: State, members: Mapping[str, CPUSet | None], cpus: CPUSet, cause: str
) -> dict[str, Placement]:
    """Return the updates for the sharers of a pool with *cpus*, which differ from each other."""
    placements: dict[str, Placement] = {}
    sent = state.sent
    known = alike = None  # what the runtime has of the previous member, and its update
    now = cpus, EMPTY
    for member, mems in members.items():
        before = sent.get(member)
        if before is not known or alike is None or alike.mems is not mems:
            known, alike = before, None
            if before is not None and before[1] is mems and before[0] != cpus:
                now = cpus, mems
                alike = Placement(cpus=cpus, mems=mems, shares=None, cause=cause)
        if alike is None or member in state.resizing or member in state.quotas:
            if (placement := announce(state, member, cause, with_shares=False)) is not None:
                placements[member] = placement
        else:
            sent[member] = now
            placements[member] = alike
    return placements
