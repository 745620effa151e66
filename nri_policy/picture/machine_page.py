"""The tables of a machine on a page: pools, memory, distances, caches, devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import counted
from nri_policy.hardware.machine import Cache, CoreKind
from nri_policy.picture.markup import Element
from nri_policy.picture.page import heat_map, render_list, section, table
from nri_policy.report import DeviceReport, MachineReport, PoolReport


def machine_sections(machine: MachineReport, pools: Sequence[PoolReport]) -> Iterator[Element]:
    """Yield the parts of a page, from the whole to the parts."""
    yield section("Pools", _pools(pools))
    yield section("CPUs", _cpu_sets(machine, pools))
    yield section("Memory nodes", _nodes(machine))
    distances = machine.distances
    if len(distances.nodes) > 1:
        names = [str(node) for node in distances.nodes]
        yield section("Distances between memory nodes", heat_map(names, distances.matrix))
    if machine.caches:
        yield section("Caches", _caches(machine.caches))
    if machine.devices:
        yield section("Devices", _devices(machine.devices))
    if machine.notes:
        yield section("Notes", render_list(machine.notes))


def _pools(pools: Sequence[PoolReport]) -> Element:
    parents_first = sorted(pools, key=lambda pool: (pool.cpus.lowest, pool.depth))
    rows = [
        [
            "· " * pool.depth + pool.name,
            ", ".join(pool.levels),
            str(len(pool.cpus)),
            str(pool.cpus),
            "; ".join(f"{kind} {nodes}" for kind, nodes in pool.memory.items() if nodes),
        ]
        for pool in parents_first
    ]
    return table(["pool", "stands for", "count", "CPUs", "memory nodes"], rows)


def _cpu_sets(machine: MachineReport, pools: Sequence[PoolReport]) -> Element:
    top = next(pool for pool in pools if pool.parent is None)
    sets: dict[str, CPUSet] = {
        "online": machine.cpus.online,
        "offline": machine.cpus.offline,
        "isolated": machine.cpus.isolated,
        "nohz_full": machine.cpus.nohz_full,
        "reserved": top.reserved,
        "sharable": top.sharable,
    }
    for core in machine.cores:
        if core.kind is not CoreKind.STANDARD:
            sets[core.kind] = sets.get(core.kind, EMPTY) | core.cpus
    rows = [[name, str(len(cpus)), str(cpus)] for name, cpus in sets.items() if cpus]
    return table(["", "count", "CPUs"], rows)


def _nodes(machine: MachineReport) -> Element:
    rows = [
        [
            str(node.id),
            node.kind,
            format_bytes(node.memory),
            str(node.cpus) or "-",
            "" if node.cpus else str(node.nearest),
            "" if node.latency is None else f"{node.latency} ns",
            "" if node.bandwidth is None else f"{node.bandwidth} MB/s",
            node.kind_reason,
        ]
        for node in machine.numa_nodes
    ]
    heads = ["node", "kind", "memory", "CPUs", "nearest to", "latency", "bandwidth", "because"]
    kept = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    return table([heads[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _caches(caches: Sequence[Cache]) -> Element:
    """Return one line for each group of caches that differ only by CPUs."""
    alike: dict[tuple[int, str, int], list[int]] = {}
    for cache in caches:
        kind = cache.level, cache.type, cache.size
        alike.setdefault(kind, []).append(len(cache.cpus))
    rows = []
    for (level, type_, size), sharers in sorted(alike.items()):
        least, most = min(sharers), max(sharers)
        rows.append(
            [
                f"L{level}",
                type_,
                str(len(sharers)),
                format_bytes(size) if size else "unknown",
                counted(most, "CPU") if least == most else f"{least} to {most} CPUs",
            ]
        )
    return table(["level", "type", "count", "size", "shared by"], rows)


def _devices(devices: Sequence[DeviceReport]) -> Element:
    rows = [
        [each.address, each.class_, each.name, str(each.numa_nodes) or "-", str(each.cpus)]
        for each in devices
    ]
    return table(["address", "class", "name", "NUMA nodes", "near CPUs"], rows)
