"""What stands at the other ends in these tests: a runtime, a plugin and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from nri_policy.nri.connection import Connection
from nri_policy.nri.mux import Conn
from nri_policy.nri.plugin import Call
from nri_policy.nri.ttrpc import IncomingCall, InvalidRequest, Response
from nri_policy.nri.versions import Events, Runtime
from nri_policy.proto import nri_pb2 as pb
from tests.support.clock import SleepingClock

_T = TypeVar("_T")


class Peer:
    """A runtime whose messages the test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.connection = Connection(Conn.RUNTIME)
        self.events: list[IncomingCall | InvalidRequest | Response] = []

    async def event(self) -> IncomingCall | InvalidRequest | Response:
        while not self.events:
            data = await self.reader.read(1 << 16)
            assert data, "the plugin closed the connection"
            self.events += self.connection.receive_data(data)
        return self.events.pop(0)

    async def request(self, method: str) -> IncomingCall:
        request = await self.event()
        assert isinstance(request, IncomingCall)
        assert request.method == method
        return request

    def send(self, method: str, message: Message, budget: float = 2.0) -> int:
        stream, data = self.connection.send_request(
            method, message.SerializeToString(), timeout_nano=int(budget * 1e9)
        )
        self.writer.write(data)
        return stream

    async def call(self, method: str, message: Message, budget: float = 2.0) -> Response:
        stream = self.send(method, message, budget)
        response = await self.event()
        assert isinstance(response, Response)
        assert response.stream == stream
        return response

    def respond(self, request: IncomingCall, message: Message | None = None) -> None:
        payload = message.SerializeToString() if message else b""
        self.writer.write(self.connection.send_response(request, payload))

    def refuse(self, request: IncomingCall, code: int, text: str, payload: bytes = b"") -> None:
        self.writer.write(self.connection.send_status(request, code, text, payload))

    async def closed_by_plugin(self) -> None:
        while data := await self.reader.read(1 << 16):
            self.events += self.connection.receive_data(data)

    def close(self) -> None:
        self.writer.close()

    async def configure(self, nri: str = "v0.12.2") -> pb.ConfigureResponse:
        request = pb.ConfigureRequest(
            runtime_name="test", runtime_version="v9.9.9", NRI_version=nri
        )
        response = await self.call("Configure", request)
        assert response.code == 0
        return pb.ConfigureResponse.FromString(response.payload)

    async def handshake(self, nri: str = "v0.12.2") -> None:
        self.respond(await self.request("RegisterPlugin"))
        await self.configure(nri)
        assert (await self.call("Synchronize", pb.SynchronizeRequest())).code == 0


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[asyncio.Queue[Peer]]:
    """Accept plugins at *path*; what is left of them is closed at the end."""
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    writers = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        peers.put_nowait(Peer(reader, writer))

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield peers
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


class FakeTime:
    """A clock that stands still until a test advances it."""

    def __init__(self) -> None:
        self.reading = 100.0
        self.sleepers: dict[asyncio.Task[Any], float] = {}  # when each wants to wake up
        self.changed = asyncio.Event()
        self.asleep = asyncio.Event()
        self.clock = SleepingClock(now=lambda: self.reading, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        due = self.sleepers[task] = self.reading + seconds
        self.asleep.set()
        try:
            while self.reading < due:
                await self.changed.wait()
        finally:
            del self.sleepers[task]

    def advance(self, seconds: float) -> None:
        self.reading += seconds
        self.changed.set()
        self.changed = asyncio.Event()


class RecordingPlugin:
    """A plugin that records its calls; a test can replace its answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.called = asyncio.Event()
        self.was_late = asyncio.Event()
        self.gone = asyncio.Event()
        self.gate = asyncio.Event()  # while it is closed, methods wait
        self.gate.set()
        self.failures: dict[str, BaseException] = {}
        self.updates: list[pb.ContainerUpdate] = []
        self.fallbacks: dict[str, Message] = {}
        self.runtime: Runtime | None = None
        self.request: Call | None = None  # the one that a method runs for

    def begin(self, call: Call) -> None:
        self.request = call

    def end(self) -> None:
        self.request = None

    def step(self, work: Callable[[], _T]) -> _T:
        return work()

    async def note(self, method: str, *about: Any) -> None:
        self.calls.append((method, about))
        self.called.set()
        await self.gate.wait()
        if method in self.failures:
            raise self.failures[method]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    async def configure(self, request: pb.ConfigureRequest, runtime: Runtime) -> Events:
        self.runtime = runtime
        await self.note("configure", request.config)
        return runtime.events(hears_starts=True)

    async def synchronize(
        self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> Sequence[pb.ContainerUpdate]:
        await self.note("synchronize", [p.id for p in pods], [c.id for c in containers])
        return self.updates

    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("run_pod_sandbox", pod.id)

    async def update_pod_sandbox(self, request: pb.UpdatePodSandboxRequest) -> None:
        await self.note("update_pod_sandbox", request.pod.id)

    async def stop_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("stop_pod_sandbox", pod.id)

    async def remove_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self.note("remove_pod_sandbox", pod.id)

    async def create_container(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.CreateContainerResponse:
        assert self.request is not None
        left = self.request.deadline - self.request.clock.now()
        await self.note("create_container", pod.id, container.id, left)
        response = pb.CreateContainerResponse(update=self.updates)
        response.adjust.linux.resources.cpu.cpus = "4-5"
        return response

    async def start_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        await self.note("start_container", pod.id, container.id)

    async def post_start_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        await self.note("post_start_container", pod.id, container.id)

    async def post_update_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        await self.note("post_update_container", pod.id, container.id)

    async def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        await self.note("update_container", pod.id, container.id, resources.cpu.shares.value)
        return pb.UpdateContainerResponse(update=self.updates)

    async def stop_container(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.StopContainerResponse:
        await self.note("stop_container", pod.id, container.id)
        return pb.StopContainerResponse(update=self.updates)

    async def remove_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        await self.note("remove_container", pod.id, container.id)

    async def disconnected(self) -> None:
        self.calls.append(("disconnected", ()))
        self.gone.set()
        if "disconnected" in self.failures:
            raise self.failures["disconnected"]

    def late(self, method: str, request: Message) -> Message | None:
        self.calls.append(("late", (method, type(request).__name__)))
        self.was_late.set()
        return self.fallbacks.get(method)


POD = pb.PodSandbox(id="p0", name="web", namespace="default")
CONTAINER = pb.Container(id="c0", pod_sandbox_id="p0", name="main")


def update(container: str, cpus: str) -> pb.ContainerUpdate:
    wanted = pb.ContainerUpdate(container_id=container)
    wanted.linux.resources.cpu.cpus = cpus
    return wanted
