"""Details of pools for tooltips: memory, devices and other parts besides CPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import counted
from nri_policy.report import DeviceReport, MachineReport, NodeReport, PoolReport

_MOST_DEVICES = 12


def details_of(machine: MachineReport, pools: Sequence[PoolReport]) -> dict[int, tuple[str, ...]]:
    """Return the lines of each pool's tooltip, by the pool's id."""
    cpus = {pool.id: pool.cpus for pool in pools}
    devices = _devices(machine.devices, cpus)
    nodes = {node.id: node for node in machine.numa_nodes}
    last = max((cache.level for cache in machine.caches), default=0)
    caches = [(cache.cpus, cache.size) for cache in machine.caches if cache.level == last]
    return {
        pool.id: (
            *_memory(pool.memory.values(), nodes),
            *_caches(last, [size for own, size in caches if own & pool.cpus]),
            *_some(devices[pool.id]),
        )
        for pool in pools
    }


def _devices(devices: Sequence[DeviceReport], pools: Mapping[int, CPUSet]) -> dict[int, list[str]]:
    """Return the devices of each pool that is the smallest around all CPUs near to them."""
    found: dict[int, list[str]] = {id_: [] for id_ in pools}
    top = max(pools.values(), key=len)
    for device in devices:
        near = device.cpus & top
        around = [id_ for id_, cpus in pools.items() if near <= cpus]
        smallest = min(around, key=lambda id_: len(pools[id_]))
        found[smallest].append(f"{device.address} {device.name}")
    return found


def _memory(kinds: Iterable[CPUSet], nodes: Mapping[int, NodeReport]) -> Iterator[str]:
    for id_ in CPUSet.union(kinds):
        node = nodes[id_]
        yield f"memory node {id_}: {format_bytes(node.memory)} {node.kind}"


def _caches(level: int, sizes: Sequence[int]) -> Iterator[str]:
    for size, count in sorted(Counter(sizes).items()):
        known = format_bytes(size) if size else "unknown size"
        yield f"{counted(count, f'L{level} cache')} of {known}"


def _some(devices: Sequence[str]) -> Iterator[str]:
    yield from devices[:_MOST_DEVICES]
    if len(devices) > _MOST_DEVICES:
        yield f"and {counted(len(devices) - _MOST_DEVICES, 'device')} more"
