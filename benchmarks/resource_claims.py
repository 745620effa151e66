"""Time what a resource claim for CPUs costs: to prepare it, and to create its container.

As in `requests`, with a daemon that holds some claims already, and without them. The API server's
answer is there at once; store, CDI files and the socket of the runtime are real.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

from benchmarks.decisions import TYPICAL
from benchmarks.requests import CREATE, Stopwatch, pod_of, runtime_of
from benchmarks.table import Section, Timing, number
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.dra.cdi import CDIFiles
from nri_policy.dra.driver import Driver
from nri_policy.dra.resource_slice import CPU
from nri_policy.kube.client import Client
from nri_policy.proto.dra_pb2 import (
    Claim,
    NodePrepareResourcesRequest,
    NodeUnprepareResourcesRequest,
)
from nri_policy.simulation.link import PluginLink
from nri_policy.workload.claim import DRIVER, variable
from tests.support import busy_node, nodes

HELD = 32  # claims beside the one that is measured
ROUNDS = 200
NODE = "node-a"


class Allocated:
    """An API server by which every claim has two CPUs of some NUMA node."""

    def __init__(self, devices: int) -> None:
        self._devices = devices

    async def get(self, _kind: object, name: str, *, namespace: str) -> Mapping[str, Any]:
        result = {
            "request": "cpu",
            "driver": DRIVER,
            "pool": NODE,
            "device": f"numa{int(name) % self._devices}",
            "consumedCapacity": {CPU: "2"},
        }
        return {
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
            },
        }


async def measure(held: int) -> dict[str, Timing]:
    """Return how long things take while so many claims are held."""
    cpus, running = TYPICAL
    watch = Stopwatch(time.perf_counter)
    spent: dict[str, list[float]] = {"prepare": [], "unprepare": []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=".")))
        memory = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))  # as /run is
        runtime = await stack.enter_async_context(runtime_of(cpus, folder))
        machine = nodes.machine(busy_node.MACHINES[cpus])
        host = Environment(state_dir=folder, containers_dir=memory, delay=lambda _: 0.0)
        daemon = Daemon(machine, nodes.settings(dra={"enabled": True}), host)
        stack.push_async_callback(daemon.close)
        await stack.enter_async_context(daemon.serving(runtime.socket_path))
        await runtime.synchronized()
        driver = Driver(
            daemon.node,
            daemon.components.claims,
            cast(Client, Allocated(len(machine.nodes))),
            name=NODE,
            files=CDIFiles(memory / "cdi"),
            ready=daemon.synchronized,
        )
        milli = busy_node.share(cpus, running)
        for at in range(running):
            await runtime.start_pod(pod_of(f"running-{at}", milli))
        for at in range(held):
            await driver.prepare(NodePrepareResourcesRequest(claims=[_claim(at)]))
        gc.collect()
        gc.freeze()  # as the daemon does
        with patch.object(PluginLink, "call", watch.call):
            for at in range(held, held + ROUNDS):
                claim = _claim(at)
                began = time.perf_counter()
                answer = await driver.prepare(NodePrepareResourcesRequest(claims=[claim]))
                spent["prepare"].append(time.perf_counter() - began)
                assert not answer.claims[claim.uid].error, answer
                for name, pod in (
                    ("with a claim", _user(daemon, claim)),
                    ("without one", pod_of(f"new-{at}", 2000)),
                ):
                    made = await runtime.start_pod(pod)
                    spent.setdefault(name, []).append(watch.spent[CREATE]["request"][-1])
                    await runtime.delete_pod(made)
                began = time.perf_counter()
                await driver.unprepare(NodeUnprepareResourcesRequest(claims=[claim]))
                spent["unprepare"].append(time.perf_counter() - began)
        gc.unfreeze()
    return {name: Timing.of(seconds) for name, seconds in spent.items()}


def _claim(at: int) -> Claim:
    return Claim(namespace="default", name=str(at), uid=str(at))


def _user(daemon: Daemon, claim: Claim) -> dict[str, Any]:
    """Return the pod that a claim is for, with what CDI would set."""
    (part,) = (
        each.container.claim_part
        for each in daemon.node.view.claims.values()
        if each.container.claim_part.claim == claim.uid
    )
    pod: dict[str, Any] = pod_of(f"user-{claim.name}", 2000)
    pod["metadata"]["uid"] = f"uid-{claim.name}"
    pod["spec"]["containers"][0]["env"] = [{"name": variable(part), "value": ""}]
    return pod


def section() -> Section:
    rows = []
    for held in (0, HELD):
        measured = asyncio.run(measure(held))
        rows += [
            (f"{held} claims", name, number(timing.p50), number(timing.p99))
            for name, timing in measured.items()
        ]
    return Section(
        title="Resource claims",
        text=f"Of two CPUs, on a node of {TYPICAL[0]} CPUs and {TYPICAL[1]} containers, in µs,"
        " beside the API server's answer. The last two of each are creations of a container.",
        head=("node", "what", "p50", "p99"),
        rows=rows,
    )


def main() -> None:
    print(section().plain())
