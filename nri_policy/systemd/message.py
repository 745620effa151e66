"""The wire format of D-Bus, only for method calls and their answers.

Pure: no socket, no clock. Types and alignment are from the D-Bus specification, "Message Protocol".
Any received bytes are a message, or raise MessageError.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Literal

from msgspec import Struct

PREFIX = 16  # first bytes of a message, which contain its length
# bytes; longer than any signal of systemd, which may arrive before an answer
MAX_MESSAGE = 1 << 20

_VERSION = 1
_ORDERS: Mapping[int, Literal["little", "big"]] = {ord("l"): "little", ord("B"): "big"}


class MessageError(Exception):
    """The received bytes are no D-Bus message; the text has the reason."""


class Type(IntEnum):
    """The type of a message."""

    CALL = 1
    ANSWER = 2
    ERROR = 3
    SIGNAL = 4


class _Field(IntEnum):
    """The header fields that this module writes or reads."""

    PATH = 1
    INTERFACE = 2
    MEMBER = 3
    ERROR_NAME = 4
    REPLY_SERIAL = 5
    DESTINATION = 6
    SIGNATURE = 8


class MethodCall(Struct, frozen=True, kw_only=True):
    """A method and its address."""

    destination: str
    path: str
    interface: str
    member: str


class BusMessage(Struct, frozen=True, kw_only=True):
    """The parts of a received message that are used."""

    type: int
    reply_to: int = 0  # the serial of the call that it answers
    error: str = ""  # the error's name
    text: str = ""  # the first argument, if it is a string


def encode(call: MethodCall, serial: int, signature: str = "", body: bytes = b"") -> bytes:
    """Return a method call; its answer refers to *serial*, which is not 0."""
    fields = [
        (_Field.PATH, "o", call.path),
        (_Field.DESTINATION, "s", call.destination),
        (_Field.INTERFACE, "s", call.interface),
        (_Field.MEMBER, "s", call.member),
    ]
    header = _Writer()
    for field, kind, value in fields:
        header.align(8)
        header.raw(bytes([field]))
        header.signature(kind)
        header.string(value)
    if signature:
        header.align(8)
        header.raw(bytes([_Field.SIGNATURE]))
        header.signature("g")
        header.signature(signature)
    message = _Writer()
    message.raw(bytes([ord("l"), Type.CALL, 0, _VERSION]))
    for number in (len(body), serial, len(header.data)):
        message.number(number)
    message.raw(header.data)  # which begins at a multiple of 8
    message.align(8)
    return bytes(message.data) + body


def encode_properties(unit: str, properties: Mapping[str, bytes]) -> bytes:
    """Return the arguments `sba(sv)`: the unit, true for "until it stops", and its properties.

    Each property's value is an array of bytes.
    """
    body = _Writer()
    body.string(unit)
    body.number(1)  # true: at runtime
    at = len(body.data)
    body.number(0)  # the length of the array after the padding, set below
    body.align(8)
    began = len(body.data)
    for name, value in properties.items():
        body.align(8)
        body.string(name)
        body.signature("ay")
        body.number(len(value))
        body.raw(value)
    body.data[at : at + 4] = (len(body.data) - began).to_bytes(4, "little")
    return bytes(body.data)


def length_of(prefix: bytes) -> int:
    """Return the length in bytes of the message that begins with *prefix*, of PREFIX bytes.

    Raises MessageError if it is no message, or longer than MAX_MESSAGE.
    """
    reader = _Reader(prefix)
    body, fields = reader.number(4), reader.number(12)
    length = PREFIX + fields + -fields % 8 + body
    if length > MAX_MESSAGE:
        raise MessageError(f"a message of {length} bytes")
    return length


def decode(data: bytes) -> BusMessage:
    """Decode a whole message; raises MessageError."""
    reader = _Reader(data)
    end = PREFIX + reader.number(12)
    found: dict[int, str | int] = {}
    while reader.at < end:
        reader.align(8)
        field, kind = reader.byte(), reader.signature()
        found[field] = reader.value(kind)
    if reader.at != end:
        raise MessageError("a header that ends within a field")
    reader.align(8)
    text = ""
    if str(found.get(_Field.SIGNATURE, "")).startswith("s"):
        text = reader.string()
    error, reply_to = found.get(_Field.ERROR_NAME, ""), found.get(_Field.REPLY_SERIAL, 0)
    if not isinstance(error, str) or not isinstance(reply_to, int):
        raise MessageError("a header field of the wrong type")
    return BusMessage(type=data[1], reply_to=reply_to, error=error, text=text)


class _Writer:
    """A growing buffer in little endian, which every receiver accepts."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def raw(self, data: bytes | bytearray) -> None:
        self.data += data

    def number(self, value: int) -> None:
        self.align(4)
        self.data += value.to_bytes(4, "little")

    def string(self, text: str) -> None:
        encoded = text.encode()
        self.number(len(encoded))
        self.data += encoded + b"\0"

    def signature(self, text: str) -> None:
        self.data += bytes([len(text)]) + text.encode() + b"\0"


class _Reader:
    """The bytes of a message, in its byte order; it never reads past the end."""

    def __init__(self, data: bytes) -> None:
        if len(data) < PREFIX:
            raise MessageError(f"a message of {len(data)} bytes")
        order = _ORDERS.get(data[0])
        if order is None or data[3] != _VERSION:
            raise MessageError(f"a message that begins with {data[:4]!r}")
        self._data, self._order = data, order
        self.at = 0

    def align(self, size: int) -> None:
        self.at += -self.at % size

    def byte(self) -> int:
        return self._take(1)[0]

    def number(self, at: int | None = None) -> int:
        if at is not None:
            self.at = at
        self.align(4)
        return int.from_bytes(self._take(4), self._order)

    def string(self) -> str:
        return self._text(self.number())

    def signature(self) -> str:
        return self._text(self.byte())

    def value(self, kind: str) -> str | int:
        """Read a value of one of the types of header fields."""
        if kind in {"s", "o"}:
            return self.string()
        if kind == "g":
            return self.signature()
        if kind == "u":
            return self.number()
        raise MessageError(f"a header field of type {kind!r}")

    def _text(self, length: int) -> str:
        return self._take(length + 1)[:-1].decode("utf-8", "replace")

    def _take(self, count: int) -> bytes:
        taken = self._data[self.at : self.at + count]
        if len(taken) < count:
            raise MessageError(f"a message that ends within a value, after {len(self._data)} bytes")
        self.at += count
        return taken
