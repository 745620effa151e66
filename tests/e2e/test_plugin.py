"""A minimal plugin on the project's own NRI session: real runtimes take what it answers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NoReturn

import grpc
import pytest
from google.protobuf.message import Message

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.plugin import Call, Plugin, PluginIdentity
from nri_policy.nri.session import Session
from nri_policy.nri.versions import LIFECYCLE, Events
from nri_policy.nri.versions import Runtime as Spoken
from nri_policy.proto.nri_pb2 import (
    ConfigureRequest,
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    CreateContainerResponse,
    LinuxContainerAdjustment,
    LinuxCPU,
    LinuxResources,
    PodSandbox,
    StopContainerResponse,
    UpdateContainerResponse,
)
from tests.e2e import cgroup
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.support.patience import HANGS

LAST_CPU = CPUSet([max(os.sched_getaffinity(0))])


class Pinning(Plugin):
    """Pins every container to the last CPU; refuses those of pods that are labelled so."""

    def __init__(self) -> None:
        self.synchronized = threading.Semaphore(0)
        self.known: set[str] = set()  # container ids at the latest synchronization

    def begin(self, call: Call) -> None: ...
    def end(self) -> None: ...

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> Sequence[ContainerUpdate]:
        del pods
        self.known = {container.id for container in containers}
        self.synchronized.release()
        return []

    async def create_container(
        self, pod: PodSandbox, container: Container
    ) -> CreateContainerResponse:
        if "refused" in pod.labels:
            raise CallRefused(f"{pod.name}/{container.name}: refused as labelled")
        resources = LinuxResources(cpu=LinuxCPU(cpus=str(LAST_CPU), mems="0"))
        linux = LinuxContainerAdjustment(resources=resources)
        return CreateContainerResponse(adjust=ContainerAdjustment(linux=linux))

    async def update_container(
        self, pod: PodSandbox, container: Container, resources: LinuxResources
    ) -> UpdateContainerResponse:
        del pod, container, resources
        return UpdateContainerResponse()

    async def stop_container(self, pod: PodSandbox, container: Container) -> StopContainerResponse:
        del pod, container
        return StopContainerResponse()

    async def _nothing(self, *_: object, **__: object) -> None:
        pass

    async def configure(self, request: ConfigureRequest, runtime: Spoken) -> Events:
        del request, runtime
        return LIFECYCLE

    disconnected = start_container = remove_container = _nothing
    run_pod_sandbox = update_pod_sandbox = stop_pod_sandbox = remove_pod_sandbox = _nothing
    post_start_container = post_update_container = _nothing

    def late(self, method: str, request: Message) -> None:
        pass


@pytest.fixture
def plugin(runtime: Runtime) -> Iterator[Pinning]:
    """A plugin whose session runs beside the test, in a thread of its own."""
    plugin = Pinning()
    session = Session(plugin, PluginIdentity(name="pinning", index="50"))
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[NoReturn]]] = Future()

    async def serve() -> None:
        task = asyncio.create_task(session.run(str(runtime.nri_socket)))
        running.set_result((asyncio.get_running_loop(), task))
        with suppress(asyncio.CancelledError):
            await task

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    loop, task = running.result()
    try:
        assert plugin.synchronized.acquire(timeout=HANGS)
        yield plugin
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


@pytest.mark.usefixtures("plugin")
def test_a_cpuset_from_the_plugin_reaches_the_real_cgroup(kubelet: Kubelet) -> None:
    container = kubelet.run("pod", guaranteed(1000))
    pinned = cgroup.CpusetFiles(cpus=LAST_CPU, mems=CPUSet([0]))
    assert cgroup.cpuset(container.cgroup) == pinned
    assert cgroup.allowed(container.pid()) == pinned


@pytest.mark.usefixtures("plugin")
def test_a_refusal_from_the_plugin_is_the_error_of_the_cri_call(kubelet: Kubelet) -> None:
    pod = kubelet.run_pod("pod", {"main": BEST_EFFORT}, labels={"refused": "yes"})
    with pytest.raises(grpc.RpcError, match="pod/main: refused as labelled"):
        pod.create("main")


def test_the_plugin_comes_back_after_a_restart_of_the_runtime(
    plugin: Pinning, kubelet: Kubelet, runtime: Runtime
) -> None:
    before = kubelet.run("before", BEST_EFFORT)
    runtime.restart()
    assert plugin.synchronized.acquire(timeout=HANGS)
    assert plugin.known == {before.id}
    runtime.await_plugin()
    after = kubelet.run("after", BEST_EFFORT)
    assert cgroup.cpuset(after.cgroup).cpus == LAST_CPU
