"""The scheduler extender's verbs: bytes of a request in, bytes of an answer out.

The documents' fields have no JSON tags in Go: keys are Go's field names, in any case. Only names of
nodes are exchanged (`nodeCacheCapable: true`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nri_policy.cluster.numa.fit import reason_of
from nri_policy.cluster.numa.node_pods import NodePods
from nri_policy.cluster.numa.node_preemption import Preemption
from nri_policy.cluster.numa.promised_room import REASON, PromisedRoom
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.report import rows_of
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.document import DocumentError, Object
from nri_policy.cluster.objects.metadata import Namespaced
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.zones.numa_request import BEST_EFFORT, BURSTABLE, NumaRequest
from nri_policy.foundation.mismatch import json_problem
from nri_policy.foundation.wording import quoted
from nri_policy.native._numa_fit import FITS, UNRESOLVABLE

NOT_CHOSEN = "another node was chosen"
FULL = "as many pods of the service as it allows"  # of a rejected node, in metrics
SET_ASIDE = "set aside for placement groups"  # likewise
MOST_SCORE = 10  # of an extender; kube-scheduler multiplies it by 10 and the extender's weight

_CACHE_CAPABLE = "{}: there are none, but whole objects: set nodeCacheCapable: true"


class BadRequestError(ValueError):
    """A request makes no sense; the text says why."""


class _MetaPod(msgspec.Struct):
    UID: str


class _MetaVictims(msgspec.Struct):
    Pods: list[_MetaPod] | None = None
    NumPDBViolations: int = 0


class Binding(Namespaced, frozen=True):
    """A pod with its future node."""

    uid: str
    node: str


class Verbs:
    """Answers kube-scheduler from the zones as they are, less what is promised."""

    def __init__(  # noqa: PLR0913 - keywords: what it looks at
        self,
        zones: LiveZones,
        spread: ServiceSpread,
        *,
        closed_to: Callable[[Pod], Mapping[str, str]] = lambda _pod: {},
        room: PromisedRoom | None = None,
        pods: NodePods | None = None,
        pod_arrived: Callable[[Pod], None] = lambda _pod: None,
    ) -> None:
        """Nodes are *closed to* a pod that are set aside for a group before it.

        *room* is what nodes have left beside the places of groups, where these are served. *pods*
        are pods on nodes, possible victims of preemption. *pod_arrived* gets a pod
        before it is judged: what was kept for it is free from then on.
        """
        self.rejected: Counter[str] = Counter()  # nodes, by reason
        self.unknown = 0  # nodes that were asked about and that we have not seen
        self._zones = zones
        self._spread = spread
        self.closed_to = closed_to
        self._room = room
        self.pod_arrived = pod_arrived
        self.pods = pods or NodePods()
        self._preemption = Preemption(zones, self.pods)

    def filter(self, body: bytes) -> bytes:
        """Return which of the nodes can hold the pod, and why the others cannot."""
        pod, names = _arguments(body)
        self._zones.expire()
        self._spread.expire()
        self._spread.withdraw(*pod.key)
        self.pod_arrived(pod)
        choose = self._zones.fits.settings.choose
        if choose:
            self._zones.withdraw(pod.key)
        request = self._zones.fits.request(pod)
        verdicts, slots = self._zones.fits.ask(request).verdicts, self._zones.fits.slots
        fitting: list[str] = []
        failed: dict[str, str] = {}
        self._reject(self._spread.full(pod, names), FULL, failed)
        if closed := self.closed_to(pod):
            aside = {name: closed[name] for name in names if name in closed}
            self._reject(aside, SET_ASIDE, failed)
        too_small: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        if failed:
            names = [name for name in names if name not in failed]
        for name, slot in zip(names, map(slots.get, names), strict=True):
            if slot is None:  # a new node without a report of zones
                self.unknown += 1
                fitting.append(name)
            elif (verdict := verdicts[slot]) == FITS or self._preemption.has_made_room(pod, name):
                fitting.append(name)
            elif verdict & UNRESOLVABLE:
                unresolvable[name] = reason_of(verdict)
            else:
                too_small[name] = reason_of(verdict)
        self.rejected.update(too_small.values())
        self.rejected.update(unresolvable.values())
        failed |= too_small
        fitting = self._leave_promised(pod, fitting, failed)
        chosen = self._spread.choose(pod, fitting) if choose else None
        if choose and _holds(request):
            chosen = self._zones.choose(pod, request, fitting if chosen is None else [chosen])
        if chosen is not None:
            self._spread.promise(pod, chosen)
            failed |= {name: NOT_CHOSEN for name in fitting if name != chosen}
            fitting = [chosen]
        self._let_through(pod, fitting)
        return msgspec.json.encode(
            {
                "Nodes": None,
                "NodeNames": fitting,
                "FailedNodes": failed,
                "FailedAndUnresolvableNodes": unresolvable,
                "Error": "",
            }
        )

    def _leave_promised(self, pod: Pod, fitting: list[str], failed: dict[str, str]) -> list[str]:
        """Return the nodes that a pod fits beside what is promised; the others have *failed*."""
        if self._room is None:
            return fitting
        self._room.expire()
        self._room.withdraw(pod.key)
        refused = self._room.refusals(pod, fitting)
        if not refused:
            return fitting
        self._reject(refused, REASON, failed)
        return [name for name in fitting if name not in refused]

    def _reject(self, nodes: Mapping[str, str], why: str, failed: dict[str, str]) -> None:
        """Let nodes have *failed*; texts that name groups or amounts are no label of a metric."""
        if new := len(nodes.keys() - failed.keys()):
            self.rejected[why] += new
        failed |= nodes

    def _let_through(self, pod: Pod, names: list[str]) -> None:
        if self._room is not None:
            self._room.let_through(pod, names)

    def prioritize(self, body: bytes) -> bytes:
        """Return a score from 0 to 10 for each of the nodes.

        By its zones, or where the pod asks for it by how well it is spread there.
        """
        pod, names = _arguments(body)
        self._zones.expire()
        spread = self._spread.scores(pod, names)
        if spread is not None:
            return msgspec.json.encode([{"Host": name, "Score": spread[name]} for name in names])
        scores = self._zones.fits.ask(self._zones.fits.request(pod)).scores
        slots = self._zones.fits.slots
        return msgspec.json.encode(
            [
                {"Host": name, "Score": _round(scores[slots[name]]) if name in slots else 0}
                for name in names
            ]
        )

    def preempt(self, body: bytes) -> bytes:
        """Return which pods have to leave each node, without nodes where none would make room."""
        given = _decode_object(body)
        if not given.get("nodenametometavictims") and given.get("nodenametovictims"):
            raise BadRequestError(_CACHE_CAPABLE.format("NodeNameToMetaVictims"))
        pod = _read_pod(given.get("pod"), "Pod")
        try:
            victims = given.get("nodenametometavictims") or {}
            proposed = msgspec.convert(victims, dict[str, _MetaVictims])
        except msgspec.ValidationError as error:
            raise BadRequestError(f"NodeNameToMetaVictims: {error}") from None
        self._zones.expire()
        self._spread.expire()
        out = self.closed_to(pod).keys() | self._spread.full(pod, [*proposed])
        found = self._preemption.choose(
            pod,
            {
                node: ({each.UID for each in one.Pods or ()}, one.NumPDBViolations)
                for node, one in proposed.items()
                if node not in out
            },
        )
        if self._room is not None:
            leaving = {node: each.pods for node, each in found.items()}
            refused = self._room.refusals(pod, found, leaving)
            found = {node: each for node, each in found.items() if node not in refused}
        answer = {
            node: _MetaVictims([_MetaPod(one.uid) for one in each.pods], each.violations)
            for node, each in found.items()
            if each.pods
        }
        return msgspec.json.encode({"NodeNameToMetaVictims": answer})

    def fit(self, body: bytes) -> bytes:
        """Return the answers of filter and score for each node, for `cluster fit`.

        What other pods use of whole nodes is not known here.
        """
        pod = _read_pod(read_json(body), "")
        self._zones.expire()
        return msgspec.json.encode(rows_of(self._zones, pod, {}))

    def bind(self, binding: Binding, pod: Pod) -> Object:
        """Promise a pod its place; return the Binding to create, which names the zone.

        Raises NoRoomError.
        """
        self._zones.expire()
        self._spread.promise(pod, binding.node)
        self._let_through(pod, [binding.node])
        return binding_object(binding, self._zones.bind(pod, binding.node))

    def withdraw(self, binding: Binding) -> None:
        """Take back what was promised to a pod that could not be bound."""
        self._zones.withdraw(binding.key)
        self._spread.withdraw(*binding.key)
        if self._room is not None:
            self._room.withdraw(binding.key)


def read_binding(body: bytes) -> Binding:
    """Return what `bind` is asked."""
    given = _decode_object(body)
    return Binding(
        namespace=_text(given, "PodNamespace"),
        name=_text(given, "PodName"),
        uid=_text(given, "PodUID"),
        node=_text(given, "Node"),
    )


def binding_object(binding: Binding, zone: str | None) -> Object:
    """Return the Kubernetes object that binds a pod; the API server adds its annotations to it."""
    metadata: Object = {"namespace": binding.namespace, "name": binding.name, "uid": binding.uid}
    if zone is not None:
        metadata["annotations"] = {ZONE_ANNOTATION: zone}
    target = {"apiVersion": "v1", "kind": "Node", "name": binding.node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def error_result(text: str) -> bytes:
    """Return the answer of `filter` and `bind` where they fail."""
    return msgspec.json.encode({"Error": text})


def _arguments(body: bytes) -> tuple[Pod, list[str]]:
    given = _decode_object(body)
    if given.get("nodenames") is None and given.get("nodes"):
        raise BadRequestError(_CACHE_CAPABLE.format("NodeNames"))
    try:
        names = msgspec.convert(given.get("nodenames") or [], list[str])
    except msgspec.ValidationError:
        raise BadRequestError("NodeNames: it is not a list of names") from None
    return _read_pod(given.get("pod"), "Pod"), names


def _read_pod(given: object, path: str) -> Pod:
    try:
        return read_pod(given, path)
    except DocumentError as error:
        raise BadRequestError(str(error)) from error


def _decode_object(body: bytes) -> Object:
    """Return the fields of a document of Go's, with their names in lower case."""
    given = read_json(body)
    if not isinstance(given, dict):
        raise BadRequestError(f"{quoted(given)} is not an object")
    return {name.lower(): value for name, value in given.items()}


def read_json(body: bytes) -> Any:
    """Return what a body holds; raises BadRequestError."""
    try:
        return msgspec.json.decode(body)
    except RecursionError as error:
        raise BadRequestError("it is nested too deep") from error
    except msgspec.DecodeError as error:
        raise BadRequestError(f"not JSON: {json_problem(error)}") from error


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name.lower())
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name}: {quoted(value)} is no name")
    return value


def _holds(request: NumaRequest) -> bool:
    """Whether a pod takes something of a zone to itself."""
    return request.qos not in (BEST_EFFORT, BURSTABLE) or not request.native


def _round(score: int) -> int:
    return (score * MOST_SCORE + 50) // 100
