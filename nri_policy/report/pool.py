"""Pools: as the machine has them (`topology`), and with what is granted on them (`pools`)."""

from __future__ import annotations

from msgspec import Struct, structs

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_page_size
from nri_policy.hardware.machine import MemoryKind
from nri_policy.node import NodeView
from nri_policy.pools.capacity import Capacity
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.tree import PoolTree
from nri_policy.report.machine import MachineReport
from nri_policy.settings import Level
from nri_policy.workload.request import Sort


class PoolReport(Struct, frozen=True, kw_only=True):
    """A pool as it is without containers."""

    id: int
    name: str
    levels: tuple[Level, ...]  # what it stands for
    parent: int | None  # id
    depth: int
    cpus: CPUSet
    isolated: CPUSet
    reserved: CPUSet
    sharable: CPUSet
    memory: dict[MemoryKind, CPUSet]  # node ids


class HugePagesReport(Struct, frozen=True, kw_only=True):
    """The huge pages of one size on a pool's memory nodes."""

    size: str  # as in the resource's name: 2Mi, 1Gi
    count: int
    free: int  # not booked


class OccupiedPoolReport(PoolReport, frozen=True, kw_only=True):
    """A pool with what is granted on it and below it."""

    shared_milli_granted: int
    shared_milli_allocatable: int
    exclusive: CPUSet
    containers: tuple[str, ...]  # namespace/pod/name of those booked on just this pool
    hugepages: tuple[HugePagesReport, ...]  # of the sizes that the node has


class TopologyReport(Struct, frozen=True, kw_only=True):
    """What `topology` prints."""

    machine: MachineReport
    pools: tuple[PoolReport, ...]


def pool_reports(tree: PoolTree, capacity: Capacity) -> tuple[PoolReport, ...]:
    """Return the pools as they are without containers."""
    return tuple(
        PoolReport(
            id=pool.id,
            name=pool.name,
            levels=tuple(pool.levels),
            parent=pool.parent,
            depth=pool.depth,
            cpus=pool.cpus,
            isolated=capacity.isolated & pool.cpus,
            reserved=capacity.reserved & pool.cpus,
            sharable=capacity.sharable & pool.cpus,
            memory=dict(pool.memory),
        )
        for pool in tree.pools
    )


def occupied_pools(view: NodeView) -> tuple[OccupiedPoolReport, ...]:
    """Return the pools with what is granted on them."""
    layout, supply, taken = view.layout, view.supply(), view.exclusive
    memory = view.memory()
    booked: dict[int, list[str]] = {}
    for placed in view.placed.values():
        if placed.grant.sort is Sort.NORMAL:
            booked.setdefault(placed.grant.pool, []).append(placed.container.full_name)
    return tuple(
        OccupiedPoolReport(
            **structs.asdict(pool),
            shared_milli_granted=supply.shared_milli_in(pool.id),
            shared_milli_allocatable=max(0, supply.allocatable_shared(pool.id)),
            exclusive=taken & pool.cpus,
            containers=tuple(booked.get(pool.id, ())),
            hugepages=_hugepages(memory, CPUSet.union(pool.memory.values())),
        )
        for pool in pool_reports(layout.tree, layout.capacity)
    )


def _hugepages(memory: MemorySupply, zone: CPUSet) -> tuple[HugePagesReport, ...]:
    """Return the huge pages of each size on the nodes of *zone*."""
    return tuple(
        HugePagesReport(
            size=format_page_size(size),
            count=memory.map.pages_of(size, zone) // size,
            free=memory.free_pages(size, zone) // size,
        )
        for size in sorted(memory.map.hugepages)
    )
