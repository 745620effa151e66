"""The zones of the live cluster, and what has been promised of them; spec cluster.md §8.

kube-scheduler filters the next pod before it has bound the last one, and a node reports a pod only
after that is there. Owns what is taken off a node's zones in between, so that no place is given
away twice. It does no I/O; the clock is the caller's.

| a promise is made | it ends |
|---|---|
| when one node is chosen for a pod (`choose`), or by our own binding | bound elsewhere, deleted, asked again, or CHOSEN_SECONDS without a binding |
| when a pod is seen bound that is not running yet, or that the node's report, which lists its pods, lacks | |
| when a place is kept for a pod that is to come (`keep`) | that pod asks, or is bound; taken back; MOST_SECONDS at the latest |
| and then, once it is bound | the node's report counts the pod (`reported_pods`); where it does not say, a report that comes REPORT_SECONDS later; MOST_SECONDS at the latest, unless the report lists its pods: then it is known to be missing |

If a report lists no pods, a running pod counts as reported.

It is taken off the zone that our binding named, else off the zone that has most: whichever one the
node chooses, no other would leave less for the next container. Zones keep no more than their parent
zone has left: shared amounts of pods lie in no child zone. A report that lists its pods is of our
daemon, whose zones lack the CPUs that other pods share as well, so that these are promised, too:
off the zone that our binding named, else off the whole node, since the zone of the pod is unknown.
A pod goes to a zone with room: in a full zone it would get CPUs of another zone, which are promised
to other pods.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nri_policy.cluster.numa.fit import NumaFit, find_common_zone, reason_of
from nri_policy.cluster.numa.freed_zones import Held, free_amounts
from nri_policy.cluster.objects.document import CPU, Amounts
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.numa_node import zone_id, zone_name
from nri_policy.cluster.zones.numa_request import GUARANTEED, NumaRequest, make_numa_request
from nri_policy.cluster.zones.reported_pods import (
    BoundPod,
    find_own_resources,
    lists_pods,
    omits_pod,
    select_counted,
    zones_by_pod,
)
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.clock import Clock
from nri_policy.native._numa_fit import CONTAINER, FITS, SIDECAR
from nri_policy.native._numa_node import NumaNode

CHOSEN_SECONDS = 30.0
REPORT_SECONDS = 60.0  # what exporters take at most from one report to the next
MOST_SECONDS = 300.0

# amounts by resource, off a zone, off any (None), or off what several have left together
Take = tuple[int | frozenset[int] | None, dict[int, int]]


class NoRoomError(Exception):
    """A pod no longer fits on the node that it should be bound to; the text says why."""


@dataclass(slots=True)
class Promise:
    """A pod's place on a node that does not report it yet."""

    pod: Key
    node: str
    request: NumaRequest
    zone: int | None  # None: any that could be it
    since: float  # when it was made; when the pod was bound, once it is
    bound: bool
    kept: bool = False  # for a pod that is to come

    @property
    def expires(self) -> float:
        """The time from which on it is void."""
        return self.since + (MOST_SECONDS if self.bound or self.kept else CHOSEN_SECONDS)


