"""How many equal pods the zones of a node take, counted at once instead of one after another.

The result is that of promising zones pod by pod (`LiveZones.keep`). Each pod takes room from its
zone and from all wider zones around it, which refuse pods once they are full.
"""

from __future__ import annotations

from collections.abc import Mapping

from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.zones.numa_node import select_zones
from nri_policy.cluster.zones.numa_request import GUARANTEED, NumaRequest
from nri_policy.cluster.zones.zone import NodeZones


def count_equal(report: NodeZones, request: NumaRequest) -> int | None:
    """Return how many equal pods fit on a node that admits one of them and has no promises.

    None if counting is not exact, so that the caller must try pod by pod: for a pod that needs
    several zones or is aligned in several steps, and for overlapping zones.
    """
    step, *others = request.aligned_steps(report)
    if request.qos != GUARANTEED or others:
        return None
    zones, _ = select_zones(report.zones)
    listed = {name for zone in zones.values() for name in zone.free}
    asked = {name: amount for name, amount in request.own(step).items() if name in listed}
    if not asked:
        return None
    found = {
        frozenset((number,)): _times(zone.free, asked)
        for number, zone in zones.items()
        if asked.keys() <= zone.free.keys()
    }
    wider = (zone for zone in report.zones if len(zone.nodes) > 1)
    for zone in sorted(wider, key=lambda each: len(each.nodes)):
        inner = [ids for ids in found if not ids.isdisjoint(zone.nodes)]
        if any(not ids <= zone.nodes for ids in inner):
            return None
        pods = sum(found.pop(ids) for ids in inner)
        own = {name: amount for name, amount in asked.items() if name in zone.free}
        # the first pod there is not kept out: what zones have together counts from then on
        found[zone.nodes] = min(pods, max(1, _times(zone.free, own))) if own else pods
    return sum(found.values())


def _times(free: Amounts, asked: Mapping[str, int]) -> int:
    return min(max(0, free[name]) // amount for name, amount in asked.items())
