"""What is used where: the trees of topologies and of label values, kept up to date.

A tree is made at its first use. To try something, take a fork: it copies the arrays of the trees
that the trial uses, and what it counts stays in the fork.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from nri_policy.cluster.engine.state.group_usages import GroupUsages
from nri_policy.cluster.engine.state.spread_tree import SpreadTree
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.usage import Usage
from nri_policy.cluster.engine.state.zone_tree import ZoneTree
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.request import Unplaceable
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.wording import quoted

MAX_SPREADS = 8  # trees of label values that are kept; the least recently used goes first

_Change = Callable[[Tree | SpreadTree], None]


class Ledger:
    """The trees of a cluster, and what is used in them."""

    def __init__(
        self,
        settings: ClusterSettings,
        view: ClusterView,
        usages: GroupUsages,
        origin: Ledger | None = None,
    ) -> None:
        """Read the cluster and the *usages* of groups again for each new tree.

        A fork has an *origin*.
        """
        self.changes = 0
        # changes of nodes, capacities of zones, settings and lasting pods
        self.generation = 0
        self.releases = 0  # times that something was given back
        self._released: dict[str, int] = {}  # node -> number of its latest release, oldest first
        self._released_anywhere = 0  # the latest of an assignment that names no host
        self.closed: frozenset[str] = frozenset() if origin is None else origin.closed  # nodes
        self._settings = settings
        self._view = view
        self._usages = usages
        self._used: dict[str, Amounts] = {}  # node -> what its pods use
        self._running: dict[str, int] = {}  # node -> pods that are bound and not finished
        self._ending: dict[str, Amounts] = {}  # node -> usage of pods that end by themselves
        self._trees: dict[tuple[str, int], Tree] = {}  # by topology and types of zones
        self._spreads: dict[tuple[str, ...], SpreadTree] = {}  # by label keys
        self._origin = origin
        self._made_at = 0 if origin is None else self._age(origin)
        self._since: list[_Change] = []  # since the fork, for trees that are forked later

    def fork(self) -> Ledger:
        """Return one that goes on by itself, while nothing changes here."""
        return Ledger(self._settings, self._view, self._usages, origin=self)

    def without_usage(self, only: Collection[str] | None, *, lasting: bool = False) -> Ledger:
        """Return one with nothing in use, of this one's nodes or *only* some of them.

        Or just with what pods use that never end by themselves (*lasting*), those of groups that
        have places excepted. Valid until nodes, capacities of zones, settings or lasting pods
        change.
        """
        made = _WithoutUsage(self._settings, self._view, self._usages, self, only)
        if lasting:
            made.use_lasting(self._used, self._ending)
        return made

    @property
    def is_fork(self) -> bool:
        """Whether this ledger was made from another ledger."""
        return self._origin is not None

    def is_up_to_date(self) -> bool:
        """Whether the origin of this fork has not changed since."""
        return self._origin is None or self._age(self._origin) == self._made_at

    def _age(self, origin: Ledger) -> int:
        """Return the number of changes that invalidate this ledger."""
        return origin.changes

    def released_since(self, release: int) -> list[str] | None:
        """Return the nodes where something was given back after a release; None: on any node.

        Forks do not record releases.
        """
        if release < self._released_anywhere:
            return None
        found = []
        for name, number in reversed(self._released.items()):
            if number <= release:
                break
            found.append(name)
        return found

    def _release(self, node: str) -> None:
        self.releases += 1
        self._released.pop(node, None)
        self._released[node] = self.releases

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings: what is used where stays, topologies are made anew."""
        self.changes += 1
        self.generation += 1
        self._settings = settings
        self._trees.clear()

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Take in that a node changed, came (no *old*) or went (no *new*)."""
        assert not self.is_fork
        self.changes += 1
        self.generation += 1
        for key, tree in list(self._trees.items()):
            if key in self._trees and not tree.change(old, new):
                del self._trees[key]
                if key[1] == 0:
                    self._drop_zone_trees(key[0])
        for keys, spread in list(self._spreads.items()):
            if not spread.change(old, new):
                del self._spreads[keys]

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Take in that a node's zones changed, came or went."""
        assert not self.is_fork
        self.changes += 1
        if old is None or new is None or old.without_usage() != new.without_usage():
            self.generation += 1
        self._release(node)
        if new is None:
            self._drop_zone_trees()
            return
        for key, tree in list(self._trees.items()):
            if isinstance(tree, ZoneTree) and (old is None or not tree.change_zones(old, new)):
                del self._trees[key]

    def use(self, node: str, amounts: Amounts, times: int) -> None:
        """Take what a pod requests off its node *times* times."""
        if times < 0 and not self.is_fork:
            self._release(node)
        _add(self._used, node, amounts, times)
        for tree in self._trees.values():
            tree.use(node, amounts, times)
        for spread in self._spreads.values():
            spread.use(node, amounts, times)
        self._note(lambda tree: tree.use(node, amounts, times))

    def use_pods(self, node: str, amounts: Amounts, times: int, *, ends: bool) -> None:
        """Take what a pod of no group requests off its node; it *ends* by itself, or stays."""
        self.use(node, amounts, times)
        if ends:
            _add(self._ending, node, amounts, times)
        else:
            self.generation += 1

    def run(self, node: str, times: int) -> None:
        """Take in that pods began to run on a node, or ended."""
        self._running[node] = self._running.get(node, 0) + times
        for spread in self._spreads.values():
            spread.run(node, times)

        def run(tree: Tree | SpreadTree) -> None:
            if isinstance(tree, SpreadTree):
                tree.run(node, times)

        self._note(run)

    def assume(self, usages: Collection[Usage], times: int) -> None:
        """Take what assignments use off their places *times* times."""
        for usage in usages if times < 0 and not self.is_fork else ():
            if usage.levels[0] == HOSTNAME:
                for place in usage.places:
                    for node in self._view.on_host(place.values[0]):
                        self._release(node.name)
            else:
                self.releases += 1
                self._released_anywhere = self.releases

        def count(tree: Tree | SpreadTree) -> None:
            for usage in usages:
                _assume(tree, usage, times)

        self._each(count)

    def close(self, nodes: Collection[str]) -> None:
        """Close these *nodes* to new pods; trees keep their leaves."""
        assert self.is_fork
        found = [self._view.nodes[name] for name in nodes if name in self._view.nodes]
        closed = [each for each in found if each.name not in self.closed]
        self.closed |= frozenset(each.name for each in closed)

        def close(tree: Tree | SpreadTree) -> None:
            for node in closed:
                tree.close(node)

        self._each(close)

    def tree(self, name: str, depth: int = 0) -> Tree:
        """Return the tree of a topology with *depth* types of zones; raises Unplaceable."""
        tree = self._trees.get((name, depth))
        if tree is None:
            if self._origin is None:
                tree = self._make_tree(self.topology(name), depth)
                self._count_in(tree)
            else:
                tree = self._derive(self._origin.tree(name, depth))
                self._catch_up(tree)
            self._trees[name, depth] = tree
        return tree

    def spread_tree(self, keys: list[str]) -> SpreadTree:
        """Return the tree of all nodes by the values of labels."""
        tree = self._spreads.pop(tuple(keys), None)
        if tree is None:
            if self._origin is None:
                tree = self._make_spread_tree(keys)
            else:
                tree = self._derive_spread(self._origin.spread_tree(keys))
                self._catch_up(tree)
            if len(self._spreads) == MAX_SPREADS:
                del self._spreads[next(iter(self._spreads))]
        self._spreads[tuple(keys)] = tree
        return tree

    def topology(self, name: str | None) -> Topology:
        """Return a topology by name, the first one without; raises Unplaceable."""
        if name is None:
            return self._settings.topologies[0]
        for each in self._settings.topologies:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self._settings.topologies)
        raise Unplaceable(f"there is no topology {quoted(name)}; there are: {known}")

    def _derive(self, tree: Tree) -> Tree:
        return (
            tree.fork(self.tree(tree.shape.topology.name))
            if isinstance(tree, ZoneTree)
            else tree.fork()
        )

    def _derive_spread(self, tree: SpreadTree) -> SpreadTree:
        return tree.fork()

    def _make_tree(self, topology: Topology, depth: int) -> Tree:
        nodes, names = self._view.nodes, sorted(self._view.nodes)
        every = [*nodes.values()]
        if names != [*nodes]:  # mostly, they come by name
            every = [nodes[name] for name in names]
        if not depth:
            return Tree(topology, every, self._used)
        return ZoneTree(
            topology,
            every,
            self._used,
            hosts=self.tree(topology.name),
            below=topology.below_host[:depth],
            zones=self._view.zones,
        )

    def _make_spread_tree(self, keys: list[str]) -> SpreadTree:
        """Return a new tree: from what a topology's tree has counted, if that knows all nodes."""
        nodes, levels = self._view.nodes, [*keys, HOSTNAME]
        for topology in sorted(self._settings.topologies, key=lambda each: each.levels != levels):
            alike = topology.levels == levels
            tree = self.tree(topology.name) if alike else self._trees.get((topology.name, 0))
            if tree is not None and tree.knows_all(nodes):
                return SpreadTree(keys, nodes, self._used, self._running, tree)
        made = SpreadTree(keys, nodes, self._used, self._running)
        self._count_in(made)
        return made

    def _count_in(self, tree: Tree | SpreadTree) -> None:
        """Count what assignments use in a new tree."""
        for usage in self._usages.every():
            _assume(tree, usage, 1)

    def _catch_up(self, tree: Tree | SpreadTree) -> None:
        """Apply the changes made since the fork to a tree that is new in it."""
        assert self.is_up_to_date()
        for change in self._since:
            change(tree)

    def _each(self, change: _Change) -> None:
        """Count a change in every tree."""
        for tree in self._trees.values():
            change(tree)
        for spread in self._spreads.values():
            change(spread)
        self._note(change)

    def _note(self, change: _Change) -> None:
        """Take note of a change that is counted in every tree there is."""
        self.changes += 1
        if self._origin is not None:
            self._since.append(change)

    def _drop_zone_trees(self, name: str | None = None) -> None:
        for key in list(self._trees):
            if key[1] and name in (None, key[0]):
                del self._trees[key]


