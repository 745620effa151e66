"""Pods with pod-level resources (KEP-2837): what their containers show about each other.

Owns when a container is known to be in such a pod. Spec placement.md §3.2; `workload.amounts` has
the requests of such containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nri_policy.engine.state.state import State
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.amounts import shows_pod_level
from nri_policy.workload.pod import Container


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
