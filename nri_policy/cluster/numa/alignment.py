"""Whether the nodes that a group got take its pods: those that align pods to one NUMA node may not.

Groups are placed by what hosts have in all, unless their requests name zones. The extender and the
kubelet also look into the zones of a node that aligns pods. So what they would refuse is said
beside a placement, by the rules of the NUMA fit. Each kind of equal zones is looked at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.numa.fit import NumaFit, reason
from nri_policy.cluster.numa.shortage import zone_shortage
from nri_policy.cluster.objects.group import GroupStatus, PlacementGroup
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.numa_node import aligns_pods, policy_of
from nri_policy.cluster.objects.numa_request import NumaRequest, numa_request
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.objects.zone import NodeZones
from nri_policy.cluster.view import ClusterView
from nri_policy.foundation.wording import counted
from nri_policy.native._numa_fit import FITS


def alignment_notes(engine: Engine, group: PlacementGroup, status: GroupStatus) -> list[str]:
    """Return a sentence for each pod set of *group* that nodes among its places refuse.

    One for nodes that are too small even when they are empty, one for those that have no room now.
    *status* is what came of the group. Pods of a group that had its places may be what fills the
    zones, so that these count as empty.
    """
    held = bool(group.status.assignments)
    tables = [
        Refusals(engine.view, engine.settings.extender, empty=empty)
        for empty in ((True,) if held else (True, False))
    ]
    specs = {each.name: each.template.spec for each in group.pod_sets}
    notes = []
    for each in status.assignments:
        if HOSTNAME not in each.levels or each.pod_set not in specs:
            continue
        at = each.levels.index(HOSTNAME)
        hosts = dict.fromkeys(place.values[at] for place in each.domains)
        nodes = [node for host in hosts for node in engine.view.on_host(host)]
        hint = "name a level of zones in the request, or " if each.levels[-1] == HOSTNAME else ""
        spec = specs[each.pod_set]
        for table in tables:
            refused = table.find(nodes, spec)
            if refused:
                notes.append(
                    f"{group.namespace}/{group.name}, pod set {each.pod_set}: on {len(refused)} of"
                    f" {counted(len(hosts), 'host')} its pods are aligned to one NUMA node, and"
                    f" refused {table.when} ({refused[0]}: {table.reason(refused[0], spec)});"
                    f' {hint}see "cluster fit"'
                )
                gone = {*refused}
                nodes = [node for node in nodes if node.name not in gone]
    return notes


class Refusals:
    """What nodes that align pods refuse as they are now, or if they were *empty*."""

    def __init__(self, view: ClusterView, settings: Extender, *, empty: bool) -> None:
        self.when = "even if the host is empty" if empty else "while its zones are as full as now"
        self._view = view
        self._empty = empty
        self._kinds: dict[Hashable, str] = {}  # the first node with such zones
        self._fits = NumaFit(settings)  # of these nodes

    def find(self, nodes: Iterable[ClusterNode], spec: PodSpec) -> list[str]:
        """Return the names of those of *nodes* whose zones refuse a pod of *spec*, in order."""
        alike = [*self._aligned(nodes)]
        verdicts = self._fits.ask(self._request(spec)).verdicts
        return [name for name, first in alike if verdicts[self._fits.slots[first]] != FITS]

    def reason(self, name: str, spec: PodSpec) -> str:
        """Return why a node that was found refuses a pod of *spec*."""
        [(_, first)] = self._aligned([self._view.nodes[name]])
        request, shown = self._request(spec), self._report(self._view.zones[name])
        verdict = self._fits.ask(request).verdicts[self._fits.slots[first]]
        by_pod = policy_of(shown)[1] == "pod"
        return f"{reason(verdict)}: {zone_shortage(shown, request, by_pod=by_pod)}"

    def _aligned(self, nodes: Iterable[ClusterNode]) -> Iterator[tuple[str, str]]:
        """Yield each node that aligns pods, and the first with zones like its own."""
        for node in nodes:
            report = self._view.zones.get(node.name)
            if report is None or not aligns_pods(report):
                continue
            zones = tuple(
                (each.name, each.type, *each.total.items())
                + (() if self._empty else (*each.free.items(),))
                for each in report.zones
            )
            kind = (report.policies, report.attributes, tuple(node.allocatable), zones)
            first = self._kinds.setdefault(kind, node.name)
            if first not in self._fits.slots:
                shown = self._report(report)
                found, _ = self._fits.reader.read(node.allocatable, shown, stale=False)
                self._fits.put(first, found)
            yield node.name, first

    def _report(self, report: NodeZones) -> NodeZones:
        return report.without_usage() if self._empty else report

    def _request(self, spec: PodSpec) -> NumaRequest:
        return numa_request(spec, strict=self._fits.settings.strict)
