"""The tree of a topology that goes on below the host: its leaves are zones of hosts.

What a zone has left is what its NodeResourceTopology object says, less what assignments use that
the object does not count yet (spec cluster.md §7). On a node that aligns pods to one NUMA node, a
pod has to fit one NUMA node of a zone whole: such a zone holds the sum of what its NUMA nodes hold
each, not what their sum would hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace

from nri_policy.cluster.engine.state.shape import Path, Shape
from nri_policy.cluster.engine.state.tree import Demand, Tree
from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.settings import Topology
from nri_policy.cluster.zones.numa_node import NODE_TYPE, aligns_pods, select_zones
from nri_policy.cluster.zones.zone import NodeZones, Zone, find_zone_above, zones_of
from nri_policy.native._counts import Counts
from nri_policy.native._domains import Mask, Rows


class ZoneTree(Tree):
    """The zones of the types *below*, of each of the *hosts* that has them."""

    def __init__(  # noqa: PLR0913 - keywords: what the tree is made of
        self,
        topology: Topology,
        nodes: Iterable[ClusterNode],
        used: Mapping[str, Amounts],
        *,
        hosts: Tree,
        below: Sequence[str],
        zones: Mapping[str, NodeZones],
    ) -> None:
        self.hosts = hosts
        self._below = tuple(below)
        self._zones = zones
        self._parts: dict[int, list[Amounts]] = {}  # by leaf: of its NUMA nodes
        self._first_zone: dict[str, int] = {}  # node -> leaf, also while it takes no part
        super().__init__(topology, nodes, used)

    def _fill(
        self,
        topology: Topology,
        paths: list[Path],
        first: list[ClusterNode],
        _others: Mapping[int, list[ClusterNode]],
        _amounts: Any,
    ) -> None:
        """Make the zones of every host leaves; a host without any is left out."""
        leaves: list[Path] = []
        self._nodes, self._node_at, self._host_at, self._tainted = [], {}, {}, set()
        for path, node in zip(paths, first, strict=True):
            found, reason = zones_of(self._zones.get(node.name), self._below)
            if reason:
                self.left_out.setdefault(node.name, reason)
                continue
            self._node_at[node.name] = self._host_at[path[-1]] = len(leaves)
            self._first_zone[node.name] = len(leaves)
            leaves += (path + names for names in sorted(found))
            self._nodes += [node] * len(found)
            if node.taints:
                self._tainted.update(range(self._node_at[node.name], len(leaves)))
        self.shape = Shape(topology, leaves, self._host_at, self._below)
        self.rows = Rows(self.shape.domains, unlisted=True)
        for name, at in self._first_zone.items():
            self.set_host(at, self._zones[name])

    def fork(self, hosts: Tree | None = None) -> Self:
        """Return a tree of the same zones, of a fork of the *hosts*."""
        made = super().fork()
        made.hosts = self.hosts.fork() if hosts is None else hosts
        return made

    def without_usage(
        self,
        nodes: Mapping[str, ClusterNode],
        only: Collection[str] | None = None,
        hosts: Tree | None = None,
    ) -> Self:
        """Return a tree of the same zones with nothing in use, of such a one of the *hosts*."""
        made = super().without_usage(nodes, ())
        made.hosts = self.hosts.without_usage(nodes, only) if hosts is None else hosts
        made.rows, made._parts = Rows(self.shape.domains, unlisted=True), {}  # noqa: SLF001
        for name in self._node_at if only is None else only:
            first = self._node_at.get(name)
            if first is not None:
                made.set_host(first, self._zones[name].without_usage())
        return made

    def set_host(self, first: int, zones: NodeZones) -> None:
        """Set what the zones of a host have, the leaves from its *first* one on."""
        found, _ = zones_of(zones, self._below)
        parts = _numa_parts(zones, self._below[-1])
        for leaf, (names, zone) in enumerate(sorted(found.items()), first):
            self.rows.set(leaf, zone.available)
            if names[-1] in parts:
                self._parts[leaf] = parts[names[-1]]

    def change(self, old: ClusterNode | None, new: ClusterNode | None) -> bool:
        """Apply a changed, new or removed node; a node may report its first zones now."""
        return (old or new).name not in self.left_out and super().change(old, new)  # type: ignore[union-attr]  # one of them is there

    def _is_free(self, leaf: int, name: str) -> bool:
        """Whether a node may join a leaf: only the one with its zones."""
        return super()._is_free(leaf, name) and leaf == self._first_zone.get(name)

    def change_zones(self, old: NodeZones, new: NodeZones) -> bool:
        """Store new free amounts of a node's zones; return False as `change` does."""
        before, reason = zones_of(old, self._below)
        after, why = zones_of(new, self._below)
        first = self._first_zone.get(new.node)
        if first is None:
            return reason == why or self.hosts.leaf_of(new.node) is None
        if before.keys() != after.keys() or any(
            before[each].free.keys() != after[each].free.keys() for each in before
        ):
            return False
        parts = _numa_parts(new, self._below[-1])
        for leaf, names in zip(self.shape.zones_from(first), sorted(after), strict=True):
            old_parts, new_parts = self._parts.pop(leaf, None), parts.get(names[-1])
            if new_parts is not None:
                self._parts[leaf] = new_parts
            if new_parts != old_parts:
                self.known_counts.clear()  # counts have them as limits
            self.rows.add(leaf, before[names].available, -1)
            self.rows.add(leaf, after[names].available, 1)
        return True

    def zones(self) -> list[Zone]:
        """Return the zone of each leaf."""
        return [
            zone
            for node in self._first_zone  # in the order of leaves
            for _, zone in sorted(zones_of(self._zones.get(node), self._below)[0].items())
        ]

    def use(self, node: str, _amounts: Amounts, _times: int) -> None:
        """Note that a host has another pod: zones tell of pods themselves."""
        leaf = self._node_at.get(node)
        if leaf is not None:
            self._note_host(leaf)

    def _assume_at(
        self, leaf: int | None, host: int | None, amounts: Amounts, times: int, reported: int
    ) -> None:
        """Take amounts off the zone that an assignment names; its *host* has other pods."""
        if leaf is not None:
            self.rows.add(leaf, amounts, reported - times)
        if host is not None:
            self._note_host(host)

    def _note_host(self, leaf: int) -> None:
        for each in self.shape.zones_from(leaf):
            self.rows.note(each)

    def take(self, places: Mapping[int, int], pod: Amounts) -> None:
        """Count pods as used at zones, and on their hosts."""
        super().take(places, pod)
        self.hosts.assume(self._usage(places, pod), 1)

    def _limits(self, demand: Demand) -> list[int] | None:
        limits = super()._limits(replace(demand, limits={}))  # they are of hosts
        if limits is None and self._parts:
            limits = [MAX_COUNT] * self.shape.domains.leaves
        for leaf, parts in self._parts.items():
            assert limits is not None  # there are parts
            limits[leaf] = min(limits[leaf], _count_whole(parts, demand.pod))
        return limits

    def _beside(self, demand: Demand) -> None:
        """Nothing: they are of hosts."""

    def _leader_mask(self, demand: Demand) -> Mask | None:
        return super()._leader_mask(replace(demand, leader_limits={}))  # they are of hosts

    def _of_hosts(self, demand: Demand) -> tuple[Counts, list[int]]:
        hosts, last = self.hosts, len(self.shape.topology.levels) - 1
        found = [hosts.shape.find([HOSTNAME], [path[last]]) for path in self.shape.paths]
        host_of = [leaf for leaf in found if leaf is not None]
        held: Counter[int] = Counter()
        for leaf, count in demand.held.items():
            held[host_of[leaf]] += count
        kind, leader_kind = demand.kind, demand.leader_kind
        of_hosts = replace(
            demand,
            plan=replace(demand.plan, size=1, slice_level=last, inner={}),
            kind=hosts.filter_of(kind.spec, kind.tolerations),
            leader_kind=leader_kind and hosts.filter_of(leader_kind.spec, leader_kind.tolerations),
            held=held,
            limits={host_of[leaf]: most for leaf, most in demand.limits.items()},
            leader_limits={host_of[leaf]: most for leaf, most in demand.leader_limits.items()},
            beside={host_of[leaf]: most for leaf, most in demand.beside.items()},
        )
        return hosts.counts(of_hosts), host_of

    def _add(self, node: ClusterNode, leaf: int, times: int) -> None:
        """Add nothing: reports of zones already name free amounts."""


def _numa_parts(report: NodeZones, kind: str) -> dict[str, list[Amounts]]:
    """Return what the NUMA nodes of zones of a type have left, by the zone's name.

    Only of zones with several, and of a node that aligns pods to one.
    """
    if kind == NODE_TYPE or not aligns_pods(report):
        return {}
    by_name = {zone.name: zone for zone in report.zones}
    parts: dict[str, list[Amounts]] = {}
    for zone in select_zones(report.zones)[0].values():
        above = find_zone_above(zone, kind, by_name)
        if above is not None:
            parts.setdefault(above.name, []).append(zone.available)
    return {name: each for name, each in parts.items() if len(each) > 1}


def _count_whole(parts: Sequence[Amounts], pod: Mapping[str, int]) -> int:
    """Return how many pods fit, each into one of *parts*; what these do not list is no limit."""
    return sum(
        min((free[name] // pod[name] for name in free if pod.get(name)), default=MAX_COUNT)
        for free in parts
    )
