"""Resizing: a running container gets other amounts, and the runtime confirms or refuses them.

Until then, CPUs that the container frees are given to no other. The room of its pod grows with it,
and shrinks when the resize is in force (§3.3.4).
"""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.event import Resized, ResizeEnded
from nri_policy.engine.grant import Decision, join
from nri_policy.engine.lifecycle.correction import correct
from nri_policy.engine.lifecycle.lifecycle import place_container
from nri_policy.engine.placement.candidate import Candidate
from nri_policy.engine.placement.rebooking import bring_back
from nri_policy.engine.placement.room_shares import settle
from nri_policy.engine.pods.pod_amounts import amounts_with, settle_memory, share_amounts
from nri_policy.engine.pods.pod_rooms import fit_room, grow_room, resize_room
from nri_policy.engine.restart.restoration import place_and_announce
from nri_policy.engine.state.quota import as_granted
from nri_policy.engine.state.state import Placed, Resizing, State
from nri_policy.engine.updates.announcement import announce_all, announce_placed, announce_since
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.workload.amounts import resized_requirements
from nri_policy.workload.pod import Container, Resources, check_amounts, overlay


def resize(state: State, event: Resized) -> Decision:
    """Give a container, or a pod's room, its new amounts."""
    free, container_id = state.supply.free_cpus(), event.container_id
    placed = state.placed.get(container_id)
    if placed is None:
        return _resize_pod(state, container_id, event.resources)
    if state.has_stopped(container_id):
        return Decision()
    check_amounts(event.resources)
    resizing = None
    if not event.certain:
        resizing = state.resizing.get(container_id) or Resizing(
            before=placed, sent=state.sent[container_id], kept=EMPTY
        )
    container = placed.container
    asked = as_granted(event.resources, container.resources, container.pod.qos)
    merged = overlay(container.resources, asked)
    if event.pod is not None:
        container = _of_pod(container, event.pod)
    if merged != container.resources:
        requirements = resized_requirements(container, merged)
        container = replace(container, resources=merged, resized=True, requirements=requirements)
    whole = amounts_with(state, placed.container, container)
    container = _of_pod(container, whole)
    grow_room(state, container.pod.id, whole)
    placed = state.placed[container_id]  # its share of the room may have grown
    request, warnings = state.layout.requests.read(container)
    if request.pod_memory and request.pod_memory == placed.request.pod_memory:
        request = replace(request, memory=placed.request.memory)
    # §2: a container that was moved up stays there until its own resize, even to the same amounts
    away = placed.grant.home is not None or placed.grant.returned
    same = request == placed.request
    # a degraded container asks for more than it has anyway, not because of this event
    if (same and not away) or (not same and merged == placed.container.resources):
        state.enter(replace(placed, container=container))
        share_amounts(state, container.pod.id, whole)
        if resizing is not None:
            state.resizing[container_id] = resizing
        else:
            fit_room(state, container.pod.id, whole)
        return announce_placed(state, container_id, free, "resized", with_shares=True)
    deadline = state.cold.get(container_id)
    state.drop(container_id, settle=False)
    decision = place_container(
        state, container, request, free=free, warnings=warnings, before=placed, resizing=resizing
    )
    if container_id in state.cold:
        state.cold[container_id] = deadline
    share_amounts(state, container.pod.id, whole)
    return decision if resizing is not None else _shrink_room(state, decision, placed, whole)


def _shrink_room(
    state: State, decision: Decision, before: Placed, whole: Resources | None
) -> Decision:
    """Leave the room of a resized container's pod no more than *whole*.

    Return *decision* with what follows: one answer for each container, the resized one included.
    """
    free, container = state.supply.free_cpus(), before.container
    fit_room(state, container.pod.id, whole)
    less = announce_since(state, free, f"{container.full_name} was resized")
    placement, own = decision.placement, less.pop(container.id, None)
    if own is not None:
        placement = own if placement is None else own.after(placement)
    now = state.placed[container.id]
    return replace(
        decision,
        grant=now.grant,
        placement=placement,
        changes=join(decision.changes, less),
        explanation=now.explanation,
    )


def _resize_pod(state: State, pod_id: str, resources: Resources) -> Decision:
    """Set the new amounts of a pod, and give them to its room, if it has one."""
    free, room = state.supply.free_cpus(), state.rooms.get(pod_id)
    if room is not None:
        check_amounts(resources)
        resize_room(state, room, resources)
        resources = state.rooms[pod_id].container.resources
    cause = "its pod was resized"
    corrected = correct(state, share_amounts(state, pod_id, resources), cause)
    settle_memory(state, (pod_id,))
    changes = announce_since(state, free, cause)
    return Decision(container_id=pod_id, changes=changes | announce_all(state, corrected, cause))


def _of_pod(container: Container, amounts: Resources | None) -> Container:
    """Return *container* of a pod with these *amounts* in all."""
    return replace(container, pod=replace(container.pod, amounts=amounts))


def end_resize(state: State, event: ResizeEnded) -> Decision:
    """Let others have what a resize has freed, or put a container back that was not resized."""
    free, container_id = state.supply.free_cpus(), event.container_id
    resizing = state.resizing.get(container_id)
    if resizing is None:
        return Decision()
    before, name = resizing.before, resizing.before.container.full_name
    if not event.refused:
        whole = state.placed[container_id].container.pod.amounts
        state.end_resize(container_id)
        settle(state, before.container.pod.id)
        fit_room(state, before.container.pod.id, whole)
        if state.placed[container_id].request.milli < before.request.milli:
            bring_back(state, container_id)
        return Decision(changes=announce_since(state, free, f"{name} was resized"))
    asked, deadline = state.placed[container_id].container, state.cold.get(container_id)
    whole = amounts_with(state, asked, _of_pod(before.container, asked.pod.amounts))
    state.drop(container_id, settle=False)
    del state.sent[container_id]  # what it has now is not certain
    state.common.clear()
    cpus, mems = resizing.sent
    container = _of_pod(replace(before.container, state=asked.state), whole)
    note = "the runtime refused its resize, so it keeps what it had"
    notes = [each for each in before.explanation.notes if each != note]
    candidate = Candidate(
        container=container,
        request=before.request,
        cpus=cpus,
        mems=mems,
        held=before.grant,
        same=resizing.same,
        explanation=replace(before.explanation, notes=(*notes, note)),
    )
    decision = place_and_announce(state, [candidate], [f"{name}: {note}"], note)
    share_amounts(state, container.pod.id, whole)
    free = state.supply.free_cpus()
    fit_room(state, container.pod.id, whole)
    later = announce_since(state, free, note)
    decision = replace(decision, changes=join(decision.changes, later))
    if container_id in state.cold:
        state.cold[container_id] = deadline
    return replace(decision, explanation=state.placed[container_id].explanation)
