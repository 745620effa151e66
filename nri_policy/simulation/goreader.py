"""Reads a plugin's bytes exactly as strictly as the Go side of NRI.

Owns the limits of Go's readers, which our own tolerant codecs (nri_policy.nri) lack: the queue of
256 frames per connection, the buffered reader of 4096 bytes that frames must fit, messages of at
most 4 MiB. A plugin that this reader refuses would fail on a real node (spec: NRI on the wire,
1.2-1.4). Must not know what the messages mean.

Theory: Go's multiplexer queues frames until the ttrpc reader asks for bytes, and gives it one frame
at a time; a frame larger than the given buffer fails the read with ENOMEM. The ttrpc reader uses
bufio.Reader: with nothing buffered, a read of at least 4096 bytes goes straight into the caller's
memory, and a smaller one into the buffer of 4096.

How far Go's consumer lags behind its socket depends on its scheduler. Here all frames of one
`receive_data` are queued before any is consumed, which gives the measured results.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from nri_policy.nri import mux, ttrpc
from nri_policy.nri.errors import RemoteProtocolError
from nri_policy.nri.mux import Conn, Payload

QUEUED_FRAMES = 256
MAX_BODY = 4 << 20  # bytes


class GoMessage(Struct, frozen=True, kw_only=True):
    """One ttrpc message."""

    conn: Conn
    stream: int
    kind: int
    flags: int
    body: bytes

    @property
    def encoded(self) -> bytes:
        """The message as received."""
        return ttrpc.HEADER.pack(len(self.body), self.stream, self.kind, self.flags) + self.body


class GoTrunk:
    """The receiving end of one socket."""

    def __init__(self) -> None:
        self.fatal = ""  # why Go closes the socket, as it would log it
        self._mux = mux.Mux()
        self._readers = {conn: _Reader(conn) for conn in Conn}

    def receive_data(self, data: bytes) -> list[GoMessage]:
        """Return the messages that *data* completes, by connection; see then `fatal`.

        A read error of the Runtime connection is not fatal: Go logs it, see `deaf`, and reads that
        connection no more.
        """
        try:
            for payload in self._mux.receive_data(data):
                self._queue(payload)
        except RemoteProtocolError as error:
            self.fatal = str(error)
        messages = [message for reader in self._readers.values() for message in reader.read()]
        for reader in self._readers.values():
            if reader.error and reader.fatal:
                self.fatal = self.fatal or reader.error
        return messages

    @property
    def deaf(self) -> str:
        """Why the Runtime connection is read no more, or nothing."""
        return self._readers[Conn.RUNTIME].error

    def _queue(self, payload: Payload) -> None:
        queue = self._readers[payload.conn].queue
        if len(queue) < QUEUED_FRAMES:
            queue.append(payload.data)
        else:
            self.fatal = f"failed to queue payload on connection {payload.conn:d}"


class _Reader:
    """Go's ttrpc channel over a bufio.Reader over one connection of the multiplexer."""

    def __init__(self, conn: Conn) -> None:
        self.queue: deque[bytes] = deque()
        self.error = ""
        self.fatal = conn is Conn.PLUGIN  # whether the error ends the other connection as well
        self._conn = conn
        self._buffered = b""
        self._message = bytearray()
        self._wanted = ttrpc.HEADER.size  # bytes of the message at which to look again

    def read(self) -> list[GoMessage]:
        """Return the messages that the queued frames complete; see then `error`."""
        messages: list[GoMessage] = []
        while not self.error and self._fill():
            if len(self._message) < self._wanted:
                continue
            length, stream, kind, flags = ttrpc.HEADER.unpack_from(self._message)
            if length > MAX_BODY:
                self.error = f"message length {length} exceeds maximum message size of {MAX_BODY}"
                self.fatal = True
                break
            self._wanted = ttrpc.HEADER.size + length
            if len(self._message) == self._wanted:
                body = bytes(self._message[ttrpc.HEADER.size :])
                messages.append(
                    GoMessage(conn=self._conn, stream=stream, kind=kind, flags=flags, body=body)
                )
                self._message.clear()
                self._wanted = ttrpc.HEADER.size
        return messages

    def _fill(self) -> bool:
        """Do one read of io.ReadFull; return False if there is nothing to read."""
        room = self._wanted - len(self._message)
        if not self._buffered:
            if not self.queue:
                return False
            frame = self.queue.popleft()
            if len(frame) > max(room, mux.READER_BUFFER):
                self.error = f"error receiving message: frame of {len(frame)} bytes: ENOMEM"
                return False
            self._buffered = frame
        self._message += self._buffered[:room]
        self._buffered = self._buffered[room:]
        return True
