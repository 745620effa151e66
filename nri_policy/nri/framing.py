"""Cutting a byte stream into frames that a fixed header with a length field begins.

The one receive buffer of both layers of the wire. It never holds more than one unfinished frame
beside the bytes just given, and it believes no length beyond its limit.
"""

from __future__ import annotations

from struct import Struct

from nri_policy.nri.errors import RemoteProtocolError


class FrameBuffer:
    """Collects bytes until a frame is whole."""

    def __init__(self, header: Struct, *, length_field: int, limit: int, layer: str) -> None:
        self._header = header
        self._length_field = length_field
        self._limit = limit
        self._layer = layer
        self._pending = bytearray()

    def receive_data(self, data: bytes) -> list[tuple[tuple[int, ...], bytes]]:
        """Return (header fields, body) of each frame that *data* completes.

        Raises RemoteProtocolError, now and ever after, once a header announces a body over the
        limit.
        """
        pending: bytes | bytearray = data
        if self._pending:
            self._pending += data
            pending = self._pending
        frames = []
        start, end = 0, len(pending)
        try:
            while end - start >= self._header.size:
                fields = self._header.unpack_from(pending, start)
                length = fields[self._length_field]
                if length > self._limit:  # this header stays first: every later call fails as well
                    raise RemoteProtocolError(
                        f"{self._layer} frame announces {length} bytes;"
                        f" at most {self._limit} are taken"
                    )
                body = start + self._header.size
                if end < body + length:
                    break
                start = body + length
                frames.append((fields, bytes(memoryview(pending)[body:start])))
        finally:
            if pending is data:
                self._pending += data[start:]
            else:
                del self._pending[:start]
        return frames
