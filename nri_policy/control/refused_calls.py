"""Declining: answers callers while the gRPC server cannot run.

A minimal HTTP/2 server (RFC 9113): it ends every call with the status FAILED_PRECONDITION and a
reason. If the connection were only closed, a gRPC client would connect again until its deadline.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from urllib.parse import quote

MAX_TIME = 5.0  # seconds for a caller's connection
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _PING = 0x1, 0x4, 0x6
_ACK, _END = 0x1, 0x4 | 0x1  # flags; the latter: of the headers, and of the stream
_LARGEST = 1 << 14  # bytes of a frame, the default limit
_FAILED_PRECONDITION = 9


async def refuse_calls(reader: StreamReader, writer: StreamWriter, reason: str) -> None:
    """End every call on a connection with *reason*, until the caller closes it."""
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(MAX_TIME):
            await _answer(reader, writer, _head(reason))


async def _answer(reader: StreamReader, writer: StreamWriter, head: bytes) -> None:
    if await reader.readexactly(len(_PREFACE)) != _PREFACE:
        return
    writer.write(_frame(_SETTINGS, 0, 0))
    while True:
        header = await reader.readexactly(9)
        length, kind, flags = int.from_bytes(header[:3]), header[3], header[4]
        if length > _LARGEST:
            return
        payload = await reader.readexactly(length)
        if kind == _HEADERS:
            writer.write(_frame(_HEADERS, _END, int.from_bytes(header[5:]), head))
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        await writer.drain()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _head(reason: str) -> bytes:
    """Return the header block of an answer without a body (HPACK, RFC 7541)."""
    fields = {
        "content-type": "application/grpc",
        "grpc-status": str(_FAILED_PRECONDITION),
        "grpc-message": quote(reason, safe=" ,:;/()'"),
    }
    status_200 = b"\x88"  # the eighth of the static table
    literal = b"\x00"  # with a new name, without indexing
    return status_200 + b"".join(
        literal + _string(name) + _string(value) for name, value in fields.items()
    )


def _string(text: str) -> bytes:
    """Return an uncompressed string literal."""
    data = text.encode("ascii")
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, size = len(data) - 127, b"\x7f"
    while rest >= 128:
        rest, size = rest >> 7, size + bytes([rest & 127 | 128])
    return size + bytes([rest]) + data
