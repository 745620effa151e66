"""Correction: places containers again whose actual requests differ from the assumed ones."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Described
from nri_policy.engine.grant import Decision, HeldGrant
from nri_policy.engine.placement.degraded_admission import add_notes
from nri_policy.engine.placement.placement import place
from nri_policy.engine.pods.pod_amounts import settle_memory, share_memory
from nri_policy.engine.state.state import State
from nri_policy.engine.updates.announcement import announce_all, announce_since
from nri_policy.workload.amounts import described
from nri_policy.workload.pod import Container


def describe(state: State, event: Described) -> Decision:
    """Apply the requests in a pod's object; place containers again whose requests differ."""
    free = state.supply.free_cpus()
    containers = [state.placed[each].container for each in state.of_pod(event.pod_id)]
    known = [described(each, event.said) for each in containers]
    cause = "its pod's object says what it asks for"
    corrected = correct(state, known, cause)
    settle_memory(state, (event.pod_id,))
    changes = announce_since(state, free, cause)
    return Decision(changes=changes | announce_all(state, corrected, cause))


def correct(state: State, containers: Iterable[Container], cause: str) -> list[str]:
    """Update *containers* with what is known now; return the ids of those that were placed again.

    If nothing fits, a container keeps its grant.
    """
    changed = []
    for known in [each for each in containers if not state.has_stopped(each.id)]:
        placed = state.placed[known.id]
        container, request, _ = state.layout.requests.read_admitted(known)
        _, estimated, _ = state.layout.requests.read_admitted(placed.container)
        state.enter(replace(placed, container=container))
        if container.id in state.resizing:
            continue
        if request.entitlement == estimated.entitlement:  # one that was degraded has less
            asked = replace(placed.asked, steering=request.steering)
            state.enter(
                replace(
                    placed,
                    container=container,
                    request=replace(placed.request, steering=request.steering),
                    explanation=replace(placed.explanation, request=asked),
                )
            )
            continue
        before, deadline = state.snapshot(), state.cold.get(container.id)
        state.drop(container.id, settle=False)
        try:
            request = share_memory(state, container, request)
            held = HeldGrant(grant=placed.grant, booked=placed.request.memory)
            place(state, container, request, held, last=False)
            add_notes(state, container.id, f"placed anew: {cause}")
        except PlacementError as refusal:
            state.restore(before)
            add_notes(state, container.id, f"{cause}, but {refusal}; it keeps what it had")
            continue
        if container.id in state.cold:
            state.cold[container.id] = deadline
        changed.append(container.id)
    return changed
