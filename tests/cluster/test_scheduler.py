"""What a scheduler that reads our topology objects sends to nodes, and what the nodes refuse."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import install, register
from tests.cluster.played import Played, played
from tests.cluster.schedulers import configuration, configuration_of_extender, extending
from tests.support.exchanges import MERGE

SHAPES = {
    "four-numa": "package:2 numa:2 core:2 pu:2",
    "two-sockets": "package:2 numa:1 core:6",
    "one-socket": "package:1 numa:4 core:4",
    "small": "package:1 numa:2 core:3",
}
PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 300.0

Record = Callable[[str, object], None]


def of_daemon_sets(cluster: ControlPlane, node: str) -> None:
    """Have a node run what every node has: pods that share its CPUs."""
    for number, requests in enumerate(({}, {"cpu": "100m", "memory": "32Mi"})):
        container = {"name": "c", "image": "x", "resources": {"requests": requests}}
        spec = {"nodeName": node, "containers": [container]}
        cluster.asked("POST", PODS, {"metadata": {"name": f"{node}-{number}"}, "spec": spec})


@asynccontextmanager
async def scheduled(
    folder: Path, *, resync: int = 0, pull: float = 0.0, extended: bool = False
) -> AsyncIterator[tuple[ControlPlane, list[Played]]]:
    require("kube-apiserver", "kube-scheduler", "kubectl")
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(ControlPlane(folder, nodes=[*SHAPES, "node-a"]))
        await asyncio.to_thread(_install, cluster)
        here = [
            await stack.enter_async_context(
                played(cluster, folder / name, name, shape, pull=pull, alignment="numa")
            )
            for name, shape in SHAPES.items()
        ]
        for name in SHAPES:
            await asyncio.to_thread(of_daemon_sets, cluster, name)
        if extended:
            port, _ = await stack.enter_async_context(extending(cluster, choose=True))
            cluster.start_scheduler(configuration_of_extender(port))
        else:
            cluster.start_scheduler(configuration(resync))
        yield cluster, here


def _install(cluster: ControlPlane) -> None:
    register(cluster, "node-a")  # for the pod that asks if the policies are in force
    install(cluster, "node-a")
    cluster.asked("DELETE", "/api/v1/nodes/node-a")
    account = {"metadata": {"name": "default", "namespace": "default"}}
    cluster.asked("POST", "/api/v1/namespaces/default/serviceaccounts", account)


def pod(chance: random.Random, name: str, most: int = 1) -> dict[str, Any]:
    """Return a pod, mostly Guaranteed, of one container, or now and then of as many as *most*."""
    containers: list[dict[str, Any]] = []
    for number in range(1 if chance.random() < 0.8 else most):
        cpu = chance.choice(("1", "1", "2", "2", "3", "4", "500m", "1500m", "2500m"))
        amounts = {"cpu": cpu, "memory": f"{chance.choice((64, 256, 1024))}Mi"}
        resources = {"limits": amounts, "requests": amounts}
        containers.append({"name": f"c{number}", "image": "x", "resources": resources})
    if chance.random() < 0.2:
        for each in containers:
            del each["resources"]["limits"]
    return {"metadata": {"name": name}, "spec": {"containers": containers}}


async def eventually(condition: Callable[..., Any], *about: Any) -> None:
    """Wait until *condition* of these is true."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition, *about):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


def settled(cluster: ControlPlane, name: str) -> str:
    """Return where a pod ended up: `Running`, `Failed`, `unschedulable`, or nothing yet."""
    status = cluster.asked("GET", f"{PODS}/{name}")["status"]
    if status.get("phase") in {"Running", "Failed"}:
        return str(status["phase"])
    conditions = status.get("conditions") or []
    waits = any(each.get("reason") == "Unschedulable" for each in conditions)
    return "unschedulable" if waits else ""


def all_settled(cluster: ControlPlane, names: list[str]) -> bool:
    return all(settled(cluster, name) for name in names)


def ended(here: list[Played], name: str) -> bool:
    return not any(name in each.running for each in here)


def delete(cluster: ControlPlane, name: str) -> None:
    cluster.asked("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


async def told(here: list[Played]) -> None:
    """Wait until the API server has the latest of all nodes."""
    for each in here:
        daemon = each.node.daemon
        async with asyncio.timeout(PATIENCE):
            topology = daemon.topology
            while not (await topology.feed.read()).equals(topology._publishers[0]._last_written):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("most", [1, 2])
async def test_no_pod_is_sent_one_by_one_to_a_node_that_refuses_it(
    tmp_path: Path, record_property: Record, most: int
) -> None:
    """Of two containers the second may be refused: the scheduler guesses where the first goes."""
    chance = random.Random(11)
    outcomes: dict[str, list[str]] = {"Running": [], "Failed": [], "unschedulable": []}
    async with scheduled(tmp_path) as (cluster, here):
        await told(here)
        for number in range(200):
            name = f"pod-{number}"
            await asyncio.to_thread(cluster.asked, "POST", PODS, pod(chance, name, most))
            await eventually(settled, cluster, name)
            outcome = settled(cluster, name)
            outcomes[outcome].append(name)
            if outcome != "Running":
                await asyncio.to_thread(delete, cluster, name)
            while len(outcomes["Running"]) > 16 and chance.random() < 0.6:
                gone = outcomes["Running"].pop(chance.randrange(len(outcomes["Running"])))
                await asyncio.to_thread(delete, cluster, gone)
                await eventually(ended, here, gone)
            await told(here)
        refused = {name: why for each in here for name, why in each.refused.items()}
    counts = {name: len(pods) for name, pods in outcomes.items()}
    record_property("figures", f"one by one, {most}: {counts}, {len(refused)} refused")
    assert len(refused) <= (0 if most == 1 else 4), refused
    assert outcomes["unschedulable"], "the nodes were never full"


@pytest.mark.parametrize(("resync", "pull"), [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5)])
async def test_bursts(tmp_path: Path, resync: int, pull: float, record_property: Record) -> None:
    """Ten pods at once: some are chosen for before the choices just made can be seen."""
    async with scheduled(tmp_path, resync=resync, pull=pull) as (cluster, here):
        sent, refused = await bursts(cluster, here)
    figures = f"resync {resync} s, pull {pull:g} s: {sent} sent, {len(refused)} refused"
    record_property("figures", f"bursts of 10: {figures}")
    assert sent > 50
    assert len(refused) <= (20 if resync else 8), refused


