"""Bursts of pods on a cluster of simulated nodes: how many are refused, how many find no node.

The nodes decide for real: each is an engine with `alignment: numa`, its report the object that its
daemon publishes. As on real nodes, there are DaemonSet pods and Burstable pods. Time is made up:
kube-scheduler takes one pod after the other, by its own account of what is left; the API server
tells of a binding, the node of a sandbox, of containers and of a new report some time later.

`tests/cluster/test_bursts.py` has the same pods and nodes behind a real kube-scheduler.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from nri_policy.cluster.numa.extender import Verbs
from nri_policy.cluster.numa.promises import LiveZones, NoRoomError
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.foundation.clock import Clock
from tests.support.burst import ALLOCATABLE, BurstNode, BurstPod, bursts, daemons

BURSTS, PODS, SEEDS = 10, 140, 2
NODES = (18, 28)  # too few for all pods, and enough
# seconds, made up: of kube-scheduler for a pod, until others see a binding, until the sandbox, for
# pulling an image, until a report, until a pod without a node is tried again
TAKES, HEARS, ARRIVES, PULLS, REPORTS, AGAIN = 0.005, 0.01, 0.1, 0.5, 0.25, 1.0
MOST_TRIES = 5
MODES = {  # who judges the zones
    "none": "nobody looks at zones",
    "plugin": "the plugin, without a cache",
    "extender": "the extender",
    "choose": "the extender, choose: true",
    "choose and bind": "the same, with bindVerb",
}

Object = dict[str, Any]


class BurstCluster:
    """Nodes, kube-scheduler, and what it asks about a node's zones."""

    def __init__(self, mode: str, count: int) -> None:
        self.mode = mode
        self.now = 0.0
        choose = mode.startswith("choose")
        self.zone: dict[str, str] = {}  # by pod that we bound
        self.cluster = Cluster()
        view = self.cluster.view
        self.zones = LiveZones(Extender(choose=choose), view, Clock(now=lambda: self.now))
        self.cluster.follow(self.zones)
        self.verbs = Verbs(self.zones, ServiceSpread(view, Clock(now=lambda: self.now)))
        self.nodes = {f"n{at:02}": BurstNode(f"n{at:02}") for at in range(count)}
        self.left = dict.fromkeys(self.nodes, ALLOCATABLE)  # milli-CPU, as kube-scheduler counts
        self.pods: dict[str, BurstPod] = {}
        self.at: dict[str, str] = {}  # where each running pod is
        self.tries: Counter[str] = Counter()
        self.outcome: Counter[str] = Counter()
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[[str, str], None], str, str]] = []
        for name, node in self.nodes.items():
            allocatable = {"cpu": f"{ALLOCATABLE}m", "memory": "64Gi"}
            self.cluster.set_node(
                read_node({"metadata": {"name": name}, "status": {"allocatable": allocatable}}, "")
            )
            for pod in daemons(name):
                self.pods[pod.name] = pod
                self.left[name] -= pod.milli
                self.see(pod.name, name, "Running")
                node.start(pod)
            self.report("", name)

    def play(self, burst: int, pods: list[BurstPod]) -> None:
        """Start a burst and wait until it is placed; then end the pods that are due."""
        for number, pod in enumerate(pods):
            self.pods[pod.name] = pod
            self.plan(number * TAKES, self.schedule, pod.name)
        self.settle()
        for name in [name for name in self.at if self.pods[name].ends <= burst]:
            self.plan(0, self.end, name, self.at.pop(name))
        self.settle()

    def settle(self) -> None:
        while self.events:
            self.now, _, happens, name, at = heapq.heappop(self.events)
            happens(name, at)

    def plan(self, after: float, what: Callable[[str, str], None], name: str, at: str = "") -> None:
        heapq.heappush(self.events, (self.now + after, next(self.order), what, name, at))

    def again(self, name: str) -> None:
        if self.tries[name] < MOST_TRIES:
            self.plan(AGAIN, self.schedule, name)
        else:
            self.outcome["without a node"] += 1
            self.outcome["CPUs without a node"] += self.pods[name].milli

    def schedule(self, name: str, _at: str) -> None:
        self.tries[name] += 1
        milli = self.pods[name].milli
        scores = {
            name: 100 * (left - milli) / ALLOCATABLE
            for name, left in self.left.items()
            if left >= milli
        }
        if self.mode != "none":
            asked = {"Pod": self.document(name), "NodeNames": [*scores]}
            left = json.loads(self.verbs.filter(json.dumps(asked).encode()))["NodeNames"]
            of_zones = json.loads(self.verbs.prioritize(json.dumps(asked).encode()))
            points = {each["Host"]: 10 * each["Score"] for each in of_zones}
            scores = {each: scores[each] + points[each] for each in left}
        if scores:
            chosen = max(scores, key=lambda each: (scores[each], each))
            self.left[chosen] -= milli
            self.plan(HEARS, self.bind, name, chosen)
        else:
            self.again(name)

    def bind(self, name: str, at: str) -> None:
        if self.mode == "choose and bind":
            try:
                self.zone[name] = self.zones.bind(read_pod(self.document(name), ""), at) or ""
            except NoRoomError:
                self.left[at] += self.pods[name].milli
                self.again(name)
                return
        self.see(name, at, "Pending")
        self.plan(ARRIVES, self.arrive, name, at)

    def arrive(self, name: str, at: str) -> None:
        self.nodes[at].arrive(self.pods[name], self.zone.get(name, ""))
        self.plan(REPORTS, self.report, "", at)
        self.plan(PULLS, self.start, name, at)

    def start(self, name: str, at: str) -> None:
        milli = self.pods[name].milli
        if self.nodes[at].start(self.pods[name], self.zone.get(name, "")):
            self.outcome["placed"] += 1
            self.outcome["CPUs placed"] += milli
            self.at[name] = at
            self.see(name, at, "Running")
        else:  # its owner makes another one
            self.outcome["refused by a node"] += 1
            self.left[at] += milli
            self.zone.pop(name, None)
            self.zones.remove_pod(self.pods[name].namespace, name)
            self.again(name)
        self.plan(REPORTS, self.report, "", at)

    def end(self, name: str, at: str) -> None:
        self.nodes[at].end(name)
        self.left[at] += self.pods[name].milli
        self.zones.remove_pod(self.pods[name].namespace, name)
        self.plan(REPORTS, self.report, "", at)

    def report(self, _name: str, at: str) -> None:
        self.cluster.set_zones(read_zones(self.nodes[at].report(), ""))

    def see(self, name: str, at: str, phase: str) -> None:
        """Tell the extender of a pod; a plugin without a cache remembers none."""
        if self.mode != "plugin":
            self.zones.set_pod(read_pod(self.document(name, at, phase), ""))

    def document(self, name: str, at: str = "", phase: str = "Pending") -> Object:
        pod = self.pods[name]
        zone = self.zone.get(name)
        return {
            "metadata": {
                "name": name,
                "namespace": pod.namespace,
                "annotations": {ZONE_ANNOTATION: zone} if zone else {},
            },
            "spec": {
                "nodeName": at,
                "containers": [{"name": "c", "resources": pod.resources()}],
            },
            "status": {"phase": phase},
        }


def main() -> None:
    for count in NODES:
        print(f"{BURSTS} bursts of {PODS} pods on {count} nodes, {SEEDS} times:")
        for mode, text in MODES.items():
            outcome, ended = Counter[str](), Counter[str]()
            for seed in range(SEEDS):
                cluster = BurstCluster(mode, count)
                for burst, pods in enumerate(bursts(random.Random(seed), BURSTS, PODS)):
                    cluster.play(burst, pods)
                outcome.update(cluster.outcome)
                ended.update(cluster.zones.ended)
            for what in ("CPUs placed", "CPUs without a node"):
                outcome[what] //= 1000
            found = ", ".join(f"{number} {what}" for what, number in sorted(outcome.items()))
            print(f"  {text}: {found}; promises ended: {dict(ended)}")
