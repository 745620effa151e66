from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from google.protobuf.message import Message

from nri_policy.foundation.clock import Clock
from nri_policy.nri import service as service_module
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.service import METHODS, PluginService
from nri_policy.nri.versions import LIFECYCLE, Events
from nri_policy.proto import nri_pb2 as pb
from tests.unit.nri.peer import CONTAINER, POD, FakeTime, RecordingPlugin, update


def make(plugin: RecordingPlugin, time: FakeTime | None = None) -> PluginService:
    return PluginService(plugin, asyncio.Lock(), time.clock if time else Clock())


async def ask(
    service: PluginService,
    method: str,
    request: Message,
    budget: float = math.inf,
) -> bytes:
    return await service.answer(method, request.SerializeToString(), budget=budget)


@pytest.mark.parametrize(
    ("method", "request_", "called"),
    [
        ("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD), ("run_pod_sandbox", ("p0",))),
        ("UpdatePodSandbox", pb.UpdatePodSandboxRequest(pod=POD), ("update_pod_sandbox", ("p0",))),
        ("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD), ("stop_pod_sandbox", ("p0",))),
        ("RemovePodSandbox", pb.RemovePodSandboxRequest(pod=POD), ("remove_pod_sandbox", ("p0",))),
        (
            "StartContainer",
            pb.StartContainerRequest(pod=POD, container=CONTAINER),
            ("start_container", ("p0", "c0")),
        ),
        (
            "PostStartContainer",
            pb.PostStartContainerRequest(pod=POD, container=CONTAINER),
            ("post_start_container", ("p0", "c0")),
        ),
        (
            "PostUpdateContainer",
            pb.PostUpdateContainerRequest(pod=POD, container=CONTAINER),
            ("post_update_container", ("p0", "c0")),
        ),
        (
            "RemoveContainer",
            pb.RemoveContainerRequest(pod=POD, container=CONTAINER),
            ("remove_container", ("p0", "c0")),
        ),
    ],
)
async def test_events_without_an_answer_reach_their_method(
    method: str, request_: Message, called: tuple[str, Any]
) -> None:
    plugin = RecordingPlugin()
    assert await ask(make(plugin), method, request_) == b""
    assert plugin.calls == [called]


async def test_events_with_an_answer_return_it() -> None:
    plugin = RecordingPlugin()
    plugin.updates = [update("c1", "0-1")]
    service = make(plugin)
    created = await ask(
        service, "CreateContainer", pb.CreateContainerRequest(pod=POD, container=CONTAINER)
    )
    response = pb.CreateContainerResponse.FromString(created)
    assert response.adjust.linux.resources.cpu.cpus == "4-5"
    assert list(response.update) == plugin.updates

    resize = pb.UpdateContainerRequest(pod=POD, container=CONTAINER)
    resize.linux_resources.cpu.shares.value = 1024
    resized = await ask(service, "UpdateContainer", resize)
    assert list(pb.UpdateContainerResponse.FromString(resized).update) == plugin.updates
    assert plugin.calls[-1] == ("update_container", ("p0", "c0", 1024))

    stop = pb.StopContainerRequest(pod=POD, container=CONTAINER)
    stopped = await ask(service, "StopContainer", stop)
    assert list(pb.StopContainerResponse.FromString(stopped).update) == plugin.updates


@pytest.mark.parametrize(
    ("event", "called"),
    [
        (pb.RUN_POD_SANDBOX, "run_pod_sandbox"),
        (pb.STOP_POD_SANDBOX, "stop_pod_sandbox"),
        (pb.REMOVE_POD_SANDBOX, "remove_pod_sandbox"),
        (pb.START_CONTAINER, "start_container"),
        (pb.POST_START_CONTAINER, "post_start_container"),
        (pb.POST_UPDATE_CONTAINER, "post_update_container"),
        (pb.REMOVE_CONTAINER, "remove_container"),
    ],
)
async def test_state_changes_reach_the_same_methods(event: pb.Event, called: str) -> None:
    plugin = RecordingPlugin()
    change = pb.StateChangeEvent(event=event, pod=POD, container=CONTAINER)
    assert await ask(make(plugin), "StateChange", change) == b""
    about = ("p0", "c0") if called.endswith("container") else ("p0",)
    assert plugin.calls == [(called, about)]


@pytest.mark.parametrize("event", [0, pb.POST_UPDATE_POD_SANDBOX, pb.CREATE_CONTAINER, 99])
async def test_state_changes_that_are_not_ours_do_no_harm(event: int) -> None:
    plugin = RecordingPlugin()
    change = pb.StateChangeEvent(pod=POD, container=CONTAINER)
    change.event = event  # type: ignore[assignment]  # any number can come over the wire
    assert await ask(make(plugin), "StateChange", change) == b""
    assert plugin.calls == []


@pytest.mark.parametrize(
    "method", ["PostUpdatePodSandbox", "ValidateContainerAdjustment", "Shutdown", "", "Hack" * 99]
)
async def test_methods_that_the_plugin_lacks_are_unimplemented(method: str) -> None:
    with pytest.raises(CallRefused) as refused:
        await ask(make(RecordingPlugin()), method, pb.Empty())
    assert refused.value.code == 12


@pytest.mark.parametrize("method", METHODS)
async def test_a_garbled_request_is_an_invalid_argument(method: str) -> None:
    with pytest.raises(CallRefused, match="malformed") as refused:
        await make(RecordingPlugin()).answer(method, b"\xff\xff", budget=2)
    assert refused.value.code == Code.INVALID_ARGUMENT


async def test_a_method_can_refuse_with_a_code() -> None:
    plugin = RecordingPlugin()
    plugin.failures["run_pod_sandbox"] = CallRefused("no room", code=Code.RESOURCE_EXHAUSTED)
    with pytest.raises(CallRefused, match="no room") as refused:
        await ask(make(plugin), "RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
    assert refused.value.code == Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("bug", [ZeroDivisionError("secret"), asyncio.CancelledError()])
async def test_a_bug_fails_its_request_only(
    bug: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = RecordingPlugin()
    plugin.failures["run_pod_sandbox"] = bug
    service = make(plugin)
    with pytest.raises(CallRefused) as refused:
        await ask(service, "RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
    assert refused.value.code == Code.INTERNAL
    assert "RunPodSandbox" in str(refused.value)
    assert "secret" not in str(refused.value)
    if isinstance(bug, Exception):
        assert "ZeroDivisionError: secret" in caplog.text  # with its traceback
    assert await ask(service, "StopPodSandbox", pb.StopPodSandboxRequest(pod=POD)) == b""


async def test_configure_subscribes_to_what_the_plugin_asks_for() -> None:
    plugin = RecordingPlugin()
    service = make(plugin)
    answer = await ask(service, "Configure", pb.ConfigureRequest(config="text"))
    assert pb.ConfigureResponse.FromString(answer).events == LIFECYCLE | Events.POST_START_CONTAINER
    assert plugin.calls == [("configure", ("text",))]
    assert service.runtime is plugin.runtime is not None


def part(*, more: bool, pods: tuple[str, ...] = (), containers: tuple[str, ...] = ()) -> Message:
    return pb.SynchronizeRequest(
        pods=[pb.PodSandbox(id=name) for name in pods],
        containers=[pb.Container(id=name) for name in containers],
        more=more,
    )


async def test_a_synchronize_in_parts_is_one_to_the_plugin() -> None:
    plugin = RecordingPlugin()
    plugin.updates = [update("c1", "2")]
    service = make(plugin)
    for piece in (part(more=True, pods=("p0",), containers=("c0",)), part(more=True, pods=("p1",))):
        answer = await ask(service, "Synchronize", piece)
        assert pb.SynchronizeResponse.FromString(answer) == pb.SynchronizeResponse(more=True)
    assert plugin.calls == []
    assert not service.synchronized
    answer = await ask(service, "Synchronize", part(more=False, containers=("c1", "c2")))
    assert pb.SynchronizeResponse.FromString(answer) == pb.SynchronizeResponse(
        update=plugin.updates
    )
    assert plugin.calls == [("synchronize", (["p0", "p1"], ["c0", "c1", "c2"]))]
    assert service.synchronized
    assert service.trouble is None

    await ask(service, "Synchronize", part(more=False))
    assert plugin.calls[-1] == ("synchronize", ([], []))  # nothing is left of the first


async def test_a_synchronize_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_SYNCHRONIZE", 100)
    service = make(RecordingPlugin())
    piece = part(more=True, pods=("p" * 60,))
    await ask(service, "Synchronize", piece)
    with pytest.raises(CallRefused) as refused:
        await ask(service, "Synchronize", piece)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    assert not service._parts.ByteSize()
    assert service.trouble


async def test_a_failed_synchronize_is_trouble() -> None:
    plugin = RecordingPlugin()
    plugin.failures["synchronize"] = ValueError()
    service = make(plugin)
    with pytest.raises(CallRefused):
        await ask(service, "Synchronize", part(more=False))
    assert service.trouble == "synchronization failed"
    assert not service.synchronized


@pytest.mark.parametrize(
    ("nri", "took", "doubt"),
    [("v0.11.0", 1.5, False), ("v0.11.0", 1.7, True), ("", 1.7, True), ("v0.12.0", 1.7, False)],
)
async def test_a_synchronize_that_took_long_may_leave_us_deaf_on_old_runtimes(
    nri: str, took: float, *, doubt: bool
) -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    service = make(plugin, time)
    await ask(service, "Configure", pb.ConfigureRequest(NRI_version=nri))
    await ask(service, "Synchronize", part(more=True), budget=2)
    time.advance(took)  # all parts share one timeout
    await ask(service, "Synchronize", part(more=False), budget=2 - took)
    assert service.synchronized
    assert (service.doubt is not None) is doubt


async def start_late(plugin: RecordingPlugin, time: FakeTime) -> asyncio.Task[bytes]:
    plugin.gate.clear()
    request = pb.CreateContainerRequest(pod=POD, container=CONTAINER)
    answer = asyncio.create_task(ask(make(plugin, time), "CreateContainer", request, budget=2))
    await plugin.called.wait()
    time.advance(1.59)
    await asyncio.sleep(0)
    assert not answer.done()
    time.advance(0.02)
    return answer


async def test_a_late_method_is_replaced_by_the_fallback() -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    fallback = plugin.fallbacks["CreateContainer"] = pb.CreateContainerResponse(
        update=[update("c7", "1")]
    )
    answer = await start_late(plugin, time)
    assert pb.CreateContainerResponse.FromString(await answer) == fallback
    assert plugin.calls[0] == ("create_container", ("p0", "c0", 2.0))
    assert plugin.calls[1] == ("late", ("CreateContainer", "CreateContainerRequest"))


async def test_a_late_method_without_fallback_goes_on() -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    answer = await start_late(plugin, time)
    await plugin.was_late.wait()
    plugin.gate.set()
    response = pb.CreateContainerResponse.FromString(await answer)
    assert response.adjust.linux.resources.cpu.cpus == "4-5"


async def test_a_bug_in_the_fallback_fails_the_request_only() -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    plugin.late = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    answer = await start_late(plugin, time)
    with pytest.raises(CallRefused, match="ZeroDivisionError"):
        await answer


async def test_a_state_change_falls_back_like_the_rpc_it_stands_for() -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    plugin.gate.clear()
    plugin.fallbacks["RunPodSandbox"] = pb.RunPodSandboxResponse()
    change = pb.StateChangeEvent(event=pb.RUN_POD_SANDBOX, pod=POD)
    answer = asyncio.create_task(ask(make(plugin, time), "StateChange", change, budget=2))
    await plugin.called.wait()
    time.advance(1.7)
    assert await answer == b""
    assert plugin.calls[-1] == ("late", ("RunPodSandbox", "StateChangeEvent"))


@pytest.mark.parametrize(("nri", "doubt"), [("v0.11.0", True), ("v0.12.0", False)])
async def test_a_late_synchronize_may_leave_us_deaf_on_old_runtimes(
    nri: str, *, doubt: bool
) -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    service = make(plugin, time)
    await ask(service, "Configure", pb.ConfigureRequest(NRI_version=nri))
    plugin.called.clear()
    plugin.gate.clear()
    plugin.fallbacks["Synchronize"] = pb.SynchronizeResponse()
    answer = asyncio.create_task(ask(service, "Synchronize", part(more=False), budget=2))
    await plugin.called.wait()
    time.advance(1.7)
    assert await answer == b""
    assert (service.doubt is not None) is doubt


async def test_methods_run_one_at_a_time_across_services() -> None:
    plugin, turn = RecordingPlugin(), asyncio.Lock()
    one, other = (PluginService(plugin, turn, Clock()) for _ in range(2))
    plugin.gate.clear()
    first = asyncio.create_task(ask(one, "RunPodSandbox", pb.RunPodSandboxRequest(pod=POD)))
    await plugin.called.wait()
    second = asyncio.create_task(ask(other, "StopPodSandbox", pb.StopPodSandboxRequest(pod=POD)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert plugin.names == ["run_pod_sandbox"]
    plugin.gate.set()
    await asyncio.gather(first, second)
    assert plugin.names == ["run_pod_sandbox", "stop_pod_sandbox"]


class Noting(RecordingPlugin):
    """Has a method that notes its end, and whether anybody waits for that."""

    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("run_pod_sandbox", pod.id)
        self.calls.append(("ran_pod_sandbox", (self.request and self.request.answered,)))


async def test_a_late_method_goes_on_and_the_next_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time, plugin = FakeTime(), Noting()
    service = make(plugin, time)
    plugin.gate.clear()
    plugin.fallbacks["RunPodSandbox"] = pb.RunPodSandboxResponse()
    run = pb.RunPodSandboxRequest(pod=POD)
    answer = asyncio.create_task(ask(service, "RunPodSandbox", run, budget=2))
    await plugin.called.wait()
    time.advance(1.7)
    assert await answer == b""

    stop = pb.StopPodSandboxRequest(pod=POD)
    following = asyncio.create_task(ask(service, "StopPodSandbox", stop))
    for _ in range(10):
        await asyncio.sleep(0)
    assert plugin.names == ["run_pod_sandbox", "late"]
    plugin.gate.set()
    assert await following == b""
    assert plugin.calls[2] == ("ran_pod_sandbox", (True,))
    assert plugin.names[3:] == ["stop_pod_sandbox"]
    assert "event=overdue-finished" in caplog.text


async def test_a_request_that_waits_too_long_for_its_turn_falls_back_as_well() -> None:
    time, plugin, turn = FakeTime(), RecordingPlugin(), asyncio.Lock()
    await turn.acquire()
    service = PluginService(plugin, turn, time.clock)
    plugin.fallbacks["RunPodSandbox"] = pb.RunPodSandboxResponse()
    run = pb.RunPodSandboxRequest(pod=POD)
    answer = asyncio.create_task(ask(service, "RunPodSandbox", run, budget=2))
    await time.asleep.wait()
    time.advance(1.7)
    assert await answer == b""
    assert plugin.names == ["late"]
    turn.release()
    assert await ask(service, "StopPodSandbox", pb.StopPodSandboxRequest(pod=POD)) == b""
    assert plugin.names == ["late", "run_pod_sandbox", "stop_pod_sandbox"]


async def test_a_request_that_waits_for_nothing_has_no_task_and_no_deadline() -> None:
    time, plugin, heard = FakeTime(), RecordingPlugin(), list[bytes | CallRefused]()
    run = pb.RunPodSandboxRequest(pod=POD).SerializeToString()
    serving = make(plugin, time).begin(
        "RunPodSandbox", run, came=0, received=0, budget=2, to=heard.append
    )
    assert serving is None
    assert heard == [b""]
    await asyncio.sleep(0)
    assert not time.sleepers


async def test_a_deadline_ends_with_its_request() -> None:
    time, plugin = FakeTime(), RecordingPlugin()
    plugin.gate.clear()
    run = pb.RunPodSandboxRequest(pod=POD)
    answer = asyncio.create_task(ask(make(plugin, time), "RunPodSandbox", run, budget=2))
    await time.asleep.wait()
    plugin.gate.set()
    assert await answer == b""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not time.sleepers
    assert plugin.names == ["run_pod_sandbox"]


async def test_a_method_is_cancelled_with_its_request() -> None:
    plugin = RecordingPlugin()
    plugin.gate.clear()
    service = make(plugin)
    answer = asyncio.create_task(ask(service, "RunPodSandbox", pb.RunPodSandboxRequest(pod=POD)))
    await plugin.called.wait()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    async with service._turn:  # it is free again
        assert plugin.names == ["run_pod_sandbox"]


async def test_nobody_hears_of_a_request_that_was_cancelled() -> None:
    plugin = RecordingPlugin()
    heard: list[bytes | CallRefused] = []
    plugin.gate.clear()
    run = pb.RunPodSandboxRequest(pod=POD).SerializeToString()
    service = make(plugin)
    serving = service.begin(
        "RunPodSandbox", run, came=0, received=0, budget=math.inf, to=heard.append
    )
    assert serving is not None
    serving.cancel()  # before the first step of its task
    await asyncio.wait({serving})
    assert serving.cancelled()
    assert heard == []
    async with service._turn:  # or no request would be handled any more
        assert plugin.names == ["run_pod_sandbox"]


def test_the_methods_served_are_those_of_the_proto_file() -> None:
    assert set(METHODS) <= set(pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name)


async def test_a_method_may_end_as_nobody_waits_for_it_any_more() -> None:
    plugin = RecordingPlugin()
    plugin.gate.clear()
    asking = asyncio.create_task(
        ask(make(plugin), "CreateContainer", pb.CreateContainerRequest(pod=POD)), name="asking"
    )
    await plugin.called.wait()
    await asyncio.sleep(0)  # its task waits
    running = next(task for task in asyncio.all_tasks() if task.get_name() == "nri CreateContainer")
    plugin.gate.set()
    asking.cancel()  # the method ends before its waiter notices the cancellation
    await asyncio.wait({asking, running})
    assert running.exception() is None
