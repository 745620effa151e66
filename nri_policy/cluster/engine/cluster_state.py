"""What is used where in a cluster: nodes, zones, pods and groups, and the trees made of them.

It does no I/O, has no clock, and the same events in whatever order give the same state. An event
changes the leaf of one node and no other.

What counts as used on a node: pods that are bound and not finished (effective requests and a place
among `pods`), but for those of a group that has assignments: these are used by the assignments,
whether the pods run or not, less what finished pods of the group gave back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from nri_policy.cluster.engine.spreading import SpreadTree
from nri_policy.cluster.engine.tree import Tree
from nri_policy.cluster.engine.usage import Usage, in_use
from nri_policy.cluster.engine.zone_tree import ZoneTree
from nri_policy.cluster.objects.document import PODS, Amounts
from nri_policy.cluster.objects.group import GROUP_LABEL, PlacementGroup, is_by_host
from nri_policy.cluster.objects.membership import Key
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.request import Unplaceable
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.objects.zone import NodeZones
from nri_policy.foundation.wording import quoted

MAX_SPREADS = 8  # trees of label values that are kept; the least recently used goes first


class ClusterState:
    """The state of a cluster."""

    def __init__(
        self,
        settings: ClusterSettings,
        nodes: Iterable[ClusterNode] = (),
        zones: Iterable[NodeZones] = (),
    ) -> None:
        self.settings = settings
        self.nodes: dict[str, ClusterNode] = {node.name: node for node in nodes}
        self.groups: dict[Key, PlacementGroup] = {}
        self._zones: dict[str, NodeZones] = {each.node: each for each in zones}
        self._used: dict[str, Amounts] = {}  # node -> what its pods use
        self._pods: dict[Key, tuple[str, Amounts]] = {}  # bound, of no group
        self._members: dict[Key, dict[str, Pod]] = {}  # group -> its bound pods
        self._group_of: dict[Key, Key] = {}  # by pod
        self._kinds: dict[tuple[tuple[str, int], ...], Amounts] = {}
        self._kinds_of: dict[Key, dict[str, Amounts]] = {}  # by group and pod set
        self._trees: dict[tuple[str, int], Tree] = {}  # by topology and types of zones
        self._passing: dict[object, list[Usage]] = {}  # what is assumed for a while
        self._running: dict[str, int] = {}  # node -> pods that are bound and not finished
        self._spreads: dict[tuple[str, ...], SpreadTree] = {}  # by label keys
        self._aside: frozenset[str] = frozenset()  # nodes

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings: what is used where stays, topologies are made anew."""
        self.settings = settings
        self._trees.clear()

    def set_node(self, node: ClusterNode) -> None:
        """Take in that a node came or changed."""
        old = self.nodes.get(node.name)
        if old != node:
            self.nodes[node.name] = node
            self._change(old, node)

    def remove_node(self, name: str) -> None:
        """Take in that a node went; what is used there counts again when it comes back."""
        old = self.nodes.pop(name, None)
        if old is not None:
            self._change(old, None)

    def set_zones(self, zones: NodeZones) -> bool:
        """Take in what a node's zones have left; return whether that changes anything."""
        old = self._zones.get(zones.node)
        if old == zones:
            return False
        self._zones[zones.node] = zones
        for key, tree in list(self._trees.items()):
            if isinstance(tree, ZoneTree) and (old is None or not tree.change_zones(old, zones)):
                del self._trees[key]
        return True

    def remove_zones(self, node: str) -> None:
        """Take in that a node's zones went, or are not to be trusted."""
        if self._zones.pop(node, None) is not None:
            self._drop_zone_trees()

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        self.remove_pod(pod.namespace, pod.name)
        if not pod.node:
            return
        group = pod.labels.get(GROUP_LABEL) or pod.annotations.get(GROUP_LABEL)
        if group is not None:
            if not pod.finished:
                self._run(pod.node, 1)
            key = (pod.namespace, group)
            self._group_of[pod.namespace, pod.name] = key
            with self._recounted(key, pod):
                self._members.setdefault(key, {})[pod.name] = pod
        elif not pod.finished:
            self.bind(pod.namespace, pod.name, pod.node, self.kind(pod.spec.effective()))

    def bind(self, namespace: str, name: str, node: str, kind: Amounts) -> None:
        """Take in a pod of no group that is bound to *node* and requests what `kind` returned."""
        self._pods[namespace, name] = (node, kind)
        self._run(node, 1)
        self._use(node, kind, 1)

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        found = self._pods.pop((namespace, name), None)
        if found is not None:
            self._run(found[0], -1)
            self._use(*found, -1)
            return
        key = self._group_of.pop((namespace, name), None)
        if key is not None:
            members = self._members[key]
            if not members[name].finished:
                self._run(members[name].node, -1)
            with self._recounted(key, members[name]):
                del members[name]
            if not members:
                del self._members[key]

    def pods(self) -> dict[Key, tuple[str, Amounts]]:
        """Return the bound pods of no group: their nodes and what they request."""
        return dict(self._pods)

    def set_group(self, group: PlacementGroup) -> None:
        """Take in that a group came or changed; its assignments are in use."""
        key = (group.namespace, group.name)
        with self._recounted(key):
            self.groups[key] = group
            self._kinds_of.pop(key, None)

    def remove_group(self, namespace: str, name: str) -> None:
        """Take in that a group went; its pods that still run count as any others."""
        key = (namespace, name)
        with self._recounted(key):
            self.groups.pop(key, None)
            self._kinds_of.pop(key, None)

    def kind(self, amounts: Amounts) -> Amounts:
        """Return *amounts* with the place among `pods`, one object for all that are equal."""
        key = tuple(sorted(amounts.items()))
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = {**amounts, PODS: amounts.get(PODS, 0) + 1}
        return found

    @contextmanager
    def assumed(self, usages: list[Usage]) -> Iterator[None]:
        """Count *usages* while in the context, also in trees that are made then.

        Several contexts may end in any order.
        """
        context = object()
        self._passing[context] = usages
        self._apply(usages, 1)
        try:
            yield
        finally:
            del self._passing[context]
            self._apply(usages, -1)

    def set_aside(self, nodes: Collection[str]) -> None:
        """Have nobody use these *nodes*, and all others again.

        While there are any, no node and no zone changes.
        """
        wanted = frozenset(nodes) & self.nodes.keys()
        for tree in self._made():
            for name in self._aside - wanted:
                tree.set_aside(self.nodes[name], -1)
            for name in wanted - self._aside:
                tree.set_aside(self.nodes[name], 1)
        self._aside = wanted

    def _running_of(self, group: Key) -> Counter[str]:
        """Return a group's running pods, by node."""
        members = self._members.get(group, {}).values()
        return Counter(pod.node for pod in members if not pod.finished)

    def _spread_tree(self, keys: list[str]) -> SpreadTree:
        tree = self._spreads.pop(tuple(keys), None)
        if tree is None:
            alike = self._tree_of_all(keys)
            tree = SpreadTree(keys, self.nodes.values(), self._used, self._running, alike)
            if alike is None:
                self._count_in(tree)
            if len(self._spreads) == MAX_SPREADS:
                del self._spreads[next(iter(self._spreads))]
        self._spreads[tuple(keys)] = tree
        return tree

    def _tree_of_all(self, keys: list[str]) -> Tree | None:
        """Return a tree of all nodes, each a leaf below the values of *keys*; None without one."""
        for topology in self.settings.topologies:
            if topology.levels == [*keys, HOSTNAME]:
                tree = self.tree(topology.name)
                return tree if tree.has_all(self.nodes) else None
        return None

    def _count_in(self, tree: Tree | SpreadTree) -> None:
        """Count what assignments use in a new tree."""
        for group in self.groups:
            for usage in self._in_use(group):
                self._assume(tree, usage, 1)
        for usages in self._passing.values():
            for usage in usages:
                self._assume(tree, usage, 1)
        for name in self._aside:
            tree.set_aside(self.nodes[name], 1)

    def tree(self, name: str, depth: int = 0) -> Tree:
        """Return the tree of a topology with *depth* types of zones, made anew where it must be."""
        tree = self._trees.get((name, depth))
        if tree is None:
            topology = self._topology(name)
            nodes = self.nodes.values()
            if depth:
                tree = ZoneTree(
                    topology,
                    nodes,
                    self._used,
                    hosts=self.tree(name),
                    below=topology.below_host[:depth],
                    zones=self._zones,
                )
            else:
                tree = Tree(topology, nodes, self._used)
            self._trees[name, depth] = tree
            self._count_in(tree)
        return tree

    def _topology(self, name: str | None) -> Topology:
        if name is None:
            return self.settings.topologies[0]
        for each in self.settings.topologies:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.settings.topologies)
        raise Unplaceable(f"there is no topology {quoted(name)}; there are: {known}")

    def _change(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        assert not self._aside
        for key, tree in list(self._trees.items()):
            if key in self._trees and not tree.change(old, new):
                del self._trees[key]
                if key[1] == 0:
                    self._drop_zone_trees(key[0])
        for keys, spread in list(self._spreads.items()):
            if not spread.change(old, new):
                del self._spreads[keys]

    def _drop_zone_trees(self, name: str | None = None) -> None:
        for key in list(self._trees):
            if key[1] and name in (None, key[0]):
                del self._trees[key]

    def _use(self, node: str, amounts: Amounts, times: int) -> None:
        used = self._used.get(node)
        if used is None:
            used = self._used[node] = {}
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount * times
        for tree in self._made():
            tree.use(node, amounts, times)

    def _made(self) -> Iterator[Tree | SpreadTree]:
        yield from self._trees.values()
        yield from self._spreads.values()

    def _run(self, node: str, times: int) -> None:
        self._running[node] = self._running.get(node, 0) + times
        for tree in self._spreads.values():
            tree.run(node, times)

    @contextmanager
    def _recounted(self, key: Key, pod: Pod | None = None) -> Iterator[None]:
        """Count anew what a group and its pods use, when they have changed in the context.

        Where only *pod* comes or goes, no more than that may change is counted anew. Both counts
        are known before the first tree changes: whatever is raised, the trees stay as they were.
        """
        group = self.groups.get(key)
        assigned = group is not None and bool(group.status.assignments)
        if pod is None or (assigned and (pod.finished or not is_by_host(group))):
            before = self._in_use(key), self._unassigned(key)
            yield
            after = self._in_use(key), self._unassigned(key)
            for (usages, bound), times in ((before, -1), (after, 1)):
                self._apply(usages, times)
                for node, kind in bound:
                    self._use(node, kind, times)
            return
        times = -1 if pod.name in self._members.get(key, {}) else 1
        kind = self.kind(pod.spec.effective())
        yield
        if not assigned and not pod.finished:  # else its place is in use, whether it runs or not
            self._use(pod.node, kind, times)

    def _unassigned(self, key: Key) -> list[tuple[str, Amounts]]:
        """Return the nodes of a group's running pods, and what each uses, without assignments."""
        group = self.groups.get(key)
        if group is not None and group.status.assignments:
            return []
        members = self._members.get(key, {}).values()
        return [(pod.node, self.kind(pod.spec.effective())) for pod in members if not pod.finished]

    def _in_use(self, key: Key) -> list[Usage]:
        """Return what a group's assignments use, less what its finished pods gave back."""
        group = self.groups.get(key)
        if group is None or not group.status.assignments:
            return []
        kinds = self._kinds_of.get(key)
        if kinds is None:
            kinds = self._kinds_of[key] = {
                each.name: self.kind(each.template.spec.effective()) for each in group.pod_sets
            }
        return in_use(group, self._members.get(key, {}).values(), kinds, self.nodes)

    def _apply(self, usages: Sequence[Usage], times: int) -> None:
        for tree in self._made():
            for usage in usages:
                self._assume(tree, usage, times)

    def _assume(self, tree: Tree | SpreadTree, usage: Usage, times: int) -> None:
        place = (usage.levels, usage.values, usage.amounts, times * usage.count)
        if isinstance(tree, Tree):
            found = tree.assume(*place, reported=times * usage.reported)
        else:
            found = tree.assume(*place)
        if not found:  # what is assigned to a rack takes room of a host once it runs there
            for node, count in usage.running.items():
                tree.use(node, usage.amounts, times * count)
