"""One NRI socket on asyncio, for either side.

Taking bytes in demultiplexes and begins requests, but waits for none, so answers to calls of ours
get through while a request is handled. Each message is written at once, so messages never mix.
While a peer reads none of our messages, we read none of its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from google.protobuf.message import Message

from nri_policy.foundation.clock import Clock
from nri_policy.nri.connection import Connection
from nri_policy.nri.errors import CallRefused, Code, LocalProtocolError, RemoteProtocolError
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import IncomingCall, InvalidRequest, Response

# Runtimes send one request at a time; this is where we stop to believe that ours is one.
MAX_WAITING = 128 << 20  # bytes
LINGER = 1.0  # seconds
REQUEST_OVERHEAD = 1 << 10  # bytes, so that empty requests count as well

# a request, the clock's reading when it came, and where the answer goes
Take = Callable[[IncomingCall, float, Callable[[bytes | CallRefused], None]], None]


class Channel(asyncio.Protocol):
    """A connected socket, until `ended` is done.

    *take* gets each request at once, and must not wait.
    """

    def __init__(self, serves: Conn, clock: Clock, take: Take) -> None:
        self._connection = Connection(serves)
        self._clock = clock
        self._take = take
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._waiting = 0  # bytes of requests that are not answered
        # The peer, or we, have closed: nothing more comes in. RemoteProtocolError if it had to be.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in what the peer says."""
        try:
            for event in self._connection.receive_data(data):
                self._receive(event)
        except RemoteProtocolError as error:
            if not self.ended.done():
                self.ended.set_exception(error)
            self.close()

    def eof_received(self) -> None:
        """Close as well."""
        self.close()

    def connection_lost(self, _: Exception | None) -> None:
        """End; a reset is just another way to close."""
        self.close()
        self._lost.set_result(None)

    def pause_writing(self) -> None:
        """Let a peer wait that lets us wait."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def _receive(self, event: IncomingCall | InvalidRequest | Response) -> None:
        if isinstance(event, Response):
            call = self._calls.get(event.stream)
            if call is not None and not call.done():  # else: given up, or never made
                call.set_result(event)
        elif isinstance(event, InvalidRequest):
            self._refuse(event, Code.INVALID_ARGUMENT, event.reason)
        else:
            self._waiting += len(event.payload) + REQUEST_OVERHEAD
            if self._waiting > MAX_WAITING:
                raise RemoteProtocolError(f"requests of more than {MAX_WAITING} bytes wait for us")
            self._take(event, self._clock.now(), partial(self._answer, event))

    async def call(self, method: str, request: Message, *, budget: float) -> Response:
        """Call the peer and return its answer, be it a failure.

        Raises TimeoutError after *budget* seconds, ConnectionError if the connection ends first,
        LocalProtocolError if the request is too large.
        """
        if self.ended.done():
            raise ConnectionResetError("connection closed")
        stream, data = self._connection.send_request(
            method, request.SerializeToString(), timeout_nano=int(budget * 1e9)
        )
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        try:
            self._transport.write(data)
            if not await self._clock.done_within(budget, answer):
                raise TimeoutError(f"{method} was not answered within {budget:g} seconds")
        finally:
            del self._calls[stream]
        if answer.cancelled():
            raise ConnectionResetError(f"connection closed before {method} was answered")
        return answer.result()

    def _answer(self, request: IncomingCall, answer: bytes | CallRefused) -> None:
        """Answer with a payload or a failure; the latter, too, if the former is too large."""
        self._waiting -= len(request.payload) + REQUEST_OVERHEAD
        if isinstance(answer, CallRefused):
            self._refuse(request, answer.code, answer.message)
            return
        try:
            data = self._connection.send_response(request, answer)
        except LocalProtocolError as error:
            self._refuse(request, Code.RESOURCE_EXHAUSTED, f"{request.method} response: {error}")
        else:
            self._transport.write(data)

    def _refuse(self, request: IncomingCall | InvalidRequest, code: int, message: str) -> None:
        self._transport.write(self._connection.send_status(request, code, message))

    def close(self) -> None:
        """Begin to close: calls that still wait fail with ConnectionError."""
        if not self.ended.done():
            self.ended.set_result(None)
        for call in self._calls.values():
            call.cancel()
        self._transport.close()

    async def wait_closed(self) -> None:
        """Wait for the end of `close`: what the peer does not take in a second is dropped."""
        if not await self._clock.done_within(LINGER, self._lost):
            self._transport.abort()
        await self._lost
