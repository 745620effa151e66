from __future__ import annotations

import asyncio
import inspect
import math

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.nri.connection import SERVICES
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.mux import Conn
from nri_policy.nri.pauses import Pauses
from nri_policy.nri.requests import Requests
from nri_policy.nri.service import PluginService
from nri_policy.nri.ttrpc import IncomingCall
from nri_policy.proto import nri_pb2 as pb
from tests.unit.nri.peer import POD, RecordingPlugin

CLOCK = Clock()
REQUEST = IncomingCall(
    stream=1,
    service=SERVICES[Conn.PLUGIN],
    method="RunPodSandbox",
    payload=pb.RunPodSandboxRequest(pod=POD).SerializeToString(),
    timeout_nano=0,
)


class Waiting(RecordingPlugin):
    """Waits for a result in each method."""

    def __init__(self) -> None:
        super().__init__()
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def note(self, method: str, *about: object) -> None:
        await self.result
        await super().note(method, *about)


def requests_of(plugin: RecordingPlugin) -> Requests:
    return Requests(
        PluginService(plugin, asyncio.Lock(), CLOCK),
        last_connection=False,
        pauses=Pauses(CLOCK),
        clock=CLOCK,
        patience=lambda: math.inf,
    )


async def test_a_request_that_waits_for_nothing_is_answered_at_once() -> None:
    plugin = RecordingPlugin()
    requests, answers = requests_of(plugin), list[bytes | CallRefused]()
    requests.take(REQUEST, CLOCK.now(), answers.append)
    assert answers == [b""]
    assert plugin.names == ["run_pod_sandbox"]
    assert not requests.unanswered


async def test_a_request_goes_on_with_what_it_waited_for() -> None:
    plugin = Waiting()
    requests, answers = requests_of(plugin), list[bytes | CallRefused]()
    requests.take(REQUEST, CLOCK.now(), answers.append)
    (task,) = requests.unanswered.values()
    assert task is not None
    assert inspect.iscoroutine(task.get_coro()), "newer Pythons take nothing else"
    plugin.gate.clear()
    plugin.result.set_result(None)
    await plugin.called.wait()
    assert not answers, "it waits again"
    plugin.gate.set()
    await asyncio.wait([*filter(None, requests.unanswered.values())])
    assert answers == [b""]
    assert not requests.unanswered


async def test_a_failure_of_what_a_request_waits_for_reaches_it() -> None:
    plugin = Waiting()
    requests, answers = requests_of(plugin), list[bytes | CallRefused]()
    requests.take(REQUEST, CLOCK.now(), answers.append)
    plugin.result.set_exception(CallRefused("no room"))
    await asyncio.wait([*filter(None, requests.unanswered.values())])
    (answer,) = answers
    assert isinstance(answer, CallRefused)
    assert answer.message == "no room"


@pytest.mark.parametrize("done", [False, True], ids=["while it waits", "as its wait has ended"])
async def test_a_request_that_waits_can_be_cancelled(*, done: bool) -> None:
    plugin = Waiting()
    requests, answers = requests_of(plugin), list[bytes | CallRefused]()
    requests.take(REQUEST, CLOCK.now(), answers.append)
    task = requests.unanswered[1]
    assert task is not None
    await asyncio.sleep(0)
    if done:
        plugin.result.set_result(None)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not answers
    assert not plugin.calls
