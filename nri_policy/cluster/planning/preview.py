"""Trying groups one after another: each sees the places of earlier groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key, Namespaced
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.foundation.wording import did_you_mean, quoted, some


class DomainPods(Struct, frozen=True, rename="camel"):
    """Pods of a pod set in one domain."""

    pod_set: str
    values: list[str]  # of the domain, outermost first
    pods: int
    leaves: int  # hosts that they are on, where leaves are hosts
    hosts: dict[str, int]  # pods on each of these


class TriedGroup(Namespaced, frozen=True, rename="camel"):
    """What came of a group."""

    status: GroupStatus
    levels: list[str]  # of the values of its parts
    parts: list[DomainPods]
    notes: list[str] = field(default_factory=list)  # what people should know of it
    malformed: bool = False  # whether the request is invalid on any cluster of these levels


def record_placed(state: ClusterState, group: PlacementGroup, status: GroupStatus) -> TriedGroup:
    """Add a placed *group* to the state, by its *status*; return the outcome."""
    placed = replace(group, status=status)
    if status.state == "Placed" and not group.singly:  # its pods are there already
        state.set_group(placed)
    levels, parts = count_by_domain(state, placed)
    return TriedGroup(
        namespace=group.namespace, name=group.name, status=status, levels=levels, parts=parts
    )


def pick_group(groups: Sequence[PlacementGroup], name: str | None, where: str) -> PlacementGroup:
    """Return the only one of *groups*, or that of a name, see `find_group`; raises DocumentError.

    They are in a file, *where*.
    """
    if name is not None:
        named = {each.key: each for each in groups}
        return find_group(named, name, where)
    if len(groups) != 1:
        known = some(each.full_name for each in groups)
        raise DocumentError("", f"{len(groups)} groups in {where}: name one of {known}")
    return groups[0]


def find_group(
    groups: Mapping[Key, PlacementGroup], name: str, where: str = "the cluster"
) -> PlacementGroup:
    """Return the one NAME or NAMESPACE/NAME of the *groups* that are there; raises DocumentError.

    Without a namespace, it is in the one called default, else the only one of that name.
    """
    namespace, _, own = name.rpartition("/")
    group = groups.get((namespace or "default", own))
    if group is None:
        same = [] if namespace else [key for key in groups if key[1] == own]
        if len(same) == 1:
            return groups[same[0]]
        known = [f"{space}/{each}" for space, each in groups]
        names = known if namespace else [each.removeprefix("default/") for each in known]
        hint = did_you_mean(name, names)
        if same:
            hint = f"; did you mean {' or '.join(repr('/'.join(key)) for key in sorted(same)[:2])}?"
        hint = hint or (f"; there are: {some(known)}" if known else ", which has none")
        raise DocumentError("", f"there is no group {quoted(name)} in {where}{hint}")
    return group


def tree_of_hosts(state: ClusterState, group: PlacementGroup) -> Tree:
    """Return the tree of a group's topology, of the first one if there is none of that name."""
    named = next((state.topology_of(each) for each in group.pod_sets if each.request), None)
    return state.tree((named or state.settings.topologies[0]).name)


def count_by_domain(
    state: ClusterState, group: PlacementGroup
) -> tuple[list[str], list[DomainPods]]:
    """Return a group's pods by the domains above their leaves, and the levels of these."""
    tree = tree_of_hosts(state, group)
    depth = max(1, len(tree.shape.levels) - 1)
    parts = []
    for assignment in group.status.assignments:
        pods: Counter[tuple[str, ...]] = Counter()
        leaves: dict[tuple[str, ...], Counter[str]] = {}
        for each in assignment.domains:
            key, leaf = tuple(each.values[:depth]), "/".join(each.values)
            if assignment.levels[0] == HOSTNAME:
                leaf = each.values[0]
                nodes = state.view.on_host(leaf)
                labels = nodes[0].labels if nodes else {}  # spreading goes outside the tree, too
                key = tuple(labels.get(level, "") for level in tree.shape.levels[:depth])
            pods[key] += each.count
            leaves.setdefault(key, Counter())[leaf] += each.count
        parts += [
            DomainPods(
                pod_set=assignment.pod_set,
                values=[*key],
                pods=pods[key],
                leaves=len(leaves[key]),
                hosts=dict(leaves[key]),
            )
            for key in sorted(pods)
        ]
    return [*tree.shape.levels[:depth]], parts
