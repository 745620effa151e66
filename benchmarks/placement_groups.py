"""Time the service's own part of placing groups: from objects as they are read to patches.

1,000 Jobs of 64 pods on 5,000 nodes; a Job of 10,000 pods; a start with 100,000 pods that run, from
the tests' API server. CPU time of this process, so a busy machine does not matter.
"""

from __future__ import annotations

import asyncio
import cProfile
import multiprocessing
import pstats
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import cluster
from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.groups.writes import (
    CreateGroup,
    DeletePod,
    FailPod,
    Notice,
    OpenGate,
    WriteStatus,
)
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.requests.group import API_VERSION, KIND, read_group
from nri_policy.cluster.service.kinds import OF_GROUPS
from nri_policy.cluster.service.service import Service
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.membership import read_job
from nri_policy.foundation.clock import SYSTEM_CLOCK
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.support.cluster_api import ClusterAPI

Object = dict[str, Any]
GATE = "placement.nri/group"
NODES = 5_000
GROUPS = ((1_000, 64), (1, 10_000))  # how many at once, and the pods of each


def job(name: str, pods: int) -> Object:
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}"}
    return {"metadata": metadata, "spec": {"parallelism": pods, "completions": pods}}


def owner(name: str) -> Object:
    """Return a reference to a Job that owns an object."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"u-{name}"}


def pod(of: str, index: int, *, at: str = "", level: str = "zone") -> Object:
    requests = {"cpu": "1", "memory": "2Gi"}
    return {
        "metadata": {
            "name": f"{of}-{index}",
            "namespace": "default",
            "uid": f"u-{of}-{index}",
            "resourceVersion": "1",
            "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
            "annotations": {"kueue.x-k8s.io/podset-preferred-topology": level},
            "ownerReferences": [owner(of) | {"controller": True}],
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": requests, "limits": requests}}],
            "schedulingGates": [] if at else [{"name": GATE}],
            **({"nodeName": at} if at else {}),
        },
        "status": {"phase": "Running" if at else "Pending"},
    }


class CPUTimes:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began


def place(jobs: int, pods: int) -> CPUTimes:
    """Take Jobs and their pods in, place them, and let them go; writes are done at once."""
    nodes = Cluster()
    zones = LiveZones(cluster.SETTINGS.extender, nodes.view, SYSTEM_CLOCK)
    controller = Controller(cluster.SETTINGS, nodes.view, SYSTEM_CLOCK, zones)
    nodes.follow(zones, controller)
    for node in cluster.nodes(NODES):
        nodes.set_node(node)
    controller.engine.state.tree("default")
    items = {f"j{n}-{at}": pod(f"j{n}", at) for n in range(jobs) for at in range(pods)}
    times, revision, placed, gone = CPUTimes(), 1, 0, 0
    for number in range(jobs):
        controller.set_job(read_job(job(f"j{number}", pods), ""))
    with times.timed("pods read"):
        for item in items.values():
            controller.set_pod(read_pod(item, ""))
    groups: dict[str, Object] = {}
    while True:
        before = time.process_time()
        writes = controller.step()
        kinds = {type(each).__name__ for each in writes} - {"Notice"}
        name = " and ".join(sorted(kinds)) or "nothing"
        times.seconds[name] = times.seconds.get(name, 0.0) + time.process_time() - before
        if not (writes or controller.busy):
            break
        for write in writes:
            revision += 1
            if isinstance(write, Notice):
                continue
            assert not isinstance(write, FailPod | DeletePod), "no node fails"
            with times.timed("patches"):
                made = write.object() if isinstance(write, CreateGroup) else write.patch()
            if isinstance(write, OpenGate):
                item = items[write.opening.pod.name]
                item["metadata"]["annotations"] |= made["metadata"]["annotations"]
                item["spec"] |= {"nodeSelector": made["spec"]["nodeSelector"]}
                item["spec"]["schedulingGates"] = []
                gone += 1
                with times.timed("pods read again"):
                    controller.set_pod(read_pod(item, ""))
                continue
            key = write.group.name
            groups[key] = groups.get(key, {}) | made if isinstance(write, WriteStatus) else made
            groups[key]["metadata"] = {"name": key, "namespace": "default"}
            placed += isinstance(write, WriteStatus)
            with times.timed("groups read"):
                controller.set_group(read_group(groups[key]), str(revision))
    assert (placed, gone) == (jobs, jobs * pods), (placed, gone)
    return times


def serve(path: Path, ready: Any, nodes: int) -> None:
    """Serve nodes, and 20 pods of each, of groups that have their places."""

    async def serving() -> None:
        async with ClusterAPI(path) as api:
            fill(api, nodes)
            ready.set()
            await asyncio.Event().wait()

    asyncio.run(serving())


def fill(api: ClusterAPI, nodes: int) -> None:
    for node in cluster.nodes(nodes):
        allocatable = {name: str(amount) for name, amount in node.allocatable.items()}
        allocatable["cpu"] = f"{node.allocatable['cpu']}m"
        api.objects["nodes"][node.name] = {
            "metadata": {"name": node.name, "labels": node.labels, "resourceVersion": "1"},
            "spec": {},
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    hosts, per_host = [*api.objects["nodes"]], 20
    for number in range(nodes * per_host // 100):
        name = f"j{number}"
        api.objects["jobs"][f"default/{name}"] = job(name, 100)
        own = hosts[number * 5 : number * 5 + 5]
        for at in range(100):
            item = pod(name, at, at=own[at // per_host])
            item["metadata"]["annotations"][GATE] = f"job-{name}"
            api.objects["pods"][f"default/{name}-{at}"] = item
        domains = [{"values": [host], "count": per_host} for host in own]
        requests = {"containers": [{"resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}]}
        api.objects["placementgroups"][f"default/job-{name}"] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": f"job-{name}",
                "namespace": "default",
                "resourceVersion": "1",
                "ownerReferences": [owner(name)],
            },
            "spec": {
                "podSets": [
                    {
                        "name": "main",
                        "count": 100,
                        "template": {"spec": requests},
                        "request": {"preferred": "zone"},
                    }
                ]
            },
            "status": {
                "state": "Running",
                "pods": 100,
                "assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}],
            },
        }


async def start(kubeconfig: Path) -> tuple[float, float]:
    """Return the seconds, and those of CPU, until a replica could place its first group."""
    connect = access(kubeconfig)
    assert connect is not None
    client = Client(connect)
    began, cpu = time.monotonic(), time.process_time()
    service = Service(cluster.SETTINGS, client, groups=True)
    task = asyncio.create_task(service.run())
    assert service.writer is not None
    while service.watch.problem(*OF_GROUPS) or service.writer._woken.is_set():  # noqa: ASYNC110, SLF001 - who is ready says nothing
        await asyncio.sleep(0.01)
    assert len(service.writer.controller.groups.known()) == NODES * 20 // 100
    took = time.monotonic() - began, time.process_time() - cpu
    assert not service.writer.written, service.writer.written
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
    return took


def main() -> None:
    """Print the figures; with `--profile` where the time of the first goes."""
    if "--profile" in sys.argv:
        profile = cProfile.Profile()
        profile.runcall(place, 200, 64)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        return
    for jobs, pods in GROUPS:
        times = place(jobs, pods)
        total = sum(times.seconds.values())
        print(f"{jobs} groups of {pods} pods: {jobs * pods / total:.0f} pods/s, {total:.2f} s")
        for name, seconds in times.seconds.items():
            print(f"  {name:20} {seconds * 1e3:8.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        server = context.Process(target=serve, args=(Path(folder), ready, NODES), daemon=True)
        server.start()
        ready.wait()
        seconds, cpu = asyncio.run(start(Path(folder) / "kubeconfig"))
        print(f"start with {NODES} nodes, {NODES * 20} pods: {seconds:.1f} s, {cpu:.1f} s of CPU")
        server.terminate()
