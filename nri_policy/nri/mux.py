"""The outer layer of the wire: two logical connections over one socket, without I/O.

A frame is `uint32 conn | uint32 length | payload`, big-endian. There is no opening, closing or
flow control: both sides just have connections 1 and 2. Frame boundaries mean nothing to the layer
above when it reads, but see `send` for what they mean to a Go peer.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

import msgspec

from nri_policy.nri.errors import LocalProtocolError
from nri_policy.nri.framing import FrameBuffer

HEADER = Struct(">II")
MAX_PAYLOAD = (64 << 20) + 10  # bytes; the largest ttrpc message that we take, in one frame

# Go reads each connection through a buffer of this size, and fails the read (ENOMEM) if a frame
# is larger than the room that the reader has at that moment.
READER_BUFFER = 4096
MAX_SENT_PAYLOAD = (4 << 20) + 10  # bytes; NRI's own writer splits here


class Conn(IntEnum):
    """The logical connections, named by the service that is called over them."""

    PLUGIN = 1
    RUNTIME = 2


_CONNS = {int(conn): conn for conn in Conn}


class Payload(msgspec.Struct, frozen=True):
    """Bytes of one logical connection: one frame's worth."""

    conn: Conn
    data: bytes


class Mux:
    """The receiving state of one socket."""

    def __init__(self) -> None:
        self._frames = FrameBuffer(HEADER, length_field=1, limit=MAX_PAYLOAD, layer="mux")

    def receive_data(self, data: bytes) -> list[Payload]:
        """Return the frames that *data* completes, those of unknown connections dropped.

        Raises RemoteProtocolError for a length that no peer means.
        """
        return [
            Payload(_CONNS[conn], payload)
            for (conn, _), payload in self._frames.receive_data(data)
            if conn in _CONNS
        ]


def send(conn: Conn, message: bytes) -> bytes:
    """Return the frames that carry one whole ttrpc *message*; raises LocalProtocolError.

    A message that fits the peer's read buffer goes as one frame. A longer one goes as two, cut at
    that size: after the first the Go side has the ttrpc header and reads the rest straight into a
    buffer that has room for it. Larger or later cuts fail there; smaller ones overflow its queue of
    256 frames. Two messages never share a frame.
    """
    if len(message) > MAX_SENT_PAYLOAD:
        raise LocalProtocolError(
            f"message of {len(message)} bytes does not fit a frame; at most {MAX_SENT_PAYLOAD} do"
        )
    first, rest = message[:READER_BUFFER], message[READER_BUFFER:]
    frames = HEADER.pack(conn, len(first)) + first
    return frames + HEADER.pack(conn, len(rest)) + rest if rest else frames
