"""What callers hear where the server behind the daemon's socket cannot start: an answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.control.client import ControlClient, DeclinedError, connected
from nri_policy.control.listener import ProgramReplacedError, listening
from nri_policy.control.refused_calls import refuse_calls
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.program import REPLACED, Program

NO_GROUP = "no-such-group"


class Broken:
    """A server that cannot start."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    @asynccontextmanager
    async def serve(self, path: Path, *, owner_only: bool) -> AsyncIterator[None]:
        del path, owner_only
        self.asked += 1
        raise self.error
        yield


def _refused(path: Path) -> list[str]:
    """Return what the calls of a client of gRPC end with, one after the other on a connection."""
    said = []
    with connected(path) as client:
        calls = (ControlClient.status, ControlClient.containers, ControlClient.settings)
        for call in calls:
            with pytest.raises(DeclinedError) as declined:
                call(client)
            said.append(str(declined.value))
    return said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProgramReplacedError(), f"the daemon cannot answer: {REPLACED}"),
        (ImportError("no module"), "the daemon cannot answer: its log says why"),
        (OSError(24, "Too many open files"), "the daemon cannot answer: Too many open files"),
    ],
    ids=["replaced", "a bug", "no files left"],
)
async def test_all_calls_end_with_the_reason(error: Exception, said: str, tmp_path: Path) -> None:
    path, broken = tmp_path / "control.sock", Broken(error)
    async with listening(path, broken.serve, Clock(), group=NO_GROUP):
        assert await asyncio.to_thread(_refused, path) == [said] * 3
    assert broken.asked <= 2, "one connection has all of them, and one tries the socket"


@pytest.mark.parametrize("length", [1, 126, 127, 128, 254, 255, 256, 2000])
async def test_a_reason_of_any_length_arrives(length: int, tmp_path: Path) -> None:
    reason = "ä" + (length - 1) * "x"

    answering: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await refuse_calls(reader, writer, reason)
        writer.close()
        await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_unix_server(accept, tmp_path / "control.sock")
    async with server:
        assert await asyncio.to_thread(_refused, tmp_path / "control.sock") == [reason] * 3
        await asyncio.gather(*answering)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff" + bytes(6)],
    ids=["nothing", "HTTP/1", "a frame that is too large"],
)
async def test_who_speaks_something_else_is_turned_away(sent: bytes, tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await refuse_calls(reader, writer, "no")
        writer.close()
        ended.set()

    server = await asyncio.start_unix_server(answer, tmp_path / "control.sock")
    async with server:
        _, writer = await asyncio.open_unix_connection(tmp_path / "control.sock")
        writer.write(sent)
        writer.write_eof()
        await ended.wait()
        writer.close()


def test_a_program_is_replaced_when_its_files_are_others_or_gone(tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text("")
    program = Program(file)
    assert not program.replaced
    other = tmp_path / "other"
    other.write_text("")
    other.replace(file)
    assert program.replaced
    program = Program(file)
    file.unlink()
    assert program.replaced
