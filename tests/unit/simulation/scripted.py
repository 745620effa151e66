"""A plugin that does what a test tells it to, by the rules or against them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from google.protobuf.message import Message

from nri_policy.nri import mux, ttrpc
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.mux import Conn
from nri_policy.proto import nri_pb2 as nri

LIFECYCLE = 0x6AF
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"


class Silence(Exception):  # noqa: N818 - told to the plugin, not an error
    """Raised by a handler that gives no answer."""


class Raw(Exception):  # noqa: N818 - told to the plugin, not an error
    """Raised by a handler whose answer is these bytes on the socket, made from the stream id."""

    def __init__(self, wire: Callable[[int], bytes]) -> None:
        self.wire = wire


Handler = Callable[[Any], Message | None]


class ScriptedPlugin:
    """Connects, registers, and answers requests by *handlers* (method → function), or emptily."""

    def __init__(
        self,
        socket_path: Path,
        handlers: Mapping[str, Handler] | None = None,
        *,
        name: str = "scripted",
        index: str = "10",
        events: int = LIFECYCLE,
    ) -> None:
        self.seen: list[tuple[str, Any]] = []  # (method or event of a StateChange, request)
        self.timeouts: list[int] = []  # timeout_nano of each request
        self.unexpected: list[ttrpc.Response] = []
        self.closed = asyncio.Event()
        self._came = asyncio.Event()
        self.refusal = ""  # of RegisterPlugin
        self._socket_path = socket_path
        self._handlers = {"Configure": lambda _: nri.ConfigureResponse(events=events)} | dict(
            handlers or {}
        )
        self._identity = nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        self._mux = mux.Mux()
        self._server = ttrpc.ServerConnection()
        self._client = ttrpc.ClientConnection()
        self._answers: dict[int, asyncio.Future[ttrpc.Response]] = {}

    async def __aenter__(self) -> Self:
        """Connect and register; return when the runtime has answered that."""
        await self.connect()
        try:
            await self.call("RegisterPlugin", self._identity)
        except CallRefused as error:
            self.refusal = error.message
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket_path)
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._writer.close()
        await self._reading

    @property
    def methods(self) -> list[str]:
        """What came after the handshake, in order."""
        return [method for method, _ in self.seen if method not in {"Configure", "Synchronize"}]

    def requests(self, method: str) -> list[Any]:
        return [request for seen, request in self.seen if seen == method]

    async def saw(self, method: str) -> None:
        """Wait until *method* was called."""
        while not self.requests(method):
            self._came.clear()
            await self._came.wait()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def call(self, method: str, request: Message, *, service: str = RUNTIME) -> bytes:
        """Call the runtime; raises Refused, with the payload that came along as `payload`."""
        stream, message = self._client.send_request(service, method, request.SerializeToString())
        self.write(mux.send(Conn.RUNTIME, message))
        response = await self.answer(stream)
        if response.code:
            error = CallRefused(response.message, code=response.code)
            error.add_note(response.payload.hex())
            raise error
        return response.payload

    async def answer(self, stream: int) -> ttrpc.Response:
        """Return the runtime's response to what was sent with *stream*."""
        future: asyncio.Future[ttrpc.Response] = asyncio.get_running_loop().create_future()
        self._answers[stream] = future
        return await future

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                for payload in self._mux.receive_data(data):
                    if payload.conn is Conn.RUNTIME:
                        for response in self._client.receive_data(payload.data):
                            self._answered(response)
                    else:
                        for request in self._server.receive_data(payload.data):
                            assert isinstance(request, ttrpc.IncomingCall)
                            self._handle(request)
        except ConnectionError:
            pass
        self._writer.close()
        self.closed.set()
        for future in self._answers.values():
            future.set_exception(ConnectionResetError())

    def _answered(self, response: ttrpc.Response) -> None:
        future = self._answers.pop(response.stream, None)
        if future is None:
            self.unexpected.append(response)
        else:
            future.set_result(response)

    def _handle(self, request: ttrpc.IncomingCall) -> None:
        method = request.method
        kind = nri.StateChangeEvent if method == "StateChange" else getattr(nri, f"{method}Request")
        message = kind.FromString(request.payload)
        if method == "StateChange":
            method = nri.Event.Name(message.event)
        self.seen.append((method, message))
        self._came.set()
        self.timeouts.append(request.timeout_nano)
        handler = self._handlers.get(method, lambda _: None)
        try:
            reply = handler(message)
        except Silence:
            return
        except Raw as raw:
            self.write(raw.wire(request.stream))
            return
        except CallRefused as error:
            response = self._server.send_status(request.stream, error.code, error.message)
        else:
            payload = reply.SerializeToString() if reply is not None else b""
            response = self._server.send_response(request.stream, payload)
        self.write(mux.send(Conn.PLUGIN, response))


class Deadlines:
    """Deadlines that pass when the test says so."""

    def __init__(self) -> None:
        self._pending: list[asyncio.Timeout] = []
        self._set = asyncio.Event()

    def __call__(self, _seconds: float) -> asyncio.Timeout:
        timer = asyncio.timeout(None)
        self._pending.append(timer)
        self._set.set()
        return timer

    async def set(self, count: int) -> None:
        """Wait until *count* deadlines were set, ever."""
        while len(self._pending) < count:
            self._set.clear()
            await self._set.wait()

    def expire(self) -> None:
        """Let the deadline that is being waited for pass."""
        self._pending[-1].reschedule(asyncio.get_running_loop().time())


def pinned(container_id: str, **cpu: Any) -> nri.ContainerUpdate:
    """Return an update that sets fields of `cpu`: cpus, mems, shares, quota, period."""
    update = nri.ContainerUpdate(container_id=container_id)
    set_cpu(update.linux.resources.cpu, **cpu)
    return update


def adjusted(**cpu: Any) -> nri.CreateContainerResponse:
    """Return an adjustment that sets fields of `cpu`."""
    response = nri.CreateContainerResponse()
    set_cpu(response.adjust.linux.resources.cpu, **cpu)
    return response


def set_cpu(target: nri.LinuxCPU, **fields: Any) -> None:
    for name, value in fields.items():
        if isinstance(value, str):
            setattr(target, name, value)
        else:
            getattr(target, name).value = value


def pod(name: str = "pod0", *containers: str, **resources: Any) -> dict[str, Any]:
    """Return a manifest; all *containers* (c0 if none are named) have the same *resources*."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [
                {"name": container, "resources": resources} for container in containers or ["c0"]
            ]
        },
    }
