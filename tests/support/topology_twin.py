"""What the zones of a NodeResourceTopology must say, reckoned from the grants alone.

A plain-Python twin: it uses none of the engine's accounting, only who holds what.
"""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_bytes, parse_cpu
from nri_policy.node import NodeView
from nri_policy.pools.tree import Pool, numa_cpus
from nri_policy.settings import FullCores
from nri_policy.workload.request import Sort

KINDS = ("capacity", "allocatable", "available")


def amounts(zone: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Return capacity, allocatable and available of each resource: milli-CPU, bytes."""
    read = {"cpu": parse_cpu}
    return {
        each["name"]: tuple(read.get(each["name"], parse_bytes)(each[kind]) for kind in KINDS)  # type: ignore[misc]
        for each in zone["resources"]
    }


class Twin:
    """Reckons for one view."""

    def __init__(self, view: NodeView) -> None:
        self.layout = view.layout
        self.machine = view.layout.machine
        self.pools = view.layout.tree.pools
        self.containers = [
            placed.grant for placed in view.placed.values() if placed.grant.sort is Sort.NORMAL
        ]
        others = (*view.rooms.values(), *view.claims.values())
        self.grants = [*self.containers, *(each.grant for each in others)]
        self.taken = {cpu for grant in self.grants for cpu in grant.exclusive}
        self.bookings = [
            (set(each.zone), each.request.amount - each.missing) for each in view.bookings.values()
        ]
        self.cpus = {node: set(cpus) for node, cpus in numa_cpus(self.machine).items()}

    def check(self, zones: list[dict[str, Any]]) -> None:
        """Assert that *zones* say the same, number by number."""
        numa = [zone for zone in zones if zone["type"] == "Node"]
        highest = max(node.id for node in self.machine.nodes)
        assert [zone["name"] for zone in numa] == [f"node-{i}" for i in range(highest + 1)]
        assert zones[: len(numa)] == numa, "NUMA zones come first"
        for number, zone in enumerate(numa):
            self._check_numa(number, amounts(zone))
        self._check_sums([amounts(zone) for zone in numa])
        pools = {zone["name"]: zone for zone in zones[len(numa) :]}
        assert pools.keys() == {pool.name for pool in self.pools}
        for pool in self.pools:
            self._check_pool(pool, pools[pool.name])

    def _check_numa(self, number: int, found: dict[str, tuple[int, int, int]]) -> None:
        own = self.cpus.get(number, set())
        usable = (own & self._available()) - set(self.layout.capacity.reserved)
        isolated = (own & set(self.layout.capacity.isolated)) - self.taken
        home = min(
            (pool for pool in self.pools if own & self._available() <= {*pool.cpus}),
            key=lambda pool: len(pool.cpus),
        )
        free = own & self._free()
        shared = min(self._left(home), 1000 * self._cuttable(own) + 999, 1000 * len(free))
        left = max(shared, 1000 * len(isolated)) if own & self._available() else 0
        assert found["cpu"] == (1000 * len(own), 1000 * len(usable), left), number
        memory = {node.id: node.memory for node in self.machine.nodes}.get(number, 0)
        assert found["memory"] == (memory, self._memory({number}), self._memory_left({number}))

    def _check_sums(self, zones: list[dict[str, tuple[int, int, int]]]) -> None:
        """I5 over the node: what is free and what is granted is all that there is to grant."""
        every = set().union(*self.cpus.values()) if self.cpus else set()
        capacity = sum(zone["cpu"][0] for zone in zones)
        allocatable = sum(zone["cpu"][1] for zone in zones)
        crossing = sum(map(len, self.cpus.values())) != len(every)
        if not crossing:
            assert capacity == 1000 * len(every)
            usable = (every & self._available()) - set(self.layout.capacity.reserved)
            assert allocatable == 1000 * len(usable)
        if not crossing and not self.grants and not self.layout.capacity.isolated:
            assert sum(zone["cpu"][2] for zone in zones) == allocatable, "an idle node is all free"
        exclusive = 1000 * len(self.taken & every)
        assert crossing or sum(zone["cpu"][2] for zone in zones) + exclusive <= allocatable
        assert sum(zone["memory"][0] for zone in zones) == self.machine.memory

    def _check_pool(self, pool: Pool, zone: dict[str, Any]) -> None:
        found = amounts(zone)
        usable = set(pool.cpus) - set(self.layout.capacity.reserved)
        assert found["cpu"][:2] == (1000 * len(pool.cpus), 1000 * len(usable))
        assert found["cpu"][2] == self._left(pool)
        nodes = set(chain.from_iterable(pool.memory.values()))
        memory = sum(node.memory for node in self.machine.nodes if node.id in nodes)
        assert found["memory"] == (memory, self._memory(nodes), self._memory_left(nodes))
        attributes = {each["name"]: each["value"] for each in zone["attributes"]}
        assert attributes.get("exclusive cpuset", "") == str(CPUSet(self.taken & set(pool.cpus)))
        assert attributes.get("shared cpuset", "") == str(CPUSet(self._free() & set(pool.cpus)))
        members = sum(grant.pool == pool.id for grant in self.containers)
        assert attributes["containers"] == str(members)
        parent = None if pool.parent is None else self.pools[pool.parent].name
        assert zone.get("parent") == parent

    def _available(self) -> set[int]:
        return set(self.layout.capacity.available)

    def _free(self) -> set[int]:
        return set(self.layout.capacity.sharable) - self.taken

    def _left(self, pool: Pool) -> int:
        """Return the milli-CPU left for sharing in *pool*."""
        left = min(
            1000 * len(self._free() & set(above.cpus)) - self._shared(above)
            for above in self.layout.tree.path(pool)
        )
        return max(0, left)

    def _within(self, pool: Pool) -> set[int]:
        return {each.id for each in self.pools if pool in self.layout.tree.path(each)}

    def _shared(self, pool: Pool) -> int:
        within = self._within(pool)
        return sum(grant.shared for grant in self.grants if grant.pool in within)

    def _need(self, pool: Pool) -> int:
        within = self._within(pool)
        sharers = any(g.shares and not g.preemptible for g in self.grants if g.pool in within)
        return max(self._shared(pool), 1000 if sharers else 0)

    def _cuttable(self, cpus: set[int]) -> int:
        """Return how many of *cpus* may be cut, by taking them one by one while §2 allows it.

        Or core by core, where all of a core are taken or none.
        """
        slack = {
            pool.id: 1000 * len(self._free() & set(pool.cpus)) - self._need(pool)
            for pool in self.pools
        }
        left, free = 0, cpus & self._free()
        takes = [{cpu} for cpu in sorted(free)]
        if self.layout.settings.full_cores is FullCores.REQUIRE:
            cores = [{*core.cpus & self.machine.online} for core in self.machine.cores]
            takes = [core for core in cores if core <= free]
        for take in takes:
            holding = [pool.id for pool in self.pools if take & {*pool.cpus}]
            if all(slack[each] >= 1000 * len(take) for each in holding):
                left += len(take)
                for each in holding:
                    slack[each] -= 1000 * len(take)
        return left

    def _memory(self, nodes: set[int]) -> int:
        capacity = self.layout.memory.capacity
        whole = sum(capacity.values()) - self.layout.memory.withheld
        return min(sum(capacity.get(node, 0) for node in nodes), whole)

    def _memory_left(self, nodes: set[int]) -> int:
        """Hall's condition: the least that any set around *nodes* has left."""
        capacity = self.layout.memory.capacity
        nodes &= capacity.keys()
        if not nodes:
            return 0
        others = [node for node in capacity if node not in nodes]
        least = None
        for extra in chain.from_iterable(combinations(others, n) for n in range(len(others) + 1)):
            around = nodes | {*extra}
            booked = sum(amount for zone, amount in self.bookings if zone <= around)
            left = self._memory(around) - booked
            least = left if least is None else min(least, left)
        assert least is not None
        return max(0, least)
