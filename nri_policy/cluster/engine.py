"""The engine of the cluster side: nodes, zones, pods and groups in, decisions out.

Owns what is used where. It does no I/O, has no clock, and the same events in whatever order give
the same state. An event changes the leaf of one node and no other; a decision changes nothing: who
carries it out tells the engine by the event of the group that has its assignments.

What counts as used on a node: pods that are bound and not finished (effective requests and a place
among `pods`), but for those of a group that has assignments: these are used by the assignments,
whether the pods run or not, less what finished pods of the group gave back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

from nri_policy.cluster.assignment import Assignment
from nri_policy.cluster.document import PODS, Amounts, DocumentError, join
from nri_policy.cluster.group import GROUP_LABEL, PlacementGroup, Request, Status
from nri_policy.cluster.node import HOSTNAME, Node
from nri_policy.cluster.placement import assign
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.replacement import replace_failed
from nri_policy.cluster.request import Refused, Unit, asks, check_request, units
from nri_policy.cluster.settings import ZONE_LEVEL, Settings, Topology
from nri_policy.cluster.spreading import SpreadTree, read_preferences
from nri_policy.cluster.tree import Path, Tree
from nri_policy.cluster.zone import NodeZones
from nri_policy.wording import counted, did_you_mean, quoted

POD_SET_LABEL = "placement.nri/pod-set"

MAX_SPREADS = 8  # trees of label values that are kept; the least recently used goes first

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class Usage:
    """Pods that an assignment puts somewhere: *count* times *amounts* at a leaf."""

    levels: Sequence[str]
    values: Sequence[str]
    amounts: Amounts
    count: int
    reported: int = 0  # of them that run: what the zones of their node have left is without them


class Engine:
    """The state of a cluster, and where groups would go in it."""

    def __init__(
        self,
        settings: Settings,
        nodes: Iterable[Node] = (),
        zones: Iterable[NodeZones] = (),
    ) -> None:
        self.settings = settings
        self.nodes: dict[str, Node] = {node.name: node for node in nodes}
        self.groups: dict[Key, PlacementGroup] = {}
        self._zones: dict[str, NodeZones] = {each.node: each for each in zones}
        self._used: dict[str, Amounts] = {}  # node -> what its pods use
        self._pods: dict[Key, tuple[str, Amounts]] = {}  # bound, of no group
        self._members: dict[Key, dict[str, Pod]] = {}  # group -> its bound pods
        self._kinds: dict[tuple[tuple[str, int], ...], Amounts] = {}
        self._trees: dict[tuple[str, int], Tree] = {}  # by topology and types of zones
        self._running: dict[str, int] = {}  # node -> pods that are bound and not finished
        self._spreads: dict[tuple[str, ...], SpreadTree] = {}  # by label keys

    def set_node(self, node: Node) -> None:
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

    def set_zones(self, zones: NodeZones) -> None:
        """Take in what a node's zones have left."""
        if self._zones.get(zones.node) != zones:
            self._zones[zones.node] = zones
            self._drop_zone_trees()

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
            with self._recounted(key):
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
        for key, members in self._members.items():
            if key[0] == namespace and name in members:
                if not members[name].finished:
                    self._run(members[name].node, -1)
                with self._recounted(key):
                    del members[name]
                if not members:
                    del self._members[key]
                return

    def pods(self) -> dict[Key, tuple[str, Amounts]]:
        """Return the bound pods of no group: their nodes and what they request."""
        return dict(self._pods)

    def set_group(self, group: PlacementGroup) -> None:
        """Take in that a group came or changed; its assignments are in use."""
        key = (group.namespace, group.name)
        with self._recounted(key):
            self.groups[key] = group

    def remove_group(self, namespace: str, name: str) -> None:
        """Take in that a group went; its pods that still run count as any others."""
        key = (namespace, name)
        with self._recounted(key):
            self.groups.pop(key, None)

    def kind(self, amounts: Amounts) -> Amounts:
        """Return *amounts* with the place among `pods`, one object for all that are equal."""
        key = tuple(sorted(amounts.items()))
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = {**amounts, PODS: amounts.get(PODS, 0) + 1}
        return found

    def place(self, group: PlacementGroup) -> Status:
        """Return the status of *group* if it were placed now, or its failed nodes replaced.

        Nothing changes. Raises DocumentError for a request that breaks a rule.
        """
        own = (group.namespace, group.name)
        replacing = bool(group.status.assignments and group.status.unhealthy_nodes)
        steps = [unit for unit in units(group) if unit.workers.count]
        nothing_asked = implied(steps)
        taken: list[Usage] = []
        assignments: dict[str, Assignment] = {}
        try:
            trees = [self.tree_of(unit) for unit in steps]  # all, before something is taken
            if not replacing and own in self.groups:
                taken += _undone(self._in_use(own))
                self._apply(taken, 1)
            for number, (unit, tree) in enumerate(zip(steps, trees, strict=True)):
                if replacing:
                    new, whole = replace_failed(
                        tree,
                        unit,
                        group.status,
                        self.settings,
                        implied=nothing_asked,
                        paths=self._paths(tree, group.status.unhealthy_nodes),
                    )
                else:
                    new = whole = assign(tree, unit, self.settings, implied=nothing_asked)
                assignments |= whole
                if number < len(steps) - 1:
                    for pod_set in unit.pod_sets:
                        if pod_set.name in new:
                            kind = self.kind(pod_set.template.spec.effective())
                            used = _usages(new[pod_set.name], kind)
                            taken += used
                            self._apply(used, 1)
        except Refused as refused:
            return Status(state="Unplaceable", message=str(refused))
        finally:
            self._apply(taken, -1)
        ordered = [assignments[each.name] for each in group.pod_sets if each.name in assignments]
        return Status(state="Placed", assignments=ordered)

    def spread(
        self, group: PlacementGroup, failures: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, int]:
        """Return how many new pods of *group* each node would get; under "" those without a place.

        Its pod sets go one after the other, each sees those before. Balance counts the group's
        running pods. *failures* are recent ones of the group's pods, by node. Nothing changes.
        Raises DocumentError for a request that breaks a rule.
        """
        own: Counter[str] = Counter(
            pod.node
            for pod in self._members.get((group.namespace, group.name), {}).values()
            if not pod.finished
        )
        placed: Counter[str] = Counter()
        taken: list[tuple[str, Amounts, int]] = []
        try:
            for number, pod_set in enumerate(group.pod_sets):
                request = pod_set.request or Request()
                path = f"spec.podSets[{number}].request"
                check_request(request, path)
                preferences = read_preferences(request.spread_over, join(path, "spreadOver"))
                tree = self._spread_tree([each.key for each in preferences])
                tolerations = self._topology(request.topology).tolerations
                new, left = tree.spread(pod_set, preferences, tolerations, own + placed, failures)
                placed.update(new | {"": left})
                if number < len(group.pod_sets) - 1:
                    kind = self.kind(pod_set.template.spec.effective())
                    for node, pods in new.items():
                        taken.append((node, kind, pods))
                        self._use(node, kind, pods)
                        self._run(node, pods)
        except Refused as refused:
            raise DocumentError(join(path, "topology"), str(refused)) from None
        finally:
            for node, kind, pods in taken:
                self._use(node, kind, -pods)
                self._run(node, -pods)
        return dict(+placed)

    def _spread_tree(self, keys: list[str]) -> SpreadTree:
        tree = self._spreads.pop(tuple(keys), None)
        if tree is None:
            tree = SpreadTree(keys, self.nodes.values(), self._used, self._running)
            for group in self.groups:
                for usage in self._in_use(group):
                    self._assume(tree, usage, 1)
            if len(self._spreads) == MAX_SPREADS:
                del self._spreads[next(iter(self._spreads))]
        self._spreads[tuple(keys)] = tree
        return tree

    def tree_of(self, unit: Unit) -> Tree:
        """Return the tree on which *unit* is placed; raises Refused.

        It goes below the host only as far as the request names zones.
        """
        request = unit.workers.request or Request()
        topology = self._topology(request.topology)
        named = {request.required, request.preferred, *(each.level for each in request.slices)}
        depth = max(
            (
                number
                for number, kind in enumerate(topology.below_host, 1)
                if ZONE_LEVEL + kind in named
            ),
            default=0,
        )
        for level in sorted(each for each in named if each is not None):
            if level not in topology.every_level:
                raise Refused(self._unknown_level(level, topology))
        return self.tree(topology.name, depth)

    def tree(self, name: str, depth: int = 0) -> Tree:
        """Return the tree of a topology with *depth* types of zones, made anew where it must be."""
        tree = self._trees.get((name, depth))
        if tree is None:
            topology = self._topology(name)
            tree = Tree(
                topology,
                self.nodes.values(),
                self._used,
                hosts=self.tree(name) if depth else None,
                below=topology.below_host[:depth],
                zones=self._zones,
            )
            self._trees[name, depth] = tree
            for key in self.groups:
                for usage in self._in_use(key):
                    self._assume(tree, usage, 1)
        return tree

    def _topology(self, name: str | None) -> Topology:
        if name is None:
            return self.settings.topologies[0]
        for each in self.settings.topologies:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.settings.topologies)
        raise Refused(f"there is no topology {quoted(name)}; there are: {known}")

    def _unknown_level(self, level: str, topology: Topology) -> str:
        """Return that there is no such level, which there are, and how many nodes carry each."""
        labels = Counter(label for node in self.nodes.values() for label in node.labels)
        known = ", ".join(f"{each} ({labels[each]} nodes)" for each in topology.levels)
        if topology.below_host:
            known += "".join(f", {each}" for each in topology.every_level[len(topology.levels) :])
        hint = did_you_mean(level, topology.every_level)
        return (
            f'no requested topology level: {level}{hint}; topology "{topology.name}" has {known};'
            f" {counted(labels[level], 'node')} carry the label {level}"
        )

    def _paths(self, tree: Tree, names: Iterable[str]) -> dict[str, Path]:
        """Return the paths of those nodes that still exist, whether they take part or not."""
        nodes = {name: self.nodes[name] for name in names if name in self.nodes}
        paths = {name: tree.path_of(node) for name, node in nodes.items()}
        return {name: path for name, path in paths.items() if path is not None}

    def _change(self, old: Node | None, new: Node | None) -> None:
        for key, tree in list(self._trees.items()):
            if not tree.change(old, new):
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
    def _recounted(self, key: Key) -> Iterator[None]:
        """Take what a group and its pods use out, and in again as it is then."""
        self._count(key, -1)
        yield
        self._count(key, 1)

    def _count(self, key: Key, times: int) -> None:
        self._apply(self._in_use(key), times)
        group = self.groups.get(key)
        if group is not None and group.status.assignments:
            return
        for pod in self._members.get(key, {}).values():
            if not pod.finished:
                self._use(pod.node, self.kind(pod.spec.effective()), times)

    def _in_use(self, key: Key) -> list[Usage]:
        """Return what a group's assignments use, less what its finished pods gave back."""
        group = self.groups.get(key)
        if group is None or not group.status.assignments:
            return []
        kinds = {each.name: self.kind(each.template.spec.effective()) for each in group.pod_sets}
        finished: Counter[tuple[str, str]] = Counter()
        running: Counter[tuple[str, str]] = Counter()
        for pod in self._members.get(key, {}).values():
            name = pod.labels.get(POD_SET_LABEL) or pod.annotations.get(POD_SET_LABEL, "")
            (finished if pod.finished else running)[name, pod.node] += 1
        usages = []
        for assignment in group.status.assignments:
            for usage in _usages(assignment, kinds.get(assignment.pod_set, {})):
                back = self._take(finished, assignment.pod_set, usage, usage.count)
                left = usage.count - back
                reported = 0
                if len(usage.levels) > 1 and usage.levels[0] == HOSTNAME:
                    reported = self._take(running, assignment.pod_set, usage, left)
                usages.append(replace(usage, count=left, reported=reported))
        return usages

    def _take(self, pods: Counter[tuple[str, str]], pod_set: str, usage: Usage, most: int) -> int:
        """Return how many of *pods* are of *usage*, at most *most*, and take them out."""
        taken = 0
        for name in (pod_set, "") if pods else ():
            for node in self._nodes_named(usage):
                own = min(pods[name, node], most - taken)
                pods[name, node] -= own
                taken += own
        return taken

    def _nodes_named(self, usage: Usage) -> list[str]:
        """Return the nodes at the leaf of *usage*."""
        named = [
            (level, value)
            for level, value in zip(usage.levels, usage.values, strict=True)
            if not level.startswith(ZONE_LEVEL)
        ]
        alike = self.nodes.get(usage.values[0])  # mostly, nodes have the names of their hosts
        if usage.levels[0] == HOSTNAME and alike and alike.labels.get(HOSTNAME) == alike.name:
            return [alike.name]
        return [
            node.name
            for node in self.nodes.values()
            if all(node.labels.get(level) == value for level, value in named)
        ]

    def _apply(self, usages: Iterable[Usage], times: int) -> None:
        for usage in usages:
            for tree in self._made():
                self._assume(tree, usage, times)

    def _assume(self, tree: Tree | SpreadTree, usage: Usage, times: int) -> None:
        place = (usage.levels, usage.values, usage.amounts, times * usage.count)
        if isinstance(tree, Tree):
            tree.assume(*place, reported=times * usage.reported)
        else:
            tree.assume(*place)


def _usages(assignment: Assignment, kind: Amounts) -> list[Usage]:
    return [Usage(assignment.levels, each.values, kind, each.count) for each in assignment.domains]


def _undone(usages: Iterable[Usage]) -> list[Usage]:
    return [replace(each, count=-each.count, reported=-each.reported) for each in usages]


def implied(steps: Iterable[Unit]) -> bool:
    """Return whether some pod set asks for nothing, nor does its mate in a leader group."""
    return any(not any(asks(each.request) for each in unit.pod_sets) for unit in steps)
