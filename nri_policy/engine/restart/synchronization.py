"""Synchronization: applies the runtime's list of containers when the daemon registers; §10.

Containers missing in the list are gone, new ones are placed, and all others keep their grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nri_policy.engine.event import StoredGrant, Synchronized
from nri_policy.engine.grant import AGAIN, Decision
from nri_policy.engine.placement.candidate import Candidate, with_stored_grant
from nri_policy.engine.placement.claim_users import with_held_claims
from nri_policy.engine.placement.degraded_admission import add_notes
from nri_policy.engine.placement.resource_claims import hold_again, recall_claims
from nri_policy.engine.placement.room_shares import leave, settle_all
from nri_policy.engine.pods.pod_level import learn_together
from nri_policy.engine.pods.pod_rooms import drop_rooms, living_pods, recall_rooms
from nri_policy.engine.restart.listed_container import deduplicate, match_stored, update_from_list
from nri_policy.engine.restart.restoration import place_and_announce
from nri_policy.engine.state.state import Placed, State
from nri_policy.engine.updates.classification import reclassify, with_limits
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.wording import some
from nri_policy.workload.pod import Container, ContainerState, parse_cpus


def synchronize(state: State, event: Synchronized, earlier: CPUSet | None) -> Decision:
    """Apply the runtime's list; return updates for containers that must run elsewhere.

    Stored grants were made when *earlier* was reserved; None: the present CPUs.
    """
    state.equipment = event.equipment or state.equipment
    before = state.placed.keys() | event.held.keys()
    # §10.4: of two with one name the running, newest one counts
    present = [*deduplicate(event.containers, before)]
    listed_now = {container.id: container.full_name for container in present}
    came = [each.full_name for each in present if before and each.id not in before]
    left = [
        each.full_name
        for key, each in event.held.items()
        if key not in listed_now and each.of_container
    ]
    # §10.5: release containers missing from the list
    stopped = {each for each in state.placed if state.has_stopped(each)} - listed_now.keys()
    gone = [
        each
        for each, placed in state.placed.items()
        if listed_now.get(each) != placed.container.full_name  # another one has its id
        and each not in stopped
    ]
    for each in gone:
        left.append(leave(state, each).container.full_name)
        state.forget(each)
    pods = living_pods(present, event.pods)
    drop_rooms(state, pods.keys() | {state.placed[each].container.pod.id for each in stopped})
    candidates, warnings, deadlines, unread = [], [], {}, {}
    told = state.sent.copy()
    state.common.clear()
    pools = {pool.name: pool.id for pool in state.layout.tree.pools}
    hold_again(state, recall_claims(state, event.held.values()))
    recalled = _recall_all(state, present, event.held)
    for listed, (known, stored) in recalled:
        cpus, mems = parse_cpus(listed.resources.cpus), parse_cpus(listed.resources.mems)
        placed = state.placed.get(listed.id)
        state.list_quota(listed)
        if placed is not None:
            state.sent[listed.id] = cpus, mems
            deadlines[listed.id] = state.cold.get(listed.id)
            candidates += _update_known(state, placed, listed)
            continue
        container, request, notes = state.layout.requests.read_admitted(known)
        if container is not known:
            unread[container.id] = notes[0]
        warnings += [f"{container.full_name}: {note}" for note in notes]
        state.sent[container.id] = cpus, mems
        candidate = Candidate(container=container, request=request, cpus=cpus, mems=mems)
        reclassify(state, container, request, stored)
        if stored is not None:
            there = earlier in {None, state.layout.capacity.reserved}
            candidate = with_stored_grant(candidate, stored, pools, there=there)
            deadlines[container.id] = stored.deadline
        candidates.append(candidate)
    rooms, no_room = recall_rooms(state, pods.values(), candidates, event.held)
    state.end_resizes()  # the list has the new amounts of resized containers
    settle_all(state)
    cause = takeover_cause(left, came, first=earlier is not None)
    decision = place_and_announce(state, [*candidates, *rooms], warnings, cause)
    decision = with_limits(state, _mark_told(decision, told), cause)
    for container_id, note in (unread | no_room).items():
        add_notes(state, container_id, note)
    _recall_deadlines(state, deadlines, event.now)
    return decision


def _recall_deadlines(state: State, deadlines: Mapping[str, float | None], now: float) -> None:
    """Have cold starts end at these *deadlines*, or as late as if they began *now*."""
    for container_id, deadline in state.cold.items():
        running = state.placed[container_id].container.state is ContainerState.RUNNING
        if deadline is None:
            state.cold[container_id] = deadlines.get(container_id)
        if state.cold[container_id] is None and running:  # when it started is not known
            state.heat(container_id, now)
    state.bound_cold(now)


def _mark_told(decision: Decision, told: Mapping[str, tuple[CPUSet, CPUSet]]) -> Decision:
    """Return *decision* with the cause AGAIN for placements that were *told* before."""
    changes = {
        each: replace(change, cause=AGAIN)
        if told.get(each) == (change.cpus, change.mems)
        else change
        for each, change in decision.changes.items()
    }
    return replace(decision, changes=changes)


def _recall_all(
    state: State, present: Iterable[Container], held: Mapping[str, StoredGrant]
) -> list[tuple[Container, tuple[Container, StoredGrant | None]]]:
    """Return listed containers, each as it was known, with its stored grant, if any."""
    listed = [*present]
    recalled = [match_stored(each, held) for each in listed]
    together = learn_together(container for container, _ in recalled)
    return [
        (each, (with_held_claims(container, state.claims), stored))
        for each, container, (_, stored) in zip(listed, together, recalled, strict=True)
    ]


def _update_known(state: State, placed: Placed, listed: Container) -> list[Candidate]:
    """Take in how a known container runs; return it if a missed resize moves it."""
    known = placed.container
    container = update_from_list(known, placed.request.milli, listed)
    if container == known:
        return []
    state.enter(replace(placed, container=container))
    if container.resources == known.resources:
        return []
    request, _ = state.layout.requests.read(container)
    if request == placed.request:
        return []
    state.drop(known.id)
    cpus, mems = state.sent[known.id]
    same = request.entitlement == placed.request.entitlement
    return [
        Candidate(
            container=container,
            request=request,
            cpus=cpus,
            mems=mems,
            held=placed.grant,
            same=same,
            there=True,
            explanation=placed.explanation,
        )
    ]


def takeover_cause(left: list[str], came: list[str], *, first: bool) -> str:
    """Return the cause of changes by a list, with the containers that ended and began meanwhile.

    The runtime lists containers at the *first* registration of the daemon, and at later ones.
    """
    cause = "the daemon took over the running containers"
    if not first:
        cause = "the daemon registered with the runtime again"
    for names, did in (left, "stopped"), (came, "came"):
        cause += f"; {some(names)} {did} meanwhile" if names else ""
    return cause
