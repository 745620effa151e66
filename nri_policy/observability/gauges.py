"""Gauges: the engine's state of pools and containers as metrics.

Owns the names and labels of all gauges that are read from the state. An `InventorySnapshot` is a
cheap copy that is made in the daemon's turn; any thread can make the metrics of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from nri_policy.engine.choice.placement_notes import confinement, may_be_confined
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_page_size
from nri_policy.node import NodeView, Placed, is_remote, list_company
from nri_policy.observability import families
from nri_policy.pools.memory_offer import Booking
from nri_policy.workload.request import Sort

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

MILLI = 1000


class Shortcoming(StrEnum):
    """A way in which a placement falls short of the request."""

    SPILLED = "spilled"  # it shares the reserved CPUs, because no others are left
    OVERFLOWED = "overflowed"  # it should be on the reserved CPUs, but they are full
    CONFINED = "confined"  # its pool has fewer CPUs than its CPU limit allows
    REMOTE = "remote"  # its memory nodes are far from its CPUs
    WIDENED = "widened"  # its memory lies on more nodes than its pool has
    CLASS = "class"  # its runtime or node cannot apply parts of its classes


class InventorySnapshot(Struct, frozen=True, kw_only=True):
    """The state at one moment."""

    layout: Layout
    placed: tuple[Placed, ...]
    exclusive: CPUSet  # of containers and rooms
    accompanied: CPUSet  # exclusive CPUs of running containers on which others may run
    bookings: Mapping[str, Booking]  # of memory, by container id
    lacking: frozenset[str]  # ids of containers with classes that are partly impossible here
    free: CPUSet  # sharable CPUs that are not exclusive
    milli: tuple[tuple[int, int], ...]  # by pool: granted shared milli-CPU, and free
    memory: Mapping[CPUSet, tuple[int, int]]  # bytes of a set of nodes: capacity, free
    # the same for huge pages of each size
    hugepages: Mapping[int, Mapping[CPUSet, tuple[int, int]]]


def take_snapshot(view: NodeView) -> InventorySnapshot:
    """Return the parts of *view* that metrics show."""
    layout, supply, memory = view.layout, view.supply(), view.memory()
    map_ = layout.memory
    zones = {nodes for pool in layout.tree.pools for nodes in pool.memory.values() if nodes}
    return InventorySnapshot(
        layout=layout,
        placed=tuple(view.placed.values()),
        exclusive=view.exclusive,
        accompanied=CPUSet.union(
            other.cpus for each in list_company(view) for other in each.others
        ),
        bookings=view.bookings,
        lacking=view.lacking_classes,
        free=view.free,
        milli=tuple(
            (supply.shared_milli_in(pool.id), max(0, supply.allocatable_shared(pool.id)))
            for pool in layout.tree.pools
        ),
        memory={zone: (map_.capacity_of(zone), memory.free(zone)) for zone in zones},
        hugepages={
            size: {
                zone: (map_.pages_of(size, zone), memory.free_pages(size, zone))
                for zone in {CPUSet.union(pool.memory.values()) for pool in layout.tree.pools}
            }
            for size in map_.hugepages
        },
    )


def find_shortcomings(
    placed: Placed, bookings: Mapping[str, Booking], lacking: Container[str]
) -> list[Shortcoming]:
    """Return the shortcomings of a container's placement."""
    found = []
    if placed.container.id in lacking:
        found.append(Shortcoming.CLASS)
    request, explanation = placed.request, placed.explanation
    if explanation.kind is DecisionKind.SPILLED:
        found.append(Shortcoming.SPILLED)
    if request.sort is Sort.RESERVED and placed.grant.sort is Sort.NORMAL:
        found.append(Shortcoming.OVERFLOWED)
    confined = may_be_confined(request) and not placed.grant.tenant
    table = explanation.table if confined else None
    if table is not None and confinement(request, table, explanation.tree, placed.grant.pool):
        found.append(Shortcoming.CONFINED)
    booking = bookings.get(placed.container.id)
    if booking is not None and booking.home.zone < booking.zone:
        found.append(Shortcoming.WIDENED)
    return found


def make_gauges(snapshot: InventorySnapshot) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of a picture."""
    yield _cpus(snapshot)
    yield _memory(snapshot)
    yield _add_counts(
        families.gauge(
            "nri_policy_accompanied_exclusive_cpus",
            "Exclusive CPUs on which containers may run that are not pinned.",
        ),
        {(): len(snapshot.accompanied)},
    )
    pools = snapshot.layout.tree.pools
    yield _add_counts(
        families.gauge(
            "nri_policy_containers",
            "Containers that hold something, by the pool that they are booked on.",
            labels=("zone", "class"),
        ),
        Counter((pools[each.grant.pool].name, each.request.qos.value) for each in snapshot.placed),
    )
    short = Counter(
        (shortcoming.value,)
        for each in snapshot.placed
        for shortcoming in find_shortcomings(each, snapshot.bookings, snapshot.lacking)
    )
    short[Shortcoming.REMOTE.value,] = sum(
        is_remote(snapshot.layout, each.grant, snapshot.free) for each in snapshot.placed
    )
    yield _add_counts(
        families.gauge(
            "nri_policy_degraded_containers",
            "Containers that have less than they should.",
            labels=("kind",),
        ),
        {(kind.value,): short[kind.value,] for kind in Shortcoming},
    )


def _cpus(snapshot: InventorySnapshot) -> GaugeMetricFamily:
    family = families.gauge(
        "nri_policy_zone_cpus",
        "CPUs of a pool. Pools overlap: those of a parent include those of its children.",
        labels=("zone", "kind"),
    )
    capacity = snapshot.layout.capacity
    for pool, (granted, left) in zip(snapshot.layout.tree.pools, snapshot.milli, strict=True):
        kinds = {
            "capacity": len(pool.cpus),
            "exclusive": len(snapshot.exclusive & pool.cpus),
            "shared": granted / MILLI,
            "reserved": len(capacity.reserved & pool.cpus),
            "isolated": len(capacity.isolated & pool.cpus),
            "free": left / MILLI,
        }
        for kind, value in kinds.items():
            family.add_metric((pool.name, kind), value)
    return family


def _memory(snapshot: InventorySnapshot) -> GaugeMetricFamily:
    family = families.gauge(
        "nri_policy_zone_memory_bytes",
        "Memory near a pool that containers may book. Pools overlap.",
        labels=("zone", "type", "state"),
    )
    for pool in snapshot.layout.tree.pools:
        for kind, nodes in pool.memory.items():
            if nodes:
                capacity, free = snapshot.memory[nodes]
                family.add_metric((pool.name, kind.value, "capacity"), capacity)
                family.add_metric((pool.name, kind.value, "free"), free)
        for size, zones in snapshot.hugepages.items():
            capacity, free = zones[CPUSet.union(pool.memory.values())]
            sort = f"hugepages-{format_page_size(size)}"
            family.add_metric((pool.name, sort, "capacity"), capacity)
            family.add_metric((pool.name, sort, "free"), free)
    return family


def _add_counts(
    family: GaugeMetricFamily, counts: Mapping[tuple[str, ...], int]
) -> GaugeMetricFamily:
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
