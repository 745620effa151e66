"""Zones: the total and free resources of each NUMA node and pool, for schedulers; nrt.md §0.

Pure: zones are made from one state of the engine, by the engine's own accounting, in two steps.
`measure` copies the numbers while requests wait; `zones` can run later on another thread. Owns the
form of the zones: NUMA zones first, dense by id, for the scheduler; then the pools of the tree,
with the names and types that readers of nri-plugins' topology-aware policy expect.

What the numbers mean:

|             | NUMA zone                            | pool zone                          |
|-------------|--------------------------------------|------------------------------------|
| capacity    | what the hardware has                | the same                           |
| allocatable | of it, what containers may ever get  | the same                           |
| available   | what a new Guaranteed container      | cpu: the most that a new shared    |
|             | could get there                      | grant could have                   |

A container never gets isolated and ordinary CPUs together, so a NUMA zone's available CPUs are the
larger of the two numbers. The pool's free shared capacity adds a fraction of a CPU, because a
request for a fraction is shared or has a shared part. The fraction is less than one CPU, so it does
not mislead a request for whole CPUs. With `fullCores: require`, CPUs in partly used cores are not
available. Available memory is the amount that fits without moving another container's memory. CPUs
of a node without memory count with the nearest node that has memory, as in the engine. Huge pages
of each size count like memory. The devices are from the kubelet; the engine does not book them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_cpu, format_page_size
from nri_policy.hardware.machine import Machine
from nri_policy.node import NodeView
from nri_policy.pools.supply import cuttable
from nri_policy.pools.tree import Pool, PoolTree, numa_cpus
from nri_policy.report import Cost, NamedValue, Zone, ZoneResource
from nri_policy.settings import FullCores, Level
from nri_policy.workload.request import Sort

Devices = Mapping[int, Mapping[str, tuple[int, int]]]  # node -> resource -> all, those left

MOST_NODES = 64  # schedulers crash on ids beyond
_UNREACHABLE = 255  # ACPI's distance to an unreachable or absent node
_LOCAL = 10
# The type of a pool; a pool of several levels has the first of these (placement.md §1.5).
_TYPES = {
    Level.PACKAGE: "socket",
    Level.SYSTEM: "virtual node",
    Level.NUMA: "numa node",
    Level.DIE: "die",
    Level.L3CACHE: "L3 cache",
}


class ZoneAmounts(Struct, frozen=True, kw_only=True):
    """The numbers that a decision can change; the rest of the zones is from the layout."""

    numa_milli: tuple[int, ...]  # left for one new Guaranteed container, by NUMA id
    numa_memory: tuple[int, ...]  # bytes left, by NUMA id
    numa_pages: tuple[Mapping[int, int], ...]  # bytes left of each size of huge pages, by NUMA id
    pool_milli: tuple[int, ...]  # left for a new shared grant, by pool
    pool_memory: tuple[int, ...]  # bytes left, by pool
    free: CPUSet
    exclusive: CPUSet  # that containers have exclusively
    members: Mapping[int, int]  # containers booked on exactly this pool


def measure(view: NodeView) -> ZoneAmounts:
    """Return the amounts of *view*."""
    layout, supply, booked = view.layout, view.supply(), view.memory()
    pools, capacity = layout.tree.pools, layout.capacity
    free, isolated = view.free, view.free_isolated
    own = [each & capacity.available for each in zone_cpus(layout.machine)]
    homes = [layout.tree.around(each).id for each in own]
    pool_milli = tuple(max(0, supply.allocatable_shared(pool.id)) for pool in pools)
    # a node without its own pool may have fewer free CPUs than its pool
    left, left_isolated = [len(cpus & free) for cpus in own], [len(cpus & isolated) for cpus in own]
    room, room_isolated = list(cuttable(supply, homes)), left_isolated
    if layout.settings.full_cores is FullCores.REQUIRE:
        fill, top = layout.picker.domains.in_whole_cores, layout.tree.top.id
        by_pool = fill(free, supply.slack(top, 0, False, False))
        isolated_by_pool = fill(isolated, None)
        room = [min(by_pool[each.id] for each in layout.tree.path(pools[home])) for home in homes]
        room_isolated = [isolated_by_pool[home] for home in homes]
    numa_milli = [
        max(
            min(pool_milli[home], 1000 * min(room[i], left[i]) + 999, 1000 * left[i]),
            1000 * min(room_isolated[i], left_isolated[i]),
        )
        if own[i]
        else 0
        for i, home in enumerate(homes)
    ]
    nodes = [CPUSet.union(pool.memory.values()) for pool in pools]
    memory = {each: booked.free(each) for each in {*nodes}}
    return ZoneAmounts(
        numa_milli=tuple(numa_milli),
        numa_memory=tuple(booked.free(CPUSet([number])) for number in range(len(own))),
        numa_pages=tuple(
            {size: booked.free_pages(size, CPUSet([number])) for size in layout.memory.hugepages}
            for number in range(len(own))
        ),
        pool_milli=pool_milli,
        pool_memory=tuple(memory[each] for each in nodes),
        free=free,
        exclusive=view.exclusive,
        members=Counter(
            placed.grant.pool for placed in view.placed.values() if placed.grant.sort is Sort.NORMAL
        ),
    )


def zones(
    layout: Layout,
    amounts: ZoneAmounts,
    devices: Devices,
    attributes: Mapping[int, Mapping[str, object]] = MappingProxyType({}),
) -> tuple[Zone, ...]:
    """Return the zones of a *layout* with these *amounts*.

    NUMA zones also have the *devices* and *attributes* of their ids.
    """
    return (*_numa_zones(layout, amounts, devices, attributes), *_pool_zones(layout, amounts))


def zone_cpus(machine: Machine) -> list[CPUSet]:
    """Return the CPUs of every NUMA zone, by id."""
    cpus = numa_cpus(machine)
    count = min(max(node.id for node in machine.nodes) + 1, MOST_NODES)
    return [cpus.get(number, EMPTY) for number in range(count)]


def _numa_zones(
    layout: Layout,
    amounts: ZoneAmounts,
    devices: Devices,
    attributes: Mapping[int, Mapping[str, object]],
) -> Iterator[Zone]:
    machine = layout.machine
    nodes = {node.id: node for node in machine.nodes}
    sizes = sorted({size for node in machine.nodes for size, _ in node.hugepages})
    sorts = sorted({sort for counts in devices.values() for sort in counts})
    own = zone_cpus(machine)
    for number, cpus in enumerate(own):
        node = nodes.get(number)
        resources = [
            _cpu(layout, cpus, amounts.numa_milli[number]),
            _memory(
                layout,
                CPUSet([number]),
                node.memory if node else 0,
                amounts.numa_memory[number],
            ),
        ]
        pages = dict(node.hugepages) if node else {}
        for size in sizes:
            amount = size * pages.get(size, 0)
            left = amounts.numa_pages[number].get(size, 0)
            name = f"hugepages-{format_page_size(size)}"
            resources.append(_resource(name, amount, amount, left))
        for sort in sorts:
            every, idle = devices.get(number, {}).get(sort, (0, 0))
            resources.append(_resource(sort, every, every, idle))
        yield Zone(
            name=f"node-{number}",
            type="Node",
            costs=_costs(machine, number, len(own)),
            attributes=named_values(attributes.get(number, {})) or None,
            resources=tuple(resources),
        )


def _costs(machine: Machine, number: int, count: int) -> tuple[Cost, ...]:
    known = machine.distances.nodes
    row = (
        dict(zip(known, machine.distances.matrix[known.index(number)], strict=True))
        if number in known
        else {number: _LOCAL}
    )
    return tuple(
        Cost(name=f"node-{other}", value=row.get(other, _UNREACHABLE)) for other in range(count)
    )


def _pool_zones(layout: Layout, amounts: ZoneAmounts) -> Iterator[Zone]:
    tree, capacity = layout.tree, layout.capacity
    sizes = {node.id: node.memory for node in layout.machine.nodes}
    for pool in _parents_first(tree, tree.top):
        nodes = CPUSet.union(pool.memory.values())
        attributes = {
            "memory set": nodes,
            "shared cpuset": amounts.free & pool.cpus,
            "reserved cpuset": capacity.reserved & pool.cpus,
            "isolated cpuset": capacity.isolated & pool.cpus,
            **{f"{kind} set": ids for kind, ids in pool.memory.items()},
            "exclusive cpuset": amounts.exclusive & pool.cpus,
            "containers": amounts.members.get(pool.id, 0),
        }
        yield Zone(
            name=pool.name,
            type=next(_TYPES[level] for level in _TYPES if level in pool.levels),
            parent=None if pool.parent is None else tree.pools[pool.parent].name,
            attributes=named_values(attributes),
            resources=(
                _cpu(layout, pool.cpus, amounts.pool_milli[pool.id]),
                _memory(
                    layout,
                    nodes,
                    sum(sizes[node] for node in nodes),
                    amounts.pool_memory[pool.id],
                ),
            ),
        )


def _parents_first(tree: PoolTree, pool: Pool) -> Iterable[Pool]:
    yield pool
    for child in pool.children:
        yield from _parents_first(tree, tree.pools[child])


def named_values(values: Mapping[str, object]) -> tuple[NamedValue, ...]:
    """Return attributes in the API's form, without empty ones."""
    return tuple(
        NamedValue(name=name, value=text) for name, value in values.items() if (text := str(value))
    )


def _cpu(layout: Layout, cpus: CPUSet, left: int) -> ZoneResource:
    usable = cpus & (layout.capacity.sharable | layout.capacity.isolated)
    return _resource("cpu", len(cpus), len(usable), format_cpu(left))


def _memory(layout: Layout, nodes: CPUSet, capacity: int, left: int) -> ZoneResource:
    return _resource("memory", capacity, layout.memory.capacity_of(nodes), left)


def _resource(name: str, capacity: int, allocatable: int, available: int | str) -> ZoneResource:
    return ZoneResource(
        name=name,
        capacity=str(capacity),
        allocatable=str(allocatable),
        available=str(available),
    )
