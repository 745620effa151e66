"""Lifecycle: a container's creation, start and end.

Functions that decide return a Decision. PlacementError and AnnotationError are for the container's
owner; the state may be half changed then, and the engine restores it.
"""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, PodStopped, Started, Stopped
from nri_policy.engine.grant import Decision, HeldGrant
from nri_policy.engine.lifecycle.correction import correct
from nri_policy.engine.placement.claim_users import with_held_claims
from nri_policy.engine.placement.degraded_admission import add_notes, admit_degraded
from nri_policy.engine.placement.placement import place
from nri_policy.engine.placement.rebooking import bring_back
from nri_policy.engine.placement.resource_claims import end_claims
from nri_policy.engine.placement.room_shares import leave, settle
from nri_policy.engine.pods.pod_amounts import settle_memory, share_memory
from nri_policy.engine.pods.pod_level import learn_from_others, mistaken
from nri_policy.engine.pods.pod_rooms import open_room
from nri_policy.engine.state.partition_rules import check_partition
from nri_policy.engine.state.state import Placed, Resizing, State
from nri_policy.engine.updates.announcement import announce_all, announce_placed, announce_since
from nri_policy.engine.updates.classification import (
    add_classes,
    check_tuning,
    classes_of,
    updatable_limits,
)
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.pod import Container, ContainerState, check_amounts
from nri_policy.workload.request import Request


def create(state: State, event: Created) -> Decision:
    """Decide where a new container runs, and which containers move for it."""
    free = state.supply.free_cpus()
    container = event.container
    if container.pod_level is None:
        container = learn_from_others(state, container)
    if event.admitted:
        container = with_held_claims(container, state.claims)
        container, request, warnings = state.layout.requests.read_admitted(container)
    else:
        check_amounts(container.resources)
        request, warnings = state.layout.requests.read(container)
        check_tuning(state, container, request)
        check_partition(container, request, state.equipment)
    # older runtimes have no creation times: assume that it is the latest
    container = replace(container, created=max(container.created, state.latest + 1))
    for stale in (container.id, state.find(container.identity)):
        if stale in state.placed:  # a repeated event, or a predecessor whose end was missed
            leave(state, stale)
            state.forget(stale)
    # §3.3: the first tenant cuts its pod's room
    try:
        no_room = open_room(state, container, request)
    except PlacementError as refusal:
        if not event.admitted:
            raise
        no_room = (str(refusal),)
    cause, corrected = "", []
    if container.pod_level:
        cause = f"{container.full_name} shows that its pod has resources as a whole"
        corrected = correct(state, mistaken(state, container), cause)
    classes, asks = None, request.steering
    asks_class = asks.scheduling_class or asks.blockio_class or asks.rdt_class or asks.cpu_class
    if asks_class or state.layout.gives_classes:
        classes = classes_of(state, container, request, event)
    decision = place_container(
        state,
        container,
        request,
        free=free,
        warnings=warnings,
        notes=no_room,
        admitted=event.admitted,
    )
    if corrected:
        told = announce_all(state, corrected, cause)
        decision = replace(decision, changes={**decision.changes, **told})
    return decision if classes is None else add_classes(state, decision, classes)


