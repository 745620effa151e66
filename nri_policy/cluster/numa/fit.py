"""NUMA fit: whether the zones of each node can hold a pod, and how well; spec cluster.md §8.

Owns which nodes there are and what was found out about them; the rules are the kernel's. Answers
are kept by what a pod asks: the next equal pod costs only the nodes that changed since.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.zones.numa_node import NumaNodes
from nri_policy.cluster.zones.numa_request import NumaRequest, make_numa_request
from nri_policy.native._numa_fit import (
    CONTAINER,
    FITS,
    INIT,
    NO_ZONE,
    POD,
    SIDECAR,
    STALE,
    UNRESOLVABLE,
    evaluate,
    place,
)
from nri_policy.native._numa_node import NumaNode
from nri_policy.native._numa_request import Request
from nri_policy.native._numa_score import STRATEGIES

REASONS = {
    FITS: "",
    STALE: "invalid node topology data",
    INIT: "cannot align init container",
    SIDECAR: "cannot align sidecar container",
    CONTAINER: "cannot align container",
    POD: "cannot align pod",
}
MAX_KEPT = 64  # requests whose answers are kept


class Answer:
    """Verdicts and scores of one request, by slot of the node."""

    __slots__ = ("generation", "request", "scores", "verdicts")

    def __init__(self, request: Request, slots: int) -> None:
        self.request = request
        self.generation = 0  # of the nodes when it was last brought up to date
        self.verdicts = bytearray(slots)
        self.scores = bytearray(slots)


class NumaFit:
    """The nodes' zones, and which pods they can hold."""

    def __init__(self, settings: Extender) -> None:
        self.reader = NumaNodes()
        self.slots: dict[str, int] = {}  # by node
        self._nodes: list[NumaNode | None] = []
        self._free: list[int] = []
        self._generations = array("Q")  # by slot: the generation of its last change
        self.generation = 0  # counts the changes of nodes
        self._answers: OrderedDict[NumaRequest, Answer] = OrderedDict()
        self._requests: dict[int, tuple[PodSpec, NumaRequest]] = {}  # by the identity of a spec
        self._known_resources = 0
        self.configure(settings)

    def configure(self, settings: Extender) -> None:
        """Judge by these settings from now on."""
        self.settings = settings
        self._answers.clear()
        self._requests.clear()

    def put(self, name: str, node: NumaNode) -> None:
        """Take a node, or what it is now."""
        slot = self.slots.get(name)
        if slot is None:
            slot = self._free.pop() if self._free else len(self._nodes)
            self.slots[name] = slot
            if slot == len(self._nodes):
                self._nodes.append(None)
                self._generations.append(0)
        self.generation += 1
        self._nodes[slot] = node
        self._generations[slot] = self.generation

    def remove(self, name: str) -> None:
        """Forget a node, if it is known."""
        slot = self.slots.pop(name, None)
        if slot is not None:
            self._nodes[slot] = None
            self._free.append(slot)

    def changed_since(self, generation: int) -> list[str]:
        """Return the nodes that have changed since then, of those that are there."""
        of_slot = self._generations
        return [name for name, slot in self.slots.items() if of_slot[slot] > generation]

    def get(self, name: str) -> NumaNode | None:
        """Return a node, None for an unknown name."""
        slot = self.slots.get(name)
        return None if slot is None else self._nodes[slot]

    def ask(self, request: NumaRequest) -> Answer:
        """Return verdicts and scores of all nodes for *request*, valid until a node changes."""
        if len(self.reader.resources) != self._known_resources:  # numbers in requests are outdated
            self._known_resources = len(self.reader.resources)
            self._answers.clear()
        answer = self._answers.pop(request, None)
        if answer is None:
            answer = Answer(request.compile(self.reader.resources, self.settings.resources), 0)
            if len(self._answers) == MAX_KEPT:
                self._answers.popitem(last=False)
        self._answers[request] = answer
        if answer.generation != self.generation:
            missing = bytes(len(self._nodes) - len(answer.verdicts))
            answer.verdicts += missing
            answer.scores += missing
            evaluate(
                self._nodes,
                answer.request,
                STRATEGIES.index(self.settings.strategy),
                answer.verdicts,
                answer.scores,
                self._generations,
                answer.generation,
            )
            answer.generation = self.generation
        return answer

    def request(self, pod: Pod) -> NumaRequest:
        """Return what *pod* asks, by the settings: known for the latest specs, which pods share."""
        spec = pod.spec
        found = self._requests.get(id(spec))
        if found is None:
            if len(self._requests) == MAX_KEPT:
                self._requests.clear()
            found = spec, make_numa_request(spec, strict=self.settings.strict)
            self._requests[id(spec)] = found
        return found[1]

    def zones(self, name: str, request: NumaRequest) -> tuple[int, ...] | None:
        """Return the zone of each step of the filter on a node, NO_ZONE for one that needs none.

        The steps are the pod in all, or each container, by the kubelet's scope there. None for an
        unknown node, a node without alignment, or one without room for this pod.
        """
        node = self.get(name)
        return None if node is None else place(node, self.ask(request).request)


def reason_of(verdict: int) -> str:
    """Return the text of a verdict, empty where the pod fits."""
    return REASONS[verdict & ~UNRESOLVABLE]


def find_common_zone(zones: tuple[int, ...] | None) -> int | None:
    """Return the common zone of all steps with a zone, None without a common one."""
    needed = {zone for zone in zones or () if zone != NO_ZONE}
    return needed.pop() if len(needed) == 1 else None
