"""The zones of a node once pods have ended that its report still counts.

A report contains free amounts of zones, but no owner of the used amounts. If the zone of a pod is
unknown, the pod counts in the fullest zone that can have held it: this frees the least room for a
large pod. So a pod that fits here also fits if the pods had other zones, as far as zones have that
much in use. If all pods of a node end, all their amounts are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.document import CPU, Amounts
from nri_policy.cluster.zones.numa_node import select_zones
from nri_policy.cluster.zones.zone import NodeZones


class Held(Struct, frozen=True):
    """What a pod, or a container, has in one zone: exact amounts, and the zone if it is known."""

    zone: int | None
    amounts: Amounts  # in billionths

    def order(self) -> tuple[bool, int]:
        """Return by what pods free zones one after another: those of known zones first."""
        return self.zone is None, -self.amounts.get(CPU, 0)


def free_amounts(report: NodeZones, held: Iterable[Held]) -> NodeZones:
    """Return a report as it will be after the end of pods that *held* these amounts."""
    zones, _ = select_zones(report.zones)
    freed = {zone.name: dict(zone.free) for zone in report.zones}
    totals = {number: zone.total for number, zone in zones.items()}
    left = {number: freed[zone.name] for number, zone in zones.items()}
    for each in sorted(held, key=Held.order):
        number = find_zone(totals, left, each)
        if number is None:
            continue
        wider = (zone for zone in report.zones if len(zone.nodes) > 1 and number in zone.nodes)
        for zone in (zones[number], *wider):
            add_freed(freed[zone.name], zone.total, each)
    return replace(
        report, zones=tuple(replace(zone, free=freed[zone.name]) for zone in report.zones)
    )


def find_zone(totals: Mapping[int, Amounts], left: Mapping[int, Amounts], held: Held) -> int | None:
    """Return the zone where pods held these amounts; None if no zone has as much in use.

    *totals* are the amounts of each zone, *left* the unused part of these.
    """
    if held.zone is not None:
        return held.zone if held.zone in totals else None
    # unpinned memory counts in no zone: CPUs decide alone if a pod holds CPUs
    amounts = held.amounts
    deciding = (CPU,) if CPU in amounts else (*amounts,)
    fitting = [
        number
        for number, total in totals.items()
        if all(total.get(name, 0) - left[number].get(name, 0) >= amounts[name] for name in deciding)
    ]
    return min(
        fitting,
        key=lambda number: (*(left[number].get(name, 0) for name in deciding), number),
        default=None,
    )


def add_freed(left: Amounts, total: Amounts, held: Held) -> None:
    """Add what pods *held* to what a zone has *left*, up to its *total*."""
    for name, amount in held.amounts.items():
        before = left.get(name)
        if before is not None:
            left[name] = max(before, min(total.get(name, 0), before + amount))
