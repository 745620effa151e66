"""What `cluster fit` shows: verdict, score and zones of a pod on every node."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from nri_policy._numa_fit import FITS, NO_ZONE
from nri_policy.cluster.numa_fit import reason
from nri_policy.cluster.numa_node import zone_name
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.promises import LiveZones
from nri_policy.cluster.settings import ClusterSettings
from nri_policy.cluster.snapshot import Snapshot


class NodeFit(Struct, frozen=True):
    """A pod on one node."""

    node: str
    fits: bool
    reason: str  # empty where it fits
    score: int  # 0 to 100
    zones: list[str]  # of the pod in all, or of each container; empty where none is decided
    promised: int  # pods that hold a place there and are not reported yet


def node_fits(
    snapshot: Snapshot, pod: Pod, settings: ClusterSettings, *, assumed: bool
) -> list[NodeFit]:
    """Return a row for each node, by name.

    With *assumed*, bound pods that do not run yet are taken off, as far as their nodes have not
    reported them: as the extender sees it.
    """
    zones = LiveZones(settings.extender, lambda: 0.0)
    for node in snapshot.nodes:
        zones.set_node(node)
    if assumed:
        for each in snapshot.pods:
            zones.set_pod(each)
    for report in snapshot.zones:
        zones.set_zones(report)
    for name in snapshot.stale:
        zones.remove_zones(name, stale=True)
    return rows_of(zones, pod)


def rows_of(zones: LiveZones, pod: Pod) -> list[NodeFit]:
    """Return a row for each node, by name, with what is promised taken off."""
    request = zones.fits.request(pod)
    answer = zones.fits.ask(request)
    promised = Counter(each.node for each in zones.promises.values())
    rows = []
    for name, slot in sorted(zones.fits.slots.items()):
        chosen = zones.fits.zones(name, request)
        rows.append(
            NodeFit(
                node=name,
                fits=answer.verdicts[slot] == FITS,
                reason=reason(answer.verdicts[slot]),
                score=answer.scores[slot],
                zones=["-" if zone == NO_ZONE else zone_name(zone) for zone in chosen or ()],
                promised=promised[name],
            )
        )
    return rows
