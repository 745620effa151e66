"""Zones: the set of memory nodes that a container is bound to; spec placement.md §7.

Owns which nodes a pool offers for the wanted kinds. Amounts are not booked: a zone is what is near,
not what fits.
"""

from __future__ import annotations

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine, MemoryKind
from nri_policy.pools.tree import Pool, PoolTree


class Zones:
    """The zones that the pools of one tree offer."""

    def __init__(self, machine: Machine, tree: PoolTree) -> None:
        self._distances = machine.distances
        self._all = tree.top.memory
        normal = CPUSet(node.id for node in machine.nodes if node.normal)
        self._normal = normal & CPUSet.union(self._all.values())  # none of a device's
        self._offers: dict[tuple[int, frozenset[MemoryKind]], CPUSet] = {}

    def offer(self, pool: Pool, kinds: frozenset[MemoryKind]) -> CPUSet:
        """Return the nodes that *pool* offers for *kinds*; empty only if the machine has none.

        Kinds that the machine does not have are left out; if none is left, it is dram.
        """
        key = (pool.id, kinds)
        if key not in self._offers:
            self._offers[key] = self._make(pool, kinds)
        return self._offers[key]

    def has(self, kinds: frozenset[MemoryKind]) -> bool:
        """Return whether the machine has memory of any of *kinds*."""
        return any(self._all[kind] for kind in kinds)

    def _make(self, pool: Pool, kinds: frozenset[MemoryKind]) -> CPUSet:
        wanted = [kind for kind in MemoryKind if kind in kinds and self._all[kind]]
        own = CPUSet.union(pool.memory.values())
        zone = EMPTY
        for kind in wanted or [MemoryKind.DRAM]:
            zone |= pool.memory[kind] or self._nearest(own, self._all[kind])
        zone = zone or own or CPUSet.union(self._all.values())
        if self._normal and zone.isdisjoint(self._normal):
            # the kernel cannot start a process on movable memory alone (numa-guest.md)
            zone |= self._nearest(zone, self._normal)
        return zone

    def _nearest(self, to: CPUSet, among: CPUSet) -> CPUSet:
        """Return those of *among* at the smallest distance to any node of *to*."""
        distance = {
            node: min((self._distances.between(node, near) for near in to), default=0)
            for node in among
        }
        least = min(distance.values(), default=0)
        return CPUSet(node for node in among if distance[node] == least)
