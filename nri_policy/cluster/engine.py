"""The engine of the cluster side: nodes, pods and groups in, decisions out.

Owns what is used where. It does no I/O, has no clock, and the same events in whatever order give the same state. An
event changes the leaf of one node and no other; a decision changes nothing: who carries it out tells the engine by
the event of the group that has its assignments.

What counts as used on a node: pods that are bound and not finished (effective requests and a place among `pods`), but
for those of a group that has assignments: these are used by the assignments, whether the pods run or not, less what
finished pods of the group gave back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nri_policy.cluster.document import PODS, Amounts
from nri_policy.cluster.group import GROUP_LABEL, Assignment, PlacementGroup, Status
from nri_policy.cluster.node import HOSTNAME, Node
from nri_policy.cluster.placement import assign
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.replacement import replace_failed
from nri_policy.cluster.request import Refused, asks, units
from nri_policy.cluster.settings import Settings, Topology
from nri_policy.cluster.tree import Path, Tree
from nri_policy.wording import quoted

POD_SET_LABEL = "placement.nri/pod-set"

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class Usage:
    """Pods that an assignment puts somewhere: *count* times *amounts* at a leaf."""

    levels: Sequence[str]
    values: Sequence[str]
    amounts: Amounts
    count: int


class Engine:
    """The state of a cluster, and where groups would go in it."""

    def __init__(self, settings: Settings, nodes: Iterable[Node] = ()) -> None:
        self.settings = settings
        self.nodes: dict[str, Node] = {node.name: node for node in nodes}
        self.groups: dict[Key, PlacementGroup] = {}
        self._used: dict[str, Amounts] = {}  # node -> what its pods use
        self._pods: dict[Key, tuple[str, Amounts]] = {}  # bound, of no group
        self._members: dict[Key, dict[str, Pod]] = {}  # group -> its bound pods
        self._kinds: dict[tuple[tuple[str, int], ...], Amounts] = {}
        self._trees: dict[str, Tree | None] = {each.name: None for each in settings.topologies}

    def set_node(self, node: Node) -> None:
        """A node came or changed."""
        old = self.nodes.get(node.name)
        if old == node:
            return
        self.nodes[node.name] = node
        self._change(old, node)

    def remove_node(self, name: str) -> None:
        """A node went; what is used there counts again when it comes back."""
        old = self.nodes.pop(name, None)
        if old is not None:
            self._change(old, None)

    def set_pod(self, pod: Pod) -> None:
        """A pod came or changed."""
        self.remove_pod(pod.namespace, pod.name)
        if not pod.node:
            return
        group = pod.labels.get(GROUP_LABEL) or pod.annotations.get(GROUP_LABEL)
        if group is not None:
            key = (pod.namespace, group)
            with self._recounted(key):
                self._members.setdefault(key, {})[pod.name] = pod
        elif not pod.finished:
            amounts = self._kind(pod.spec.effective())
            self._pods[pod.namespace, pod.name] = (pod.node, amounts)
            self._use(pod.node, amounts, 1)

    def remove_pod(self, namespace: str, name: str) -> None:
        """A pod went."""
        found = self._pods.pop((namespace, name), None)
        if found is not None:
            self._use(*found, -1)
            return
        for key, members in self._members.items():
            if key[0] == namespace and name in members:
                with self._recounted(key):
                    del members[name]
                if not members:
                    del self._members[key]
                return

    def set_group(self, group: PlacementGroup) -> None:
        """A group came or changed; its assignments are in use."""
        key = (group.namespace, group.name)
        with self._recounted(key):
            self.groups[key] = group

    def remove_group(self, namespace: str, name: str) -> None:
        """A group went; its pods that still run count as any others."""
        key = (namespace, name)
        with self._recounted(key):
            self.groups.pop(key, None)

    def place(self, group: PlacementGroup) -> Status:
        """Return the status of *group* if it were placed now, or its failed nodes replaced.

        Nothing changes. Raises DocumentError for a request that breaks a rule.
        """
        own = (group.namespace, group.name)
        replacing = bool(group.status.assignments and group.status.unhealthy_nodes)
        taken: list[Usage] = []
        if not replacing and own in self.groups:
            taken.extend(self._free(own))
        assignments: dict[str, Assignment] = {}
        try:
            for unit in units(group):
                workers = unit.workers
                if workers.count == 0:
                    continue
                topology = self._topology(workers.request.topology if workers.request else None)
                tree = self.tree(topology.name)
                if replacing:
                    new, kept = replace_failed(
                        tree,
                        unit,
                        group.status,
                        self.settings,
                        implied=implied(group),
                        paths=self._paths(tree, group.status.unhealthy_nodes),
                    )
                else:
                    new = kept = assign(tree, unit, self.settings, implied=implied(group))
                for pod_set in unit.pod_sets:
                    if pod_set.name in kept:
                        assignments[pod_set.name] = kept[pod_set.name]
                        used = self._usages(new[pod_set.name], pod_set.template.spec.effective())
                        taken.extend(used)
                        self._apply(used, 1)
        except Refused as refused:
            return Status(state="Unplaceable", message=str(refused))
        finally:
            self._apply(taken, -1)
        ordered = [assignments[each.name] for each in group.pod_sets if each.name in assignments]
        return Status(state="Placed", assignments=ordered)

    def tree(self, topology: str) -> Tree:
        """Return the tree of a topology, made anew where nodes came that have no place in it."""
        tree = self._trees[topology]
        if tree is None:
            settings = next(each for each in self.settings.topologies if each.name == topology)
            tree = Tree(settings, self.nodes.values(), self._used)
            self._trees[topology] = tree
            for key in self.groups:
                for usage in self._in_use(key):
                    _use_leaf(tree, usage, self._node_of(usage), 1)
        return tree

    def _topology(self, name: str | None) -> Topology:
        if name is None:
            return self.settings.topologies[0]
        for each in self.settings.topologies:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.settings.topologies)
        raise Refused(f"there is no topology {quoted(name)}; there are: {known}")

    def _paths(self, tree: Tree, names: Iterable[str]) -> dict[str, Path]:
        """Return the paths of those nodes that still exist, whether they take part or not."""
        nodes = {name: self.nodes[name] for name in names if name in self.nodes}
        paths = {name: tree.path_of(node) for name, node in nodes.items()}
        return {name: path for name, path in paths.items() if path is not None}

    def _change(self, old: Node | None, new: Node | None) -> None:
        for name, tree in self._trees.items():
            if tree is not None and not tree.change(old, new):
                self._trees[name] = None

    def _use(self, node: str, amounts: Amounts, times: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount * times
        for tree in self._trees.values():
            if tree is not None:
                tree.use(node, amounts, times)

    def _kind(self, amounts: Amounts) -> Amounts:
        """Return *amounts* with the place among `pods`, one object for all that are equal."""
        key = tuple(sorted(amounts.items()))
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = {**amounts, PODS: amounts.get(PODS, 0) + 1}
        return found

    @contextmanager
    def _recounted(self, key: Key) -> Iterator[None]:
        """Take what a group uses out, and in again as it is then."""
        self._apply(self._in_use(key), -1)
        self._count_members(key, -1)
        yield
        self._apply(self._in_use(key), 1)
        self._count_members(key, 1)

    def _count_members(self, key: Key, times: int) -> None:
        """Count the pods of a group where its assignments do not."""
        group = self.groups.get(key)
        if group is not None and group.status.assignments:
            return
        for pod in self._members.get(key, {}).values():
            if not pod.finished:
                self._use(pod.node, self._kind(pod.spec.effective()), times)

    def _in_use(self, key: Key) -> list[Usage]:
        """Return what a group's assignments use, less what its finished pods gave back."""
        group = self.groups.get(key)
        if group is None:
            return []
        kinds = {each.name: each.template.spec.effective() for each in group.pod_sets}
        usages = [
            usage
            for assignment in group.status.assignments
            for usage in self._usages(assignment, kinds.get(assignment.pod_set, {}))
        ]
        return usages

    def _usages(self, assignment: Assignment, amounts: Amounts) -> list[Usage]:
        kind = self._kind(amounts)
        return [
            Usage(assignment.levels, each.values, kind, each.count) for each in assignment.domains
        ]

    def _free(self, key: Key) -> list[Usage]:
        """Give back what a group uses; return what undoes that."""
        used = self._in_use(key)
        self._apply(used, -1)
        return [Usage(each.levels, each.values, each.amounts, -each.count) for each in used]

    def _apply(self, usages: Iterable[Usage], times: int) -> None:
        for usage in usages:
            for tree in self._trees.values():
                if tree is not None:
                    _use_leaf(tree, usage, self._node_of(usage), times)

    def _node_of(self, usage: Usage) -> str | None:
        return usage.values[0] if list(usage.levels) == [HOSTNAME] else None


def _use_leaf(tree: Tree, usage: Usage, node: str | None, times: int) -> None:
    leaf = tree.find(usage.levels, usage.values)
    if leaf is None and node is not None:
        leaf = tree.leaf_of(node)
    if leaf is not None:
        tree.rows.add(leaf, usage.amounts, -times * usage.count)


def implied(group: PlacementGroup) -> bool:
    """Return whether some pod set asks for nothing, nor does its mate in a leader group."""
    return any(not any(asks(each.request) for each in unit.pod_sets) for unit in units(group))