def place_container(  # noqa: PLR0913 - what is placed, and what is known of it
    state: State,
    container: Container,
    request: Request,
    *,
    free: CPUSet,
    warnings: tuple[str, ...],
    notes: tuple[str, ...] = (),
    before: Placed | None = None,
    admitted: bool = False,
    resizing: Resizing | None = None,
) -> Decision:
    """Place a container without a grant; return its placement and those of its neighbours.

    *free* are the CPUs that were free before, *before* is its previous placement. An *admitted*
    container gets what is left if there is no room; others raise PlacementError. *notes* are
    warnings that belong to the explanation, too.
    """
    request = share_memory(state, container, request)
    try:
        held = None
        if before is not None:
            held = HeldGrant(grant=before.grant, booked=before.request.memory)
        choice = place(state, container, request, held)
        uses, found = choice.findings.uses, choice.findings.notes
    except PlacementError as refusal:
        if not admitted:
            raise
        uses, found = (), admit_degraded(state, container, request, refusal)
    said = (*warnings, *notes) if admitted else notes
    if said:
        add_notes(state, container.id, *said)
    if resizing is not None:
        state.await_resize(container.id, resizing)
        settle(state, container.pod.id)
    elif (
        before is not None
        and request.milli < before.request.milli
        and not before.grant.tenant  # a tenant's CPUs stay in its pod's room
    ):
        bring_back(state, container.id)
    # a degraded container keeps its original weight
    with_shares = state.placed[container.id].request is request
    decision = announce_placed(state, container.id, free, "placed", with_shares=with_shares)
    remarks = (*warnings, *notes, *found)
    return replace(decision, warnings=remarks, notes=uses) if remarks or uses else decision


def start(state: State, event: Started) -> Decision:
    """Note that a container runs; its cold start, if it has one, begins."""
    placed = state.placed.get(event.container_id)
    if placed is not None and not state.has_stopped(event.container_id):
        running = replace(placed.container, state=ContainerState.RUNNING)
        state.enter(replace(placed, container=running))
    if state.cold.get(event.container_id, 0.0) is None:
        state.heat(event.container_id, event.now)
    return Decision(container_id=event.container_id)


def elapse(state: State, now: float) -> Decision:
    """End the cold starts that are due."""
    free = state.supply.free_cpus()
    state.bound_cold(now)
    due = [each for each, at in state.cold.items() if at is not None and at <= now]
    for container_id in due:
        state.warm(container_id)
    return Decision(changes=announce_since(state, free, "its cold start is over"))


def keep(state: State, container_id: str) -> Decision:
    """Note that a container has stopped, and keeps its grant."""
    if (placed := state.placed.get(container_id)) is not None:
        stopped = replace(placed.container, state=ContainerState.STOPPED)
        state.enter(replace(placed, container=stopped))
    return Decision()


def stop(state: State, event: Stopped | PodStopped) -> Decision:
    """Release a container, or all of a pod and its room; others may spread.

    A container of the pod that keeps its grant is released by its own event, and keeps its part of
    the room until then.
    """
    free = state.supply.free_cpus()
    if isinstance(event, Stopped):
        asked = [event.container_id]
    else:
        asked = [each for each in state.of_pod(event.pod_id) if not state.has_stopped(each)]
    gone = [leave(state, each) for each in asked if each in state.placed]
    freed = [each for each in gone if not each.grant.tenant]  # a slice returns to its room
    for placed in gone:
        state.forget(placed.container.id)
    if (
        isinstance(event, PodStopped)
        and event.pod_id in state.rooms
        and not state.of_pod(event.pod_id)
    ):
        freed.append(state.drop(event.pod_id))
    if state.claims:
        freed += end_claims(state)
    for placed in gone:
        settle(state, placed.container.pod.id)
    if state.layout.settings.shrink_memory:  # §7
        state.shrink_memory()
    if freed and state.away:  # §2: the way back
        bring_back(state)
    if state.pod_memory:  # §3.2: the others share what the pod has booked
        settle_memory(state, {each.container.pod.id: None for each in gone})
    names = tuple(placed.container.full_name for placed in gone)
    subjects = names or [each.container.full_name for each in freed]
    cause = f"{', '.join(subjects)} stopped"
    return Decision(released=names, changes=announce_since(state, free, cause))


def resend(state: State, container_ids: tuple[str, ...]) -> Decision:
    """Send the placements of containers again: the runtime's record does not match reality."""
    placed = [each for each in container_ids if each in state.placed]
    for each in placed:
        del state.sent[each]
    state.common.clear()
    changes = {
        each: replace(change, limits=updatable_limits(state.classes.get(each), state.equipment))
        for each, change in announce_all(state, placed, "it had drifted").items()
    }
    return Decision(changes=changes)
