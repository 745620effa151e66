"""The pool of each new container against the table of placement.md §4, worked out by hand.

The table is made of the grants alone, by brute force over sets of domains, with nothing of the
engine's accounting, kernels or criteria.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Grant
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import MemoryKind
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.tree import Pool, PoolTree
from nri_policy.settings import Level
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

MIB, GIB = 1 << 20, 1 << 30
LEAST_DECISIONS = 60  # that are compared in one life; fewer would test nothing


class Node(NamedTuple):
    """A machine, with settings."""

    machine: str
    spec: Mapping[str, Any] = {}


NODES = {
    "four nodes": Node("package:2 numa:2(memory=1GiB) core:2 pu:2"),
    "numa": Node("package:2 numa:2(memory=1GiB) core:3 pu:1", {"unlimitedBurstable": "numa"}),
    "caches": Node("package:2 numa:1(memory=2GiB) l3:2 core:4 pu:1"),
    "small caches": Node("package:2 numa:1(memory=2GiB) l3:3 core:2 pu:1"),
    "tight": Node("package:1 numa:2(memory=1GiB) l3:2 core:4 pu:1", {"packing": "tight"}),
    "three": Node("package:3 numa:1(memory=1GiB) core:2 pu:2", {"unlimitedBurstable": "system"}),
    "aligned": Node("package:2 numa:2(memory=1GiB) core:4 pu:1", {"alignment": "numa"}),
    "isolated": Node("package:2 numa:2(memory=1GiB) core:4 pu:1 isolated=2-3,9,14-15"),
}


class Asked(NamedTuple):
    """What a container asks for, by the table of placement.md §3."""

    exclusive: int
    shared: int
    isolated: bool = False
    qos: QoS = QoS.GUARANTEED
    cpu_limit: int | None = None  # of a Burstable one
    memory_limit: int = 0  # of a Burstable one
    pulls: Mapping[str, int] = {}  # weights, by container id


class Table:
    """The criteria of all pools for one request; `None` for a pool that cannot hold it."""

    def __init__(self, driver: EngineDriver, asked: Asked, *, with_preemptible: bool) -> None:
        self.state, self.layout = driver.engine.state, driver.engine.layout
        self.tree: PoolTree = self.layout.tree
        self.asked, self.with_preemptible = asked, with_preemptible
        grants = [each.grant for each in self.state.placed.values()]
        own = CPUSet.union(grant.exclusive for grant in grants)
        self.free = self.layout.capacity.sharable - own
        self.free_isolated = self.layout.capacity.isolated - own
        self.sharers = [grant for grant in grants if grant.shares]
        self.rows = [self.row(pool) for pool in self.tree.pools]

    def best(self) -> int | None:
        fitting = [(row, pool) for pool, row in enumerate(self.rows) if row is not None]
        return max(fitting)[1] if fitting else None

    def below(self, pool: Pool) -> list[Pool]:
        return [each for each in self.tree.pools if each.cpus <= pool.cpus]

    def inside(self, pool: Pool) -> list[Grant]:
        ids = {each.id for each in self.below(pool)}
        return [grant for grant in self.sharers if grant.pool in ids]

    def slack(self, pool: Pool, more: int = 0, *, joins: bool = False) -> int:
        """How many CPUs may be cut out of *pool*, if *more* milli-CPU are booked in it as well."""
        grants = [
            each for each in self.inside(pool) if self.with_preemptible or not each.preemptible
        ]
        need = more + sum(each.shared for each in grants)
        if grants or joins:
            need = max(need, 1000)
        return len(self.free & pool.cpus) - -(-need // 1000)

    def cuttable(self, cpus: CPUSet, home: Pool) -> int:
        """How many of *cpus* may be cut at once beside the shared part of the request at *home*."""
        asked, left = self.asked, dict.fromkeys(self.free & cpus, True)
        joins = bool(asked.shared) and bool(asked.exclusive)
        taken: set[int] = set()
        limits = [
            (
                each.cpus,
                self.slack(
                    each,
                    asked.shared if home.cpus <= each.cpus else 0,
                    joins=joins and home.cpus <= each.cpus,
                ),
            )
            for each in self.tree.pools
        ]
        for cpu in left:  # limits nest, so any order finds the most
            some = CPUSet(taken | {cpu})
            if all(len(some & area) <= most for area, most in limits):
                taken.add(cpu)
        return len(taken)

    def allocatable(self, pool: Pool) -> int:
        return min(
            1000 * len(self.free & above.cpus) - sum(each.shared for each in self.inside(above))
            for above in self.tree.path(pool)
        )

    def row(self, pool: Pool) -> tuple[float, ...] | None:
        asked, tree = self.asked, self.tree
        isolated = self.free_isolated & pool.cpus
        has_isolated = asked.isolated and len(isolated) >= asked.exclusive > 0
        spare = self.allocatable(pool)
        n = 0 if has_isolated else asked.exclusive
        most = self.cuttable(pool.cpus, pool)
        if n and most < n:
            return None
        if asked.shared > spare - 1000 * n or (not asked.exclusive and not self.free & pool.cpus):
            return None
        if asked.exclusive and self.layout.aligned and not in_numa(tree, pool):
            return None
        zone = CPUSet.union(pool.memory.values())
        return (
            float(not asked.isolated or has_isolated),
            self.affinity(pool),
            self.memory_burst(pool),
            *self.cpu_burst(pool, spare),
            -len(zone),
            pool.depth,
            *(self.domains(pool, isolated if has_isolated else None) if asked.exclusive else ()),
            *((-sum(each.shared > 0 for each in self.inside(pool)),) if asked.exclusive else ()),
            *self.left(pool, isolated if has_isolated else None, most, spare),
            -pool.id,
        )

    def affinity(self, pool: Pool) -> float:
        total = 0.0
        for other, weight in self.asked.pulls.items():
            at = self.tree.pools[self.state.placed[other].grant.pool]
            if at.cpus <= pool.cpus or pool.cpus <= at.cpus:
                total += weight * 0.75 ** abs(at.depth - pool.depth)
        return round(total, 9)

    def memory_burst(self, pool: Pool) -> float:
        asked = self.asked
        if asked.qos is not QoS.BURSTABLE:
            return 0.0
        if asked.memory_limit:
            capacity = self.layout.memory.capacity
            size = sum(capacity[each] for each in pool.memory[MemoryKind.DRAM])
            return float(size >= asked.memory_limit)
        return 0.0 if asked.cpu_limit else self.closeness(pool)

    def cpu_burst(self, pool: Pool, spare: int) -> tuple[float, float]:
        asked = self.asked
        if asked.qos is not QoS.BURSTABLE:
            return 0.0, 0.0
        if asked.cpu_limit is None:
            return self.closeness(pool), spare
        short = max(0, asked.cpu_limit - spare)
        wide = 0 if in_numa(self.tree, pool) else asked.cpu_limit // 4
        packages = [each for each in self.tree.pools if Level.PACKAGE in each.levels]
        widest = max((1000 * len(each.cpus) for each in packages), default=0)
        crosses = not any(pool.cpus <= each.cpus for each in packages)
        # "a tenth of a CPU is not worth another socket"
        wide += asked.cpu_limit // 4 if crosses and asked.cpu_limit <= widest else 0
        return 0.0, -(short + wide)

    def closeness(self, pool: Pool) -> int:
        level = self.layout.settings.unlimited_burstable
        leaves = [each for each in self.tree.pools if not each.children]
        wanted = {self.tree.at_level(leaf, level).id for leaf in leaves}
        return max(
            -abs(pool.depth - each.depth)
            for each in self.tree.pools
            if each.id in wanted and (each.cpus <= pool.cpus or pool.cpus <= each.cpus)
        )

    def domains(self, pool: Pool, isolated: CPUSet | None) -> tuple[int, ...]:
        """The fewest packages, then nodes, then caches that hold the exclusive CPUs."""
        levels = [self.tree.domains_of(each) for each in (Level.PACKAGE, Level.NUMA, Level.L3CACHE)]
        finest = next(each for each in reversed(levels) if each)
        finest = tuple(each for each in finest if not each.isdisjoint(pool.cpus))
        found = []
        for size in range(1, len(finest) + 1):
            for some in combinations(finest, size):
                area = CPUSet.union(some) & pool.cpus
                has = self.cuttable(area, pool) if isolated is None else len(area & isolated)
                if has >= self.asked.exclusive:
                    found.append(
                        tuple(
                            sum(not each.isdisjoint(area) for each in level or finest)
                            for level in levels
                        )
                    )
        return tuple(-count for count in min(found))

    def left(self, pool: Pool, isolated: CPUSet | None, most: int, spare: int) -> tuple[float, ...]:
        asked = self.asked
        if isolated is not None:
            return (len(isolated) - asked.exclusive,)
        if asked.exclusive:
            tight = str(self.layout.settings.packing) == "tight"
            return ((asked.exclusive - most) if tight else (most - asked.exclusive),)
        return -sum(each.pool == pool.id for each in self.sharers), spare - asked.shared


def in_numa(tree: PoolTree, pool: Pool) -> bool:
    return any(pool.cpus <= area for area in tree.domains_of(Level.NUMA))


def expected(driver: EngineDriver, asked: Asked) -> int | None:
    """The pool by §4, with both looks of §2 at a request with exclusive CPUs."""
    table = Table(driver, asked, with_preemptible=True)
    pool = table.best()
    preemptible = any(
        each.grant.preemptible and each.grant.shares for each in driver.engine.state.placed.values()
    )
    if not (asked.exclusive and preemptible):
        return pool
    alone = Table(driver, asked, with_preemptible=False)
    other = alone.best()
    if pool is None or other is None:
        return other
    now, then = table.rows[pool], alone.rows[other]
    assert now is not None
    assert then is not None
    return other if then[:7] > now[:7] else pool


@cache
def shapes() -> tuple[Asked, ...]:
    guaranteed = [Asked(n, 0) for n in (1, 2, 2, 3, 4, 5, 6)]
    mixed = [Asked(1, 500), Asked(2, 300)]
    shared = [Asked(0, milli) for milli in (100, 300, 900)]
    burstable = [
        Asked(0, milli, qos=QoS.BURSTABLE, cpu_limit=limit, memory_limit=memory)
        for milli, limit, memory in (
            (200, None, 0),
            (1000, None, 0),
            (500, 2000, 0),
            (500, 5000, 0),
            (1000, 9000, 64 * MIB),
            (100, None, 64 * MIB),
            (100, 1000, 3 * GIB // 2),
            (100, 4000, 3 * GIB),
        )
    ]
    best_effort = [Asked(0, 0, qos=QoS.BEST_EFFORT)]
    return (*guaranteed, *mixed, *shared, *burstable, *best_effort)


def draw(rng: random.Random, driver: EngineDriver) -> tuple[Container, Asked]:
    """A container, and what it asks for."""
    asked = rng.choice(shapes())
    annotations, n = {}, asked.exclusive
    if n and rng.random() < 0.3:
        asked = asked._replace(isolated=True)
        annotations["prefer-isolated-cpus.resource-policy.nri.io/pod"] = "true"
    if n >= 2 and asked.shared:
        annotations["prefer-shared-cpus.resource-policy.nri.io/pod"] = "false"
    placed = [*driver.engine.state.placed.values()]
    if placed and rng.random() < 0.3:
        pulls = {rng.choice(placed).container.id: rng.choice((-7, -2, 1, 5)) for _ in range(2)}
        asked = asked._replace(pulls=pulls)
        annotations["resource-policy.nri.io/affinity"] = (
            "c0: ["
            + ", ".join(
                f"{{scope: {{operator: AlwaysTrue}}, match: {{key: id, operator: Equals,"
                f" values: [{other}]}}, weight: {weight}}}"
                for other, weight in pulls.items()
            )
            + "]"
        )
    limit = asked.cpu_limit if asked.qos is QoS.BURSTABLE else None
    request = 1000 * n + asked.shared
    container = nodes.container(request, limit, qos=asked.qos, annotations=annotations)
    if asked.memory_limit:
        resources = replace(container.resources, memory_limit=asked.memory_limit)
        container = replace(container, resources=resources)
    return container, asked


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", NODES)
def test_each_container_is_in_the_pool_that_the_table_of_criteria_says(
    name: str, seed: int
) -> None:
    node, rng = NODES[name], random.Random(f"{name} {seed}")
    driver = EngineDriver(node.machine, makeWay={"movers": 0}, **node.spec)
    running: list[Container] = []
    compared = 0
    for _ in range(160):
        if running and rng.random() < 0.42:
            driver.stop(running.pop(rng.randrange(len(running))))
            continue
        container, asked = draw(rng, driver)
        wanted = expected(driver, asked)
        try:
            driver.create(container)
        except PlacementError:
            assert wanted is None, f"{asked} fits {driver.engine.layout.tree.pools[wanted].name}"
            continue
        running.append(container)
        placed = driver.engine.state.placed[container.id]
        if placed.explanation.kind is DecisionKind.SPILLED:
            assert wanted is None
        elif wanted is not None:
            assert placed.grant.pool == wanted, asked
            compared += 1
    assert compared >= LEAST_DECISIONS
