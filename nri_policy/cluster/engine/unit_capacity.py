"""How many pods of a group fit where, now or if other groups were not there."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import cached_property

from msgspec.structs import replace

from nri_policy.cluster.engine.search.placement import count
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.zone_tree import ZoneTree
from nri_policy.cluster.engine.unit_placement import plan_of
from nri_policy.cluster.objects.document import with_place
from nri_policy.cluster.objects.pod import Template
from nri_policy.cluster.requests.group import PlacementGroup, PlacementRequest
from nri_policy.cluster.requests.request import Unit, Unplaceable, units_of
from nri_policy.native._counts import Counts
from nri_policy.native._domains import Vector


class UnitCapacity:
    """How much of a pod set fits into each domain and on each host."""

    def __init__(self, state: ClusterState, unit: Unit) -> None:
        self.tree, self.plan = plan_of(state, unit)
        self.unit = unit
        self.host_level = len(self.tree.shape.topology.levels) - 1
        self.leaf = self.tree.leaves_of_nodes()
        self.counts: Counts | None = None
        with suppress(Unplaceable):  # no node takes part
            self.counts, _ = count(
                self.tree, unit, self.plan, state.settings, {}, state.limits.of(unit)
            )

    @cached_property
    def _hosts(self) -> Tree:
        """The tree of whole hosts."""
        return self.tree.hosts if isinstance(self.tree, ZoneTree) else self.tree

    @cached_property
    def _pod(self) -> Vector:
        return Vector(self._hosts.rows, self.unit.workers.amounts)

    def pods(self, node: str) -> int:
        """Return how many pods fit on a host; where hosts share a leaf, on all of them."""
        leaf = self.leaf.get(node)
        if leaf is None or self.counts is None:
            return 0
        return self.counts.pods_above(leaf, self.host_level)

    def lack(self, domain: int) -> int:
        """Return how many pods more there are than fit on the hosts of a domain; of -1, on all."""
        if self.counts is None:
            return self.unit.workers.count
        hosts = self.tree.shape.below(domain, self.host_level)
        return self.unit.workers.count - sum(self.counts.of(each)[0] for each in hosts)

    def most_in_a_domain(self, nodes: Collection[str]) -> int | None:
        """Return the most pods that fit in a domain of the level that *nodes* share one of.

        Without such a level: on all hosts. It is the finest one, of those from the requested level
        up. None if domains take fewer pods than their hosts do, or hosts share leaves.
        """
        shape, wanted = self.tree.shape, self.plan
        if self.counts is None or wanted.inner or wanted.apart >= 0 or not shape.by_host:
            return None
        leaves = [self.leaf[name] for name in nodes if name in self.leaf]
        level = -1 if wanted.unconstrained else min(wanted.level, self.host_level)
        while level >= 0:
            if len({shape.domains.above(leaf, level) for leaf in leaves}) == 1:
                return max(self.counts.of(each)[0] for each in shape.domains.of_level(level))
            level -= 1
        return sum(self.counts.of(each)[0] for each in shape.domains.of_level(0))

    def free(self, node: str) -> int:
        """Return thousandths of pods that a host's free resources are, were pods divisible."""
        leaf = self._hosts.leaf_of(node)
        return 0 if leaf is None else self._hosts.rows.thousandths((leaf,), self._pod)

    def free_below(self, domain: int) -> int:
        """Return the sum of `free` over the hosts of a domain."""
        below = self.tree.shape.domains.leaves_below(domain)
        if self._hosts is self.tree and self.tree.shape.by_host:
            return self.tree.rows.thousandths(below, self._pod)
        return sum(self.free(node) for node in self.tree.nodes_in([below]))

    def left(self, node: str, resource: str) -> int:
        """Return how much of a resource a host has left; where hosts share a leaf, all of them."""
        leaf = self._hosts.leaf_of(node)
        return 0 if leaf is None else self._hosts.rows.room(leaf).get(resource, 0)

    def order(self, node: str) -> tuple[int, int, str]:
        """Return by what hosts are ordered: the freest first."""
        return -self.pods(node), -self.free(node), node


def count_fitting(state: ClusterState, group: PlacementGroup, hosts: Collection[str]) -> int:
    """Return how many pods of *group* fit on *hosts* now, each pod set by itself."""
    total = 0
    for unit in units_of(group):
        if unit.workers.count:
            now = UnitCapacity(state, unit)
            fits = sum(now.pods(node) for node in hosts)
            total += min(fits, unit.workers.count) + (unit.leader is not None and fits > 0)
    return min(total, pods_of(group))


def pods_of(group: PlacementGroup) -> int:
    """Return how many pods a group has."""
    return sum(each.count for each in group.pod_sets)


def is_overbooked(state: ClusterState, group: PlacementGroup) -> bool:
    """Return whether a host of *group* has less than it uses, of what the group's pods request."""
    pod_sets = {each.name: each for each in group.pod_sets}
    for assignment in group.status.assignments:
        pod_set = pod_sets[assignment.pod_set]
        topology = state.topology_of(pod_set)
        if topology is None:
            continue
        tree = state.tree(topology.name)
        asked = with_place(pod_set.amounts)
        for host, _ in assignment.by_host():
            leaves = [tree.leaf_of(each.name) for each in state.view.on_host(host)]
            for leaf in leaves:
                if leaf is not None and tree.rows.nodes_at(leaf):
                    left = tree.rows.room(leaf)
                    if any(left.get(name, 0) < 0 for name in asked):
                        return True
    return False


def find_nodes_with_room(
    state: ClusterState, group: PlacementGroup, template: Template
) -> frozenset[str]:
    """Return the nodes with room for a pod of *template* beside the places of a *group*.

    The group has one pod set, which says on what topology.
    """
    (pod_set,) = group.pod_sets
    trial = state.fork()
    trial.set_group(group)
    request = PlacementRequest(topology=(pod_set.request or PlacementRequest()).topology)
    pod = replace(pod_set, count=1, template=template, request=request)
    try:
        capacity = UnitCapacity(trial, Unit(workers=pod))
    except Unplaceable:
        return frozenset()
    return frozenset(name for name in trial.nodes if capacity.pods(name))
