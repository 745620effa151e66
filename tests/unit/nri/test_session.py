from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.nri.connection import Connection
from nri_policy.nri.errors import CallRefused, Code, LocalProtocolError
from nri_policy.nri.mux import Conn
from nri_policy.nri.pauses import Pauses
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nri.session import Session, registration_delay
from nri_policy.nri.ttrpc import Response
from nri_policy.proto import nri_pb2 as pb
from tests.unit.nri.conftest import Conversation
from tests.unit.nri.peer import (
    CONTAINER,
    POD,
    FakeTime,
    Peer,
    RecordingPlugin,
    listening,
    update,
)

IDENTITY = PluginIdentity(name="nri-policy", index="05")


class _Stopped(Pauses):
    """Takes each request for one that arrived `stage.stopped` seconds before it was read."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.time.clock)
        self._stage = stage

    def earliest_arrival(self, read: float) -> float:
        return read - self._stage.stopped


class Stage:
    """A session, and a runtime that it can connect to."""

    def __init__(self, path: Path, plugin: RecordingPlugin, chances: Sequence[float] = ()) -> None:
        self.path = path
        self.plugin = plugin
        self.time = FakeTime()
        self.stopped = 0.0  # seconds for which a request lay there before it was read
        chance = iter(chances)
        self.session = Session(
            plugin,
            IDENTITY,
            clock=self.time.clock,
            pauses=_Stopped(self),
            delay=lambda failures: registration_delay(failures, lambda: next(chance, 0.0)),
        )
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def next_delay(self) -> float:
        """Let the session lose its runtime, and return how long it then waits."""
        while True:
            self.time.asleep.clear()
            for sleeper, due in self.time.sleepers.items():
                if sleeper.get_name() == "session":
                    return due - self.time.reading
            await self.time.asleep.wait()


@asynccontextmanager
async def stage(tmp_path: Path, plugin: RecordingPlugin | None = None) -> AsyncIterator[Stage]:
    scene = Stage(tmp_path / "nri.sock", plugin or RecordingPlugin())
    async with listening(scene.path) as scene.peers:
        running = asyncio.create_task(scene.session.run(str(scene.path)), name="session")
        try:
            yield scene
        finally:
            if running.done():
                running.result()
            running.cancel()
            await asyncio.wait({running})


async def test_registration_says_who_we_are(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        request = await peer.request("RegisterPlugin")
        assert pb.RegisterPluginRequest.FromString(request.payload) == pb.RegisterPluginRequest(
            plugin_name="nri-policy", plugin_idx="05", NRI_version="v0.12.2"
        )
        assert request.timeout_nano == 30_000_000_000


async def test_configure_is_served_after_registration(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.handshake()
        assert scene.plugin.names == ["configure", "synchronize"]


async def test_configure_and_synchronize_are_served_while_registration_is_pending(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        register = await peer.request("RegisterPlugin")
        assert (await peer.configure("v0.9.0")).events == 0x7EF
        assert (await peer.call("Synchronize", pb.SynchronizeRequest())).code == 0
        peer.respond(register)
        run = await peer.call("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
        assert run.code == 0
        assert scene.plugin.names == ["configure", "synchronize", "run_pod_sandbox"]


OLD = "v0.8.0"  # it keeps the connection of a plugin that it does not call


async def synchronize_late(scene: Stage, nri: str = OLD) -> Peer:
    """Connect, with an answer to Synchronize that took 1.7 seconds of 2."""
    peer = await scene.peers.get()
    scene.stopped = 1.7
    await peer.handshake(nri)
    scene.stopped = 0.0
    return peer


async def test_a_connection_whose_synchronize_was_in_time_is_kept(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        scene.stopped = 1.5
        await peer.handshake(OLD)
        assert scene.session.may_register
        scene.time.advance(1000)
        assert (await peer.call("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))).code == 0
        assert scene.plugin.names.count("synchronize") == 1


async def test_a_runtime_that_calls_us_after_a_late_synchronize_is_not_left(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await synchronize_late(scene)
        assert (await peer.call("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))).code == 0
        scene.time.advance(1000)
        assert (await peer.call("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD))).code == 0
        assert scene.plugin.names.count("synchronize") == 1


async def test_a_runtime_that_may_not_call_us_is_left_after_pauses_that_grow_to_five_seconds(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as scene:
        for pause in (2.0, 4.0, 5.0):  # a registration took no time here but the one second before
            peer = await synchronize_late(scene)
            reading = asyncio.create_task(peer.closed_by_plugin())
            scene.time.advance(pause - 0.01)
            await asyncio.sleep(0)
            assert not scene.session._requests.finished.done()  # type: ignore[union-attr]
            scene.time.advance(0.01)
            await reading
            assert await scene.next_delay() == 1.0, "the pause was had already"
            scene.time.advance(1.0)
        await (await scene.peers.get()).handshake(OLD)  # in time
        assert scene.session.may_register


@pytest.mark.parametrize("nri", [OLD, "v0.12.2"])
async def test_after_a_late_synchronize_there_is_a_pause_without_registrations_of_our_own(
    tmp_path: Path, nri: str
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        peer.respond(await peer.request("RegisterPlugin"))
        scene.time.advance(3.0)  # so long it waited for a CPU
        await peer.configure(nri)
        scene.stopped = 1.7
        await peer.call("Synchronize", pb.SynchronizeRequest())
        scene.stopped = 0.0
        await peer.call("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
        cost = 1.0 + 3.0
        assert not scene.session.may_register
        assert scene.session.can_register, "where nothing else helps it does"
        scene.time.advance(2 * cost - 0.01)
        assert not scene.session.may_register
        scene.time.advance(0.01)
        assert scene.session.may_register


async def test_a_life_cycle(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        scene.plugin.updates = [update("c1", "0-1")]
        peer = await scene.peers.get()
        await peer.handshake()
        created = await peer.call(
            "CreateContainer", pb.CreateContainerRequest(pod=POD, container=CONTAINER)
        )
        response = pb.CreateContainerResponse.FromString(created.payload)
        assert response.adjust.linux.resources.cpu.cpus == "4-5"
        assert list(response.update) == scene.plugin.updates
        started = pb.StateChangeEvent(event=pb.START_CONTAINER, pod=POD, container=CONTAINER)
        assert (await peer.call("StateChange", started)).code == 0
        unknown = await peer.call("PostUpdatePodSandbox", pb.PostUpdatePodSandboxRequest(pod=POD))
        assert unknown.code == Code.UNIMPLEMENTED
        stopped = await peer.call(
            "StopContainer", pb.StopContainerRequest(pod=POD, container=CONTAINER)
        )
        assert len(pb.StopContainerResponse.FromString(stopped.payload).update) == 1
        peer.close()
        await scene.plugin.gone.wait()
        assert scene.plugin.names == [
            "configure",
            "synchronize",
            "create_container",
            "start_container",
            "stop_container",
            "disconnected",
        ]


async def test_recorded_requests_are_all_answered(
    tmp_path: Path, conversation: Conversation
) -> None:
    """The runtime's half comes in one piece, ahead of our answers and of its own clock."""
    recorded = Connection(Conn.RUNTIME).receive_data(conversation.from_plugin)
    # the recorded plugin lacked a method that ours has
    answers = [event for event in recorded if isinstance(event, Response)]
    expected = {each.stream: each.code % Code.UNIMPLEMENTED for each in answers}
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.request("RegisterPlugin")
        peer.writer.write(conversation.from_runtime)
        answered = {}
        for _ in expected:
            event = await peer.event()
            assert isinstance(event, Response)
            answered[event.stream] = event.code
        assert answered == expected
        assert scene.plugin.names[:3] == ["configure", "synchronize", "run_pod_sandbox"]
        assert "stop_container" in scene.plugin.names


