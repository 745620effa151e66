"""The inner layer of the wire: unary ttrpc calls over one logical connection, without I/O.

A message is `uint32 length | uint32 stream | uint8 type | uint8 flags | body`, big-endian. NRI
uses unary calls only: one request and one response a stream, flags 0. Messages of other types are
skipped, flags are not looked at.

`ClientConnection` and `ServerConnection` are the two ends of one connection; each plugin and each
runtime has one of both, on different connections. Neither knows of methods' payloads, of time, or
of the layer below.

Invariants: a client's stream ids are odd and increase; a server yields each stream id once.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

import msgspec
from google.protobuf.message import DecodeError

from nri_policy.nri.errors import Code, LocalProtocolError, RemoteProtocolError
from nri_policy.nri.framing import FrameBuffer
from nri_policy.proto import ttrpc_pb2

HEADER = Struct(">IIBB")
REQUEST, RESPONSE = 1, 2

MAX_SENT_BODY = 4 << 20  # bytes; over it a Go peer closes the connection
MAX_BODY = 64 << 20  # bytes; ttrpc < 1.2.6 sends a busy node's Synchronize however long it is
MAX_STREAM = (1 << 32) - 1
MAX_STATUS_TEXT = 4096  # characters


class IncomingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the peer's; it waits for `ServerConnection.send_response` or `send_status`."""

    stream: int
    service: str
    method: str
    payload: bytes
    timeout_nano: int  # what was left of the caller's budget when it sent this; 0: no limit


class InvalidRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that breaks the rules of one stream only: to be refused with `reason`."""

    stream: int
    reason: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a call of ours; there can be a payload beside an error."""

    stream: int
    payload: bytes
    code: int  # 0: success
    message: str


class ClientConnection:
    """The calling end."""

    def __init__(self) -> None:
        self._frames = _frame_buffer()
        self._next_stream = 1

    def send_request(
        self,
        service: str,
        method: str,
        payload: bytes,
        *,
        timeout_nano: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return the new call's stream id and its bytes; raises LocalProtocolError if too large."""
        if self._next_stream > MAX_STREAM:
            raise LocalProtocolError("this connection's stream ids are used up: reconnect")
        request = ttrpc_pb2.Request(
            service=service, method=method, payload=payload, timeout_nano=timeout_nano
        )
        for key, value in (metadata or {}).items():
            request.metadata.add(key=key, value=value)
        stream = self._next_stream
        message = _message(stream, REQUEST, request.SerializeToString())
        self._next_stream += 2
        return stream, message

    def receive_data(self, data: bytes) -> list[Response]:
        """Return the responses that *data* completes, in the order of arrival.

        Raises RemoteProtocolError for a message that is no response. Responses to abandoned calls
        are returned too.
        """
        return [
            _response(stream, body)
            for (_, stream, kind, _), body in self._frames.receive_data(data)
            if kind == RESPONSE
        ]


class ServerConnection:
    """The called end."""

    def __init__(self) -> None:
        self._frames = _frame_buffer()
        self._last_stream = 0

    def receive_data(self, data: bytes) -> list[IncomingCall | InvalidRequest]:
        """Return the calls that *data* completes; raises RemoteProtocolError."""
        return [
            self._request(stream, body)
            for (_, stream, kind, _), body in self._frames.receive_data(data)
            if kind == REQUEST
        ]

    def _request(self, stream: int, body: bytes) -> IncomingCall | InvalidRequest:
        if stream % 2 == 0:
            return InvalidRequest(stream=stream, reason="stream id must be odd")
        if stream <= self._last_stream:
            return InvalidRequest(
                stream=stream, reason=f"stream id must be above the last one, {self._last_stream}"
            )
        self._last_stream = stream
        try:
            request = ttrpc_pb2.Request.FromString(body)
        except DecodeError:
            return InvalidRequest(stream=stream, reason="body is no ttrpc request")
        return IncomingCall(
            stream=stream,
            service=request.service,
            method=request.method,
            payload=request.payload,
            timeout_nano=max(request.timeout_nano, 0),
        )

    def send_response(self, stream: int, payload: bytes) -> bytes:
        """Return the bytes of a success; raises LocalProtocolError if they are too many."""
        response = ttrpc_pb2.Response(payload=payload)
        return _message(stream, RESPONSE, response.SerializeToString())

    def send_status(self, stream: int, code: int, message: str, payload: bytes = b"") -> bytes:
        """Return the bytes of a failure, with *message* shortened to what a status may carry."""
        if code == Code.OK:
            raise LocalProtocolError(f"a failure ({message!r}) needs a status code other than 0")
        text = message[:MAX_STATUS_TEXT].encode(errors="replace").decode()
        status = ttrpc_pb2.Status(code=code, message=text)
        response = ttrpc_pb2.Response(status=status, payload=payload)
        return _message(stream, RESPONSE, response.SerializeToString())


def _frame_buffer() -> FrameBuffer:
    return FrameBuffer(HEADER, length_field=0, limit=MAX_BODY, layer="ttrpc")


def _message(stream: int, kind: int, body: bytes) -> bytes:
    if len(body) > MAX_SENT_BODY:
        raise LocalProtocolError(
            f"ttrpc body of {len(body)} bytes; the peer takes {MAX_SENT_BODY} at most"
        )
    return HEADER.pack(len(body), stream, kind, 0) + body


def _response(stream: int, body: bytes) -> Response:
    try:
        response = ttrpc_pb2.Response.FromString(body)
    except DecodeError as error:
        raise RemoteProtocolError(f"body of stream {stream} is no ttrpc response") from error
    return Response(
        stream=stream,
        payload=response.payload,
        code=response.status.code,
        message=response.status.message,
    )
