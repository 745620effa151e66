"""Opening gates: which place of a group's assignment each waiting pod gets; spec cluster.md §9.

Owns the way from pods and an assignment to places. With a rank on every pod the i-th rank goes to
the i-th place of the assignment, written out; in any doubt each domain is filled up to its count
less the pods that are there or on their way, in the assignment's order, by name. Where the ranks
are clear and only running pods are not where theirs say, as in a group that has grown, by rank. An
ungated pod keeps its place, which its selector names. Pods that ended give theirs back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.groups.assembly import Member
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION

Place = tuple[str, ...]  # values of an assignment's levels


class Ungating(Struct, frozen=True):
    """A pod that may go, where to: labels to select by, and the zone on the node or nothing."""

    pod: Pod
    selector: dict[str, str]
    zone: str = ""

    def opened(self, gate: str) -> Pod:
        """Return the pod after its gate is removed."""
        pod = self.pod
        return replace(
            pod,
            spec=replace(pod.spec, node_selector={**pod.spec.node_selector, **self.selector}),
            annotations={**pod.annotations, **({ZONE_ANNOTATION: self.zone} if self.zone else {})},
            gates=tuple(each for each in pod.gates if each != gate),
        )


class CrowdedPlace(Struct, frozen=True):
    """A place without room for the pod that would get it, and the nodes that have room."""

    opening: Ungating
    roomy: frozenset[str]

    @property
    def pod(self) -> Pod:
        """The pod."""
        return self.opening.pod

    @property
    def host(self) -> str:
        """The host of the place."""
        return self.opening.selector[HOSTNAME]


def assign_gated_pods(
    assignment: Assignment,
    members: Sequence[Member],
    gate: str,
    nodes: Mapping[str, ClusterNode],
    closed: Collection[str] = (),
) -> list[Ungating]:
    """Return the pods of a pod set to let go, by name.

    *members* are its pods that have not ended; *closed* hosts get no new pods, theirs stay gated.
    """
    members = sorted(members, key=lambda each: each.pod.name)
    waiting = [each for each in members if gate in each.pod.gates]
    there = places_of(
        assignment, [each.pod for each in members if gate not in each.pod.gates], nodes
    )
    members = [
        each
        for each in members
        if there.get(each.pod.name, ()) is not None or not _is_lost(each.pod, nodes)
    ]
    places = _by_rank(assignment, members, there)
    if places is None:
        if _are_clear(assignment, members):
            waiting.sort(key=lambda each: each.membership.rank or 0)
        free = _free(assignment, there)
        places = {each.pod.name: place for each, place in zip(waiting, free, strict=False)}
    found = []
    for each in waiting:
        place = places.get(each.pod.name)
        if place is not None and _host(assignment, place) not in closed:
            found.append(_opening(each.pod, assignment, place))
    return found


def places_of(
    assignment: Assignment, pods: Iterable[Pod], nodes: Mapping[str, ClusterNode]
) -> dict[str, Place | None]:
    """Return the places of ungated pods by name, None for a pod outside the assignment.

    A pod without a zone annotation gets any zone of its host.
    """
    known: dict[Place, Place] = {}
    for each in assignment.domains:
        labels, zone = _mark(assignment, each.values)
        known[*labels, zone] = known[*labels, ""] = (*each.values,)
    return {each.name: known.get(_mark_of(assignment, each, nodes)) for each in pods}


def remove_places(
    assignments: Collection[Assignment],
    pods: Mapping[str, Sequence[Pod]],
    lost: Collection[str],
    nodes: Mapping[str, ClusterNode],
) -> tuple[list[Assignment], Counter[str], set[str]]:
    """Return *assignments* without the places that only pods have whose names are *lost*.

    *pods* are the ungated ones by pod set. Also return the number of these places per pod set, and
    their hosts. A place that is no host stays.
    """
    found: list[Assignment] = []
    fewer: Counter[str] = Counter()
    hosts: set[str] = set()
    for assignment in assignments:
        there = places_of(assignment, pods.get(assignment.pod_set, ()), nodes)
        leaving = Counter(place for name, place in there.items() if name in lost)
        staying = Counter(place for name, place in there.items() if name not in lost)
        domains = []
        for each in assignment.domains:
            place = (*each.values,)
            host = _host(assignment, place)
            less = max(0, min(leaving[place], each.count - staying[place])) if host else 0
            if less:
                fewer[assignment.pod_set] += less
                hosts.add(host)
            if each.count > less:
                domains.append(replace(each, count=each.count - less))
        found.append(replace(assignment, domains=domains))
    return found, fewer, hosts


def find_pods_without_place(
    assignments: Collection[Assignment], pods: Collection[Pod], nodes: Mapping[str, ClusterNode]
) -> list[Pod]:
    """Return the pods that were let go, but are where *assignments* have no place for them.

    *pods* are all of these pod sets. Of more pods than places on a host, bound ones go first.
    """
    left: Counter[str | Place] = Counter()
    where: dict[str, str | Place] = {}  # the host of a pod, or what else its place is known by
    for each in assignments:
        for one in each.domains:
            left[_host_or_labels(each, one.values)] += one.count
        for name, place in places_of(each, pods, nodes).items():
            if place is not None:
                where[name] = _host_or_labels(each, place)
    there: dict[str | Place, list[Pod]] = {}
    for pod in pods:
        if pod.name in where and not pod.finished:
            there.setdefault(where[pod.name], []).append(pod)
    found = [each for each in pods if each.name not in where]
    for mark, own in there.items():
        if len(own) > left[mark]:
            found += sorted(own, key=lambda pod: (not pod.node, pod.name))[left[mark] :]
    return found


def _host_or_labels(assignment: Assignment, values: Sequence[str]) -> str | Place:
    return _host(assignment, (*values,)) or _mark(assignment, values)[0]


def _is_lost(pod: Pod, nodes: Mapping[str, ClusterNode]) -> bool:
    """Whether a pod that has no place any more is about to end, or on a node that failed."""
    node = nodes.get(pod.node)
    return pod.deleted or (bool(pod.node) and (node is None or not node.ready))


def _mark(assignment: Assignment, values: Sequence[str]) -> tuple[Place, str]:
    """Return by what a pod shows where it is: the values of labels, and the last zone."""
    labels = [each for each in assignment.levels if not each.startswith(ZONE_LEVEL)]
    zone = values[-1] if len(labels) < len(values) else ""
    return (*values[: len(labels)],), zone


def _mark_of(assignment: Assignment, pod: Pod, nodes: Mapping[str, ClusterNode]) -> Place:
    """Return labels and zone of an ungated pod: from its node, before binding from its selector."""
    node = nodes.get(pod.node)
    labels = {**pod.spec.node_selector, **(node.labels if node is not None else {})}
    levels = [each for each in assignment.levels if not each.startswith(ZONE_LEVEL)]
    zone = pod.annotations.get(ZONE_ANNOTATION, "") if len(levels) < len(assignment.levels) else ""
    return (*(labels.get(level, "") for level in levels), zone)


def _by_rank(
    assignment: Assignment, members: Sequence[Member], there: Mapping[str, Place | None]
) -> dict[str, Place] | None:
    """Return the place of every pod by its rank; None where a rank is in doubt."""
    expanded = [(*each.values,) for each in assignment.domains for _ in range(each.count)]
    if not _are_clear(assignment, members):
        return None
    places = {}
    for each in members:
        assert each.membership.rank is not None
        name, place = each.pod.name, expanded[each.membership.rank]
        if there.get(name, place) != place:
            return None
        places[name] = place
    return places


def _are_clear(assignment: Assignment, members: Sequence[Member]) -> bool:
    """Whether each pod has a rank of its own, for which there is a place."""
    ranks = [each.membership.rank for each in members]
    places = sum(each.count for each in assignment.domains)
    return len({*ranks}) == len(ranks) and all(rank is not None and rank < places for rank in ranks)


def _free(assignment: Assignment, there: Mapping[str, Place | None]) -> list[Place]:
    """Return the empty places in order."""
    taken = Counter(there.values())
    return [
        place
        for each in assignment.domains
        for place in [(*each.values,)] * max(each.count - taken[*each.values,], 0)
    ]


def _opening(pod: Pod, assignment: Assignment, place: Place) -> Ungating:
    pairs = list(zip(assignment.levels, place, strict=True))
    zones = [value for level, value in pairs if level.startswith(ZONE_LEVEL)]
    return Ungating(
        pod=pod,
        selector={level: value for level, value in pairs if not level.startswith(ZONE_LEVEL)},
        zone=zones[-1] if zones else "",
    )


def _host(assignment: Assignment, place: Place) -> str:
    """Return the host of a place, empty where hosts are no level."""
    if HOSTNAME not in assignment.levels:
        return ""
    return place[assignment.levels.index(HOSTNAME)]