async def test_a_refusal_and_a_bug_leave_the_session_alive(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        scene.plugin.failures["run_pod_sandbox"] = CallRefused("no room", code=8)
        scene.plugin.failures["stop_pod_sandbox"] = KeyError("bug")
        peer = await scene.peers.get()
        await peer.handshake()
        refused = await peer.call("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
        assert (refused.code, refused.message) == (8, "no room")
        failed = await peer.call("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD))
        assert failed.code == Code.INTERNAL
        removed = await peer.call("RemovePodSandbox", pb.RemovePodSandboxRequest(pod=POD))
        assert removed.code == 0


async def test_another_service_is_unimplemented(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.handshake()
        client = peer.connection._client
        _, message = client.send_request("nri.pkg.api.v1.Plugin", "RunPodSandbox", b"")
        peer.writer.write(b"\0\0\0\1" + len(message).to_bytes(4) + message)
        response = await peer.event()
        assert isinstance(response, Response)
        assert response.code == Code.UNIMPLEMENTED


async def test_a_request_is_answered_by_the_fallback_before_its_deadline(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.handshake()
        scene.plugin.gate.clear()
        scene.plugin.called.clear()
        scene.plugin.fallbacks["RunPodSandbox"] = pb.RunPodSandboxResponse()
        peer.send("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD), budget=2)
        await scene.plugin.called.wait()
        scene.time.advance(1.61)
        response = await peer.event()
        assert isinstance(response, Response)
        assert response.code == 0
        scene.plugin.gate.set()
        assert (await peer.call("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD))).code == 0


async def test_a_loss_cancels_the_request_at_hand_before_the_plugin_hears_of_it(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.handshake()
        scene.plugin.gate.clear()
        scene.plugin.called.clear()
        peer.send("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
        await scene.plugin.called.wait()
        peer.close()
        assert await scene.next_delay() == 1.0
        assert scene.plugin.names[-2:] == ["run_pod_sandbox", "disconnected"]


async def test_it_connects_again_and_synchronizes_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        for _ in range(2):
            peer = await scene.peers.get()
            await peer.handshake()
            peer.close()
            assert await scene.next_delay() == 1.0  # a good connection starts the count anew
            scene.time.advance(1)
        await scene.peers.get()
        assert scene.plugin.names == ["configure", "synchronize", "disconnected"] * 2


async def test_a_bug_in_disconnected_does_not_end_the_session(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        scene.plugin.failures["disconnected"] = ValueError()
        peer = await scene.peers.get()
        await peer.handshake()
        peer.close()
        assert await scene.next_delay() == 1.0


async def test_delays_grow_at_random_up_to_half_a_minute(tmp_path: Path) -> None:
    scene = Stage(tmp_path / "nobody.sock", RecordingPlugin(), chances=[0.5] * 9)
    running = asyncio.create_task(scene.session.run(str(scene.path)), name="session")
    delays = []
    for _ in range(8):
        delays.append(await scene.next_delay())
        scene.time.advance(delays[-1])
        await asyncio.sleep(0)  # it wakes up
    assert delays == [1, 1.5, 2.5, 4.5, 8.5, 15.5, 15.5, 15.5]
    running.cancel()
    await asyncio.wait({running})


async def test_a_runtime_that_breaks_the_rules_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.closed_by_plugin()
        assert await scene.next_delay() == 1.0
        assert "event=connection-lost error='mux frame announces" in caplog.text
        assert scene.plugin.calls == []  # it was never configured


async def test_a_refused_registration_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        peer.refuse(await peer.request("RegisterPlugin"), Code.UNKNOWN, "bad index")
        await peer.closed_by_plugin()
        assert await scene.next_delay() == 1.0
        assert "event=not-registered code=2 reason='bad index'" in caplog.text


async def test_a_socket_that_is_not_of_nri_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        peer.close()
        assert await scene.next_delay() == 1.0
        assert "event=not-registered error='it closed the connection" in caplog.text


async def test_a_registration_without_an_answer_is_given_up_after_half_a_minute(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.request("RegisterPlugin")
        scene.time.advance(30)
        await peer.closed_by_plugin()
        assert await scene.next_delay() == 1.0


async def test_a_failed_synchronize_leads_to_a_new_connection(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        scene.plugin.failures["synchronize"] = ValueError()
        peer = await scene.peers.get()
        peer.respond(await peer.request("RegisterPlugin"))
        await peer.configure()
        assert (await peer.call("Synchronize", pb.SynchronizeRequest())).code == Code.INTERNAL
        await peer.closed_by_plugin()
        assert await scene.next_delay() == 1.0
        scene.time.advance(1)
        await scene.peers.get()


async def test_reconnect_answers_what_came_before_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.handshake()
        scene.plugin.gate.clear()
        scene.plugin.called.clear()
        peer.send("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
        await scene.plugin.called.wait()
        scene.session.reconnect()
        scene.plugin.gate.set()
        await peer.closed_by_plugin()
        (response,) = peer.events
        assert isinstance(response, Response)
        assert response.code == 0
        assert await scene.next_delay() == 1.0


async def test_an_inherited_socket_is_served_once() -> None:
    plugin = RecordingPlugin()
    plugin.failures["synchronize"] = ValueError()  # nothing better can be had by leaving
    ours, theirs = socket.socketpair()
    session = Session(plugin, IDENTITY)
    running = asyncio.create_task(session.run_inherited(ours.detach()))
    peer = Peer(*await asyncio.open_unix_connection(sock=theirs))
    peer.respond(await peer.request("RegisterPlugin"))
    await peer.configure()
    assert (await peer.call("Synchronize", pb.SynchronizeRequest())).code == Code.INTERNAL
    assert (await peer.call("StopPodSandbox", pb.StopPodSandboxRequest(pod=POD))).code == 0
    with pytest.raises(LocalProtocolError, match="cannot be opened again"):
        session.reconnect()
    peer.close()
    await running
    assert plugin.names[-1] == "disconnected"


async def test_updates_outside_of_events_return_those_that_failed(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        peer = await scene.peers.get()
        await peer.handshake()
        wanted = [update("c0", "0"), update("c1", "1")]
        asking = asyncio.create_task(scene.session.update_containers(wanted))
        request = await peer.request("UpdateContainers")
        assert list(pb.UpdateContainersRequest.FromString(request.payload).update) == wanted
        failed = pb.UpdateContainersResponse(failed=wanted[1:])
        peer.refuse(request, Code.UNKNOWN, "c1 failed", failed.SerializeToString())
        assert list(await asking) == wanted[1:]

        asking = asyncio.create_task(scene.session.update_containers(wanted))
        peer.respond(await peer.request("UpdateContainers"))
        assert list(await asking) == []

        asking = asyncio.create_task(scene.session.update_containers(wanted))
        peer.refuse(await peer.request("UpdateContainers"), Code.UNAVAILABLE, "not now")
        with pytest.raises(CallRefused, match="not now") as refused:
            await asking
        assert refused.value.code == Code.UNAVAILABLE

        asking = asyncio.create_task(scene.session.update_containers(wanted))
        peer.refuse(await peer.request("UpdateContainers"), Code.UNKNOWN, "?", b"\xff")
        with pytest.raises(CallRefused, match="malformed"):
            await asking


@pytest.mark.parametrize("nri", ["v0.12.0", "v0.8.0", ""])
async def test_updates_that_could_hang_the_runtime_are_refused_here(
    tmp_path: Path, nri: str
) -> None:
    async with stage(tmp_path) as scene:
        with pytest.raises(ConnectionError, match="no runtime is connected"):
            await scene.session.update_containers([])
        peer = await scene.peers.get()
        await peer.handshake(nri)
        with pytest.raises(LocalProtocolError, match=r"can deadlock .* 0\.12\.1 is the first"):
            await scene.session.update_containers([update("c0", "0")])


class Impatient(RecordingPlugin):
    """Asks for updates inside a method, which cannot work, and after it, which can."""

    session: Session
    answered: asyncio.Event

    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("run_pod_sandbox", pod.id)
        self.afterwards = asyncio.create_task(self.ask_afterwards())
        await self.session.update_containers([])

    async def ask_afterwards(self) -> None:
        await self.answered.wait()
        await self.session.update_containers([])


async def test_updates_inside_a_method_are_refused_and_after_it_allowed(tmp_path: Path) -> None:
    plugin = Impatient()
    async with stage(tmp_path, plugin) as scene:
        plugin.session, plugin.answered = scene.session, asyncio.Event()
        peer = await scene.peers.get()
        await peer.handshake()
        run = await peer.call("RunPodSandbox", pb.RunPodSandboxRequest(pod=POD))
        assert run.code == Code.INTERNAL
        plugin.answered.set()
        peer.respond(await peer.request("UpdateContainers"))
        await plugin.afterwards
