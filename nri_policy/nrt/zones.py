"""Zones: what every NUMA node and every pool has and has left, as schedulers read it; nrt.md §0.

Pure: made from one state of the engine, by the engine's own accounting. Owns the form of the zones:
NUMA zones come first, dense by id, for the scheduler; then the pools of the tree under the names
and types of the topology-aware policy of nri-plugins, whose readers look for these.

What the numbers mean:

|             | NUMA zone                            | pool zone                          |
|-------------|--------------------------------------|------------------------------------|
| capacity    | what the hardware has                | the same                           |
| allocatable | of it, what containers may ever get  | the same                           |
| available   | what a new Guaranteed container      | cpu: the most that a new shared    |
|             | could get there                      | grant could have                   |

A container never gets isolated and ordinary CPUs together, so a NUMA zone's available CPUs are the
more numerous of the two. Its available memory is what fits without moving anyone else's. CPUs of a
node without memory count where the engine counts them: with the nearest node that has memory.
Hugepages are not booked by the engine: all that exist are shown as available. Devices are those
that the kubelet tells of; the engine does not book them either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.state import State
from nri_policy.hardware.machine import Machine, MemoryKind
from nri_policy.pools.supply import cuttable
from nri_policy.pools.tree import Pool, PoolTree, numa_cpus
from nri_policy.settings import Level
from nri_policy.units import format_cpu
from nri_policy.workload.request import Sort

Zone = dict[str, Any]
Devices = Mapping[int, Mapping[str, tuple[int, int]]]  # node -> resource -> all, those left

_NONE: Devices = {}

MOST_NODES = 64  # schedulers crash on ids beyond
_UNREACHABLE = 255  # ACPI's distance to what cannot be reached, or is not there
_LOCAL = 10
# What a pool is called that stands for several levels: the first of these (placement.md §1.5).
_TYPES = {
    Level.PACKAGE: "socket",
    Level.SYSTEM: "virtual node",
    Level.NUMA: "numa node",
    Level.DIE: "die",
    Level.L3CACHE: "L3 cache",
}


def zones(state: State, devices: Devices = _NONE) -> list[Zone]:
    """Return the zones of *state*, with *devices* in those of their NUMA nodes."""
    return [*_numa_zones(state, devices), *_pool_zones(state)]


def _numa_zones(state: State, devices: Devices) -> Iterator[Zone]:
    machine, capacity = state.layout.machine, state.layout.capacity
    nodes = {node.id: node for node in machine.nodes}
    count = min(max(nodes) + 1, MOST_NODES)
    sizes = sorted({size for node in machine.nodes for size, _ in node.hugepages})
    sorts = sorted({sort for counts in devices.values() for sort in counts})
    cpus = numa_cpus(machine)
    rooms = cuttable(state.supply, len(state.layout.tree.pools))
    for number in range(count):
        own = cpus.get(number, EMPTY)
        node = nodes.get(number)
        usable = own & (capacity.sharable | capacity.isolated)
        resources = [
            _resource("cpu", str(len(own)), str(len(usable)), str(_cpus_left(state, rooms, own))),
            _memory(state, CPUSet([number]), node.memory if node else 0),
        ]
        pages = dict(node.hugepages) if node else {}
        for size in sizes:
            amount = str(size * pages.get(size, 0))
            resources.append(_resource(f"hugepages-{_binary(size)}", amount, amount, amount))
        for sort in sorts:
            every, left = devices.get(number, {}).get(sort, (0, 0))
            resources.append(_resource(sort, str(every), str(every), str(left)))
        yield {
            "name": f"node-{number}",
            "type": "Node",
            "costs": _costs(machine, number, count),
            "resources": resources,
        }


def _cpus_left(state: State, rooms: tuple[int, ...], cpus: CPUSet) -> int:
    """Return how many of *cpus* one new Guaranteed container could get."""
    available = cpus & state.layout.capacity.available
    if not available:
        return 0
    sharable = min(
        rooms[_smallest(state.layout.tree, available).id],
        len(available & state.supply.free_cpus()),
    )
    return max(sharable, len(available & state.supply.free_isolated_cpus()))


def _smallest(tree: PoolTree, cpus: CPUSet) -> Pool:
    """Return the pool of *cpus*; where they cross the tree, the smallest one that has all."""
    return next(pool for pool in tree.pools if cpus <= pool.cpus)


def _costs(machine: Machine, number: int, count: int) -> list[Zone]:
    known = machine.distances.nodes
    row = (
        dict(zip(known, machine.distances.matrix[known.index(number)], strict=True))
        if number in known
        else {number: _LOCAL}
    )
    return [
        {"name": f"node-{other}", "value": row.get(other, _UNREACHABLE)} for other in range(count)
    ]


def _pool_zones(state: State) -> Iterator[Zone]:
    tree, capacity = state.layout.tree, state.layout.capacity
    taken = CPUSet.union(placed.grant.exclusive for placed in state.placed.values())
    members = Counter(
        placed.grant.pool for placed in state.placed.values() if placed.grant.sort is Sort.NORMAL
    )
    sizes = {node.id: node.memory for node in state.layout.machine.nodes}
    for pool in _parents_first(tree, tree.top):
        nodes = CPUSet.union(pool.memory.values())
        usable = pool.cpus & (capacity.sharable | capacity.isolated)
        left = max(0, state.supply.allocatable_shared(pool.id))
        attributes = {
            "memory set": nodes,
            "shared cpuset": state.supply.free_cpus() & pool.cpus,
            "reserved cpuset": capacity.reserved & pool.cpus,
            "isolated cpuset": capacity.isolated & pool.cpus,
            "dram set": pool.memory[MemoryKind.DRAM],
            "pmem set": pool.memory[MemoryKind.PMEM],
            "hbm set": pool.memory[MemoryKind.HBM],
            "exclusive cpuset": taken & pool.cpus,
            "containers": members[pool.id],
        }
        above = {} if pool.parent is None else {"parent": tree.pools[pool.parent].name}
        yield {
            "name": pool.name,
            "type": next(_TYPES[level] for level in _TYPES if level in pool.levels),
            **above,
            "attributes": named_values(attributes),
            "resources": [
                _resource("cpu", str(len(pool.cpus)), str(len(usable)), format_cpu(left)),
                _memory(state, nodes, sum(sizes[node] for node in nodes)),
            ],
        }


def _parents_first(tree: PoolTree, pool: Pool) -> Iterable[Pool]:
    yield pool
    for child in pool.children:
        yield from _parents_first(tree, tree.pools[child])


def named_values(values: Mapping[str, object]) -> list[Zone]:
    """Return attributes as the API has them, without those that have nothing to say."""
    return [{"name": name, "value": text} for name, value in values.items() if (text := str(value))]


def _memory(state: State, nodes: CPUSet, capacity: int) -> Zone:
    allocatable = state.layout.memory.capacity_of(nodes)
    return _resource("memory", str(capacity), str(allocatable), str(state.memory.free(nodes)))


def _resource(name: str, capacity: str, allocatable: str, available: str) -> Zone:
    return {
        "name": name,
        "capacity": capacity,
        "allocatable": allocatable,
        "available": available,
    }


def _binary(size: int) -> str:
    """Return bytes as resource names have them: `2Mi`, `1Gi`."""
    step = 0
    while step < 4 and size % 1024 == 0:
        size //= 1024
        step += 1
    return f"{size}{('', 'Ki', 'Mi', 'Gi', 'Ti')[step]}"
