"""Time a request's way over the wire: from the runtime's call to the plugin's answer.

A session with a plugin that does nothing, in one event loop with a runtime that asks it again and
again over a unix socket; so each figure holds both sides' work.
"""
# ruff: noqa: ARG002 - this plugin looks at less than the protocol's methods are given

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from nri_policy.foundation.clock import Clock
from nri_policy.nri.channel import Channel
from nri_policy.nri.mux import Conn
from nri_policy.nri.plugin import Call, PluginIdentity
from nri_policy.nri.session import Session
from nri_policy.nri.versions import LIFECYCLE, Events, Runtime
from nri_policy.proto import nri_pb2 as pb

ROUNDS = 3000
BUDGET = 600.0  # seconds for an answer: what takes long is measured, too

_T = TypeVar("_T")


class Idle:
    """A plugin that gives each container the same CPUs and is otherwise content."""

    def begin(self, call: Call) -> None: ...
    def end(self) -> None: ...

    def step(self, work: Callable[[], _T]) -> _T:
        return work()

    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None: ...
    async def update_pod_sandbox(self, request: pb.UpdatePodSandboxRequest) -> None: ...
    async def stop_pod_sandbox(self, pod: pb.PodSandbox) -> None: ...
    async def remove_pod_sandbox(self, pod: pb.PodSandbox) -> None: ...
    async def start_container(self, pod: pb.PodSandbox, container: pb.Container) -> None: ...
    async def post_start_container(self, pod: pb.PodSandbox, container: pb.Container) -> None: ...
    async def post_update_container(self, pod: pb.PodSandbox, container: pb.Container) -> None: ...
    async def remove_container(self, pod: pb.PodSandbox, container: pb.Container) -> None: ...
    async def disconnected(self) -> None: ...
    def late(self, method: str, request: Message) -> Message | None: ...

    async def configure(self, request: pb.ConfigureRequest, runtime: Runtime) -> Events:
        return LIFECYCLE

    async def synchronize(
        self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> Sequence[pb.ContainerUpdate]:
        return [update(container) for container in containers]

    async def create_container(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.CreateContainerResponse:
        response = pb.CreateContainerResponse()
        response.adjust.linux.resources.cpu.cpus = "0-1"
        return response

    async def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        return pb.UpdateContainerResponse(update=[update(container)])

    async def stop_container(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.StopContainerResponse:
        return pb.StopContainerResponse()


def update(container: pb.Container) -> pb.ContainerUpdate:
    wanted = pb.ContainerUpdate(container_id=container.id)
    wanted.linux.resources.cpu.cpus = "0-1"
    return wanted


def container(index: int, environment: int) -> pb.Container:
    return pb.Container(
        id=f"{index:064x}",
        pod_sandbox_id=f"{index:064x}",
        name="main",
        annotations={f"io.kubernetes.container.{key}": "value" for key in "abcdefgh"},
        env=["VARIABLE=0123456789abcdef"] * environment,
    )


async def measure() -> None:
    ours, theirs = socket.socketpair()
    session = Session(Idle(), PluginIdentity(name="idle", index="05"))
    serving = asyncio.create_task(session.run_inherited(ours.detach()))
    _, runtime = await asyncio.get_running_loop().create_unix_connection(
        lambda: Channel(Conn.RUNTIME, Clock(), lambda _request, _received, answer: answer(b"")),
        sock=theirs,
    )
    await runtime.call("Configure", pb.ConfigureRequest(NRI_version="v0.12.2"), budget=BUDGET)

    pod = pb.PodSandbox(id="0" * 64, name="web", namespace="default")
    synchronize = pb.SynchronizeRequest(
        pods=[pb.PodSandbox(id=f"{index:064x}") for index in range(1000)],
        containers=[container(index, 50) for index in range(1000)],
    )
    small = pb.CreateContainerRequest(pod=pod, container=container(0, 10))
    large = pb.CreateContainerRequest(pod=pod, container=container(0, 200))
    for what, method, request, times in [
        ("StartContainer", "StartContainer", small, ROUNDS),
        ("CreateContainer", "CreateContainer", small, ROUNDS),
        ("CreateContainer, two frames", "CreateContainer", large, ROUNDS),
        ("Synchronize, 1000 containers", "Synchronize", synchronize, max(ROUNDS // 100, 10)),
    ]:
        size = request.ByteSize()
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            response = await runtime.call(method, request, budget=BUDGET)
            taken.append((time.perf_counter() - began) * 1e6)
            assert response.code == 0, response.message
        p99 = statistics.quantiles(taken, n=100)[98]
        median = statistics.median(taken)
        print(f"{what:30} {size:8} bytes  median {median:9.0f} us  p99 {p99:9.0f} us")
    runtime.close()
    await serving


def main() -> None:
    asyncio.run(measure())
