"""The memory map: what each memory node holds, and which nodes a pool's containers start with.

Owns what follows from the machine, the tree and the settings alone: capacities, kinds, distances,
zones before anything is booked and the order in which they grow; spec placement.md §7. Knows no
booking. Nodes of kind `device` and nodes without ordinary memory are not on the map.

Capacity of a node: its MemTotal, less its huge pages, less its share of `reservedResources.memory`.
The reservation is what the system's own processes use, which start on normal dram: it is spread
over those nodes in proportion to what they hold, then over other normal nodes, then over the rest.
`availableResources.memory` bounds the sum over the node only, reservation included (as with CPUs):
the amount beyond it is `withheld` from all nodes together, so that a single node can still be
filled. Containers on the reserved CPUs book like all others: the reservation is not for them. The
huge pages of each size are a capacity of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.hardware.machine import REQUESTABLE, Machine, MemoryKind, MemoryNode
from nri_policy.pools.capacity import CapacityError
from nri_policy.pools.tree import Pool, PoolTree, numa_cpus
from nri_policy.settings import Settings

Kinds = frozenset[MemoryKind]


class Home(Struct, frozen=True, kw_only=True):
    """Where the containers of a pool start that want certain kinds, and how their zones grow."""

    zone: CPUSet
    kinds: Kinds  # those wanted that the machine has
    growth: tuple[CPUSet, ...]  # nodes to grow by, each set used up before the next
    widest: CPUSet  # union of `growth`, which includes `zone`
    capacity: int  # bytes of the pool's own nodes of the kinds
    holds: int  # bytes that can be booked on `zone` while nothing is
    has: Kinds  # the kinds of `zone`
    refused: str = ""  # why a strict request cannot start at all
    cold: bool = False  # without the dram that is to be added later
    cold_refused: str = ""  # why a wished cold start has no effect


class MemoryColumns(Struct, frozen=True):
    """What §4 compares the pools by, by id; higher is better."""

    kind: array[float]  # criterion 5: whether the zone is exactly of the requested kinds
    tightness: array[float]  # criterion 8: minus the nodes in the zone
    # criterion 6: whether the limit fits; None where the request has no limit to grow to
    burst: array[float] | None = None
    # criterion 10: whether all others' zones stay; None if no pool would widen another zone
    undisturbed: array[float] | None = None
    none: Sequence[int] = ()  # pools that offer nothing


class Homes:
    """The homes of all pools for requests that want the same, and the criteria that follow.

    As long as all nodes have so much free, each pool offers up to `least` bytes; -1: some pool
    offers nothing at all.
    """

    def __init__(self, each: Iterable[Home]) -> None:
        self.each = tuple(each)  # by pool
        self.pools: dict[Home, list[int]] = {}  # many pools start with the same nodes
        for pool, home in enumerate(self.each):
            self.pools.setdefault(home, []).append(pool)
        self.least = min(-1 if home.refused else home.holds for home in self.pools)
        self.capacity = array("d", (home.capacity for home in self.each))  # by pool
        self.columns = MemoryColumns(
            array("d", (home.has == home.kinds for home in self.each)),
            array("d", (-len(home.zone) for home in self.each)),
        )


class MemoryMap:
    """The memory nodes that are handed out, as the pools of one tree see them."""

    def __init__(self, machine: Machine, tree: PoolTree, settings: Settings) -> None:
        """Read the machine; CapacityError where *settings* reserve more than it has."""
        ordinary = {node.id: _ordinary(node) for node in machine.nodes}
        nodes = [node for node in machine.nodes if ordinary[node.id]]
        self.kinds = {
            kind: CPUSet(node.id for node in nodes if node.kind in members)
            for kind, members in REQUESTABLE.items()
        }
        self.nodes = CPUSet.union(self.kinds.values())
        self._normal = CPUSet(node.id for node in nodes if node.normal) & self.nodes
        whole = {node: ordinary[node] for node in self.nodes}
        available = settings.available.memory
        usable = sum(whole.values())
        self.withheld = 0 if available is None else max(0, usable - available)
        reserved = settings.reserved.memory
        if whole and reserved > usable - self.withheld:
            raise CapacityError(
                f"reservedResources.memory: cannot reserve {format_bytes(reserved)} of"
                f" {format_bytes(usable - self.withheld)}, which is all that containers may use"
            )
        self.capacity = self._less(whole, reserved)  # bytes, by node id
        sizes = {size for node in nodes for size, pages in node.hugepages if pages}
        # of each size of huge pages: bytes, by node id
        self.hugepages = {
            size: {node.id: size * dict(node.hugepages).get(size, 0) for node in nodes}
            for size in sorted(sizes)
        }
        self._pools = tree.pools
        self._seats = [
            CPUSet(node.id for node in machine.nodes if not node.cpus.isdisjoint(pool.cpus))
            for pool in tree.pools
        ]
        homes, own = numa_cpus(machine), {node.id: node.cpus for node in machine.nodes}
        self._near = {  # the CPUs that a node's memory is beside, by its id
            node.id: homes.get(node.id)
            or CPUSet.union(homes.get(near) or own[near] for near in node.nearest)
            for node in nodes
        }
        self._distances = machine.distances
        self._columns = {node: index for index, node in enumerate(machine.distances.nodes)}
        self._rings: dict[int, tuple[tuple[float, CPUSet], ...]] = {}
        self._homes: dict[tuple[Kinds, bool, bool], Homes] = {}
        self._present = self.kinds_of(self.nodes)

    def has(self, kinds: Iterable[MemoryKind]) -> bool:
        """Return whether the machine has a node of one of *kinds*."""
        return not self._present.isdisjoint(kinds)

    def kinds_of(self, zone: CPUSet) -> Kinds:
        """Return the kinds of the nodes of *zone*."""
        return frozenset(kind for kind, nodes in self.kinds.items() if not nodes.isdisjoint(zone))

    def is_cold(self, zone: CPUSet) -> bool:
        """Return whether a container on *zone* can still be in its cold start."""
        return bool(zone) and zone.isdisjoint(self.kinds[MemoryKind.DRAM])

    def capacity_of(self, zone: CPUSet) -> int:
        """Return the bytes that can be booked on *zone* while nothing is."""
        everything = sum(self.capacity.values()) - self.withheld
        return min(sum(self.capacity[node] for node in zone & self.nodes), everything)

    def pages_of(self, size: int, zone: CPUSet) -> int:
        """Return the bytes of huge pages of *size* that the nodes of *zone* have."""
        return sum(self.hugepages[size][node] for node in zone & self.nodes)

    def with_pages_of(self, pages: Iterable[tuple[int, int]]) -> CPUSet:
        """Return the nodes that have huge pages of any size of *pages*, (size, bytes) each."""
        return CPUSet.union(self.with_pages(size) for size, _ in pages)

    def with_pages(self, size: int) -> CPUSet:
        """Return the nodes that have huge pages of *size*."""
        return CPUSet(node for node, amount in self.hugepages.get(size, {}).items() if amount)

    def beside(self, cpus: CPUSet) -> CPUSet:
        """Return the nodes whose memory is beside one of *cpus*."""
        return CPUSet(node for node, near in self._near.items() if not near.isdisjoint(cpus))

    def homes(self, kinds: Kinds, *, strict: bool = False, cold: bool = False) -> Homes:
        """Return for each pool, by id, where its containers start that want *kinds*.

        Kinds that the machine lacks are left out; dram counts if no kind is left. A *strict*
        request stays on its kinds: it is refused if no kind is left, or all memory is movable.
        """
        key = (kinds, strict, cold)
        if key not in self._homes:
            self._homes[key] = Homes(
                self._home(pool, kinds, strict=strict, cold=cold) for pool in self._pools
            )
        return self._homes[key]

    def grow(self, zone: CPUSet, growth: Iterable[CPUSet]) -> CPUSet:
        """Return *zone* with the nearest nodes of the first of *growth* that has more; else itself.

        Nearest is the smallest distance to any node of the zone; all at this distance are added.
        """
        for nodes in growth:
            more = nodes - zone
            if more:
                return zone | self._nearest(zone, more)
        return zone

    def widths(self, zone: CPUSet, growth: Iterable[CPUSet]) -> Iterator[CPUSet]:
        """Yield *zone* and each wider zone that it grows to."""
        yield zone
        while (wider := self.grow(zone, growth)) != zone:
            yield wider
            zone = wider

    def startable(self, zone: CPUSet, among: CPUSet) -> CPUSet:
        """Return *zone* with the nearest of *among* that a process can start on, if it has none.

        The kernel cannot start one on movable memory alone (numa-guest.md).
        """
        normal = self._normal & among
        if normal and zone.isdisjoint(normal):
            return zone | self._nearest(zone, normal)
        return zone

    def _home(self, pool: Pool, kinds: Kinds, *, strict: bool, cold: bool) -> Home:
        refused = ""
        present = [kind for kind in REQUESTABLE if kind in kinds and self.kinds[kind]]
        if not present and strict:
            refused = f"this node has no memory of kind {_names(kinds)}"
        elif not present:
            # dram before all others
            present = [kind for kind in REQUESTABLE if self.kinds[kind]][:1]
        cold_refused = self._cold_refused(pool, present) if cold else ""
        cold = cold and not cold_refused
        if cold:
            present = [MemoryKind.PMEM]
        same = CPUSet.union(self.kinds[kind] for kind in present)
        # §7: a zone grows by the same kinds, then by dram, pmem, hbm; a strict one never by others
        growth = (same,) if strict else (same, *self.kinds.values())
        zone = self.startable(self._start(pool, present), CPUSet.union(growth))
        if self._normal and zone.isdisjoint(self._normal):
            refused = refused or (
                f"memory of kind {_names(present)} is movable only on this node, and nothing can"
                " start on it alone"
            )
        return Home(
            zone=zone,
            kinds=frozenset(present),
            growth=growth,
            widest=CPUSet.union(growth),
            capacity=self.capacity_of(CPUSet.union(pool.memory[kind] for kind in present)),
            holds=self.capacity_of(zone),
            has=self.kinds_of(zone),
            refused=refused,
            cold=cold,
            cold_refused=cold_refused,
        )

    def _start(self, pool: Pool, kinds: Iterable[MemoryKind]) -> CPUSet:
        """Return the pool's nodes of *kinds*; of a kind that it lacks, those nearest to it (§7)."""
        own = CPUSet.union(pool.memory.values()) & self.nodes
        zone = EMPTY
        for kind in kinds:
            zone |= (pool.memory[kind] & self.nodes) or self._nearest(
                own or self._seats[pool.id], self.kinds[kind]
            )
        return zone

    def _cold_refused(self, pool: Pool, kinds: list[MemoryKind]) -> str:
        """Return why a cold start has no effect on *pool*, nothing if it has."""
        pmem = pool.memory[MemoryKind.PMEM] & self.nodes
        if MemoryKind.DRAM not in kinds or MemoryKind.PMEM not in kinds:
            return (
                "cold start has no effect: it is for containers of both dram and pmem, not of"
                f" {_names(kinds)} alone"
            )
        if not pmem:
            return f"cold start has no effect: {pool.name} has no pmem"
        if self._normal and pmem.isdisjoint(self._normal):
            return (
                f"cold start has no effect: the pmem of {pool.name} is movable only, and nothing"
                " can start on it alone"
            )
        return ""

    def _nearest(self, to: CPUSet, among: CPUSet) -> CPUSet:
        """Return the nodes *among* these nearest to the nodes *to*; without nodes *to*, all.

        Where the distance table is silent the distance is infinite.
        """
        least, nearest = inf, EMPTY
        for node in to:
            for distance, ring in self._rings_of(node):
                if distance > least:
                    break
                hit = ring & among
                if hit:
                    nearest = hit if distance < least else nearest | hit
                    least = distance
                    break
        return nearest or among

    def _rings_of(self, node: int) -> tuple[tuple[float, CPUSet], ...]:
        """Return the nodes of the map by their distance from *node*, nearest first."""
        if node not in self._rings:
            by_distance: dict[float, list[int]] = {}
            for other in self.nodes:
                by_distance.setdefault(self._between(node, other), []).append(other)
            self._rings[node] = tuple(
                (distance, CPUSet(by_distance[distance])) for distance in sorted(by_distance)
            )
        return self._rings[node]

    def _between(self, one: int, other: int) -> float:
        """Return what Distances.between does, without a search of the table for each pair."""
        i, j = self._columns.get(one), self._columns.get(other)
        if i is None or j is None:
            return inf
        matrix = self._distances.matrix
        return (matrix[i][j] + matrix[j][i]) / 2

    def _less(self, whole: dict[int, int], reserved: int) -> dict[int, int]:
        """Return the capacities of *whole* less the share of *reserved* of each."""
        dram = self.kinds[MemoryKind.DRAM]
        left = dict(whole)
        for group in (dram & self._normal, self._normal - dram, self.nodes - self._normal):
            total = sum(whole[node] for node in group)
            taken = min(reserved, total)
            reserved -= taken
            before = 0
            for node in group:  # rounded so that the shares add up to what is taken
                after = before + whole[node]
                left[node] -= taken * after // total - taken * before // total
                before = after
        return left


def _ordinary(node: MemoryNode) -> int:
    """Return the bytes of a node that are not set aside as hugepages."""
    return max(0, node.memory - sum(size * pages for size, pages in node.hugepages))


def _names(kinds: Iterable[MemoryKind]) -> str:
    return ", ".join(kind for kind in REQUESTABLE if kind in kinds)
