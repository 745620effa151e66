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
from nri_policy.cluster.zones.numa_node import select_zones, zone_name
from nri_policy.cluster.zones.zone import NodeZones, Zone


class Held(Struct, frozen=True):
    """What a pod, or a container, has in one zone: exact amounts, and the zone if it is known."""

    zone: int | None
    amounts: tuple[tuple[str, int], ...]  # resource and billionths


def free_amounts(report: NodeZones, held: Iterable[Held]) -> NodeZones:
    """Return a report as it will be after the end of pods that *held* these amounts."""
    zones, _ = select_zones(report.zones)
    freed = {zone.name: dict(zone.free) for zone in report.zones}
    known_first = sorted(
        held, key=lambda each: (each.zone is None, -dict(each.amounts).get(CPU, 0))
    )
    for each in known_first:
        number = _zone_of(zones, freed, each)
        if number is None:
            continue
        wider = (zone for zone in report.zones if len(zone.nodes) > 1 and number in zone.nodes)
        for zone in (zones[number], *wider):
            own = freed[zone.name]
            for name, amount in each.amounts:
                if name in own:
                    own[name] = max(own[name], min(zone.total.get(name, 0), own[name] + amount))
    return replace(
        report, zones=tuple(replace(zone, free=freed[zone.name]) for zone in report.zones)
    )


def _zone_of(zones: Mapping[int, Zone], freed: Mapping[str, Amounts], held: Held) -> int | None:
    """Return the zone where pods held these amounts; None if no zone has as much in use."""
    if held.zone is not None:
        return held.zone if held.zone in zones else None
    # unpinned memory counts in no zone: CPUs decide alone if a pod holds CPUs
    amounts = dict(held.amounts)
    deciding = [CPU] if CPU in amounts else [*amounts]
    fitting = [
        number
        for number, zone in zones.items()
        if all(
            zone.total.get(name, 0) - freed[zone_name(number)].get(name, 0) >= amounts[name]
            for name in deciding
        )
    ]
    return min(
        fitting,
        key=lambda number: (*(freed[zone_name(number)].get(name, 0) for name in deciding), number),
        default=None,
    )
