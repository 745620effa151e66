"""Restart of rooms: places running tenants in their pods' rooms again; spec placement.md §10.

Owns which CPUs a tenant keeps of a changed room, and its grant if the room is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.grant import HeldGrant
from nri_policy.engine.placement.candidate import Candidate
from nri_policy.engine.placement.degraded_admission import add_notes, keep
from nri_policy.engine.placement.placement import place
from nri_policy.engine.placement.room_shares import rest_of, settle, tenant_with
from nri_policy.engine.restart.kept_grants import Restored
from nri_policy.engine.state.state import Placed, State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.request import Sort


def is_tenant(candidate: Candidate, rooms: Collection[str]) -> bool:
    """Return whether *candidate* belongs in one of *rooms*, by the ids of their pods."""
    container = candidate.container
    if container.stands_in or container.claims or candidate.request.sort is not Sort.NORMAL:
        return False
    return container.pod.id in rooms


def evict(candidate: Candidate) -> Candidate:
    """Return a tenant without its room: its slice counts as held, a share does not."""
    held = candidate.held
    if held is None or not held.tenant:
        return candidate
    if not held.exclusive or candidate.request.shares:
        return replace(candidate, held=None, explanation=None)
    return replace(candidate, held=replace(held, tenant=False), explanation=None)


def restore_tenants(
    state: State, candidates: Iterable[Candidate], result: Restored, *, strict: bool
) -> None:
    """Place the tenants of placed rooms, first those that can keep their CPUs.

    A tenant whose slice no longer fits keeps what is left of it, unless the change is *strict*.
    """
    changed = []
    for candidate in candidates:
        room, asked = state.rooms[candidate.container.pod.id], candidate.request.exclusive
        own = _own(state, room, candidate)
        if len(own) >= asked and bool(own) == bool(asked):
            _keep(state, room, candidate, own)
        else:
            changed.append(candidate)
    for candidate in changed:
        container, name = candidate.container, candidate.container.full_name
        held = None if candidate.held is None else HeldGrant(grant=candidate.held)
        try:
            place(state, container, candidate.request, held, last=False)
        except PlacementError as refusal:
            if strict:
                result.flagged.append(f"{name}: {refusal}")
                continue
            room = state.rooms[container.pod.id]
            _keep(state, room, candidate, _own(state, room, candidate))
            add_notes(state, container.id, f"{refusal}; it has fewer now")
            result.flagged.append(f"{name}: {refusal}; it has fewer now")


def _own(state: State, room: Placed, candidate: Candidate) -> CPUSet:
    """Return the remaining CPUs of a slice: those held, or else those it runs on."""
    held, asked, rest = candidate.held, candidate.request.exclusive, rest_of(state, room)
    if held is not None and held.tenant:
        return held.exclusive & rest
    return candidate.cpus if len(candidate.cpus) == asked and candidate.cpus <= rest else EMPTY


def _keep(state: State, room: Placed, candidate: Candidate, own: CPUSet) -> None:
    """Let a tenant have the slice *own*, and of the rest what it shares."""
    request = candidate.request
    grant = tenant_with(room, request, own, rest_of(state, room) - own)
    if pages := request.hugepages:  # where they are, they stay
        had = candidate.mems if candidate.held is None else candidate.held.mems
        grant = replace(grant, mems=grant.mems | (had & state.layout.memory.with_pages_of(pages)))
    keep(state, candidate, grant)
    settle(state, room.container.id)
