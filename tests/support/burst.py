"""Bursts of pods, and nodes that decide about them as daemons do: engines with `alignment: numa`.

Which pods come, and when each ends, does not depend on where pods were placed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Stopped
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Container, Pod
from tests.support import nodes
from tests.support.daemon_report import daemon_report

MACHINE = "package:2 numa:2 core:4 pu:2"  # 4 NUMA nodes of 8 CPUs
ALLOCATABLE = 31_000  # milli-CPU
DAEMONS = (100, 0, 100)  # milli-CPU of the DaemonSet pods on each node
MILLI_CPUS = {True: (1000, 2000, 3000, 4000, 6000), False: (250, 500, 2000)}  # by: Guaranteed
MEMORY = 1 << 20  # bytes of each pod

Object = dict[str, Any]


class BurstPod(Struct, frozen=True):
    """A pod of one container."""

    namespace: str
    name: str
    milli: int  # CPU
    guaranteed: bool
    ends: int = 0  # after which burst

    def resources(self) -> Object:
        """Return the container's resources, as its manifest has them."""
        if not self.milli:
            return {}
        amounts = {"cpu": f"{self.milli}m", "memory": MEMORY}
        return {"requests": amounts, **({"limits": amounts} if self.guaranteed else {})}

    def container(self, zone: str = "") -> Container:
        """Return what the runtime tells its daemon of it; the extender bound it with a *zone*."""
        sort = QoS.BURSTABLE if self.milli else QoS.BEST_EFFORT
        if self.guaranteed:
            sort = QoS.GUARANTEED
        pod = Pod(
            id=f"sandbox-{self.name}",
            uid=self.name,
            name=self.name,
            namespace=self.namespace,
            qos=sort,
            labels={},
            annotations={ZONE_ANNOTATION: zone} if zone else {},
        )
        made: Container = nodes.container(self.milli, qos=sort, pod=pod)
        return replace(made, resources=replace(made.resources, memory_limit=MEMORY))


def bursts(chance: random.Random, count: int, size: int) -> Iterator[list[BurstPod]]:
    """Yield *count* bursts of *size* pods; half of all pods that run end after each burst."""
    for burst in range(count):
        made = []
        for number in range(size):
            guaranteed = chance.random() < 0.75
            milli = chance.choice(
                (1000, 2000, 3000, 4000, 6000) if guaranteed else (250, 500, 2000)
            )
            ends = burst
            while chance.random() < 0.5:
                ends += 1
            made.append(BurstPod("default", f"p{burst}-{number}", milli, guaranteed, ends))
        yield made


def daemons(node: str) -> Iterator[BurstPod]:
    """Yield the DaemonSet pods of a node, which do not end."""
    for number, milli in enumerate(DAEMONS):
        yield BurstPod("default", f"daemon-{node}-{number}", milli, guaranteed=False, ends=1000)


class BurstNode:
    """A node with its daemon."""

    def __init__(self, name: str, machine: str = MACHINE) -> None:
        self.name = name
        settings = nodes.settings(alignment="numa", reservedResources={"cpu": 1})
        self._engine = Engine(nodes.machine(machine), settings)
        self._coming: dict[str, Container] = {}  # pods that have a sandbox
        self._running: dict[str, Container] = {}

    def arrive(self, pod: BurstPod, zone: str = "") -> None:
        """Take in a sandbox; what a Guaranteed pod asks for is known from then on."""
        if pod.guaranteed:
            made = pod.container(zone)
            self._coming[pod.name] = replace(made, id=made.pod.id)

    def start(self, pod: BurstPod, zone: str = "") -> bool:
        """Start a pod; return whether it was taken."""
        made = pod.container(zone)
        try:
            self._engine.handle(Created(container=made))
        except PlacementError:
            self._coming.pop(pod.name, None)
            return False
        self._running[pod.name] = made
        return True

    def end(self, name: str) -> None:
        """End a pod, if it is here."""
        self._coming.pop(name, None)
        if name in self._running:
            self._engine.handle(Stopped(container_id=self._running.pop(name).id))

    def report(self) -> Object:
        """Return what the daemon publishes now."""
        started = (each.pod for each in self._running.values())
        return daemon_report(
            self._engine,
            name=self.name,
            coming=self._coming.values(),
            started=[(pod.namespace, pod.name) for pod in started if pod.qos is QoS.GUARANTEED],
        )
