"""Places in zones that are kept for the pods of Kueue's Workloads until these pods come.

Whether a Workload's pods fit is decided all at once, pod by pod, each seeing those before: where
one finds no room, none is kept. What is kept is a promise like those to pods (`promises`); each pod
of the Workload that asks, or is bound, takes one of them over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.cluster.numa.fit import reason_of
from nri_policy.cluster.numa.host_fit import find_host_reason
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import CPU, with_place
from nri_policy.cluster.objects.matching import is_selected
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.workloads.kueue import (
    POD_SET,
    AdmittedPodSet,
    KueueWorkload,
    ResourceFlavor,
    with_flavors,
    workload_of,
)
from nri_policy.cluster.zones.numa_request import NumaRequest
from nri_policy.foundation.wording import counted, quoted
from nri_policy.native._numa_fit import UNRESOLVABLE

_MOST_REASONS = 5  # that a refusal names


class WorkloadPlaces:
    """What is kept in zones, by Workload."""

    def __init__(self, zones: LiveZones) -> None:
        self._zones = zones
        self._kept: dict[Key, list[tuple[str, Key]]] = {}  # pod set, and key of the promise
        self._came: defaultdict[Key, set[Key]] = defaultdict(set)  # by Workload: its pods
        self._workload_of: dict[Key, Key] = {}  # of these pods

    def pods(self) -> Collection[Key]:
        """Return the pods of Workloads that have come."""
        return self._workload_of.keys()

    def keeps(self, workload: Key) -> bool:
        """Whether places were found for a Workload, and not given back."""
        return workload in self._kept

    def keep(
        self, workload: KueueWorkload, flavors: Mapping[str, ResourceFlavor], *, again: bool = False
    ) -> str:
        """Keep places for all pods; return why that cannot be, or nothing.

        *again*: only for pods that do not exist yet. Raises KeyError for a flavor that is not
        known.
        """
        self.give_back(workload.key)
        if not again:
            self._came.pop(workload.key, None)
        kept = self._kept[workload.key] = []
        came = len(self._came[workload.key])
        pod_sets = [(each, with_flavors(each, flavors).spec) for each in workload.pod_sets]
        # Large pods first: small ones would break up the zones that they need.
        for pod_set, spec in sorted(pod_sets, key=lambda each: -each[1].effective().get(CPU, 0)):
            count = max(0, pod_set.count - came)
            came = max(0, came - pod_set.count)
            left, why = self._keep(workload, pod_set, spec, count, kept)
            if left:
                self.give_back(workload.key)
                name = quoted(pod_set.name)
                return (
                    f"{left} of {counted(count, 'pod')} of pod set {name} find no NUMA zone now"
                    f"{_texts(why)}"
                )
        return ""

    def never_fits(self, workload: KueueWorkload, flavors: Mapping[str, ResourceFlavor]) -> str:
        """Return why no node takes a pod of a Workload, even if it is empty; nothing if one does.

        Nodes count that flavors and selectors name, also those that are not ready or tainted now:
        if there are none, some may come. Raises KeyError for a flavor that is not known.
        """
        for pod_set in workload.pod_sets:
            spec = with_flavors(pod_set, flavors).spec
            request = self._request(workload, spec)
            why: Counter[str] = Counter()
            for node in self._zones.view.nodes.values() if pod_set.count else ():
                usable = replace(node, ready=True, unschedulable=False, taints=())
                problem = find_host_reason(usable, {}, spec)
                if problem in ("nodeSelector", "affinity"):
                    continue
                verdict = self._zones.verdict(node.name, request)
                if not problem and verdict & UNRESOLVABLE:
                    problem = reason_of(verdict)
                if not problem:
                    why.clear()
                    break
                why[problem] += 1
            if why:
                name = quoted(pod_set.name)
                return f"pods of pod set {name} fit no NUMA zone, even if it is empty{_texts(why)}"
        return ""

    def _request(self, workload: KueueWorkload, spec: PodSpec) -> NumaRequest:
        return self._zones.fits.request(Pod(namespace=workload.namespace, name="", spec=spec))

    def give_back(self, workload: Key) -> None:
        """Keep nothing for a Workload any more."""
        for _, promise in self._kept.pop(workload, ()):
            self._zones.withdraw(promise)

    def forget(self, workload: Key) -> None:
        """Take in that a Workload went."""
        self.give_back(workload)
        self._came.pop(workload, None)

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed: one that is bound, or ended, needs no place."""
        if (pod.node or pod.finished) and not pod.deleted:
            self.pod_arrived(pod)

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        workload = self._workload_of.pop((namespace, name), None)
        if workload is not None:
            self._came[workload].discard((namespace, name))

    def pod_arrived(self, pod: Pod) -> None:
        """Have a pod take over a place of its Workload, once."""
        workload = workload_of(pod)
        key = pod.key
        if workload is None or key in self._came[workload]:
            return
        self._came[workload].add(key)
        self._workload_of[key] = workload
        kept = self._kept.get(workload)
        if not kept:
            return
        name = pod.labels.get(POD_SET)
        at = next((at for at, (own, _) in enumerate(kept) if name in (None, own)), None)
        if at is not None:
            self._zones.withdraw(kept.pop(at)[1])

    def _keep(
        self,
        workload: KueueWorkload,
        pod_set: AdmittedPodSet,
        spec: PodSpec,
        count: int,
        kept: list[tuple[str, Key]],
    ) -> tuple[int, Counter[str]]:
        """Keep places for *count* pods; return how many find none, and why by number of nodes."""
        request = self._request(workload, spec)
        why: Counter[str] = Counter()
        left = count
        for nodes, wanted in self._ranges(pod_set.assignment, count):
            missing = wanted
            for node in self._usable(nodes, spec, request, why):
                for _ in range(min(missing, _most(node, spec))):
                    name = f"{workload.name}/{pod_set.name}/{len(kept)}"
                    if not self._zones.keep((workload.namespace, name), node.name, request):
                        break
                    kept.append((pod_set.name, (workload.namespace, name)))
                    missing -= 1
                if not missing:
                    break
            left -= wanted - missing
        return left, why

    def _ranges(
        self, assignment: Assignment | None, count: int
    ) -> Iterator[tuple[Sequence[ClusterNode], int]]:
        """Yield nodes, and how many of the pods go there: all, or where Kueue has assigned them."""
        nodes = [*self._zones.view.nodes.values()]
        if assignment is None:
            yield nodes, count
            return
        for each in assignment.domains:
            named = dict(zip(assignment.levels, each.values, strict=True))
            own = self._zones.view.on_host(named[HOSTNAME]) if HOSTNAME in named else nodes
            taken = min(each.count, count)
            count -= taken
            yield [node for node in own if is_selected(node.labels, named)], taken

    def _usable(
        self, nodes: Sequence[ClusterNode], spec: PodSpec, request: NumaRequest, why: Counter[str]
    ) -> list[ClusterNode]:
        """Return the nodes that take a pod, the best first; count *why* others do not."""
        fits = self._zones.fits
        answer = fits.ask(request)
        found = []
        for node in nodes:
            slot = fits.slots.get(node.name)
            problem = find_host_reason(node, {}, spec)
            if not problem and slot is not None:
                problem = reason_of(answer.verdicts[slot])
            if problem:
                why[problem] += 1
            elif slot is not None:
                found.append((-answer.scores[slot], node.name, node))
        return [node for *_, node in sorted(found, key=lambda each: each[:2])]


def _most(node: ClusterNode, spec: PodSpec) -> int:
    """Return how many such pods a node takes at most, if it were empty."""
    asked = with_place(spec.effective())
    return min(node.allocatable.get(name, 0) // each for name, each in asked.items() if each)


def _texts(why: Counter[str]) -> str:
    found = [f"{text} on {counted(number, 'node')}" for text, number in why.most_common()]
    more = [f"{len(found) - _MOST_REASONS} more"] if len(found) > _MOST_REASONS else []
    return f": {', '.join(found[:_MOST_REASONS] + more)}" if found else ""
