"""Pods with pod-level resources (KEP-2837): what their containers show about each other.

Owns when a container is known to be in such a pod. The memory of the pod is booked once: with its
first container that has the pod's limit, less what the others book themselves. Spec placement.md
§3.2; `workload.amounts` has the requests of such containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nri_policy.engine.state.state import State
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.amounts import shows_pod_level
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request


def learn_from_others(state: State, container: Container) -> Container:
    """Return *container*, of a pod with resources as a whole if it or another of it shows that."""
    shown = shows_pod_level(container)
    if not shown and (ids := state.of_pod(container.pod.id)):
        others = [state.placed[each].container for each in ids]
        shown = any(each.pod_level for each in others) or _fills_room(state, container, others)
    return replace(container, pod_level=True) if shown else container


def _fills_room(state: State, container: Container, others: Iterable[Container]) -> bool:
    """Return whether a container of a pod with a room, or one of *others*, has all its CPUs.

    Two containers cannot both have all: then it is the pod's limit, shown as the container's.
    """
    room = state.rooms.get(container.pod.id)
    if room is None or container.pod.qos is not QoS.GUARANTEED:
        return False
    whole = room.container.resources.cpu_limit
    return any(each.resources.cpu_limit == whole for each in (container, *others))


def learn_together(containers: Iterable[Container]) -> list[Container]:
    """Return *containers* that were listed together, with what they show about each other."""
    listed = [*containers]
    shown = {each.pod.id for each in listed if each.pod_level or shows_pod_level(each)}
    return [
        replace(each, pod_level=True)
        if each.pod_level is None and each.pod.id in shown and not each.resized
        else each
        for each in listed
    ]


def mistaken(state: State, container: Container) -> Iterator[Container]:
    """Yield the others of the pod of *container*, which has resources as a whole, as now known."""
    for each in state.of_pod(container.pod.id):
        other = state.placed[each].container
        if other.id != container.id and other.pod_level is None:
            yield replace(other, pod_level=True)


def share_memory(state: State, coming: Container, request: Request) -> Request:
    """Book a pod's memory once, with one more container; return that container's request."""
    pod_id = coming.pod.id
    if pod_id in state.rooms:  # booked with the room
        return replace(request, memory=0) if request.pod_memory else request
    if not request.pod_memory and pod_id not in state.pod_memory:
        return request
    return _share(state, pod_id, (coming, request)) or request


def settle_memory(state: State, pod_ids: Iterable[str]) -> None:
    """Book the memory of each of these pods once, after containers have changed or gone."""
    for pod_id in pod_ids:
        if pod_id in state.pod_memory:
            _share(state, pod_id, None)


def _share(state: State, pod_id: str, coming: tuple[Container, Request] | None) -> Request | None:
    asked = {
        each: (state.placed[each].container.created, state.placed[each].request)
        for each in state.of_pod(pod_id)
    }
    if coming is not None:
        asked[coming[0].id] = coming[0].created, coming[1]
    whole = max(request.pod_memory for _, request in asked.values())
    own = sum(request.memory for _, request in asked.values() if not request.pod_memory)
    left = max(0, whole - own)
    result = None
    for each, (_, request) in sorted(asked.items(), key=lambda item: (item[1][0], item[0])):
        if not request.pod_memory:
            continue
        amount, left = left, 0
        if coming is not None and each == coming[0].id:
            result = replace(request, memory=amount)
        elif request.memory != amount:
            state.book_memory(each, amount)
    return result
