"""Count how well nri-plugins' topology-aware policy places, in the histories of `quality`.

Its program runs beside an embedded runtime, on the same synthetic machines as sysfs folders, and
gets the pods over NRI. It needs the program that `python3 -m tools.nri_plugins` builds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peer import PATIENCE, peer
from benchmarks.quality import COUNTED, MACHINES, ChangingNode, judge, spans_sockets_in_vain
from benchmarks.table import Section
from nri_policy.engine.event import Created, Event, Resized, Stopped
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware import synthetic
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.simulation.containers import CRIError, SimulatedPod
from nri_policy.simulation.embedded import EmbeddedRuntime, PodStartError
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.daemon import make_runtime
from tools import nri_plugins

HISTORIES = {16: 5, 32: 5, 64: 2, 256: 1}  # CPUs -> seeds from 1 on
# the defaults of its resource definition, which a file does not get from an API server
SETTINGS = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec:
  reservedResources: {cpu: "cpuset:0"}
  pinCPU: true
  pinMemory: true
  preferIsolatedCPUs: true
  defaultCPUPriority: none
  unlimitedBurstable: package
  agent: {podResourceAPI: false}
"""
# What is judged here and there alike, of `quality.COUNTED`.
JUDGED = (
    "exclusive",
    "cross sockets",
    "cross nodes",
    "memory away",
    "more cores",
    "strangers' cores",
    "larger beside others",
    "open threads",
    "burstable cross",
    "refused",
    "resizes refused",
)


class PeerNode:
    """A node of nri-plugins on which a history is played."""

    def __init__(self, cpus: int, runtime: EmbeddedRuntime, state: Path) -> None:
        """Take the folder in which the program keeps its *state*."""
        self.counts = dict.fromkeys(JUDGED, 0)
        self._machine = nodes.machine(MACHINES[cpus])
        self._runtime = runtime
        self._state = state
        self._pods: dict[str, SimulatedPod] = {}  # by the id of the history's container

    async def play(self, history: Iterable[Event]) -> None:
        """Play a history; it goes on without containers that were refused."""
        for event in history:
            match event:
                case Created(container=container):
                    await self._create(container)
                case Resized(container_id=id_, resources=resources) if id_ in self._pods:
                    amount = Amounts(cpu=resources.cpu_limit or 0)
                    change = ResourceChange(requests=amount, limits=amount)
                    try:
                        await self._runtime.resize(self._pods[id_], "main", change)
                    except CRIError:  # it keeps what it has
                        self.counts["resizes refused"] += 1
                case Stopped(container_id=id_) if id_ in self._pods:
                    await self._runtime.delete_pod(self._pods.pop(id_))
                case _:
                    pass

    async def _create(self, container: Container) -> None:
        try:
            pod = await self._runtime.start_pod(_manifest(container))
        except PodStartError:
            self.counts["refused"] += 1
            await self._runtime.delete_pod(self._runtime.pod(container.id))
            return
        others = CPUSet.union(map(self._exclusive, self._pods.values()))
        self._pods[container.id] = pod
        own = self._exclusive(pod)
        given, asked = pod.container("main"), container.resources
        if own and not asked.cpu_request % 1000:
            for name, count in judge(self._machine, own, given.mems, others).items():
                self.counts[name] += count
        elif asked.cpu_limit and asked.cpu_request < asked.cpu_limit:
            self.counts["burstable cross"] += spans_sockets_in_vain(
                self._machine, given.cpus, asked.cpu_limit
            )

    def _exclusive(self, pod: SimulatedPod) -> CPUSet:
        """Return the exclusive CPUs of a pod's container, by the file that the program exports."""
        file = self._state / "containers" / pod.container("main").id / "resources.sh"
        found = EMPTY
        for line in file.read_text().splitlines():
            name, _, value = line.partition("=")
            if name in {"EXCLUSIVE_CPUS", "ISOLATED_CPUS"}:
                found |= CPUSet.parse(value.strip('"'))
        return found


def _manifest(container: Container) -> dict[str, Any]:
    """Return the pod of one of a history's containers."""
    asked = container.resources
    limits = {"cpu": f"{asked.cpu_limit}m"} if asked.cpu_limit else {}
    if asked.memory_limit:
        limits["memory"] = str(asked.memory_limit)
    requests = {"cpu": f"{asked.cpu_request}m"} if asked.cpu_request else {}
    if asked.cpu_request == asked.cpu_limit:  # Guaranteed
        requests = limits
    resources = {"requests": requests, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": container.id},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]},
    }


async def measure(cpus: int, history: Iterable[Event]) -> dict[str, int]:
    """Return the counts of nri-plugins for one history."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))
        synthetic.write(MACHINES[cpus], folder / "host")
        (folder / "settings.yaml").write_text(SETTINGS)
        runtime = await stack.enter_async_context(
            make_runtime(nodes.machine(MACHINES[cpus]), folder)
        )
        await stack.enter_async_context(peer(folder, runtime))
        await asyncio.wait_for(runtime.synchronized(), PATIENCE)
        node = PeerNode(cpus, runtime, folder / "state")
        await node.play(history)
        return node.counts


def section() -> Section:
    """Count all histories, here and there."""
    cells = {}
    for cpus, seeds in HISTORIES.items():
        ours, theirs = dict.fromkeys(JUDGED, 0), dict.fromkeys(JUDGED, 0)
        for seed in range(1, seeds + 1):
            here = ChangingNode(cpus, seed)
            here.run()
            there = asyncio.run(measure(cpus, here.events))
            for name in JUDGED:
                ours[name] += here.counts[name]
                theirs[name] += there[name]
        cells[cpus] = {name: f"{ours[name]} / {theirs[name]}" for name in JUDGED}
    return Section(
        title="How well containers are placed, here / nri-plugins",
        text=f"Its program (commit {nri_plugins.COMMIT[:8]}) beside an embedded runtime, over NRI.",
        head=("what", *(f"{cpus} CPUs" for cpus in HISTORIES)),
        rows=[(COUNTED[name], *(cells[cpus][name] for cpus in HISTORIES)) for name in JUDGED],
    )


def main() -> None:
    print(section().plain())
