"""What a node lacks for a pod, in numbers: said beside the reason, whose words are the peers'."""

from __future__ import annotations

from collections.abc import Mapping

from nri_policy.cluster.objects.document import CPU, Amounts, format_amount, with_place
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.zones.numa_node import select_zones, zone_name
from nri_policy.cluster.zones.numa_request import ON_EVERY_NODE, NumaRequest, is_of_host
from nri_policy.cluster.zones.zone import NodeZones, Zone
from nri_policy.foundation.units import BILLIONTHS


def find_host_shortage(node: ClusterNode, used: Amounts, spec: PodSpec) -> str:
    """Return what *node* as a whole, of which pods use so much, lacks; empty if nothing."""
    for label in sorted(spec.node_selector.items() - node.labels.items()):
        return "no label {}={}".format(*label)
    for name, amount in sorted(with_place(spec.effective()).items()):
        offered = node.allocatable.get(name, 0)
        left = max(0, offered - used.get(name, 0))
        if left < amount:
            asked, rest, whole = (format_amount(name, each) for each in (amount, left, offered))
            if not offered:
                return f"{asked} asked, the node has none{_offers_instead(node, name)}"
            return f"{asked} asked, {rest} of {whole} left"
    return ""


def _offers_instead(node: ClusterNode, resource: str) -> str:
    """Return resources of a node with the same name as a missing resource, from another vendor."""
    wanted = resource.rpartition("/")[2]
    alike = sorted(name for name in node.allocatable if name.rpartition("/")[2] == wanted)
    return f"; it offers {', '.join(alike)}" if alike else ""


def find_zone_shortage(node: ClusterNode, report: NodeZones, request: NumaRequest) -> str:
    """Return what NUMA zones lack for the pod, or for the first of its containers that finds none.

    Containers take the lowest zone, one after another. Where the report has room for all, the rest
    of it is promised.
    """
    zones, _ = select_zones(report.zones)
    left = {number: dict(zone.free) for number, zone in zones.items()}
    for step in request.aligned_steps(report):
        listed = {name for zone in left.values() for name in zone}
        amounts = {name: exact for name, exact in step.amounts if exact}
        if missing := [name for name in amounts if not _has(node, name)]:
            return f"{missing[0]}: the node has none"
        if unlisted := [name for name in amounts if name not in listed and not is_of_host(name)]:
            return f"{unlisted[0]}: no zone has any"
        asked = {name: exact for name, exact in request.own(step).items() if name in listed}
        if not asked:
            continue
        number = next((each for each in left if not _find_short(left[each], asked)), None)
        if number is None:
            return _describe_lack(zones, left, asked)
        for name, exact in asked.items() if step.stays else ():
            left[number][name] -= exact
    return "what zones have left is promised to other pods"


def _has(node: ClusterNode, resource: str) -> bool:
    return resource in ON_EVERY_NODE or resource in node.allocatable


def _find_short(left: Amounts, asked: Amounts) -> list[str]:
    """Return of what a zone has less *left* than is *asked*."""
    return [name for name, exact in asked.items() if left.get(name, -1) < exact]


def _describe_lack(zones: Mapping[int, Zone], left: Mapping[int, Amounts], asked: Amounts) -> str:
    """Return resources of which no zone has enough; else what the best zone lacks.

    Zones that would hold all while they are empty count, if there are any; else all.
    """
    enough = [number for number in left if not _find_short(zones[number].total, asked)]
    counting = enough or [*left]
    for name, exact in asked.items():
        having = [number for number in counting if name in left[number]]
        freest = max(having, key=lambda number: (left[number][name], -number))
        if left[freest][name] < exact:
            whole = max(zones[number].total.get(name, 0) for number in having)
            now = ""
            if left[freest][name] < whole:
                now = f"{_amount(name, left[freest][name])} left in {zone_name(freest)}, "
            wanted, most = _amount(name, exact), _amount(name, whole)
            return f"{name}: {wanted} asked, {now}{most} in an empty zone"
    short = {number: _find_short(left[number], asked) for number in counting}
    number = min(short, key=lambda each: (len(short[each]), each))
    rest = left[number]
    lacks = (
        f"{name}: {_amount(name, asked[name])} asked, {_amount(name, rest.get(name, 0))} left"
        for name in short[number]
    )
    return f"{zone_name(number)} comes closest: {', '.join(lacks)}"


def _amount(name: str, exact: int) -> str:
    """Return an amount in billionths as people read it, rounded down; not less than nothing."""
    return format_amount(name, max(exact, 0) // (BILLIONTHS // 1000 if name == CPU else BILLIONTHS))
