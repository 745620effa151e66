"""How plugins come, are told of what there is, and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.nri import mux, ttrpc
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.mux import Conn
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.containers import CRIError
from nri_policy.simulation.embedded import EmbeddedRuntime, PodStartError
from tests.unit.simulation.scripted import (
    RUNTIME,
    Deadlines,
    Raw,
    ScriptedPlugin,
    Silence,
    adjusted,
    pinned,
    pod,
)

Start = Callable[..., EmbeddedRuntime]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def make(**settings: Any) -> EmbeddedRuntime:
        machine = {"online_cpus": CPUSet.parse("0-7"), "memory_nodes": CPUSet.parse("0-1")}
        return EmbeddedRuntime(tmp_path / "run" / "nri.sock", **machine | settings)

    return make


def silent(_: Any) -> None:
    raise Silence


def refuse(_: Any) -> None:
    raise CallRefused("no")


def wire(message: bytes, conn: int = Conn.PLUGIN) -> bytes:
    """Return one frame, however long."""
    return mux.HEADER.pack(conn, len(message)) + message


def message(stream: int, body: bytes = b"", kind: int = ttrpc.RESPONSE, flags: int = 0) -> bytes:
    return ttrpc.HEADER.pack(len(body), stream, kind, flags) + body


# ---- registration and configuration


async def test_a_plugin_becomes_active_after_its_synchronization(start: Start) -> None:
    async with start() as runtime:
        assert runtime.plugins == []
        async with ScriptedPlugin(runtime.socket_path, name="me", index="07") as plugin:
            await runtime.synchronized()
            assert runtime.plugins == ["07-me"]
            assert [method for method, _ in plugin.seen] == ["Configure", "Synchronize"]
            assert plugin.seen[0][1].runtime_name == "containerd"
        await runtime.disconnected()
        assert runtime.plugins == []


async def test_the_socket_is_made_anew_and_taken_away(start: Start) -> None:
    async with start() as runtime:
        assert runtime.socket_path.is_socket()
        assert runtime.socket_path.parent.stat().st_mode & 0o777 == 0o700
    assert not runtime.socket_path.exists()


@pytest.mark.parametrize(("index", "name"), [("1", "x"), ("ab", "x"), ("10", "")])
async def test_a_bad_identity_is_refused_and_disconnected(
    start: Start, index: str, name: str
) -> None:
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, name=name, index=index) as plugin,
    ):
        await plugin.closed.wait()
        assert "failed to register plugin" in plugin.refusal
        assert plugin.seen == []


@pytest.mark.parametrize(
    ("version", "mask", "accepted"),
    [
        ("2.1.9", 0x07FF, True),
        ("2.1.9", 0x0FFF, False),
        ("2.2.0", 0x3FFF, True),
        ("2.2.0", 0x4000, False),
        ("2.2.0", -1, False),
    ],
)
async def test_a_mask_with_an_unknown_event_ends_the_plugin(
    start: Start, version: str, mask: int, accepted: bool
) -> None:
    async with (
        start(version=version) as runtime,
        ScriptedPlugin(runtime.socket_path, events=mask) as plugin,
    ):
        await (runtime.synchronized() if accepted else plugin.closed.wait())
        assert len(plugin.seen) == (2 if accepted else 1)


async def test_a_plugin_that_fails_to_configure_is_disconnected(start: Start) -> None:
    async with (
        start() as runtime,
        ScriptedPlugin(runtime.socket_path, {"Configure": refuse}) as plugin,
    ):
        await plugin.closed.wait()
        assert runtime.synchronizations == 0


async def test_a_plugin_that_does_not_register_holds_up_the_next_until_its_deadline(
    start: Start,
) -> None:
    deadlines = Deadlines()
    async with start(timeouts=Timeouts(deadline=deadlines)) as runtime:
        mute, other = ScriptedPlugin(runtime.socket_path), ScriptedPlugin(runtime.socket_path)
        await mute.connect()
        await deadlines.set(1)
        coming = asyncio.create_task(other.__aenter__())
        for _ in range(20):  # however often the loop runs, nobody reads what the other sends
            await asyncio.sleep(0)
        assert not coming.done()
        deadlines.expire()
        await mute.closed.wait()
        await coming
        await runtime.synchronized()
        await other.close()
        await mute.close()


async def test_a_plugin_that_leaves_before_it_registers_holds_up_nobody(start: Start) -> None:
    async with start() as runtime:
        early = ScriptedPlugin(runtime.socket_path)
        await early.connect()
        await early.close()
        async with ScriptedPlugin(runtime.socket_path):
            await runtime.synchronized()


async def test_registering_twice_is_refused(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        request = nri.RegisterPluginRequest(plugin_name="x", plugin_idx="10")
        with pytest.raises(CallRefused, match="registered already"):
            await plugin.call("RegisterPlugin", request)
        assert runtime.plugins == ["10-scripted"]


# ---- synchronization


async def test_a_plugin_is_told_of_all_that_did_not_end(start: Start) -> None:
    async with start() as runtime:
        await runtime.start_pod(pod("pod0", "c0", "c1"))
        await runtime.stop_container(runtime.container("pod0/c0"))
        await runtime.create_container(await runtime.run_pod(pod("pod1")), "c0")
        stopped = await runtime.run_pod(pod("pod2"))
        await runtime.stop_pod(stopped)
        async with ScriptedPlugin(runtime.socket_path) as plugin:
            await runtime.synchronized()
            (request,) = plugin.requests("Synchronize")
    assert [p.name for p in request.pods] == ["pod0", "pod1", "pod2"]
    assert [(c.name, c.state) for c in request.containers] == [
        ("c1", nri.CONTAINER_RUNNING),
        ("c0", nri.CONTAINER_CREATED),
    ]
    assert not request.more


def repinning(cpus: str) -> dict[str, Callable[[Any], Any]]:
    def synchronize(request: nri.SynchronizeRequest) -> nri.SynchronizeResponse:
        return nri.SynchronizeResponse(update=[pinned(c.id, cpus=cpus) for c in request.containers])

    return {"Synchronize": synchronize}


async def test_updates_of_a_synchronization_are_applied(start: Start) -> None:
    async with start() as runtime:
        await runtime.start_pod(pod())
        async with ScriptedPlugin(runtime.socket_path, repinning("3")):
            await runtime.synchronized()
        (update,) = runtime.container("pod0/c0").updated_by
        assert update.cause == "Synchronize"
        assert runtime.container("pod0/c0").cpus == CPUSet.parse("3")


@pytest.mark.parametrize(
    ("name", "version", "outcome"),
    [
        ("containerd", "2.1.9", "active"),
        ("cri-o", "1.36.0", "deaf"),
        ("cri-o", "1.37.0", "closed"),
    ],
)
async def test_what_a_failed_update_of_a_synchronization_does(
    start: Start, name: str, version: str, outcome: str
) -> None:
    async with start(name=name, version=version) as runtime:
        await runtime.start_pod(pod())
        async with ScriptedPlugin(runtime.socket_path, repinning("99")) as plugin:
            if outcome == "closed":
                await plugin.closed.wait()
            await plugin.saw("Synchronize")
            await runtime.settled()
            assert runtime.plugins == (["10-scripted"] if outcome == "active" else [])
            assert plugin.closed.is_set() == (outcome == "closed")


async def populate(runtime: EmbeddedRuntime, pods: int) -> None:
    """Run pods whose messages have 100 kB each."""
    for number in range(pods):
        manifest = pod(f"pod{number}")
        manifest["metadata"]["annotations"] = {"x": "y" * 100_000}
        await runtime.start_pod(manifest)


async def test_a_synchronization_that_is_too_long_comes_in_parts(start: Start) -> None:
    def synchronize(request: nri.SynchronizeRequest) -> nri.SynchronizeResponse:
        return nri.SynchronizeResponse(more=request.more)

    async with start(timeouts=Timeouts(deadline=Deadlines())) as runtime:  # none passes
        await populate(runtime, 100)
        async with ScriptedPlugin(runtime.socket_path, {"Synchronize": synchronize}) as plugin:
            await runtime.synchronized()
            requests = plugin.requests("Synchronize")
    assert [request.more for request in requests] == [True] * (len(requests) - 1) + [False]
    assert len(requests) >= 3
    assert all(request.ByteSize() < 4 << 20 for request in requests)
    assert [p.name for r in requests for p in r.pods] == [f"pod{i}" for i in range(100)]
    assert len({c.id for r in requests for c in r.containers}) == 100


@pytest.mark.parametrize(
    "reply",
    [
        nri.SynchronizeResponse(),
        nri.SynchronizeResponse(more=True, update=[pinned("x", cpus="1")]),
    ],
)
async def test_a_plugin_that_does_not_take_parts_is_disconnected(
    start: Start, reply: nri.SynchronizeResponse
) -> None:
    async with start() as runtime:
        await populate(runtime, 50)
        async with ScriptedPlugin(runtime.socket_path, {"Synchronize": lambda _: reply}) as plugin:
            await plugin.closed.wait()
            assert len(plugin.requests("Synchronize")) == 1
            assert runtime.synchronizations == 0


async def test_a_plugin_that_synchronizes_too_slowly_is_disconnected(start: Start) -> None:
    deadlines = Deadlines()
    async with (
        start(timeouts=Timeouts(deadline=deadlines)) as runtime,
        ScriptedPlugin(runtime.socket_path, {"Synchronize": silent}) as plugin,
    ):
        await plugin.saw("Synchronize")
        deadlines.expire()
        await plugin.closed.wait()
        assert runtime.synchronizations == 0


async def test_requests_say_how_long_they_may_take(start: Start) -> None:
    async with (
        start(timeouts=Timeouts(request=50.0)) as runtime,
        ScriptedPlugin(runtime.socket_path) as plugin,
    ):
        await runtime.synchronized()
        await runtime.run_pod(pod())
        assert [round(nano / 1e9) for nano in plugin.timeouts] == [50, 50, 50]


async def test_a_restart_disconnects_and_keeps_the_containers(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        await runtime.start_pod(pod())
        await runtime.restart()
        await plugin.closed.wait()
        async with ScriptedPlugin(runtime.socket_path) as again:
            await runtime.synchronized(after=1)
            (request,) = again.requests("Synchronize")
            assert [c.name for c in request.containers] == ["c0"]
            assert runtime.plugins == ["10-scripted"]


# ---- plugins that misbehave


async def start_with(
    start: Start, handler: Callable[[Any], Any], **settings: Any
) -> tuple[list[str], str]:
    """Start a pod with a plugin whose CreateContainer is *handler*; return plugins and error."""
    async with (
        start(**settings) as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": handler}),
        ScriptedPlugin(
            runtime.socket_path, {"CreateContainer": lambda _: adjusted(mems="1")}, index="20"
        ),
    ):
        await runtime.synchronized(after=1)
        try:
            await runtime.start_pod(pod())
        except PodStartError as error:
            return runtime.plugins, str(error)
        assert runtime.container("pod0/c0").mems == CPUSet.parse("1")
        await runtime.settled()
        return runtime.plugins, ""


def raw(make: Callable[[int], bytes]) -> Callable[[Any], Any]:
    def handler(_: Any) -> None:
        raise Raw(make)

    return handler


LONG = adjusted(cpus="0-7")
LONG.adjust.annotations["x"] = "y" * 5000


def response(reply: Any) -> bytes:
    return ttrpc.ServerConnection().send_response(1, reply.SerializeToString())[ttrpc.HEADER.size :]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda stream: wire(message(stream, response(LONG))), id="one long frame"),
        pytest.param(
            lambda stream: b"".join(wire(bytes([b])) for b in message(stream, response(LONG))),
            id="too many small frames",
        ),
        pytest.param(lambda stream: wire(message(stream, kind=3)), id="data on a unary stream"),
        pytest.param(lambda stream: wire(message(stream, flags=1)), id="flags on a unary stream"),
        pytest.param(
            lambda stream: wire(ttrpc.HEADER.pack((4 << 20) + 1, stream, 2, 0)), id="over 4 MiB"
        ),
    ],
)
async def test_an_answer_that_go_could_not_read_ends_the_plugin_and_the_rest_goes_on(
    start: Start, answer: Callable[[int], bytes]
) -> None:
    assert await start_with(start, raw(answer)) == (["20-scripted"], "")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda stream: mux.send(Conn.PLUGIN, message(stream, response(LONG))), id="2"),
        pytest.param(
            lambda stream: (
                wire(message(stream, response(LONG))[:10])
                + wire(message(stream, response(LONG))[10:])
            ),
            id="header and body",
        ),
    ],
)
async def test_a_long_answer_in_lawful_frames_is_taken(
    start: Start, answer: Callable[[int], bytes]
) -> None:
    assert await start_with(start, raw(answer)) == (["10-scripted", "20-scripted"], "")


@pytest.mark.parametrize(
    "body",
    [b"\xff\xff", ttrpc.ServerConnection().send_response(1, b"\xff\xff")[ttrpc.HEADER.size :]],
)
async def test_an_answer_that_does_not_unmarshal_fails_the_call_and_keeps_the_plugin(
    start: Start, body: bytes
) -> None:
    plugins, error = await start_with(start, raw(lambda stream: wire(message(stream, body))))
    assert plugins == ["10-scripted", "20-scripted"]
    assert "cannot unmarshal response" in error


async def test_an_error_fails_the_call_and_keeps_the_plugin(start: Start) -> None:
    plugins, error = await start_with(start, refuse)
    assert plugins == ["10-scripted", "20-scripted"]
    assert error == "default/pod0/c0: no"


async def test_code_4_from_a_plugin_is_no_timeout(start: Start) -> None:
    def late(_: Any) -> None:
        raise CallRefused("deadline exceeded", code=Code.DEADLINE_EXCEEDED)

    plugins, error = await start_with(start, late)
    assert plugins == ["10-scripted", "20-scripted"]
    assert "deadline exceeded" in error


async def test_answers_that_nobody_waits_for_are_skipped(start: Start) -> None:
    answer = raw(
        lambda stream: (
            wire(message(stream + 2)) + wire(message(stream)) + wire(message(stream, b"\xff"))
        )
    )
    assert await start_with(start, answer) == (["10-scripted", "20-scripted"], "")


async def test_a_silent_plugin_is_dropped_at_the_deadline_and_the_rest_goes_on(
    start: Start,
) -> None:
    deadlines = Deadlines()
    async with (
        start(timeouts=Timeouts(deadline=deadlines)) as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": silent}) as plugin,
    ):
        await runtime.synchronized()
        starting = asyncio.create_task(runtime.start_pod(pod()))
        await plugin.saw("CreateContainer")
        deadlines.expire()
        await starting
        await plugin.closed.wait()
        assert runtime.plugins == []
        assert not runtime.container("pod0/c0").cpus


async def test_a_plugin_that_leaves_during_an_event_is_skipped(start: Start) -> None:
    async with start() as runtime:
        plugin = ScriptedPlugin(runtime.socket_path, {"CreateContainer": silent})
        async with plugin:
            await runtime.synchronized()
            starting = asyncio.create_task(runtime.start_pod(pod()))
            await plugin.saw("CreateContainer")
            await plugin.close()
            await starting
        await runtime.disconnected()


async def test_a_validator_that_leaves_fails_the_creation(start: Start) -> None:
    async with (
        start(version="2.2.0") as runtime,
        ScriptedPlugin(
            runtime.socket_path, {"ValidateContainerAdjustment": silent}, events=0x2000
        ) as plugin,
    ):
        await runtime.synchronized()
        starting = asyncio.create_task(runtime.start_pod(pod()))
        await plugin.saw("ValidateContainerAdjustment")
        await plugin.close()
        with pytest.raises(PodStartError, match="validator '10-scripted' failed"):
            await starting


# ---- events by version


@pytest.mark.parametrize(
    ("version", "unknown", "methods"),
    [
        ("2.1.9", (), ["RUN_POD_SANDBOX"]),
        ("2.3.0", (), ["RunPodSandbox"]),
        ("2.3.0", ("RunPodSandbox",), ["RunPodSandbox", "RUN_POD_SANDBOX"]),
    ],
)
async def test_a_call_of_its_own_falls_back_to_a_state_change(
    start: Start, version: str, unknown: tuple[str, ...], methods: list[str]
) -> None:
    def unimplemented(_: Any) -> None:
        raise CallRefused("unknown method", code=Code.UNIMPLEMENTED)

    async with (
        start(version=version) as runtime,
        ScriptedPlugin(runtime.socket_path, dict.fromkeys(unknown, unimplemented)) as plugin,
    ):
        await runtime.synchronized()
        await runtime.run_pod(pod())
        assert plugin.methods == methods


async def test_an_error_other_than_unimplemented_does_not_fall_back(start: Start) -> None:
    async with (
        start(version="2.3.0") as runtime,
        ScriptedPlugin(runtime.socket_path, {"RunPodSandbox": refuse}) as plugin,
    ):
        await runtime.synchronized()
        with pytest.raises(CRIError, match="no"):
            await runtime.run_pod(pod())
        assert plugin.methods == ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]


# ---- calls of plugins


async def test_unsolicited_updates_are_applied(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        await runtime.start_pod(pod())
        container = runtime.container("pod0/c0")
        updates = [pinned(container.id, cpus="1"), pinned("unknown", cpus="1")]
        reply = await plugin.call("UpdateContainers", nri.UpdateContainersRequest(update=updates))
        assert reply == b""
        assert [update.cause for update in container.updated_by] == ["UpdateContainers 10-scripted"]


async def test_failed_updates_are_listed_beside_an_error(start: Start) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        await runtime.start_pod(pod("pod0", "c0", "c1"))
        first, second = runtime.containers
        bad, ignored = pinned(first.id, cpus="99"), pinned(first.id, mems="99")
        ignored.ignore_failure = True
        request = nri.UpdateContainersRequest(update=[bad, ignored, pinned(second.id, cpus="2")])
        with pytest.raises(CallRefused, match="failed to update some containers") as caught:
            await plugin.call("UpdateContainers", request)
        assert caught.value.code == Code.UNKNOWN
        payload = bytes.fromhex(caught.value.__notes__[0])
        assert list(nri.UpdateContainersResponse.FromString(payload).failed) == [bad]
        assert second.cpus == CPUSet.parse("2")


@pytest.mark.parametrize(("version", "hangs"), [("2.4.0", False), ("2.1.9", True)])
async def test_an_update_during_an_event_waits_for_its_end_or_hangs_both(
    start: Start, version: str, *, hangs: bool
) -> None:
    order: list[str] = []

    def create(_: Any) -> None:
        call = plugin.call("UpdateContainers", nri.UpdateContainersRequest())
        updating.append(asyncio.create_task(call))
        updating[0].add_done_callback(lambda _: order.append("updated"))
        order.append("answered")

    updating: list[asyncio.Task[bytes]] = []
    async with (
        start(version=version) as runtime,
        ScriptedPlugin(runtime.socket_path, {"CreateContainer": create}) as plugin,
    ):
        await runtime.synchronized()
        starting = asyncio.create_task(runtime.start_pod(pod()))
        await plugin.saw("CreateContainer")
        for _ in range(200):
            await asyncio.sleep(0)
        assert starting.done() is not hangs
        assert order == (["answered"] if hangs else ["answered", "updated"])
        starting.cancel()  # or the runtime could not even be stopped
        await asyncio.wait({starting})
        await updating[0]


@pytest.mark.parametrize(
    ("service", "method", "code"),
    [
        (RUNTIME, "Nothing", Code.UNIMPLEMENTED),
        ("nri.pkg.api.v1alpha1.Plugin", "UpdateContainers", Code.UNIMPLEMENTED),
    ],
)
async def test_an_unknown_call_is_refused(
    start: Start, service: str, method: str, code: Code
) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        with pytest.raises(CallRefused) as caught:
            await plugin.call(method, nri.Empty(), service=service)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("stream", "kind", "flags", "body"),
    [
        (1, ttrpc.REQUEST, 0, b""),  # used by RegisterPlugin
        (4, ttrpc.REQUEST, 0, b""),
        (9, ttrpc.REQUEST, 2, b""),
        (9, ttrpc.REQUEST, 0, b"\xff"),
        (9, 3, 0, b""),
    ],
)
async def test_a_call_against_the_rules_of_streams_is_refused_and_the_plugin_kept(
    start: Start, stream: int, kind: int, flags: int, body: bytes
) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        plugin.write(wire(message(stream, body, kind, flags), Conn.RUNTIME))
        assert (await plugin.answer(stream)).code == Code.INVALID_ARGUMENT
        assert runtime.plugins == ["10-scripted"]


async def test_a_call_that_go_could_not_read_is_never_answered(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start() as runtime, ScriptedPlugin(runtime.socket_path) as plugin:
        await runtime.synchronized()
        plugin.write(wire(message(9, b"\xff" * 5000, ttrpc.REQUEST), Conn.RUNTIME))
        plugin.write(wire(message(11, b"\xff", ttrpc.REQUEST), Conn.RUNTIME))
        await runtime.run_pod(pod())
        assert plugin.methods == ["RUN_POD_SANDBOX"]
        assert "error receiving message" in caplog.text
        assert plugin.unexpected == []
