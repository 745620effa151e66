"""Pods that documents give as one object, and that the service places each on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.assignment import Assignment, DomainAssignment
from nri_policy.cluster.planning.queue_position import without_reserved
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, PodSet, one_alone
from nri_policy.foundation.wording import counted

_Places = dict[tuple[str, ...], Counter[tuple[str, ...]]]  # levels -> values -> pods


def place_singly(
    engine: Engine, group: PlacementGroup, failures: Mapping[str, int] = MappingProxyType({})
) -> tuple[GroupStatus, PlacementGroup | None]:
    """Place each pod of a group on its own; *engine*, a fork, takes them in until one is refused.

    Return where all are, and the pod that was refused. Raises DocumentError.
    """
    (pod_set,) = group.pod_sets
    places: _Places = {}
    for number in range(pod_set.count):
        pod = one_alone(group, number)
        trial = without_reserved(engine, pod)
        status = trial.count_by_zones(pod, trial.place(pod, failures))
        if status.state != "Placed":
            if number:
                fit = f"{number} of {counted(pod_set.count, 'pod')} fit; the next one"
                message = f"{fit}: {status.message}"
                status = replace(status, message=message, assignments=_merge(pod_set, places))
            return status, pod
        engine.state.set_group(replace(pod, status=status))
        for each in status.assignments:
            own = places.setdefault(tuple(each.levels), Counter())
            for one in each.domains:
                own[tuple(one.values)] += one.count
    return GroupStatus(state="Placed", assignments=_merge(pod_set, places)), None


def single_out(engine: Engine, group: PlacementGroup) -> tuple[Engine, PlacementGroup, list[str]]:
    """Return what to ask about a group whose pods are placed singly: the first that is refused.

    It is asked in a fork of *engine* with those before it; if all fit, the first one in *engine*.
    Also return a note about that. Other groups are returned as they are. Raises DocumentError.
    """
    if not group.singly:
        return engine, group, []
    trial = engine.fork()
    status, refused = place_singly(trial, group)
    (pod_set,) = group.pod_sets
    pods = f"each of its {counted(pod_set.count, 'pod')} is placed alone"
    if refused is None:
        return engine, one_alone(group, 0), [f"{group.full_name}: {pods}; all of them fit"]
    number = sum(one.count for each in status.assignments for one in each.domains)
    return trial, refused, [f"{group.full_name}: {pods}; {number} fit, and this is the next one"]


def _merge(pod_set: PodSet, places: _Places) -> list[Assignment]:
    return [
        Assignment(
            pod_set=pod_set.name,
            levels=[*levels],
            domains=[DomainAssignment([*values], pods) for values, pods in sorted(found.items())],
        )
        for levels, found in places.items()
    ]
