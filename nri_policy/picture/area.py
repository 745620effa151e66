"""Areas: pools in drawings, with their captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import natural
from nri_policy.hardware.machine import MemoryKind
from nri_policy.picture.detail import details_of
from nri_policy.picture.occupant import Occupant
from nri_policy.report import MachineReport, PoolReport, format_cpus
from nri_policy.workload.request import Sort


class Area(Struct, frozen=True, kw_only=True):
    """A pool as it is drawn."""

    name: str
    levels: tuple[str, ...]
    parent: int | None
    children: tuple[int, ...]
    cpus: CPUSet
    title: str
    caption: str
    details: tuple[str, ...]  # its memory nodes, last-level caches and devices


def areas_of(
    machine: MachineReport,
    pools: Sequence[PoolReport],
    occupants: Sequence[Occupant],
    *,
    with_sizes: bool,
) -> dict[int, Area]:
    """Return the areas by the ids of their pools.

    On each stands how much of its shared CPUs is granted to *occupants*, or *with_sizes* how large
    its memory is.
    """
    details = details_of(machine, pools)
    sizes = {node.id: node.memory for node in machine.numa_nodes}
    owned = CPUSet.union(each.exclusive | each.room for each in occupants)
    parents = {pool.id: pool.parent for pool in pools}
    ids = {pool.name: pool.id for pool in pools}
    granted = dict.fromkeys(parents, 0)
    for each in occupants:
        at = ids.get(each.pool) if each.sort is Sort.NORMAL else None
        while at is not None:
            granted[at] += each.shared
            at = parents[at]
    areas = {}
    for pool in pools:
        if not with_sizes:
            left = len(pool.sharable - owned)
            mems = CPUSet.union(pool.memory.values())
            caption = f"mem {mems or 'none'} · shared {granted[pool.id] / 1000:g} of {left}"
        else:
            caption = " · ".join(_memory(pool.memory, sizes)) or "no memory"
        areas[pool.id] = Area(
            name=pool.name,
            levels=pool.levels,
            parent=pool.parent,
            children=tuple(
                child.id
                for child in sorted(pools, key=lambda child: natural(child.name))
                if child.parent == pool.id
            ),
            cpus=pool.cpus,
            title=f"{pool.name}: {format_cpus(pool.cpus)}",
            caption=caption,
            details=details[pool.id],
        )
    return areas


def _memory(memory: Mapping[MemoryKind, CPUSet], sizes: Mapping[int, int]) -> Iterator[str]:
    for kind, nodes in memory.items():
        if nodes:
            yield f"{kind} {nodes}: {format_bytes(sum(sizes[id_] for id_ in nodes))}"
