"""Zones of several NUMA nodes on nodes that align: a pod has to fit one of the NUMA nodes whole.

What such a zone holds is the sum of what its NUMA nodes hold each, not what their sum would hold
(spec cluster.md §7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.zones.numa_node import NODE_TYPE, aligns_pods, select_zones
from nri_policy.cluster.zones.zone import NodeZones, zone_above


def parts_of(report: NodeZones, kind: str) -> dict[str, list[Amounts]]:
    """Return what the NUMA nodes of zones of a type have left, by the zone's name.

    Only of zones with several, and of a node that aligns pods to one.
    """
    if kind == NODE_TYPE or not aligns_pods(report):
        return {}
    by_name = {zone.name: zone for zone in report.zones}
    parts: dict[str, list[Amounts]] = {}
    for zone in select_zones(report.zones)[0].values():
        above = zone_above(zone, kind, by_name)
        if above is not None:
            parts.setdefault(above.name, []).append(zone.available)
    return {name: each for name, each in parts.items() if len(each) > 1}


def whole(parts: Sequence[Amounts], pod: Mapping[str, int]) -> int:
    """Return how many pods fit, each into one of *parts*; what these do not list is no limit."""
    return sum(
        min((free[name] // pod[name] for name in free if pod.get(name)), default=MAX_COUNT)
        for free in parts
    )