class LiveZones:
    """What the filter and the score see: zones as reported, less what is promised."""

    def __init__(self, settings: Extender, view: ClusterView, clock: Clock) -> None:
        self.fits = NumaFit(settings)
        self.view = view
        self.promises: dict[Key, Promise] = {}
        self._promised: dict[str, dict[Key, Promise]] = {}  # the same by node
        self.ended: Counter[str] = Counter()  # promises, by why they ended
        self._ignored: dict[str, Counter[str]] = {}
        self._clock = clock
        self._reported: dict[str, NumaNode] = {}
        self._bound: dict[str, dict[Key, BoundPod]] = {}  # by node
        self._node_of: dict[Key, str] = {}
        self._zones_of: dict[str, dict[Key, tuple[int, ...]]] = {}  # by node, once it was asked
        self._next = 0.0  # no promise expires before
        for name in view.nodes:
            self._read(name)

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Take in that a node changed, came or went."""
        if old is None or new is None or old.allocatable.keys() != new.allocatable.keys():
            self._read((old or new).name)  # type: ignore[union-attr]  # one of them is there

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Update the zones that a node reports; None: the report was deleted."""
        if new is not None:
            self._confirm(node, fresh=True)
        self._read(node)
        if new is not None and lists_pods(new) and not (old is not None and lists_pods(old)):
            for key, pod in self._bound.get(node, {}).items():
                if key not in self.promises and omits_pod(new, key):
                    self._make(key, node, self._request(pod), pod.zone, bound=True)

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        key = pod.key
        if pod.finished:
            self.remove_pod(*key)
            return
        if not pod.node or self._node_of.get(key) == pod.node:
            return
        self.remove_pod(*key, keep_promise=True)
        self._node_of[key] = pod.node
        zone = zone_id(pod.annotations.get(ZONE_ANNOTATION, ""))
        bound = BoundPod(find_own_resources(pod.spec), pod.spec, zone)
        self._bound.setdefault(pod.node, {})[key] = bound
        self._zones_of.pop(pod.node, None)
        promise = self.promises.get(key)
        if promise is not None and promise.node != pod.node:
            self._end(promise, "bound elsewhere")
            promise = None
        if promise is not None:
            promise.bound, promise.since = True, self._clock.now()
        elif pod.phase != "Running" or self._lacks(pod.node, key):
            self._make(key, pod.node, self._request(bound), zone, bound=True)
        self._confirm(pod.node)

    def remove_pod(self, namespace: str, name: str, *, keep_promise: bool = False) -> None:
        """Take in that a pod went, or ended."""
        key = (namespace, name)
        node = self._node_of.pop(key, None)
        if node is not None:
            del self._bound[node][key]
            self._zones_of.pop(node, None)
        if not keep_promise and key in self.promises:
            self._end(self.promises[key], "deleted")
        if node is not None:
            self._confirm(node)

    def pods(self) -> Collection[Key]:
        """Return the pods that are bound or have been promised a place."""
        promised = {key for key, each in self.promises.items() if not each.kept}
        return self._node_of.keys() | promised

    def bound_on(self, node: str) -> Iterable[tuple[Key, BoundPod]]:
        """Return the pods on a node that have not ended."""
        return self._bound.get(node, {}).items()

    def choose(self, pod: Pod, request: NumaRequest, names: Iterable[str]) -> str | None:
        """Promise *pod* the best of the nodes that hold it; None if none does."""
        answer = self.fits.ask(request)
        slots = self.fits.slots
        fitting = [name for name in names if name in slots and not answer.verdicts[slots[name]]]
        if not fitting:
            return None
        best = min(fitting, key=lambda name: (-answer.scores[slots[name]], name))
        self._make(pod.key, best, request, None, bound=False)
        return best

    def keep(self, key: Key, node: str, request: NumaRequest, zone: int | None = None) -> bool:
        """Promise a place on a node to a pod that is to come; False if there is none.

        *key* is a name without an object. *zone* is the pod's zone, if known. Nodes without
        alignment take any number of pods.
        """
        if self.verdict(node, request) != FITS:
            return False
        self._make(key, node, request, zone, bound=False, kept=True)
        return True

    def verdict(self, node: str, request: NumaRequest) -> int:
        """Return what the filter says of a pod on a node."""
        return self.fits.ask(request).verdicts[self.fits.slots[node]]

    def fork(
        self, nodes: Collection[str], ended: Mapping[str, Sequence[Pod]] = MappingProxyType({})
    ) -> LiveZones:
        """Return a copy with these *nodes* for trials; changes there never reach this object.

        *ended* pods, by node, use nothing in the copy.
        """
        view = self.view
        zones = {name: view.zones[name] for name in nodes if name in view.zones}
        own = ClusterView({name: view.nodes[name] for name in nodes}, zones, view.stale)
        made = LiveZones(self.fits.settings, ClusterView(), self._clock)
        made.view, made.fits.reader = own, self.fits.reader
        for name in nodes:
            gone = {pod.key: pod for pod in ended.get(name, ())}
            for key, promise in self._promised.get(name, {}).items():
                if key not in gone:
                    made.promises[key] = promise
                    made._promised.setdefault(name, {})[key] = promise
            made._reported[name] = self._reported[name]
            counted = [pod for key, pod in gone.items() if key not in self.promises]
            if counted and name in zones:
                held = [each for pod in counted for each in self.held(name, pod)]
                zones[name] = free_amounts(zones[name], held)
                made._read(name)
            else:
                made._put(name)
        return made

    @property
    def freed(self) -> int:
        """Number of promises that ended without a pod at its place."""
        return self.ended.total() - self.ended["reported"]

    def promised_on(self, node: str) -> Collection[Promise]:
        """Return what is promised of a node."""
        return self._promised.get(node, {}).values()

    def bind(self, pod: Pod, node: str) -> str | None:
        """Promise *pod* its place where it is about to be bound; return the zone's name, if one.

        Raises NoRoomError if other pods took the room since the pod was admitted.
        """
        self.withdraw(pod.key)
        request = self.fits.request(pod)
        # smaller pods got their zones beside the zone kept for this pod, and must not get that zone
        self._put(node, least=size_of(request))
        slot = self.fits.slots.get(node)
        verdict = FITS if slot is None else self.fits.ask(request).verdicts[slot]
        zone = self._zone(node, request)
        self._put(node)
        if verdict != FITS:
            raise NoRoomError(f"node {node}: {reason_of(verdict)}")
        self._make(pod.key, node, request, zone, bound=False)
        return None if zone is None else zone_name(zone)

    def _zone(self, name: str, request: NumaRequest) -> int | None:
        """Return the zone for a pod; None if no single zone holds the whole pod.

        This is the filter's choice, the lowest zone that fits. If the filter finds a zone for each
        container, or does not judge CPUs because they are shared, take the zone with most left.
        """
        node, steps = self.fits.get(name), self.fits.zones(name, request)
        zone = find_common_zone(steps)
        if node is None or steps is None or (zone is not None and not self._shares(name, request)):
            return zone
        amounts: Counter[int] = Counter()
        for _, each in self._takes(name, request, None):
            amounts.update(each)
        return node.most(amounts)

    def withdraw(self, pod: Key) -> None:
        """Take back what was promised to a pod that is not bound: it asks again, or in vain."""
        promise = self.promises.get(pod)
        if promise is not None and not promise.bound:
            self._end(promise, "withdrawn")

    def expire(self) -> None:
        """End the promises whose time has come."""
        now = self._clock.now()
        if now < self._next:
            return
        for promise in [*self.promises.values()]:
            if promise.expires > now or (promise.bound and self._lacks(promise.node, promise.pod)):
                continue
            self._end(promise, "expired")
        later = (each.expires for each in self.promises.values() if each.expires > now)
        self._next = min(later, default=now + CHOSEN_SECONDS)

    def ignored(self) -> Counter[str]:
        """Return how many zones are passed over, by reason."""
        return sum(self._ignored.values(), Counter())

    def _lacks(self, node: str, pod: Key) -> bool:
        """Whether a node's report lists its pods, and lacks this one."""
        report = self.view.zones.get(node)
        return report is not None and omits_pod(report, pod)

    def _request(self, pod: BoundPod) -> NumaRequest:
        return make_numa_request(pod.spec, strict=self.fits.settings.strict)

    def _confirm(self, node: str, *, fresh: bool = False) -> None:
        """End the promises that the report of a node contains; *fresh*: it has just come."""
        made = [each for each in self._promised.get(node, {}).values() if each.bound]
        report = self.view.zones.get(node)
        if not made or report is None:
            return
        made.sort(key=lambda promise: promise.since)
        found = select_counted(report, self._bound.get(node, {}), [promise.pod for promise in made])
        if found is None:
            late = self._clock.now() - REPORT_SECONDS
            found = [promise.pod for promise in made if fresh and promise.since <= late]
        for pod in found:
            self._end(self.promises[pod], "reported")

    def _make(  # noqa: PLR0913 - what is promised
        self,
        key: Key,
        node: str,
        request: NumaRequest,
        zone: int | None,
        *,
        bound: bool,
        kept: bool = False,
    ) -> None:
        promise = Promise(key, node, request, zone, self._clock.now(), bound, kept)
        if not self._takes(node, request, zone):
            return
        self.promises[key] = self._promised.setdefault(node, {})[key] = promise
        self._next = min(self._next, promise.expires)
        self._put(node)

    def _end(self, promise: Promise, why: str) -> None:
        del self.promises[promise.pod], self._promised[promise.node][promise.pod]
        self.ended[why] += 1
        self._put(promise.node)

    def _read(self, name: str) -> None:
        """Read a node's zones anew."""
        node, zones = self.view.nodes.get(name), self.view.zones.get(name)
        if node is None:
            self._reported.pop(name, None)
            self._ignored.pop(name, None)
        else:
            self._reported[name], self._ignored[name] = self.fits.reader.read(
                node.allocatable, zones, stale=name in self.view.stale
            )
        self._put(name)

    def _put(self, name: str, *, least: int = 0) -> None:
        """Show the filter what a node has left, without promises of less than *least* CPU.

        Those of a zone count first, then the others, the largest first: otherwise a small one might
        be taken off the only zone that has room for a large one.
        """
        self._zones_of.pop(name, None)
        node = self._reported.get(name)
        if node is None:
            self.fits.remove(name)
            return
        promises = sorted(
            self._promised.get(name, {}).values(),
            key=lambda each: (each.zone is None, -size_of(each.request)),
        )
        takes = [
            (zone, amounts)
            for promise in promises
            for zone, amounts in self._takes(name, promise.request, promise.zone)
            if zone is not None or size_of(promise.request) >= least
        ]
        if takes and node.single:
            node = node.less(takes, self._above(name))
        self.fits.put(name, node)

    def _above(self, name: str) -> list[tuple[frozenset[int], dict[int, int]]]:
        """Return the zones of several NUMA nodes, and what these have left together.

        It is less than the sum where pods share CPUs of all of them.
        """
        report, find = self.view.zones.get(name), self.fits.reader.resources.find
        return [
            (zone.nodes, {find(resource): amount for resource, amount in zone.free.items()})
            for zone in (() if report is None else report.zones)
            if len(zone.nodes) > 1
        ]

    def _shares(self, name: str, request: NumaRequest) -> bool:
        """Whether a pod shares CPUs of zones, and the node's report takes these off its zones."""
        report = self.view.zones.get(name)
        return request.qos != GUARANTEED and report is not None and lists_pods(report)

    def _takes(self, name: str, request: NumaRequest, zone: int | None) -> list[Take]:
        """Return what a pod takes in *zone*, for the whole pod or for each container."""
        find = self.fits.reader.resources.find
        takes: list[Take] = []
        for own, shared in self._amounts(name, request):
            if own:
                takes.append((zone, {find(resource): amount for resource, amount in own.items()}))
            if shared:
                takes.append((self._whole(name) if zone is None else zone, {find(CPU): shared}))
        return takes

    def held(self, name: str, pod: Pod) -> tuple[Held, ...]:
        """Return what a pod has that a node's report counts.

        The zones are those that the report names, else the one that the pod was sent to.
        """
        amounts = [*self._amounts(name, self.fits.request(pod))]
        zones: Sequence[int | None] = self._zones_in(name).get(pod.key, ())
        if len(zones) > len(amounts) and len({*zones}) == 1:  # the pod in all
            zones = zones[:1]
        if len(zones) != len(amounts):
            zones = [zone_id(pod.annotations.get(ZONE_ANNOTATION, ""))] * len(amounts)
        return tuple(
            Held(zone, own | ({CPU: shared} if shared else {}))
            for zone, (own, shared) in zip(zones, amounts, strict=True)
            if own or shared
        )

    def _zones_in(self, name: str) -> Mapping[Key, Sequence[int]]:
        """Return the zones of the containers of pods that a node's report counts, by pod."""
        found = self._zones_of.get(name)
        if found is None:
            report, bound = self.view.zones.get(name), self._bound.get(name, {})
            counted = {key: pod for key, pod in bound.items() if key not in self.promises}
            found = {} if report is None else zones_by_pod(report, counted)
            self._zones_of[name] = found
        return found

    def _amounts(self, name: str, request: NumaRequest) -> Iterator[tuple[Amounts, int]]:
        """Yield what a pod has on a node, in all or by container: its own, and shared CPU."""
        node = self._reported.get(name)
        if node is not None and node.by_pod:
            steps = request.steps[:1]
        else:
            steps = tuple(each for each in request.steps if each.verdict in (CONTAINER, SIDECAR))
        shares = self._shares(name, request)
        for step in steps:
            yield request.own(step), dict(step.amounts).get(CPU, 0) if shares else 0

    def _whole(self, name: str) -> int | frozenset[int]:
        """Return the NUMA nodes of the widest zone of a node, or its only one."""
        report = self.view.zones.get(name)
        zones = (each.nodes for each in (() if report is None else report.zones))
        widest = max(zones, key=len, default=frozenset[int]())
        return next(iter(widest)) if len(widest) == 1 else widest


def size_of(request: NumaRequest) -> int:
    """Return the CPU that a pod requests in all, in billionths."""
    return dict(request.steps[0].amounts).get(CPU, 0)
