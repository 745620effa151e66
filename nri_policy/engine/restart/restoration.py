"""Restoration: places running containers again; spec placement.md §10.

Owns the order, and reading stored grants. A container without a place gets leftovers: no other
container moves for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict, replace

from nri_policy.classes import Equipment
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Synchronized
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Decision, HeldGrant
from nri_policy.engine.placement.candidate import Candidate, read_stored_grant
from nri_policy.engine.placement.claim_users import choose_by_claims
from nri_policy.engine.placement.degraded_admission import add_notes, admit_degraded, keep
from nri_policy.engine.placement.placement import place
from nri_policy.engine.placement.rebooking import make_room
from nri_policy.engine.placement.resource_claims import complete, end_claims
from nri_policy.engine.pods.pod_amounts import settle_memory
from nri_policy.engine.restart.kept_grants import Restored, keep_all, keep_one, possible
from nri_policy.engine.restart.room_restart import evict, is_tenant, restore_tenants
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.quota import quota_of
from nri_policy.engine.state.state import State
from nri_policy.engine.updates.announcement import announce_all
from nri_policy.foundation.wording import counted
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.capacity import CapacityError
from nri_policy.workload.pod import parse_cpus
from nri_policy.workload.request import Request


def place_and_announce(
    state: State, candidates: Sequence[Candidate], warnings: Iterable[str], cause: str
) -> Decision:
    """Place *candidates* and return their updates, with *warnings* and what was found."""
    found = place_candidates(state, candidates, forced=False, missing=None)
    changes = announce_all(state, state.placed, cause)
    return Decision(changes=changes, warnings=(*warnings, *found))


def place_candidates(
    state: State, candidates: Sequence[Candidate], *, forced: bool, missing: int | None
) -> Sequence[str]:
    """Place *candidates* and return what was found, in words.

    Refuse if one is lost or more than *missing* bytes of memory are short; None: never.
    """
    restored = restore(state, candidates, forced=forced, strict=missing is not None)
    end_claims(state)
    settle_memory(state, state.pod_memory)
    if missing is not None:
        shorter = restored.short if state.memory.missing > missing else []
        if lost := [*restored.flagged, *shorter]:
            raise CapacityError("; ".join(lost))
    return [*restored.flagged, *restored.short, *restored.notes]


def resume(layout: Layout, picture: Synchronized) -> State:
    """Return the state that *picture* was taken of: all that was held then, in the same order.

    ValueError or KeyError where it is no picture of a state on *layout*.
    """
    state = State(layout, picture.equipment or Equipment())
    pools = {pool.name: pool.id for pool in layout.tree.pools}
    for listed in picture.containers:
        stored = picture.held[listed.id]
        container = replace(listed, resized=stored.resized, resources=stored.resources)
        request, _ = layout.requests.read(container)
        candidate = Candidate(
            container=container,
            request=request,
            degraded=Request(**asdict(stored.entitlement), steering=request.steering),
            cpus=parse_cpus(listed.resources.cpus),
            mems=parse_cpus(listed.resources.mems),
        )
        grant = read_stored_grant(stored, pools)
        keep(state, candidate, grant)
        if container.stands_in:  # the runtime knows nothing of it
            continue
        state.sent[container.id] = candidate.cpus, candidate.mems
        pinned = layout.settings.pin_cpu
        quota = quota_of(container, candidate.booked, grant, None, pinned=pinned)
        if quota is not None:
            state.quotas[container.id] = quota
        if stored.classes is not None:
            state.classes[container.id] = stored.classes
        if container.id in state.cold:
            state.cold[container.id] = stored.deadline
    state.latest = max(state.latest, picture.latest)
    settle_memory(state, state.pod_memory)
    return state


def restore(
    state: State,
    candidates: Sequence[Candidate],
    *,
    forced: bool = False,
    strict: bool = False,
) -> Restored:
    """Place all *candidates*, first those that can keep their grants; claims are already booked.

    They run already, so a container that fits nowhere gets what the others leave, unless the change
    is *strict* and can be refused. In a *forced* change CPUs are gone: a container that lost some
    keeps the rest. Tenants are placed after their rooms, or like other containers if their room
    found no place.
    """
    # §10.1 and 10.2: `keep_all`; 10.3: the rest, in order
    result = Restored()
    rooms = state.rooms.keys() | {
        each.container.id for each in candidates if each.container.stands_for_pod
    }
    claim_users = [each for each in candidates if each.container.claims]
    tenants = [each for each in candidates if is_tenant(each, rooms)]
    others = [
        evict(each) for each in candidates if not (each.container.claims or is_tenant(each, rooms))
    ]
    _restore(state, others, result, forced=forced, strict=strict)
    result.flagged += complete(state)
    _restore_claim_users(state, claim_users, result)
    if tenants:
        orphans = [each for each in tenants if each.container.pod.id not in state.rooms]
        _restore(state, [*map(evict, orphans)], result, forced=forced, strict=strict)
        for each in orphans:
            if not strict:
                add_notes(state, each.container.id, result.roomless[each.container.pod.id])
        staying = (each for each in tenants if each.container.pod.id in state.rooms)
        restore_tenants(state, sorted(staying, key=_order), result, strict=strict)
    make_room(state, "other containers keep the last CPUs there")
    return result


def _restore_claim_users(state: State, candidates: Iterable[Candidate], result: Restored) -> None:
    """Place containers that use claims: the claims hold their CPUs, and memory is not moved.

    First those that lost nothing: their shared CPUs beyond the claims stay in their pool.
    """
    nodes = state.layout.memory.nodes

    def keeps(candidate: Candidate) -> bool:
        held = candidate.held
        return held is not None and candidate.same and held.mems <= nodes

    for candidate in sorted(candidates, key=lambda each: (not keeps(each), _order(each))):
        container, request, held = candidate.container, candidate.request, candidate.held
        try:
            if held is None or not keeps(candidate):
                place(state, container, request)
                continue
            claimed = choose_by_claims(state, container, request, held.pool)
        except PlacementError as refusal:
            texts = admit_degraded(state, container, request, refusal)
            result.flagged += [f"{container.full_name}: {text}" for text in texts]
            continue
        grant = replace(claimed.grant, mems=held.mems)
        short = keep(state, replace(candidate, explanation=None), grant, DecisionKind.CLAIMED)
        add_notes(state, container.id, *claimed.uses, *claimed.notes)
        result.short += [f"{container.full_name}: {text}" for text in short]


def _restore(
    state: State,
    candidates: Sequence[Candidate],
    result: Restored,
    *,
    forced: bool,
    strict: bool,
) -> None:
    """Place *candidates*, without tenants, and record the outcomes in *result*."""
    homeless = []
    left = keep_all(state, candidates, result, forced=forced)
    for candidate in sorted(left, key=_order):
        kept = state.holder(candidate.container.id) is not None
        if kept and not candidate.degraded:  # with a part of its grant
            _complete(state, candidate, result)
            continue
        name = candidate.container.full_name
        before, held = state.snapshot(), candidate.held
        if kept:
            state.drop(candidate.container.id, settle=False)
        try:
            known = None if held is None else HeldGrant(grant=held)
            choice = place(state, candidate.container, candidate.request, known, last=False)
            result.notes += [f"{name}: {note}" for note in choice.findings.notes]
            _note_move(state, candidate)
        except PlacementError as refusal:
            state.restore(before)
            if kept:
                result.notes.append(f"{name}: {refusal}; it keeps a part of what it had")
            elif held is not None and not candidate.same and possible(state, candidate, held):
                keep_one(state, candidate, held, result)
                add_notes(state, candidate.container.id, f"{refusal}; it keeps what it had")
                result.flagged.append(f"{name}: {refusal}; it keeps what it had")
            elif strict:
                result.flagged.append(f"{name}: {refusal}")
            elif candidate.container.stands_for_pod:
                result.flagged.append(f"{name}: {refusal}; its containers have no room any more")
                cpus = counted(candidate.request.exclusive, "CPU")
                result.roomless[candidate.container.id] = f"its pod's room of {cpus}: {refusal}"
            else:
                homeless.append((candidate, refusal))
    for candidate, why in homeless:
        texts = admit_degraded(state, candidate.container, candidate.request, why)
        result.flagged += [f"{candidate.container.full_name}: {text}" for text in texts]
        _note_move(state, candidate)
    _warm(state, left)


def _complete(state: State, candidate: Candidate, result: Restored) -> None:
    """Complete the grant of a container, near what is left of it or else in pools above.

    Its exclusive CPUs stay. A container that lost nothing now, but is incomplete since an earlier
    change, stays in its pool.
    """
    container, held = candidate.container, candidate.held
    assert held is not None, "something is left of it"
    tree, whole = state.layout.tree, state.snapshot()
    now = state.holder(container.id)
    assert now is not None, "something is left of it"
    rest = now.grant
    lost = rest.exclusive != held.exclusive or rest.shared != held.shared
    refused = ""
    for pool in tree.path(tree.pools[held.pool]) if lost else (tree.pools[held.pool],):
        state.drop(container.id, settle=False)
        stay = HeldGrant(grant=replace(rest, pool=pool.id), stays=True)
        try:
            choice = place(state, container, candidate.request, stay, last=False)
        except PlacementError as refusal:
            state.restore(whole)
            refused = refused or str(refusal)
            continue
        if not rest.exclusive <= choice.grant.exclusive:  # ordinary CPUs for isolated ones
            state.restore(whole)
            refused = refused or "too few isolated CPUs are left"
            continue
        result.notes += [f"{container.full_name}: {note}" for note in choice.findings.notes]
        _note_move(state, candidate)
        return
    result.flagged.append(f"{container.full_name}: {refused}; it has fewer now")


def _note_move(state: State, candidate: Candidate) -> None:
    """Add to the explanation of a moved container why it did not stay."""
    placed = state.holder(candidate.container.id)
    assert placed is not None, "it has just been placed"
    if (
        not candidate.cpus
        or state.cpus(placed.grant, placed.request.hide_hyperthreads) == candidate.cpus
    ):
        return
    why = "those are no longer available"
    if candidate.held is None:
        why = (
            "there is no record of its placement, and this policy would not place a container on"
            " exactly those"
        )
        if candidate.moved_by:
            why = "nothing of its place is left"
    elif not candidate.same:
        giver = "the settings give" if candidate.moved_by else "its request or the settings give"
        why = f"{giver} it something else now"
    note = f"it ran on CPUs {candidate.cpus} before: {why}"
    if candidate.moved_by:
        note = f"moved by {candidate.moved_by}: {note}"
        if placed.explanation.kind is DecisionKind.RESIZED:  # in its pool, but not resized
            why_here = replace(placed.explanation, kind=DecisionKind.PLACED)
            state.enter(replace(placed, explanation=why_here))
    add_notes(state, candidate.container.id, note)


def _warm(state: State, candidates: Iterable[Candidate]) -> None:
    """Give dram to those of *candidates* that were placed again long after their start."""
    for candidate in candidates:
        container_id, mems = candidate.container.id, candidate.mems
        if container_id in state.cold and mems and not state.layout.memory.is_cold(mems):
            state.warm(container_id)


def _order(candidate: Candidate) -> tuple[int, int, int]:
    """Guaranteed exclusive by size, Guaranteed shared, Burstable, BestEffort, each oldest first."""
    request = candidate.request
    if request.exclusive:
        return 0, -request.exclusive, candidate.container.created
    qos = (QoS.GUARANTEED, QoS.BURSTABLE, QoS.BEST_EFFORT).index(request.qos)
    return 1 + qos, 0, candidate.container.created
