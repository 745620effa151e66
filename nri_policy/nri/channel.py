"""One NRI socket on asyncio, for either side.

The reader only demultiplexes: it never runs a handler, so answers to calls of ours get through
while a request is handled. Requests wait in a queue for whoever serves them. Each message is
written at once, so messages never mix.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from google.protobuf.message import Message

from nri_policy.nri.clock import Clock
from nri_policy.nri.connection import Connection
from nri_policy.nri.errors import Code, LocalProtocolError, RemoteProtocolError
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import InvalidRequest, Request, Response

READ_SIZE = 1 << 16  # bytes
# Runtimes send one request at a time; this is where we stop to believe that ours is one.
MAX_WAITING = 128 << 20  # bytes
LINGER = 1.0  # seconds
REQUEST_OVERHEAD = 1 << 10  # bytes, so that empty requests count as well


class Arrival(NamedTuple):
    """A request and the clock's reading when it came."""

    request: Request
    received: float


class Channel:
    """A connected socket, until `read` has returned."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        serves: Conn,
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = Connection(serves)
        self._clock = clock
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._requests: asyncio.Queue[Arrival | None] = asyncio.Queue()
        self._waiting = 0  # bytes
        self._closed = False

    async def read(self) -> None:
        """Take in what the peer says until it closes; raises RemoteProtocolError.

        Calls that are still waiting then fail with ConnectionError.
        """
        try:
            with contextlib.suppress(OSError):  # a reset is just another way to close
                while data := await self._reader.read(READ_SIZE):
                    for event in self._connection.receive_data(data):
                        self._take(event)
        finally:
            self.close()
            for call in self._calls.values():
                call.cancel()

    def _take(self, event: Request | InvalidRequest | Response) -> None:
        if isinstance(event, Response):
            call = self._calls.get(event.stream)
            if call is not None and not call.done():  # else: given up, or never made
                call.set_result(event)
        elif isinstance(event, InvalidRequest):
            self.refuse(event, Code.INVALID_ARGUMENT, event.reason)
        else:
            self._waiting += len(event.payload) + REQUEST_OVERHEAD
            if self._waiting > MAX_WAITING:
                raise RemoteProtocolError(f"requests of more than {MAX_WAITING} bytes wait for us")
            self._requests.put_nowait(Arrival(event, self._clock.now()))

    async def next_request(self) -> Arrival | None:
        """Return the next request in order of arrival, or None after `finish`."""
        arrival = await self._requests.get()
        if arrival is not None:
            self._waiting -= len(arrival.request.payload) + REQUEST_OVERHEAD
        return arrival

    def finish(self) -> None:
        """Let `next_request` return None once it has returned what came so far."""
        self._requests.put_nowait(None)

    async def call(self, method: str, request: Message, *, budget: float) -> Response:
        """Call the peer and return its answer, be it a failure.

        Raises TimeoutError after *budget* seconds, ConnectionError if the connection ends first,
        LocalProtocolError if the request is too large.
        """
        if self._closed:
            raise ConnectionResetError("connection closed")
        stream, data = self._connection.send_request(
            method, request.SerializeToString(), timeout_nano=int(budget * 1e9)
        )
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        try:
            self._writer.write(data)
            if not await self._clock.done_within(budget, answer):
                raise TimeoutError(f"{method} was not answered within {budget:g} seconds")
        finally:
            del self._calls[stream]
        if answer.cancelled():
            raise ConnectionResetError(f"connection closed before {method} was answered")
        return answer.result()

    def respond(self, request: Request, payload: bytes) -> None:
        """Answer with success, or with a failure if *payload* is more than the peer takes."""
        try:
            data = self._connection.send_response(request, payload)
        except LocalProtocolError as error:
            self.refuse(request, Code.RESOURCE_EXHAUSTED, f"{request.method} response: {error}")
        else:
            self._writer.write(data)

    def refuse(self, request: Request | InvalidRequest, code: int, message: str) -> None:
        """Answer with a failure."""
        self._writer.write(self._connection.send_status(request, code, message))

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written; raises ConnectionError."""
        await self._writer.drain()

    def close(self) -> None:
        """Begin to close; `read` returns soon after."""
        self._closed = True
        self._writer.close()

    async def wait_closed(self) -> None:
        """Wait for the end of `close`: what the peer does not take in a second is dropped."""
        closing = asyncio.ensure_future(self._writer.wait_closed())
        if not await self._clock.done_within(LINGER, closing):
            self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await closing
