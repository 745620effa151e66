"""The daemon's own socket, before the server behind it: here one that sends back what it gets."""

from __future__ import annotations

import asyncio
import resource
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.control import refused_calls
from nri_policy.control.listener import FILES, OTHER_FILES, listening
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.on_demand import LINGER
from tests.support.patience import HANGS
from tests.support.turned_time import Time

NO_GROUP = "no-such-group"
LARGE = 3 << 20  # bytes; more than all buffers on the way hold


class Echo:
    """Serves, and counts how often it was started and stopped."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = [*failures]  # of the first starts
        self.started, self.stopped = 0, 0
        self.stops: asyncio.Queue[None] = asyncio.Queue()
        self.mode = 0

    @asynccontextmanager
    async def serve(self, path: Path, *, owner_only: bool) -> AsyncIterator[None]:
        assert owner_only
        self.started += 1
        if self.failures:
            raise self.failures.pop(0)
        server = await asyncio.start_unix_server(self._answer, path)
        try:
            yield
        finally:
            server.close()
            self.stopped += 1
            self.stops.put_nowait(None)

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if data == b"bye":
                break
            writer.write(data)
            await writer.drain()
        writer.close()


async def ask(path: Path, data: bytes) -> bytes:
    """Return what comes back for *data*, nothing if the connection is closed instead."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    try:
        return await reader.readexactly(len(data))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""
    finally:
        writer.close()


async def test_the_server_starts_for_the_first_caller_and_once(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        assert echo.started == 0
        answers = await asyncio.gather(*(ask(path, f"{at}".encode()) for at in range(9)))
        assert answers == [f"{at}".encode() for at in range(9)]
        assert (echo.started, echo.stopped) == (1, 0)
    assert echo.stopped == 1
    assert not path.exists()


@pytest.mark.parametrize(("files", "callers"), [(OTHER_FILES + 2 * FILES, 2), (1, 1)])
async def test_no_more_callers_are_let_in_than_the_process_has_files_for(
    files: int, callers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        held = []
        for _ in range(callers):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            held.append(writer)
        assert await ask(path, b"one too many") == b""
        for writer in held:
            writer.close()


async def test_the_server_stops_some_time_after_the_last_caller_and_starts_for_the_next(
    tmp_path: Path,
) -> None:
    path, echo, time = tmp_path / "control.sock", Echo(), Time()
    async with listening(path, echo.serve, time.clock, group=NO_GROUP):
        for stopped in range(3):
            assert await ask(path, b"hello") == b"hello"
            assert (echo.started, echo.stopped) == (stopped + 1, stopped)
            assert await time.next_sleep() == LINGER
            await asyncio.wait_for(echo.stops.get(), HANGS)


async def test_nobody_calls_and_nothing_was_started(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        pass
    assert (echo.started, echo.stopped) == (0, 0)


async def test_much_is_forwarded_whole_in_both_directions(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    data = bytes(range(256)) * (LARGE // 256)
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        assert await ask(path, data) == data


async def test_a_server_that_cannot_start_is_tried_again_for_the_next_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_calls, "MAX_TIME", 0.0)  # these callers do not speak HTTP/2
    path, echo = tmp_path / "control.sock", Echo(OSError("no room"), ImportError("another version"))
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        assert await ask(path, b"first") == b""
        assert await ask(path, b"second") == b""
        assert await ask(path, b"third") == b"third"


async def test_a_connection_ends_with_either_side(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        assert await ask(path, b"bye") == b""  # closed by the server


async def test_connections_end_with_the_daemon(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    assert await reader.read() == b""
    writer.close()


async def test_the_socket_of_another_process_that_listens_is_left_to_it(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        with pytest.raises(OSError, match="another process listens there"):
            async with listening(path, Echo().serve, Clock(), group=NO_GROUP):
                pass
        assert await ask(path, b"hello") == b"hello"


async def test_the_socket_of_a_process_that_is_gone_is_replaced(tmp_path: Path) -> None:
    path, echo = tmp_path / "control.sock", Echo()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
        gone.listen()
    async with listening(path, echo.serve, Clock(), group=NO_GROUP):
        assert await ask(path, b"hello") == b"hello"
