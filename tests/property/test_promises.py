"""Lives of nearly full nodes, to which the extender binds pods: no node refuses one that it bound.

A node is an engine with `alignment: numa`. Pods arrive and start in another order than they were
bound in, its report comes late, and pods of other users end meanwhile. From fixed seeds, so that it
is known how often pods were bound, and turned away: too seldom is a failure.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from nri_policy.cluster.numa.promises import LiveZones, NoRoomError
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.foundation.clock import Clock
from tests.support.burst import MACHINE, BurstNode, BurstPod, daemons


class Machine(NamedTuple):
    """A node's hardware, its CPUs without the reserved one, and what pods ask for, in milli-CPU."""

    hardware: str
    milli: int
    guaranteed: tuple[int, ...]
    burstable: tuple[int, ...]  # 0: a BestEffort pod


MACHINES = {
    "four nodes": Machine(
        MACHINE,
        31_000,
        (1000, 1500, 2000, 3000, 5000, 7000),
        (0, 100, 500, 2000, 3000, 6000, 10_000),
    ),
    "two nodes": Machine(
        "package:1 numa:2 core:4 pu:1",
        7000,
        (1000, 1500, 2000, 3000),
        (0, 100, 500, 2000, 3000, 5000),
    ),
}
SEEDS = 30
STEPS = 200
BOUND, TURNED_AWAY, WIDE = 400, 20, 30  # at least; wide: Burstable, and no zone has room for it


class Life:
    """A node, the extender's account of it, and the pods between both."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = machine
        self.counts = Counter[str]()
        self.numbers = itertools.count()  # of pods
        self.node = BurstNode("n", machine.hardware)
        self.cluster = Cluster()
        self.zones = LiveZones(Extender(choose=True), self.cluster.view, Clock(now=lambda: 0.0))
        self.cluster.follow(self.zones)
        self.left = machine.milli  # as kube-scheduler counts
        self.zone: dict[str, str] = {}  # where each pod was sent
        self.bound: list[BurstPod] = []
        self.arrived: list[BurstPod] = []
        self.running: list[BurstPod] = []
        allocatable = {"cpu": f"{machine.milli}m", "memory": "64Gi"}
        self.cluster.set_node(
            read_node({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}, "")
        )
        for pod in daemons("n"):
            self.left -= pod.milli
            self.node.start(pod)
            self.see(pod, "Running")
        self.report()

    def step(self) -> None:
        """Have something happen."""
        steps = (self.arrive, self.start, self.end, self.report, self.bind)
        self.random.choices(steps, (2, 3, 1, 1, 4))[0]()

    def bind(self) -> None:
        """Have kube-scheduler send a pod here, which counts the CPUs of the node as a whole."""
        guaranteed = self.random.random() < 0.6
        sizes = self.machine.guaranteed if guaranteed else self.machine.burstable
        pod = BurstPod("default", f"p{next(self.numbers)}", self.random.choice(sizes), guaranteed)
        if pod.milli > self.left:
            return
        try:
            self.zone[pod.name] = self.zones.bind(self.pod(pod), "n") or ""
        except NoRoomError:
            self.counts["turned away"] += 1
            return
        self.counts["bound"] += 1
        self.counts["wide"] += not (guaranteed or self.zone[pod.name]) and pod.milli > 0
        self.left -= pod.milli
        self.bound.append(pod)
        self.see(pod, "Pending")

    def arrive(self) -> None:
        """Have the sandbox of any pod come."""
        if self.bound:
            pod = self.take(self.bound)
            self.node.arrive(pod, self.zone[pod.name])
            self.arrived.append(pod)

    def start(self) -> None:
        """Have the image of any pod be there."""
        if self.arrived:
            pod = self.take(self.arrived)
            assert self.node.start(pod, self.zone[pod.name]), f"{pod} is refused"
            self.running.append(pod)
            self.see(pod, "Running")

    def end(self) -> None:
        """End any pod."""
        if self.running:
            pod = self.take(self.running)
            self.left += pod.milli
            self.node.end(pod.name)
            self.zones.remove_pod(pod.namespace, pod.name)

    def report(self) -> None:
        """Have the node's report reach the extender."""
        self.cluster.set_zones(read_zones(self.node.report(), ""))

    def see(self, pod: BurstPod, phase: str) -> None:
        """Tell the extender of a pod on the node."""
        self.zones.set_pod(replace(self.pod(pod), node="n", phase=phase))

    def pod(self, pod: BurstPod) -> Pod:
        zone = self.zone.get(pod.name)
        annotations = {ZONE_ANNOTATION: zone} if zone else {}
        container = {"name": "c", "resources": pod.resources()}
        metadata = {"name": pod.name, "namespace": pod.namespace, "annotations": annotations}
        return read_pod({"metadata": metadata, "spec": {"containers": [container]}}, "")

    def take(self, pods: list[BurstPod]) -> BurstPod:
        return pods.pop(self.random.randrange(len(pods)))


@pytest.mark.parametrize("machine", MACHINES)
def test_no_node_refuses_a_pod_that_the_extender_bound(machine: str) -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        life = Life(MACHINES[machine], seed)
        for _ in range(STEPS):
            life.step()
        counts.update(life.counts)
    assert counts["bound"] >= BOUND, counts
    assert counts["turned away"] >= TURNED_AWAY, counts
    assert counts["wide"] >= WIDE, counts
