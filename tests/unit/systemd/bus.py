"""A bus that says what a real one said, and keeps what it heard.

The answers in `data` are systemd 252's and its system bus's, byte for byte, from the line of the
authentication on: to a call that succeeded, to one for a unit that is not there, for a property
that it does not know, and by somebody who is not root.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_name("data")


def recorded(name: str) -> tuple[bytes, bytes]:
    """Return an answer to an authentication, and to what came after it."""
    line, _, messages = (DATA / f"{name}.bin").read_bytes().partition(b"\r\n")
    return line + b"\r\n", messages


@dataclass
class Bus:
    """A bus that sends fixed bytes to each client, and records what clients sent."""

    accepts: bytes
    answers: bytes
    hangs_up: bool = False
    heard: list[bytes] = field(default_factory=list)
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection; a bus that does not accept it hangs up."""
        heard = await reader.readline()
        writer.write(self.accepts)
        if self.accepts.startswith(b"OK "):
            heard += await reader.readuntil(b"SetUnitProperties\0")
            self.heard.append(heard + await reader.read(1 << 16))
            writer.write(self.answers)
            self.called.set()
            if not self.hangs_up:
                await reader.read()
        writer.close()


@asynccontextmanager
async def listening(path: Path, bus: Bus) -> AsyncIterator[Bus]:
    """Have the bus accept at *path*."""
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    connections: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.create_task(bus.serve(reader, writer)))

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield bus
    finally:
        await asyncio.gather(*connections)
        server.close()
        await asyncio.to_thread(path.unlink, missing_ok=True)  # since Python 3.13 close() did it
