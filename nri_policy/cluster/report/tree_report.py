"""The tree of a topology as a document: amounts, usage and groups of each domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from nri_policy.cluster.engine.search.unfit_message import group_by_reason
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.zone_tree import ZoneTree
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.requests.group import GroupStatus


class Domain(Struct, frozen=True):
    """A domain; amounts of CPU in milli, all else absolute."""

    level: str
    values: list[str]  # outermost first
    nodes: int
    total: Amounts
    used: Amounts  # more than the total, where pods request more than there is
    free: Amounts
    groups: list[str]  # those with pods there, as namespace/name

    def overbooked(self) -> list[str]:
        """Return the resources of which more is used than there is."""
        return [name for name, amount in self.used.items() if amount > self.total[name]]


class LeftOut(Struct, frozen=True):
    """Nodes outside the tree for one reason."""

    reason: str
    nodes: list[str]


class TreeReport(Struct, frozen=True, rename="camel"):
    """A topology; its domains sorted by path: each domain before its parts."""

    topology: str
    levels: list[str]
    domains: list[Domain]
    left_out: list[LeftOut]


def make_tree_report(state: ClusterState, name: str, *, zones: bool = False) -> TreeReport:
    """Return what there is of the topology *name*, down to its hosts, or to their *zones*.

    A zone's amounts are what its node's NodeResourceTopology says, less what is promised there.
    """
    tree = state.tree(name)
    whole = _totals(state, tree)
    domains = [*_domains(state, tree, whole, range(len(tree.shape.levels)))]
    levels, left_out = tree.shape.levels, tree.left_out
    below = tree.shape.topology.below_host
    if zones and below:
        deep = state.tree(name, len(below))
        assert isinstance(deep, ZoneTree)
        whole = [Counter(zone.allocatable) for zone in deep.zones()]
        levels, left_out = deep.shape.levels, left_out | deep.left_out
        domains += _domains(state, deep, whole, range(len(tree.shape.levels), len(levels)))
    domains.sort(key=lambda each: each.values)  # a domain before those in it
    return TreeReport(
        topology=name,
        levels=[*levels],
        domains=domains,
        left_out=[LeftOut(reason, nodes) for reason, nodes in group_by_reason(left_out).items()],
    )


def _domains(
    state: ClusterState, tree: Tree, whole: Sequence[Amounts], levels: Iterable[int]
) -> Iterator[Domain]:
    """Yield the domains of some levels; *whole* is what each leaf has in all."""
    if not tree.shape.paths:  # it has no levels, then
        return
    groups = _groups(state, tree)
    free = [tree.rows.room(leaf) for leaf in range(tree.shape.domains.leaves)]
    if isinstance(tree, ZoneTree):
        for left, zone in zip(free, tree.zones(), strict=True):
            left.update({name: -amount for name, amount in zone.lacking.items()})
    used = [
        {name: amount - left.get(name, 0) for name, amount in each.items()}
        for each, left in zip(whole, free, strict=True)
    ]
    for level in levels:
        for domain in tree.shape.domains.of_level(level):
            leaves = tree.shape.domains.leaves_below(domain)
            yield Domain(
                level=tree.shape.levels[level],
                values=[*tree.shape.path(domain, level)],
                nodes=sum(map(tree.rows.nodes_at, leaves)) if not isinstance(tree, ZoneTree) else 1,
                total=_sum(whole[leaf] for leaf in leaves),
                used=_sum(used[leaf] for leaf in leaves),
                free=_sum(free[leaf] for leaf in leaves),
                groups=sorted({each for leaf in leaves for each in groups.get(leaf, ())}),
            )


def count_placed_on_hosts(
    groups: Iterable[tuple[str, GroupStatus]],
) -> dict[tuple[str, ...], Counter[str]]:
    """Return the pods of *groups*, by name, on each leaf: the path of one that is no host."""
    placed: dict[tuple[str, ...], Counter[str]] = {}
    for name, status in groups:
        for assignment in status.assignments:
            width = 1 if assignment.levels[0] == HOSTNAME else None
            for one in assignment.domains:
                placed.setdefault((*one.values[:width],), Counter())[name] += one.count
    return placed


def _totals(state: ClusterState, tree: Tree) -> list[Counter[str]]:
    totals: list[Counter[str]] = [Counter() for _ in range(tree.shape.domains.leaves)]
    for node in state.nodes.values():
        leaf = tree.leaf_of(node.name)
        if leaf is not None:
            totals[leaf].update(node.allocatable)
    return totals


def _groups(state: ClusterState, tree: Tree) -> dict[int, set[str]]:
    """Return the groups at each leaf."""
    found: dict[int, set[str]] = {}
    for group in state.groups.values():
        for assignment in group.status.assignments:
            width = len(tree.shape.named_levels)
            for each in assignment.domains:
                leaf = tree.shape.find(assignment.levels[:width], each.values[:width])
                if leaf is not None:
                    found.setdefault(leaf, set()).add(group.full_name)
    return found


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum; what is missing at a leaf is none there, and no leaf has less than none."""
    total: Amounts = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + max(0, amount)
    return total
