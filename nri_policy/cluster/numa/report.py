"""What `cluster fit` shows: verdict, score and zones of a pod on every node.

It also covers the checks that kube-scheduler makes before it asks about zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from nri_policy.cluster.numa.fit import reason_of
from nri_policy.cluster.numa.host_fit import find_host_reason
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.shortage import find_host_shortage, find_zone_shortage
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.snapshot import ClusterSnapshot
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.numa_node import zone_name
from nri_policy.foundation.clock import Clock
from nri_policy.native._numa_fit import NO_ZONE


class NodeFit(Struct, frozen=True):
    """A pod on one node."""

    node: str
    fits: bool
    reason: str  # empty where it fits
    score: int | None  # 0 to 100; None without room or without alignment
    aligned: bool  # whether the node aligns the pod to zones; if not, any zone may take it
    zones: list[str]  # one for the pod, or one per container; empty: undecided
    promised: int  # pods that hold a place there and are not reported yet
    lacks: str = ""  # the short resources, with numbers; empty for another reason


def list_node_fits(snapshot: ClusterSnapshot, pod: Pod, settings: ClusterSettings) -> list[NodeFit]:
    """Return a row for each node, by name."""
    zones = live_zones(snapshot, settings)
    used: dict[str, Counter[str]] = {}
    for each in snapshot.pods:
        if each.node and not each.finished:
            used.setdefault(each.node, Counter()).update(with_place(each.spec.effective()))
    return rows_of(zones, pod, used)


def live_zones(snapshot: ClusterSnapshot, settings: ClusterSettings) -> LiveZones:
    """Return the zones of all nodes, as the extender sees them.

    Promises to bound pods that do not run yet are subtracted, unless their nodes have reported
    them.
    """
    cluster = Cluster(snapshot.nodes)
    zones = LiveZones(settings.extender, cluster.view, Clock(now=lambda: 0.0))
    cluster.follow(zones)
    for pod in snapshot.pods:
        if pod.node in cluster.view.nodes:
            zones.set_pod(pod)
    for report in snapshot.zones:
        cluster.set_zones(report)
    for name in snapshot.stale:
        cluster.remove_zones(name, stale=True)
    return zones


def rows_of(zones: LiveZones, pod: Pod, used: Mapping[str, Amounts]) -> list[NodeFit]:
    """Return a row for each node, by name, with what is promised taken off its zones.

    *used* are amounts in use on whole nodes, as far as known.
    """
    request = zones.fits.request(pod)
    answer = zones.fits.ask(request)
    promised = Counter(each.node for each in zones.promises.values())
    rows = []
    for name, slot in sorted(zones.fits.slots.items()):
        reported = zones.fits.get(name)
        aligned = request.aligned and reported is not None and reported.known and reported.single
        chosen = (aligned and zones.fits.zones(name, request)) or ()
        node, report = zones.view.nodes[name], zones.view.zones.get(name)
        why = find_host_reason(node, used.get(name, {}), pod.spec)
        lacks = ""
        if why.startswith(("nodeSelector", "resource")):
            lacks = find_host_shortage(node, used.get(name, {}), pod.spec)
        elif not why:
            why = reason_of(answer.verdicts[slot])
            if why and reported is not None and report is not None and not reported.stale:
                lacks = find_zone_shortage(node, report, request)
        rows.append(
            NodeFit(
                node=name,
                fits=not why,
                reason=why,
                score=answer.scores[slot] if aligned and not why else None,
                aligned=aligned,
                zones=["-" if zone == NO_ZONE else zone_name(zone) for zone in chosen],
                promised=promised[name],
                lacks=lacks,
            )
        )
    return rows
