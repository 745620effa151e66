"""The memory flow: a way to lay all that is booked onto memory nodes.

Owns the exact test of what fits (placement.md §7): by Hall's theorem every set S of nodes holds
what is booked on zones inside S exactly if all bookings together can be laid onto nodes of their
zones, and a maximum flow finds such a laying. It is kept and only mended: a new booking mostly
finds free bytes in its zone, else a chain of others gives way inside their own zones. A laying
promises no container a node; the missing bytes, and their nodes, are the same in each laying.

Knows zones and bytes, neither containers nor kinds. Invariant: on each node, what lies there and
what is free add up to its capacity. The inner tables are replaced, never changed: copies share
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet

# The first zone gets bytes on its node, the second moves as many off that node onto its own node,
# and so on.
Chain = list[tuple[CPUSet, int]]


class Flow(Struct):
    """Bytes of zones on nodes."""

    free: dict[int, int]  # by node id
    laid: dict[int, dict[CPUSet, int]]  # node id -> zone -> bytes of the zone's bookings there

    @staticmethod
    def empty(capacity: Mapping[int, int]) -> Flow:
        """Return the flow of nothing on nodes of this *capacity*."""
        return Flow(free=dict(capacity), laid={node: {} for node in capacity})

    def copy(self) -> Flow:
        """Return an independent copy."""
        return Flow(free=self.free.copy(), laid=self.laid.copy())

    @property
    def least(self) -> int:
        """The bytes that every node has free."""
        return min(self.free.values(), default=0)

    def room(self, zone: CPUSet) -> int:
        """Return the free bytes on the nodes of *zone*; more may fit if others give way."""
        return sum(map(self.free.__getitem__, zone))

    def roomy(self, amount: int) -> CPUSet:
        """Return the nodes that have *amount* free bytes each."""
        return CPUSet([node for node, free in self.free.items() if free >= amount])

    def holds(self, zone: CPUSet, amount: int) -> bool:
        """Return whether *amount* more bytes fit on *zone*."""
        return self.room(zone) >= amount or not self.copy().lay(zone, amount)

    def lay(self, zone: CPUSet, amount: int) -> int:
        """Lay as much of *amount* as fits on *zone*; return the bytes that do not."""
        for node in zone:
            part = min(amount, self.free[node])
            if part:
                self.free[node] -= part
                self._shift(node, zone, part)
                amount -= part
        while amount:
            chain = self._search(zone)
            if chain is None:
                break
            amount -= self._push(chain, amount)
        return amount

    def take(self, zone: CPUSet, amount: int) -> None:
        """Take *amount* bytes off *zone*, which has as much laid."""
        for node in zone:
            part = min(amount, self.laid[node].get(zone, 0))
            if part:
                self.free[node] += part
                self._shift(node, zone, -part)
                amount -= part
        if amount:
            raise ValueError(f"zone {zone} has {amount} bytes less than are to be taken")

    def full(self, zones: CPUSet) -> CPUSet:
        """Return the nodes whose bookings must leave *zones* some room, if these lack any.

        The smallest set around *zones* that is full to the last byte with bookings that lie
        entirely inside it; it is the same however these are laid.
        """
        reached, zones_seen, rest = zones, set[CPUSet](), [*zones]
        for node in rest:
            for zone in self.laid[node]:
                if zone not in zones_seen:
                    zones_seen.add(zone)
                    rest += zone - reached
                    reached |= zone
        return reached

    def _shift(self, node: int, zone: CPUSet, amount: int) -> None:
        tables = self.laid[node].copy()
        amount += tables.pop(zone, 0)
        if amount:
            tables[zone] = amount
        self.laid[node] = tables

    def _search(self, zone: CPUSet) -> Chain | None:
        """Return the shortest chain that ends at a node with free bytes, None if there is none."""
        came: dict[int, tuple[CPUSet, int] | None] = dict.fromkeys(zone)
        queue, seen = [*zone], {zone}
        for node in queue:
            if self.free[node]:
                return _chain(zone, node, came)
            for other in self.laid[node]:
                if other not in seen:
                    seen.add(other)
                    for next_ in other:
                        if next_ not in came:
                            came[next_] = (other, node)
                            queue.append(next_)
        return None

    def _push(self, chain: Chain, amount: int) -> int:
        """Move up to *amount* bytes along *chain*; return how many they were."""
        moves = [(mover, off, onto) for (_, off), (mover, onto) in pairwise(chain)]
        _, end = chain[-1]
        part = min(amount, self.free[end], *(self.laid[off][mover] for mover, off, _ in moves))
        for mover, off, onto in moves:
            self._shift(off, mover, -part)
            self._shift(onto, mover, part)
        zone, start = chain[0]
        self._shift(start, zone, part)
        self.free[end] -= part
        return part


def _chain(zone: CPUSet, end: int, came: dict[int, tuple[CPUSet, int] | None]) -> Chain:
    """Return the chain from *zone* to the node *end*, by how the search came to each node."""
    links: Chain = []
    while (step := came[end]) is not None:
        mover, off = step
        links.append((mover, end))
        end = off
    links.append((zone, end))
    return links[::-1]