class _WithoutUsage(Ledger):
    def __init__(
        self,
        settings: ClusterSettings,
        view: ClusterView,
        usages: GroupUsages,
        origin: Ledger,
        only: Collection[str] | None,
    ) -> None:
        super().__init__(settings, view, usages, origin)
        self._only = only

    def use_lasting(self, used: Mapping[str, Amounts], ending: Mapping[str, Amounts]) -> None:
        """Subtract *used* less *ending* amounts, by node, from the nodes of this ledger."""
        nodes = used if self._only is None else self._only
        lasting = [  # computed now: *used* and *ending* change before later trees are built
            (name, _less(used[name], ending.get(name, {}))) for name in nodes if name in used
        ]

        def use(tree: Tree | SpreadTree) -> None:
            for name, amounts in lasting:
                tree.use(name, amounts, 1)

        self._each(use)

    def _age(self, origin: Ledger) -> int:
        return origin.generation

    def _derive(self, tree: Tree) -> Tree:
        if isinstance(tree, ZoneTree):
            return tree.without_usage(
                self._view.nodes, self._only, self.tree(tree.shape.topology.name)
            )
        return tree.without_usage(self._view.nodes, self._only)

    def _derive_spread(self, tree: SpreadTree) -> SpreadTree:
        return tree.without_usage(self._view.nodes, self._only)


def _add(by_node: dict[str, Amounts], node: str, amounts: Amounts, times: int) -> None:
    own = by_node.get(node)
    if own is None:
        own = by_node[node] = {}
    for name, amount in amounts.items():
        own[name] = own.get(name, 0) + amount * times


def _less(amounts: Amounts, others: Amounts) -> Amounts:
    return {name: amount - others.get(name, 0) for name, amount in amounts.items()}


def _assume(tree: Tree | SpreadTree, usage: Usage, times: int) -> None:
    # What is assigned to a rack takes room of a host once it runs there.
    if not tree.assume(usage, times):
        for node, count in usage.running.items():
            tree.use(node, usage.amounts, times * count)
