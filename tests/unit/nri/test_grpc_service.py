from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.grpc_services import service_stub
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.grpc_service import plugin_handler
from nri_policy.nri.service import PluginService
from nri_policy.proto import nri_pb2 as pb
from tests.support.patience import HANGS
from tests.unit.nri.peer import CONTAINER, POD, RecordingPlugin, update


@asynccontextmanager
async def serving(
    plugin: RecordingPlugin, path: Path, turn: asyncio.Lock, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([plugin_handler(PluginService(plugin, turn, clock))])
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield service_stub(channel, pb.DESCRIPTOR.services_by_name["Plugin"])
    await server.stop(None)


async def test_a_life_cycle_over_grpc(tmp_path: Path) -> None:
    plugin = RecordingPlugin()
    plugin.updates = [update("c1", "0-1")]
    path = tmp_path / "nri.sock"
    async with serving(plugin, path, asyncio.Lock()) as stub:
        configured = await stub.Configure(pb.ConfigureRequest(NRI_version="v0.12.2"))
        assert configured.events == 0xFEF
        synchronized = await stub.Synchronize(pb.SynchronizeRequest(pods=[POD]))
        assert list(synchronized.update) == plugin.updates
        assert await stub.RunPodSandbox(pb.RunPodSandboxRequest(pod=POD)) is not None
        created = await stub.CreateContainer(
            pb.CreateContainerRequest(pod=POD, container=CONTAINER), timeout=HANGS
        )
        assert created.adjust.linux.resources.cpu.cpus == "4-5"
        await stub.StateChange(pb.StateChangeEvent(event=pb.START_CONTAINER, pod=POD))
    assert plugin.names == [
        "configure",
        "synchronize",
        "run_pod_sandbox",
        "create_container",
        "start_container",
    ]
    remaining = plugin.calls[3][1][2]
    assert 0 < remaining <= HANGS + 1  # gRPC rounds up on its way


async def test_a_request_over_grpc_is_timed_by_the_clock_of_its_service(tmp_path: Path) -> None:
    plugin, clock = RecordingPlugin(), Clock(now=lambda: 7.0)
    async with serving(plugin, tmp_path / "nri.sock", asyncio.Lock(), clock) as stub:
        await stub.Configure(pb.ConfigureRequest(NRI_version="v0.12.2"))
        await stub.Synchronize(pb.SynchronizeRequest(pods=[POD]))
        request = pb.CreateContainerRequest(pod=POD, container=CONTAINER)
        await stub.CreateContainer(request, timeout=HANGS)
    remaining = plugin.calls[-1][1][2]
    assert HANGS - 1 < remaining <= HANGS + 1, "a clock that stands still leaves all of it"


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (CallRefused("no", code=Code.RESOURCE_EXHAUSTED), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (CallRefused("é" * 9999), grpc.StatusCode.UNKNOWN),
        (CallRefused("odd", code=999), grpc.StatusCode.UNKNOWN),
        (ValueError("bug"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_failures_are_grpc_statuses(
    failure: Exception, status: grpc.StatusCode, tmp_path: Path
) -> None:
    plugin = RecordingPlugin()
    plugin.failures["run_pod_sandbox"] = failure
    async with serving(plugin, tmp_path / "nri.sock", asyncio.Lock()) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.RunPodSandbox(pb.RunPodSandboxRequest(pod=POD))
        assert error.value.code() == status
        if isinstance(failure, CallRefused):
            assert (error.value.details() or "")[:100] == failure.message[:100]


async def test_methods_that_the_plugin_lacks_are_unimplemented(tmp_path: Path) -> None:
    async with serving(RecordingPlugin(), tmp_path / "nri.sock", asyncio.Lock()) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.PostUpdatePodSandbox(pb.PostUpdatePodSandboxRequest(pod=POD))
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_requests_over_grpc_share_the_turn_with_a_session(tmp_path: Path) -> None:
    plugin, turn = RecordingPlugin(), asyncio.Lock()
    plugin.gate.clear()
    session = PluginService(plugin, turn, Clock())
    stop = pb.StopPodSandboxRequest(pod=POD).SerializeToString()
    async with serving(plugin, tmp_path / "nri.sock", turn) as stub:
        first = asyncio.ensure_future(stub.RunPodSandbox(pb.RunPodSandboxRequest(pod=POD)))
        await plugin.called.wait()
        second = asyncio.create_task(session.answer("StopPodSandbox", stop, budget=math.inf))
        for _ in range(10):
            await asyncio.sleep(0)
        assert plugin.names == ["run_pod_sandbox"]
        plugin.gate.set()
        await asyncio.gather(first, second)
    assert plugin.names == ["run_pod_sandbox", "stop_pod_sandbox"]
