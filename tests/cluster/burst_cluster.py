"""Bursts of pods on played nodes behind a real kube-scheduler: the nodes and pods of `burst`.

A played node has a sandbox, its containers and a new report after the same times as in
benchmarks/bursts.py, where all is simulated. Its API server, kube-scheduler and extender are real.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec.structs import replace

from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.service.kinds import ZONES
from nri_policy.kube.client import PODS, Client, Page, decode
from nri_policy.kube.connection import access
from nri_policy.kube.errors import APIError
from nri_policy.kube.list_watch import list_and_watch
from tests.cluster.control_plane import ADMIN, ControlPlane, require
from tests.cluster.installation import CONFIGS, register
from tests.cluster.schedulers import configuration, configuration_of_extender, extending
from tests.support.burst import ALLOCATABLE, BurstNode, BurstPod, daemons
from tests.support.patience import HANGS

ARRIVES, PULLS, REPORTS = 0.1, 0.5, 0.25  # seconds: until a sandbox, for an image, until a report
QUIET = 4.0  # seconds without a change after which those that wait are without a node
PATIENCE = 300.0
MOST_TRIES = 5  # of the owner of a pod that a node refuses
AT_ONCE = 10  # requests
# kube-scheduler's: the plugin without a cache gets the report of each node twice for each pod, so
# that with the 50 requests a second of the default a burst on 28 nodes takes minutes
UNTHROTTLED = {"clientConnection": {"qps": 5000, "burst": 5000}}
NAMESPACE = "default"

Mode = Literal["plugin", "choose", "choose and bind"]  # who judges the zones
MODES: tuple[Mode, ...] = get_args(Mode)


class BurstCluster:
    """The nodes, and what becomes of the pods."""

    def __init__(self, client: Client, nodes: Iterable[str]) -> None:
        self.outcome: Counter[str] = Counter()
        self._client = client
        self._nodes = {name: BurstNode(name) for name in nodes}
        self._pods: dict[str, BurstPod] = {}  # that exist
        self._node_of: dict[str, str] = {}  # of the pods that are bound
        self._running: set[str] = set()
        self._reporting: set[str] = set()  # nodes
        self._report_of = {name: asyncio.Lock() for name in self._nodes}  # one goes after the other
        self._following: asyncio.Task[None]
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = asyncio.Semaphore(AT_ONCE)
        self._changed = 0.0

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Play the nodes meanwhile, each with the pods of its DaemonSets."""
        self._following = asyncio.create_task(self._follow())
        try:
            for name in self._nodes:
                self._report(name)
                for pod in daemons(name):
                    self._spawn(self._create(pod, name))
            await self._settled()
            self.outcome.clear()
            yield
        finally:
            every = (self._following, *self._tasks)
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)

    async def play(self, bursts: Iterable[list[BurstPod]]) -> Counter[str]:
        """Have bursts come and settle; return what became of the pods, and of how many CPUs."""
        for burst, pods in enumerate(bursts):
            for pod in pods:
                self._spawn(self._create(pod))
            await self._settled()
            waiting = [each for name, each in self._pods.items() if name not in self._node_of]
            self._count("without a node", *waiting)
            ended = [self._pods[name] for name in self._running if self._pods[name].ends <= burst]
            for pod in (*waiting, *ended):
                self._spawn(self._delete(pod))
            await self._settled()
        return self.outcome

    async def _settled(self) -> None:
        """Wait until no node has anything to do, and then until nothing changes any more."""
        loop = asyncio.get_running_loop()
        self._changed = loop.time()
        async with asyncio.timeout(PATIENCE):
            while loop.time() < self._changed + QUIET:
                await asyncio.sleep(0.1)
                ended = [each for each in (self._following, *self._tasks) if each.done()]
                failed = [each for each in ended if each.exception()]
                assert not failed, failed
                if not all(each.done() for each in self._tasks):
                    self._changed = loop.time()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks = {each for each in self._tasks if not each.done() or each.exception()}
        self._tasks.add(asyncio.create_task(work))

    def _count(self, what: str, *pods: BurstPod) -> None:
        self._changed = asyncio.get_running_loop().time()
        self.outcome[what] += len(pods)
        self.outcome[f"CPUs {what}"] += sum(each.milli for each in pods) // 1000

    async def _follow(self) -> None:
        async with aclosing(list_and_watch(self._client, PODS, namespace=NAMESPACE)) as events:
            async for event in events:
                if isinstance(event, Page):
                    for item in event.items:
                        self._take(decode(item))
                elif event[0] == "DELETED":
                    self._end(decode(event[1])["metadata"]["name"])
                else:
                    self._take(decode(event[1]))

    def _take(self, pod: dict[str, Any]) -> None:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if node and name in self._pods and name not in self._node_of:
            self._node_of[name] = node
            zone = pod["metadata"].get("annotations", {}).get(ZONE_ANNOTATION, "")
            self._spawn(self._run(self._pods[name], node, zone))

    def _end(self, name: str) -> None:
        self._pods.pop(name, None)
        self._running.discard(name)
        node = self._node_of.pop(name, None)
        if node is not None:
            self._nodes[node].end(name)
            self._report(node)

    async def _run(self, pod: BurstPod, at: str, zone: str) -> None:
        """Start a pod as a kubelet does, and say what became of it."""
        node = self._nodes[at]
        await asyncio.sleep(ARRIVES)
        node.arrive(pod, zone)
        self._report(at)
        await asyncio.sleep(PULLS)
        taken = node.start(pod, zone)
        self._report(at)
        if taken:
            self._running.add(pod.name)
            self._count("placed", pod)
            await self._say(pod, "Running")
        else:
            self._count("refused by a node", pod)
            await self._say(pod, "Failed")
            await self._delete(pod)
            first, _, tries = pod.name.partition(".")
            if int(tries or 0) < MOST_TRIES:
                again = replace(pod, name=f"{first}.{int(tries or 0) + 1}")
                await self._create(again)

    async def _say(self, pod: BurstPod, phase: str) -> None:
        status = {"status": {"phase": phase}}
        async with self._requests:
            await self._client.merge(PODS, pod.name, status, namespace=NAMESPACE, part="status")

    async def _create(self, pod: BurstPod, node: str = "") -> None:
        self._pods[pod.name] = pod
        container = {"name": "c", "image": "x", "resources": pod.resources()}
        spec: dict[str, Any] = {
            "containers": [container],
            "terminationGracePeriodSeconds": 0,  # who deletes it waits for no kubelet
        }
        if node:
            spec["nodeName"] = node
        new = {"metadata": {"name": pod.name}, "spec": spec}
        async with self._requests:
            await self._client.create(PODS, new, namespace=NAMESPACE)

    async def _delete(self, pod: BurstPod) -> None:
        async with self._requests:
            with suppress(APIError):
                await self._client.delete(PODS, pod.name, namespace=NAMESPACE)

    def _report(self, node: str) -> None:
        """Have a node report what it has left, soon: one report has all that happened before."""
        self._changed = asyncio.get_running_loop().time()
        if node not in self._reporting:
            self._reporting.add(node)
            self._spawn(self._write_report(node))

    async def _write_report(self, node: str) -> None:
        await asyncio.sleep(REPORTS)
        self._reporting.discard(node)
        async with self._report_of[node], self._requests:
            new = self._nodes[node].report()
            await self._client.apply(ZONES, new, manager="nri-policy", force=True)


