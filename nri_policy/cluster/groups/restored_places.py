"""Restores the places of a group whose object was deleted, from its pods that were let go.

Owns the way from such pods back to places: what an opened gate left in the pod, and its node, say
where the pod is; spec cluster.md §9. The group lacks the places of its other pods. A group also
follows pods that run on where it had lost its places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.shape import Path, Shape
from nri_policy.cluster.engine.unit_placement import tree_of
from nri_policy.cluster.groups.assembly import Member, pod_set_names
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.objects.assignment import Assignment, DomainAssignment
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.requests.group import (
    GROUP_LABEL,
    GroupStatus,
    PlacementGroup,
    places_by_pod_set,
)
from nri_policy.cluster.requests.request import (
    Unit,
    Unplaceable,
    exclusive_of,
    is_spread,
    together_of,
    units_of,
)

_HOW_TO_GO_ON = "once all of them are deleted, it is placed anew"


def split_let_go(
    state: ClusterState, known: Members, group: str, members: Sequence[Member]
) -> tuple[Sequence[Member], Sequence[Member]]:
    """Return all pods of a group as before their gates opened, and the pods that were let go.

    *group* is its name. A gate that is being opened counts as open.
    """
    gate, levels = state.settings.groups.gate, state.levels
    before, let_go = [], []
    for each in members:
        asked = known.as_asked(each.pod)
        if asked is not each.pod or _is_let_go(each.pod, group, gate, levels):
            let_go.append(replace(each, pod=asked))
            before.append(_before_gate(each, gate, levels))
        else:
            before.append(each)
    return before, let_go


def _is_let_go(pod: Pod, group: str, gate: str, levels: Collection[str]) -> bool:
    if gate in pod.gates or pod.annotations.get(GROUP_LABEL) != group:
        return False
    return any(level in pod.spec.node_selector for level in levels)


def _before_gate(member: Member, gate: str, levels: Collection[str]) -> Member:
    """Return a pod as its owner made it: behind the gate, without what selects its place."""
    pod = member.pod
    if gate in pod.gates:
        return member
    resized = None if pod.resized is None else _without(pod.resized, levels)
    pod = replace(pod, spec=_without(pod.spec, levels), resized=resized, gates=(*pod.gates, gate))
    return replace(member, pod=pod)


def _without(spec: PodSpec, levels: Collection[str]) -> PodSpec:
    selector = {key: value for key, value in spec.node_selector.items() if key not in levels}
    return replace(spec, node_selector=selector)


def restore_places(
    state: ClusterState, group: PlacementGroup, members: Sequence[Member]
) -> GroupStatus:
    """Return the status of a complete group that has the places of *members*, which were let go.

    Raises DocumentError if the group may not have these places, or none is known.
    """
    pods: dict[str, list[Pod]] = {}
    names = pod_set_names(members, state.levels, group.pod_sets)
    for name, each in zip(names, members, strict=True):
        pods.setdefault(name, []).append(each.pod)
    assignments: dict[str, Assignment] = {}
    try:
        for unit in units_of(group):
            assignments |= _places_of_unit(state, unit, pods)
        _check_domains(state, group, assignments)
    except Unplaceable as refused:
        raise DocumentError("", f"{refused}; {_HOW_TO_GO_ON}") from None
    found = [assignments[each.name] for each in group.pod_sets]
    status = GroupStatus(state="Placed", assignments=found)
    places = places_by_pod_set(replace(group, status=status)).total()
    if not places:
        raise DocumentError("", f"it is not known which places its pods have: {_HOW_TO_GO_ON}")
    return replace(status, given_back=sum(each.count for each in group.pod_sets) - places)


def follow_pods(
    state: ClusterState, known: Members, group: PlacementGroup, members: Sequence[Member]
) -> GroupStatus:
    """Return the status of a placed group with places where its pods are, as its status otherwise.

    Only if all *members* are bound, as many as places, and the group may have such places.
    """
    _, let_go = split_let_go(state, known, group.name, members)
    if len(let_go) < len(members) or not all(each.pod.node for each in members):
        return group.status
    try:
        found = restore_places(state, group, let_go)
    except DocumentError:
        return group.status
    there = replace(group, status=replace(group.status, assignments=found.assignments))
    return there.status if places_by_pod_set(there) == places_by_pod_set(group) else group.status


def _places_of_unit(
    state: ClusterState, unit: Unit, pods: Mapping[str, Sequence[Pod]]
) -> dict[str, Assignment]:
    """Return the assignments of a unit whose *pods*, by pod set, were let go; some may be empty."""
    shape = tree_of(state, unit).shape
    levels = [HOSTNAME] if is_spread(unit.workers) else shape.named_levels
    found = {}
    for name in unit.names:
        places = Counter(_place(shape, levels, pod, state.nodes) for pod in pods.get(name, ()))
        domains = [
            DomainAssignment([*values], count)
            for values, count in sorted(
                places.items(), key=lambda each: (_path(shape, levels, each[0]), each[0])
            )
            if values
        ]
        found[name] = Assignment(name, levels, domains)
    return found


def _place(
    shape: Shape, levels: Sequence[str], pod: Pod, nodes: Mapping[str, ClusterNode]
) -> tuple[str, ...]:
    """Return the values of a pod's place; none if they are not known."""
    node = nodes.get(pod.node)
    labels = {**pod.spec.node_selector, **(node.labels if node is not None else {})}
    named = [each for each in levels if not each.startswith(ZONE_LEVEL)]
    values = (*(labels.get(each, "") for each in named),)
    if not all(values):
        return ()
    if len(named) == len(levels):
        return values
    first, zone = shape.hosts.get(values[-1]), pod.annotations.get(ZONE_ANNOTATION)
    zones = () if first is None else map(shape.values, shape.zones_from(first))
    return next(((*each,) for each in zones if each[-1] == zone), ())


def _path(shape: Shape, levels: Sequence[str], values: Sequence[str]) -> Path:
    """Return the path of a place; none if its node takes no part any more."""
    leaf = shape.find(levels, values) if values else None
    return () if leaf is None else shape.paths[leaf]


def _check_domains(
    state: ClusterState, group: PlacementGroup, assignments: Mapping[str, Assignment]
) -> None:
    """Raise DocumentError for places in several domains of a level of which one is asked for.

    Nodes have other labels by now, or the pods ask for something else than they did.
    """
    together = together_of(group)
    shared = [exclusive_of(group.pod_sets), None if together is None else together.required]
    paths: dict[str, set[Path]] = {}  # of the whole group, by level
    for unit in units_of(group):
        shape, request = tree_of(state, unit).shape, unit.workers.request
        places = [
            _path(shape, assignments[name].levels, each.values)
            for name in unit.names
            for each in assignments[name].domains
        ]
        if request is not None and request.required is not None:
            _check_one(request.required, _above(shape, request.required, places))
        for level in shared:
            if level is not None:
                paths.setdefault(level, set()).update(_above(shape, level, places))
    for level, domains in paths.items():
        _check_one(level, domains)


def _above(shape: Shape, level: str, places: Iterable[Path]) -> set[Path]:
    """Return the domains of *level* that have *places*, as far as these take part."""
    depth = shape.levels.index(level) + 1 if level in shape.levels else 0
    return {path[:depth] for path in places if path and depth}


def _check_one(level: str, domains: Collection[Path]) -> None:
    if len(domains) > 1:
        where = f"{len(domains)} domains of {level}"
        raise DocumentError("", f"its pods are in {where}, and it asks for one: {_HOW_TO_GO_ON}")
