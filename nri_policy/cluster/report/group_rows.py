"""The placement groups of a cluster in rows: their states, pods, and what they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nri_policy.cluster.objects.metadata import Namespaced
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import PlacementGroup, State, named_group

_ORDER: dict[State, int] = {
    "Degraded": 0,
    "Waiting": 1,
    "Unplaceable": 2,
    "Placed": 3,
    "Running": 4,
    "Finished": 5,
}


class GroupRow(Namespaced, frozen=True, rename="camel"):
    """A placement group."""

    state: State
    pods: int
    running: int
    hosts: int  # or other leaves, where it has places
    priority: int
    created: str  # in RFC 3339
    message: str


def make_group_rows(groups: Iterable[PlacementGroup], pods: Iterable[Pod]) -> list[GroupRow]:
    """Return a row for each group: those in need first, then by the order of the queue."""
    running: Counter[tuple[str, str | None]] = Counter()
    for pod in pods:
        if pod.phase == "Running":
            running[pod.namespace, named_group(pod)] += 1
    rows = [
        GroupRow(
            namespace=group.namespace,
            name=group.name,
            state=group.status.state,
            pods=sum(each.count for each in group.pod_sets),
            running=running[group.key],
            hosts=len(
                {(*one.values,) for each in group.status.assignments for one in each.domains}
            ),
            priority=group.priority,
            created=group.created,
            message=group.status.message,
        )
        for group in groups
    ]
    return sorted(
        rows, key=lambda each: (_ORDER[each.state], -each.priority, each.created, each.key)
    )
