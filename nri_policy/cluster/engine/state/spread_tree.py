"""Spreading: the best balance over the values of labels, from the top down; spec cluster.md §6.

The tree is made of the preferences' values, over every node: a missing label is the empty value.
Pods that run count in their branches whether their nodes take new ones or not.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Self, cast

from msgspec.structs import replace

from nri_policy.cluster.engine.state.filter import Filter, Filters
from nri_policy.cluster.engine.state.known_counts import KnownCounts
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.usage import Usage
from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.matching import Toleration
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.requests.group import PlacementRequest, PodSet
from nri_policy.cluster.requests.spread_preferences import Preference
from nri_policy.foundation.copies import copy_with
from nri_policy.foundation.wording import counted
from nri_policy.native._counts import Counts
from nri_policy.native._domains import Mask, Rows, Vector
from nri_policy.native._node_order import arrange_by_labels
from nri_policy.native._spreading import spread as fill

_OUTSIDE = 255  # code of nodes outside `within`


class SpreadTree:
    """Every node as a leaf, by the values of labels and its name; only some take new pods."""

    def __init__(
        self,
        keys: Sequence[str],
        nodes: Mapping[str, ClusterNode],
        used: Mapping[str, Amounts],
        running: Mapping[str, int],
        tree: Tree | None = None,
    ) -> None:
        """Take by node what its pods use, read again as it changes, and how many they are.

        What a *tree* that knows all nodes has counted is counted here, too.
        """
        self._keys = tuple(keys)
        self._used = used
        self._running = running
        self._gone: dict[int, tuple[str, ...]] = {}  # leaf of a node that went -> its path
        self._counts = KnownCounts()
        self._numbers: dict[str, int]  # node -> number: the node's leaf in the topology's tree
        self._hosts: dict[str, int]  # hostname -> the same
        self._leaves: array[int]  # number -> leaf, -1 for none
        self._nodes: list[ClusterNode]  # by leaf; a deleted node stays in its last form
        self._tainted: set[int]  # leaves
        if tree is None:
            self._count_nodes(nodes)
        elif tree.has_all(len(nodes), self._keys):
            self._copy_tree(tree)
        else:
            self._take_over(tree, nodes)
        self._unlabelled = self._find_unlabelled()
        self._filters = Filters(len(self._nodes))
        self._every = array("i", bytes(4 * len(self._nodes)))
        for name, number in running.items():
            self.run(name, number)

    def _count_nodes(self, nodes: Mapping[str, ClusterNode]) -> None:
        """Count what nodes have, and what their pods use."""
        names = sorted(nodes)
        order = self._arrange([nodes[name] for name in names], array("i", range(len(names))))
        self._numbers = self._hosts = {name: number for number, name in enumerate(names)}
        hosts = [node.labels.get(HOSTNAME, node.name) for node in self._nodes]
        if hosts != [node.name for node in self._nodes]:
            self._hosts = dict(zip(hosts, order, strict=True))
        self._tainted = {leaf for leaf, node in enumerate(self._nodes) if node.taints}
        self.rows = Rows(self.domains)
        self.rows.fill([node.allocatable if _is_open(node) else None for node in self._nodes])
        for name, amounts in self._used.items():
            self.use(name, amounts, 1)

    def _arrange(self, nodes: list[ClusterNode | None], by_name: array[int]) -> array[int]:
        """Make leaves of *nodes* by number; return the numbers in order. Some may have no node."""
        self._leaves = array("i", bytes(4 * len(nodes)))
        self._nodes, order, self.domains = arrange_by_labels(
            nodes, by_name, self._keys, self._leaves
        )
        return order

    def _copy_tree(self, tree: Tree) -> None:
        """Take over a tree of the same labels in which all nodes take part."""
        self._nodes = cast("list[ClusterNode]", [*tree.nodes_by_leaf()])  # it has all
        self._tainted = tree.tainted_leaves()
        self._numbers = self._hosts = tree.shape.hosts
        self._leaves = array("i", range(len(self._nodes)))
        self.domains, self.rows = tree.shape.domains, tree.rows.copy()

    def _take_over(self, tree: Tree, nodes: Mapping[str, ClusterNode]) -> None:
        """Take over what a tree has counted, and count those of *nodes* that take no part there."""
        self._numbers = self._hosts = tree.shape.hosts
        found, paths = tree.nodes_by_leaf(), tree.shape.paths
        out: list[int] = []
        if len(tree.leaves_of_nodes()) < len(found):
            out = [number for number, node in enumerate(found) if node is None]
            found = [*found]
        for number in out:
            found[number] = nodes.get(paths[number][-1])
        order = self._arrange(found, tree.leaves_by_name())
        self.rows = tree.rows.arranged(self.domains, order)
        self._tainted = {self._leaves[number] for number in tree.tainted_leaves()}
        for number in out:
            leaf = self._leaves[number]
            if leaf >= 0:
                self._join(leaf, 1)
                if self._nodes[leaf].taints:
                    self._tainted.add(leaf)

    def fork(self) -> Self:
        """Return a tree that goes on by itself, while no node changes in this one."""
        counts = KnownCounts(self._counts)
        return copy_with(self, rows=self.rows.fork(), _every=self._every[:], _counts=counts)

    def without_usage(
        self, nodes: Mapping[str, ClusterNode], only: Collection[str] | None = None
    ) -> Self:
        """Return a tree of the same leaves with nothing in use, and none but these nodes if any."""
        every = array("i", bytes(4 * len(self._nodes)))
        made = copy_with(self, rows=Rows(self.domains), _every=every, _counts=KnownCounts())
        for name in nodes if only is None else only:
            leaf = self._leaf(name)
            if leaf is not None and _is_open(nodes[name]):
                made.rows.add(leaf, nodes[name].allocatable, 1, 1)
        return made

    def change(self, old: ClusterNode | None, new: ClusterNode | None) -> bool:
        """Take in that a node changed, came (no *old*) or went (no *new*).

        Return False if the tree is to be made anew.
        """
        if len(self._hosts) < len(self._nodes):
            return False  # hostnames that are there twice
        if old is not None:
            leaf = self._leaves[self._numbers[old.name]]
            self._join(leaf, -1)
            self._nodes[leaf] = replace(old, ready=False)
            self._gone[leaf] = self._path(old)
        if new is None:
            return True
        leaf = self._leaves[self._numbers[new.name]] if new.name in self._numbers else -1
        if self._gone.pop(leaf, None) != self._path(new):
            return False
        if self._nodes[leaf].labels.get(HOSTNAME) != new.labels.get(HOSTNAME):
            return False
        self._every[leaf] = self._running.get(new.name, 0)
        self._nodes[leaf] = new
        self._tainted.discard(leaf)
        if new.taints:
            self._tainted.add(leaf)
        self._join(leaf, 1)
        self._filters.update(leaf, new)
        return True

    def use(self, node: str, amounts: Amounts, times: int) -> None:
        """Take what a pod requests off its node *times* times."""
        leaf = self._leaf(node)
        if leaf is not None and _is_open(self._nodes[leaf]):
            self.rows.add(leaf, amounts, -times)

    def assume(self, usage: Usage, times: int) -> bool:
        """Take what pods of an assignment request off the hosts that it names, *times* times.

        Return False if it names none.
        """
        if HOSTNAME not in usage.levels:
            return False
        at = usage.levels.index(HOSTNAME)
        self.rows.take(self._hosts, usage.places, at, usage.amounts, times, self._leaves)
        return True

    def close(self, node: ClusterNode) -> None:
        """Let no pods go to a node."""
        leaf = self._leaf(node.name)
        if leaf is not None and _is_open(node):
            self.rows.add(leaf, {}, 0, -1)

    def run(self, node: str, times: int) -> None:
        """Take in that pods began to run on a node, or ended."""
        leaf = self._leaf(node)
        if leaf is not None:
            self._every[leaf] += times

    def spread(  # noqa: PLR0913, PLR0917 - pods to spread, and others
        self,
        pod_set: PodSet,
        preferences: Sequence[Preference],
        tolerations: Sequence[Toleration],
        own: Mapping[str, int],
        failures: Mapping[str, int],
        within: Collection[str] | None = None,
        limits: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[dict[str, int], int]:
        """Return the pods for each node, and how many find no place.

        *own* are running pods of the pod set by node, *failures* its recent failures by node.
        *preferences* are those that the tree is of, *tolerations* come on top of the pods'. Only
        nodes *within* get pods; None means all nodes. *limits* are how many pods nodes take at
        most.
        """
        spec, request = pod_set.template.spec, pod_set.request or PlacementRequest()
        kind = self._filter(spec, tolerations)
        if within is None and not limits:
            counts = self._count(pod_set.amounts, kind)
        else:
            counts = self._count_once(pod_set.amounts, kind, within, limits)
        places, left = fill(
            counts,
            pod_set.count,
            self._by_leaf(own),
            self._every,
            self._by_leaf(failures),
            packed=[each.packed for each in preferences],
            weights=[self._weights(level, each) for level, each in enumerate(preferences)],
            unlabelled=self._unlabelled,
            most=-1 if request.max_per_host is None else request.max_per_host,
        )
        return {self._nodes[leaf].name: pods for leaf, pods in places}, left

    def find_uneven(
        self,
        pod_set: PodSet,
        tolerations: Sequence[Toleration],
        pods: Mapping[str, int],
        skew: int,
        within: Collection[str] | None,
    ) -> str:
        """Return which two values of the first label differ by more than *skew*, empty if none do.

        *pods* are those of a pod set by node. Values without nodes that may take one, also of
        those *within*, are left out.
        """
        by_value = self._by_value(pods)
        fullest = max(by_value, key=lambda each: (by_value[each], -each), default=-1)
        kind = self._filter(pod_set.template.spec, tolerations)
        for domain in self.domains.of_level(0) if by_value else ():
            less = by_value[fullest] - by_value[domain]
            if less > skew and self._value(domain) and self._takes_any(domain, kind, within):
                full, other = (
                    f"{counted(by_value[each], 'pod')} in {self._value(each)}"
                    for each in (fullest, domain)
                )
                return f"{full} would be too many beside {other}"
        return ""

    def find_shared(self, pods: Mapping[str, int]) -> str:
        """Return a value of the first label that several of *pods*, by node, have, if any."""
        by_value = self._by_value(pods)
        return next((self._value(each) for each, number in by_value.items() if number > 1), "")

    def _by_value(self, pods: Mapping[str, int]) -> Counter[int]:
        """Return pods by the domain of the first label's value."""
        found: Counter[int] = Counter()
        for node, number in pods.items():
            leaf = self._leaf(node)
            if leaf is not None:
                found[self.domains.above(leaf, 0)] += number
        return found

    def _takes_any(self, domain: int, kind: Filter, within: Collection[str] | None) -> bool:
        nodes = self._nodes
        return any(
            _is_open(nodes[leaf])
            and not kind.mask.get(leaf)
            and (within is None or nodes[leaf].name in within)
            for leaf in self.domains.leaves_below(domain)
        )

    def _leaf(self, node: str) -> int | None:
        """Return the leaf of a node; None if the tree has no such node."""
        number = self._numbers.get(node)
        leaf = -1 if number is None else self._leaves[number]
        return None if leaf < 0 or leaf in self._gone else leaf

    def _path(self, node: ClusterNode) -> tuple[str, ...]:
        return (*(node.labels.get(key, "") for key in self._keys), node.name)

    def _join(self, leaf: int, times: int) -> None:
        """Count what a node has left, or no longer."""
        node = self._nodes[leaf]
        if _is_open(node):
            self.rows.add(leaf, node.allocatable, times, times)
            self.rows.add(leaf, self._used.get(node.name, {}), -times)

    def _count(self, pod: Amounts, kind: Filter) -> Counts:
        """Return how many pods fit where; what is known of the last pods is brought up to date."""
        key = frozenset(pod.items()), kind
        return self._counts.find(key, partial(self._count_once, pod, kind))

    def _count_once(
        self,
        pod: Amounts,
        kind: Filter,
        within: Collection[str] | None = None,
        limits: Mapping[str, int] = MappingProxyType({}),
    ) -> Counts:
        mask, most = kind.mask, None
        if within is not None:
            mask = Mask(len(self._nodes), False)
            for leaf, node in enumerate(self._nodes):
                mask.set(leaf, kind.mask.get(leaf) if node.name in within else _OUTSIDE)
        if limits:
            most = [limits.get(node.name, MAX_COUNT) for node in self._nodes]
        return Counts(self.rows, Vector(self.rows, with_place(pod)), mask, most=most)

    def _filter(self, spec: PodSpec, tolerations: Sequence[Toleration]) -> Filter:
        tolerations = (*spec.tolerations, *tolerations)
        affinity = spec.affinity and replace(spec.affinity, preferred=None)
        kind = PodSpec(node_selector=spec.node_selector, affinity=affinity)
        return self._filters.find(kind, tolerations, self._nodes, self._tainted)

    def _by_leaf(self, numbers: Mapping[str, int]) -> array[int]:
        by_leaf = array("i", bytes(4 * len(self._nodes)))
        for node, number in numbers.items():
            leaf = self._leaf(node)
            if leaf is not None:
                by_leaf[leaf] = min(number, MAX_COUNT)
        return by_leaf

    def _find_unlabelled(self) -> list[int]:
        """Return the domains whose nodes lack the label: the empty value is the first of each."""
        if not self._nodes:
            return []
        found: list[int] = []
        firsts = [0]
        for level in range(len(self._keys)):
            found += [each for each in firsts if not self._value(each, level)]
            firsts = [self.domains.children(each).start for each in self.domains.of_level(level)]
        return found

    def _value(self, domain: int, level: int = 0) -> str:
        """Return the value of the label of *level* that the nodes of a domain have."""
        first = self._nodes[self.domains.leaves_below(domain).start]
        return first.labels.get(self._keys[level], "")

    def _weights(self, level: int, preference: Preference) -> dict[int, int]:
        if not preference.weights:
            return {}
        found = {}
        for domain in self.domains.of_level(level):
            value = self._value(domain, level)
            if value in preference.weights:
                found[domain] = preference.weights[value]
        return found


def _is_open(node: ClusterNode) -> bool:
    """Whether a node takes new pods at all."""
    return node.ready and not node.unschedulable
