"""What the assignments of groups use, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.view import ClusterView

POD_SET_LABEL = "placement.nri/pod-set"


class Usage(Struct, frozen=True):
    """Pods that an assignment puts somewhere: *count* times *amounts* at a leaf."""

    levels: Sequence[str]
    values: Sequence[str]
    amounts: Amounts
    count: int
    reported: int = 0  # running pods: reports of zones already subtract their amounts
    running: Mapping[str, int] = field(default_factory=dict)  # by node, where no level is the host


def usages_of(assignment: Assignment, kind: Amounts) -> list[Usage]:
    """Return what an assignment uses if each of its pods uses *kind*."""
    return [Usage(assignment.levels, each.values, kind, each.count) for each in assignment.domains]


def in_use(
    group: PlacementGroup,
    members: Iterable[Pod],
    kinds: Mapping[str, Amounts],
    view: ClusterView,
) -> list[Usage]:
    """Return what a group's assignments use, less what the finished ones of *members* gave back.

    *kinds* are what one pod uses, by pod set.
    """
    finished: Counter[tuple[str, str]] = Counter()
    running: Counter[tuple[str, str]] = Counter()
    for pod in members:
        name = pod.labels.get(POD_SET_LABEL) or pod.annotations.get(POD_SET_LABEL, "")
        (finished if pod.finished else running)[name, pod.node] += 1
    found = []
    unseen = max(0, finished.total() - group.status.given_back)  # the others' places are gone
    for assignment in group.status.assignments:
        for usage in usages_of(assignment, kinds.get(assignment.pod_set, {})):
            back = _take(finished, assignment.pod_set, usage, min(usage.count, unseen), view)
            unseen -= sum(back.values())
            left = usage.count - sum(back.values())
            reported, at = 0, {}
            if HOSTNAME not in usage.levels:
                at = _take(running, assignment.pod_set, usage, left, view)
            elif len(usage.levels) > 1 and usage.levels[0] == HOSTNAME:
                reported = sum(_take(running, assignment.pod_set, usage, left, view).values())
            found.append(Usage(usage.levels, usage.values, usage.amounts, left, reported, at))
    return found


def _take(
    pods: Counter[tuple[str, str]],
    pod_set: str,
    usage: Usage,
    most: int,
    view: ClusterView,
) -> dict[str, int]:
    """Return how many of *pods* are of *usage*, by node, at most *most*; they are taken out."""
    if not pods:
        return {}
    taken: Counter[str] = Counter()
    for name in (pod_set, ""):
        for node in nodes_named(usage.levels, usage.values, view):
            own = min(pods[name, node], most - taken.total())
            pods[name, node] -= own
            taken[node] += own
    return dict(+taken)


def nodes_named(levels: Sequence[str], values: Sequence[str], view: ClusterView) -> list[str]:
    """Return the nodes at the leaf that an assignment's values name."""
    by_host = levels[0] == HOSTNAME
    named = [
        (level, value)
        for level, value in zip(levels, values, strict=True)
        if not level.startswith(ZONE_LEVEL)
    ]
    return [
        node.name
        for node in (view.on_host(values[0]) if by_host else view.nodes.values())
        if all(node.labels.get(level) == value for level, value in named)
    ]
