"""The rules the straightforward way: sets of CPU numbers, and a look at everybody each time.

What one writes first: a frozenset a pool, every sum taken over all containers whenever it is
needed, every container's CPUs worked out anew after each change. It places exclusive and shared
Guaranteed containers without hints or affinities, whose memory fits wherever they go, and chooses
the pools that the engine does: `decisions` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

from nri_policy.engine.layout import Layout


@dataclass(frozen=True, slots=True)
class Held:
    """What one container holds."""

    pool: int
    own: frozenset[int]
    milli: int


class PlainEngine:
    """Places containers on the pools of a layout."""

    def __init__(self, layout: Layout) -> None:
        tree = layout.tree
        self._pools = [frozenset(pool.cpus) for pool in tree.pools]
        self._parents = [pool.parent for pool in tree.pools]
        self._depths = [pool.depth for pool in tree.pools]
        self._nodes = [sum(map(len, pool.memory.values())) for pool in tree.pools]
        self._cores = [frozenset(core.cpus) for core in layout.machine.cores]
        self._sharable = frozenset(layout.capacity.sharable)
        self._told: dict[str, frozenset[int]] = {}
        self.held: dict[str, Held] = {}

    def create(self, name: str, exclusive: int, milli: int) -> list[str]:
        """Place a container; return whose CPUs have changed."""
        keys = {
            pool: key
            for pool in range(len(self._pools))
            if (key := self._key(pool, exclusive, milli)) is not None
        }
        if not keys:
            raise ValueError("no pool has room")
        pool = max(keys, key=lambda each: keys[each])
        self.held[name] = Held(pool, self._pick(pool, exclusive), milli)
        return self._changes()

    def stop(self, name: str) -> list[str]:
        """Take a container away; return whose CPUs have changed."""
        del self.held[name]
        del self._told[name]
        return self._changes()

    def _path(self, pool: int | None) -> list[int]:
        return [] if pool is None else [pool, *self._path(self._parents[pool])]

    def _free(self, pool: int) -> frozenset[int]:
        taken = frozenset[int]().union(*(held.own for held in self.held.values()))
        return self._pools[pool] & self._sharable - taken

    def _booked(self, pool: int) -> int:
        """Return the milli-CPU that is booked on *pool* and below."""
        return sum(held.milli for held in self.held.values() if pool in self._path(held.pool))

    def _shared(self, pool: int) -> int:
        """Return the milli-CPU that must stay for those who share: a CPU at least, if any do."""
        booked = self._booked(pool)
        return max(booked, 1000) if booked else 0

    def _left(self, pool: int, milli: int) -> int:
        """Return the milli-CPU that *pool* and all above it have beside *milli* more."""
        return min(
            1000 * len(self._free(at))
            - (max(self._booked(at) + milli, 1000) if milli else self._shared(at))
            for at in self._path(pool)
        )

    def _key(self, pool: int, exclusive: int, milli: int) -> tuple[int, ...] | None:
        """Return what *pool* is compared by, None where it has no room."""
        left = self._left(pool, milli)
        if exclusive:
            rank = min(left // 1000, self._cuttable(pool))
            if rank < exclusive:
                return None
            return -self._nodes[pool], self._depths[pool], rank - exclusive, 0, -pool
        if left < 0:
            return None
        here = sum(held.pool == pool for held in self.held.values())
        grow = min(1000 * len(self._free(at)) - self._booked(at) for at in self._path(pool))
        return -self._nodes[pool], self._depths[pool], -here, grow - milli, -pool

    def _cuttable(self, pool: int) -> int:
        """Return how many CPUs can be cut out of *pool*, whatever is shared below it."""
        children = [at for at, parent in enumerate(self._parents) if parent == pool]
        own = len(self._free(pool)) - sum(len(self._free(child)) for child in children)
        below = 0
        for child in children:
            spare = (1000 * len(self._free(child)) - self._shared(child)) // 1000
            below += min(max(spare, 0), self._cuttable(child))
        return own + below

    def _pick(self, pool: int, exclusive: int) -> frozenset[int]:
        """Return whole idle cores as far as they go, then single threads."""
        free, picked = self._free(pool), frozenset[int]()
        for core in sorted((c for c in self._cores if c <= free), key=min):
            if len(picked) + len(core) <= exclusive:
                picked |= core
        broken = [cpu for core in self._cores if not core <= free for cpu in sorted(core & free)]
        rest = [*broken, *sorted(free - picked - frozenset(broken))]
        return picked | frozenset(rest[: exclusive - len(picked)])

    def _changes(self) -> list[str]:
        changed = []
        for name, held in self.held.items():
            cpus = held.own | self._free(held.pool) if held.milli else held.own
            if self._told.get(name) != cpus:
                self._told[name] = cpus
                changed.append(name)
        return changed
