"""What a node lacks for a pod, in numbers: said beside the reason, whose words are the peers'."""

from __future__ import annotations

from nri_policy.cluster.objects.document import CPU, PODS, Amounts, format_amount
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.numa_node import select_zones, zone_name
from nri_policy.cluster.objects.numa_request import GUARANTEED, NumaRequest, is_shared
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.objects.zone import NodeZones
from nri_policy.foundation.units import BILLIONTHS


def host_shortage(node: ClusterNode, used: Amounts, spec: PodSpec) -> str:
    """Return what *node* as a whole, of which pods use so much, lacks; empty if nothing."""
    for label in sorted(spec.node_selector.items() - node.labels.items()):
        return "no label {}={}".format(*label)
    for name, amount in sorted({**spec.effective(), PODS: 1}.items()):
        offered = node.allocatable.get(name, 0)
        left = max(0, offered - used.get(name, 0))
        if left < amount:
            asked, rest, whole = (format_amount(name, each) for each in (amount, left, offered))
            return f"{asked} asked, {rest} of {whole} left"
    return ""


def zone_shortage(report: NodeZones, request: NumaRequest, *, by_pod: bool) -> str:
    """Return of what no NUMA zone has as much left as the pod, or one of its containers, asks.

    *by_pod*: the pod has to fit into a zone as a whole. Promises do not count.
    """
    zones, _ = select_zones(report.zones)
    for step in request.steps[:1] if by_pod else request.steps[1:]:
        for name, exact in step.amounts:
            having = {number: zone for number, zone in zones.items() if name in zone.free}
            if not having or (is_shared(name) and request.qos != GUARANTEED):
                continue
            freest = max(having, key=lambda number: (having[number].free[name], -number))
            left = having[freest].available[name]
            asked = exact // (BILLIONTHS // 1000 if name == CPU else BILLIONTHS)
            if left < asked:
                whole = max(zone.allocatable.get(name, 0) for zone in having.values())
                wanted, rest, most = (format_amount(name, each) for each in (asked, left, whole))
                now = f"{rest} left in {zone_name(freest)}, " if left < whole else ""
                return f"{name}: {wanted} asked, {now}{most} in an empty zone"
    return "no zone has all of it left"
