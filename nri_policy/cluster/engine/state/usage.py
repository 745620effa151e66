"""What the assignments of groups use, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from nri_policy.cluster.objects.assignment import Assignment, DomainAssignment
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.annotations import POD_SET
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.view import ClusterView


class Usage(Struct, frozen=True):
    """Pods that an assignment puts somewhere, each of which uses *amounts* at its leaf."""

    levels: Sequence[str]
    places: Sequence[DomainAssignment]  # one, if some run that count apart
    amounts: Amounts
    reported: int = 0  # running pods: reports of zones already subtract their amounts
    running: Mapping[str, int] = field(default_factory=dict)  # by node, where no level is the host


def usage_of(assignment: Assignment, kind: Amounts) -> Usage:
    """Return what an assignment uses if each of its pods uses *kind*."""
    return Usage(assignment.levels, assignment.domains, kind)


def in_use(
    group: PlacementGroup, members: Iterable[Pod], kinds: Mapping[str, Amounts], view: ClusterView
) -> list[Usage]:
    """Return what a group's assignments use, less what the finished ones of *members* gave back.

    *kinds* are what one pod uses, by pod set.
    """
    finished: Counter[tuple[str, str]] = Counter()
    running: Counter[tuple[str, str]] = Counter()
    for pod in members:
        name = pod.labels.get(POD_SET) or pod.annotations.get(POD_SET, "")
        (finished if pod.finished else running)[name, pod.node] += 1
    found = []
    unseen = max(0, finished.total() - group.status.given_back)  # the others' places are gone
    for assignment in group.status.assignments:
        levels, kind = assignment.levels, kinds.get(assignment.pod_set, {})
        in_racks = HOSTNAME not in levels
        in_zones = len(levels) > 1 and levels[0] == HOSTNAME
        if not unseen and not (running and (in_racks or in_zones)):
            found.append(usage_of(assignment, kind))
            continue
        for place in assignment.domains:
            back = _take(finished, assignment, place.values, min(place.count, unseen), view)
            unseen -= sum(back.values())
            left = place.count - sum(back.values())
            reported, at = 0, {}
            if in_racks:
                at = _take(running, assignment, place.values, left, view)
            elif in_zones:
                reported = sum(_take(running, assignment, place.values, left, view).values())
            there = [DomainAssignment(place.values, left)]
            found.append(Usage(levels, there, kind, reported, at))
    return found


def _take(
    pods: Counter[tuple[str, str]],
    assignment: Assignment,
    values: Sequence[str],
    most: int,
    view: ClusterView,
) -> dict[str, int]:
    """Return how many of *pods* are at a leaf, by node, at most *most*; they are taken out."""
    if not pods:
        return {}
    taken: Counter[str] = Counter()
    for name in (assignment.pod_set, ""):
        for node in find_named_nodes(assignment.levels, values, view):
            own = min(pods[name, node], most - taken.total())
            pods[name, node] -= own
            taken[node] += own
    return dict(+taken)


def find_named_nodes(levels: Sequence[str], values: Sequence[str], view: ClusterView) -> list[str]:
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