@pytest.mark.parametrize("pull", [0.0, 0.5])
async def test_bursts_with_the_extender(
    tmp_path: Path, pull: float, record_property: Record
) -> None:
    """It remembers what it let through, and until when: no node refuses a pod."""
    async with scheduled(tmp_path, pull=pull, extended=True) as (cluster, here):
        sent, refused = await bursts(cluster, here)
    record_property("figures", f"bursts of 10, extender, pull {pull:g} s: {sent} sent")
    assert not refused
    assert sent > 100


CASES = int(os.environ.get("NRI_POLICY_EVICTIONS", "12"))  # docs/cluster-figures.md has 500
LONGEST_TEST = max(900.0, 15.0 * CASES)  # seconds; each step has its own patience
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def test_a_node_admits_the_pod_that_others_were_evicted_for(
    tmp_path: Path, record_property: Record
) -> None:
    """kube-scheduler asks who is to leave: room on the node is not yet room in a zone."""
    chance = random.Random(13)
    async with scheduled(tmp_path, extended=True) as (cluster, here):
        new = {"metadata": {"name": "high"}, "value": 1000}
        await asyncio.to_thread(cluster.asked, "POST", CLASSES, new)
        await told(here)
        numbers = count()
        victims = 0
        for case in range(CASES):
            low = await fill(cluster, here, chance, numbers)
            name = f"high-{case}"
            asked = guaranteed(name, chance.choice((2, 3)), priorityClassName="high")
            await asyncio.to_thread(cluster.asked, "POST", PODS, asked)
            await eventually(decided, cluster, name)
            assert settled(cluster, name) == "Running", (case, [each.refused for each in here])
            victims += len(low - alive(cluster))
            await asyncio.to_thread(delete, cluster, name)
            await eventually(ended, here, name)
            await told(here)
    record_property("figures", f"preemption: {CASES} pods admitted, {victims} evicted")
    assert victims >= CASES


def decided(cluster: ControlPlane, name: str) -> bool:
    """Whether a node has taken or refused a pod; until then something happens on the nodes.

    As in any cluster: kube-scheduler tries a pod again when something has changed.
    """
    patch = {"metadata": {"annotations": {"test/now": str(time.monotonic())}}}
    cluster.asked("PATCH", f"/api/v1/nodes/{next(iter(SHAPES))}", patch, content=MERGE)
    return settled(cluster, name) in {"Running", "Failed"}


def guaranteed(name: str, cpu: int, **spec: Any) -> dict[str, Any]:
    """Return a pod of whole CPUs."""
    amounts = {"cpu": str(cpu), "memory": "64Mi"}
    container = {"name": "c", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def alive(cluster: ControlPlane) -> set[str]:
    """Return the pods of low priority that are bound."""
    return {
        each["metadata"]["name"]
        for each in cluster.asked("GET", PODS)["items"]
        if each["metadata"]["name"].startswith("low-") and "nodeName" in each["spec"]
    }


async def fill(
    cluster: ControlPlane, here: list[Played], chance: random.Random, numbers: Iterator[int]
) -> set[str]:
    """Send pods of low priority until nodes have no room for one of a CPU; return all there are."""
    while True:
        name = f"low-{next(numbers)}"
        cpu = chance.choice((1, 1, 2))
        await asyncio.to_thread(cluster.asked, "POST", PODS, guaranteed(name, cpu))
        await eventually(settled, cluster, name)
        outcome = settled(cluster, name)
        if outcome != "Running":
            await asyncio.to_thread(delete, cluster, name)
        await told(here)
        if outcome == "unschedulable" and cpu == 1:
            return alive(cluster)


async def bursts(cluster: ControlPlane, here: list[Played]) -> tuple[int, dict[str, str]]:
    """Send 14 bursts of ten pods; return how many found a node, and those refused there."""
    chance = random.Random(12)
    sent = 0
    await told(here)
    for burst in range(14):
        names = [f"pod-{burst}-{number}" for number in range(10)]
        for name in names:
            await asyncio.to_thread(cluster.asked, "POST", PODS, pod(chance, name))
        await eventually(all_settled, cluster, names)
        outcomes = [settled(cluster, name) for name in names]
        sent += sum(each != "unschedulable" for each in outcomes)
        for each in cluster.asked("GET", PODS)["items"]:
            name = each["metadata"]["name"]
            if name.startswith("pod-") and (
                each["status"].get("phase") != "Running" or chance.random() < 0.5
            ):
                await asyncio.to_thread(delete, cluster, name)
                await eventually(ended, here, name)
        await told(here)
    return sent, {name: why for each in here for name, why in each.refused.items()}
