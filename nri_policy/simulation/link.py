"""The runtime's end of one plugin's connection.

Owns the socket of one plugin, the pending calls to it, its identity and its event mask. Reads as
strictly as Go (goreader) and writes through the codecs of nri_policy.nri. Must not know pods,
containers, or other plugins.

A link ends for the same reasons as in Go: end of file, a read error, a missed deadline, or a frame
that is not the expected response. An error status is an answer like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from nri_policy.foundation.wording import quoted
from nri_policy.nri import mux, ttrpc
from nri_policy.nri.errors import CallRefused, Code, ProtocolError
from nri_policy.nri.mux import Conn
from nri_policy.proto import ttrpc_pb2
from nri_policy.simulation.goreader import GoMessage, GoTrunk

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

_READ_SIZE = 1 << 18  # bytes; what a Linux unix socket holds by default, and a bit more

Reply = TypeVar("Reply", bound=ProtobufMessage)
Deadline = Callable[[float], asyncio.Timeout]
Serve = Callable[["PluginLink", str, bytes], Awaitable[ProtobufMessage]]

log = logging.getLogger(__name__)


class PluginGoneError(Exception):
    """The plugin is disconnected; the operation goes on without it."""


class FailedUpdatesError(CallRefused):
    """A call of the plugin's that is answered with a result beside the error status."""

    def __init__(self, message: str, result: ProtobufMessage) -> None:
        super().__init__(message)
        self.result = result


class PluginLink:
    """One connected plugin.

    *serve* answers the plugin's calls, given method and payload; it raises Refused. *deadline* is
    asyncio.timeout, or a test's own.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        serve: Serve,
        deadline: Deadline,
    ) -> None:
        self.name = ""  # "NN-name" once registered
        self.events = 0  # mask, once configured
        self.closed = False
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = reader
        self._writer = writer
        self._serve = serve
        self._deadline = deadline
        self._trunk = GoTrunk()
        self._client = ttrpc.ClientConnection()
        self._server = ttrpc.ServerConnection()
        self._calls: dict[int, asyncio.Future[GoMessage]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    def subscribed(self, event: int) -> bool:
        """Return whether the plugin is there and wants *event*."""
        return not self.closed and bool(self.events & 1 << (event - 1))

    async def run(self) -> None:
        """Read until the link ends."""
        try:
            while not self.closed and (data := await self._reader.read(_READ_SIZE)):
                was_deaf = self._trunk.deaf
                for message in self._trunk.receive_data(data):
                    self._receive(message)
                if self._trunk.fatal:
                    self.close(self._trunk.fatal)
                elif self._trunk.deaf != was_deaf:
                    log.warning("not-read", extra={"plugin": self.name, "reason": self._trunk.deaf})
        except OSError as error:
            self.close(str(error))
        finally:
            self.close("connection closed")
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def close(self, reason: str) -> None:
        """End the link; calls under way raise PluginGoneError."""
        if self.closed:
            return
        self.closed = True
        log.info("closed", extra={"plugin": self.name or "unregistered", "reason": reason})
        self._writer.close()
        waiting: list[asyncio.Future[Any]] = [self.registered, *self._calls.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(PluginGoneError(reason))
        if not self.registered.cancelled():
            self.registered.exception()  # mark as retrieved: perhaps no task awaits it

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Bound what is done inside; past the deadline the link is closed and the error is raised.

        Raises PluginGoneError.
        """
        try:
            async with self._deadline(seconds):
                yield
        except TimeoutError as error:
            reason = "deadline exceeded"
            self.close(reason)
            raise PluginGoneError(reason) from error

    async def call(
        self,
        method: str,
        request: ProtobufMessage,
        reply: type[Reply],
        *,
        budget: float,
        from_cri: bool = True,
    ) -> Reply:
        """Return the plugin's answer; *budget* in seconds is what is left, and is not enforced.

        Raises CallRefused for an error status, PluginGoneError.
        """
        try:
            stream, message = self._client.send_request(
                PLUGIN_SERVICE,
                method,
                request.SerializeToString(),
                timeout_nano=round(budget * 1e9),
                metadata={"containerd-namespace-ttrpc": "k8s.io"} if from_cri else None,
            )
        except ProtocolError as error:
            raise CallRefused(str(error), code=Code.RESOURCE_EXHAUSTED) from error
        answer: asyncio.Future[GoMessage] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        try:
            await self._send(Conn.PLUGIN, message)
            return self._reply(await answer, reply)
        finally:
            del self._calls[stream]
            if answer.done() and not answer.cancelled():
                answer.exception()  # which the sending may have raised before

    def _reply(self, message: GoMessage, reply: type[Reply]) -> Reply:
        if message.kind != ttrpc.RESPONSE or message.flags:
            self.close(f"protocol error: type {message.kind}, flags {message.flags} of a response")
            raise PluginGoneError("protocol error")
        try:
            response = ttrpc_pb2.Response.FromString(message.body)
            if response.status.code != Code.OK:
                raise CallRefused(response.status.message, code=response.status.code)
            return reply.FromString(response.payload)
        except DecodeError as error:
            raise CallRefused(f"cannot unmarshal response: {error}", code=Code.INTERNAL) from error

    async def _send(self, conn: Conn, message: bytes) -> None:
        if self.closed:
            raise PluginGoneError("connection closed")
        try:
            self._writer.write(mux.send(conn, message))
            await self._writer.drain()
        except OSError as error:
            self.close(str(error))
            raise PluginGoneError(str(error)) from error

    def _receive(self, message: GoMessage) -> None:
        if message.conn is Conn.RUNTIME:
            task = asyncio.create_task(self._answer(message))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            return
        call = self._calls.get(message.stream)
        if call is None or call.done():
            log.info("inactive-stream", extra={"plugin": self.name, "stream": message.stream})
        else:
            call.set_result(message)

    async def _answer(self, message: GoMessage) -> None:
        try:
            await self._send(Conn.RUNTIME, await self._response(message))
        except (PluginGoneError, ProtocolError) as error:  # the latter: too long an answer
            log.warning("unanswered", extra={"plugin": self.name, "reason": str(error)})

    async def _response(self, message: GoMessage) -> bytes:
        """Return the encoded answer to a message on the Runtime connection."""
        try:
            request = self._request(message)
            result = await self._serve(self, request.method, request.payload)
        except FailedUpdatesError as error:
            payload = error.result.SerializeToString()
            return self._server.send_status(message.stream, error.code, error.message, payload)
        except CallRefused as error:
            return self._server.send_status(message.stream, error.code, error.message)
        return self._server.send_response(message.stream, result.SerializeToString())

    def _request(self, message: GoMessage) -> ttrpc.IncomingCall:
        request = next(iter(self._server.receive_data(message.encoded)), None)
        if request is None or message.flags:
            raise CallRefused("not a unary request", code=Code.INVALID_ARGUMENT)
        if isinstance(request, ttrpc.InvalidRequest):
            raise CallRefused(request.reason, code=Code.INVALID_ARGUMENT)
        if request.service != RUNTIME_SERVICE:
            raise CallRefused(f"service {quoted(request.service)}", code=Code.UNIMPLEMENTED)
        return request