@asynccontextmanager
async def burst_cluster(folder: Path, mode: Mode, count: int) -> AsyncIterator[BurstCluster]:
    """Yield a cluster of so many nodes, whose zones are judged as *mode* says."""
    require("kube-apiserver", "kube-scheduler", "kubectl")
    names = [f"n{at:02}" for at in range(count)]
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(ControlPlane(folder, nodes=names))
        await asyncio.to_thread(_prepare, plane, names)
        connect = access(plane.kubeconfig(ADMIN))
        assert connect is not None
        client = Client(connect, patience=HANGS)
        stack.push_async_callback(client.close)
        cluster = BurstCluster(client, names)
        await stack.enter_async_context(cluster.following())
        if mode == "plugin":
            plane.start_scheduler(configuration(0) | UNTHROTTLED)
        else:
            port, _ = await stack.enter_async_context(extending(plane, choose=True))
            bind = mode == "choose and bind"
            plane.start_scheduler(configuration_of_extender(port, bind=bind) | UNTHROTTLED)
        yield cluster


def _prepare(plane: ControlPlane, nodes: Iterable[str]) -> None:
    crd = str(CONFIGS / "kubernetes" / "crd.yaml")
    plane.kubectl("apply", "-f", crd)
    plane.kubectl("wait", "--for=condition=Established", "-f", crd)
    account = {"metadata": {"name": "default"}}
    plane.asked("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
    amounts = {"cpu": f"{ALLOCATABLE}m", "memory": "64Gi", "pods": "250"}
    for name in nodes:
        register(plane, name, capacity=amounts, allocatable=amounts)
