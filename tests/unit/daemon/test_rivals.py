"""Two daemons of one runtime: the second waits, and each says who the other is."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nri_policy.daemon.rivals import Rivals
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nri.session import Session
from tests.support.patience import HANGS
from tests.unit.nri.peer import RecordingPlugin

ROOT = Path("/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nri").mkdir()
    return tmp_path / "nri"


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0)


def _times_open(folder: Path) -> int:
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closes one, and this loop its own
            count += each.readlink() == folder
    return count


def _remove(folder: Path) -> None:
    folder.rmdir()


def _make(folder: Path) -> None:
    folder.mkdir()


async def _held(rivals: Rivals, folder: Path) -> None:
    await asyncio.wait_for(rivals.keep_out(folder / "nri.sock"), HANGS)


async def test_the_second_waits_for_the_first_and_goes_on_when_it_has_ended(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = Rivals(ROOT), Rivals(ROOT)
    await _held(first, folder)
    assert first.problems() == []
    waiting = asyncio.create_task(second.keep_out(folder / "nri.sock"))
    await _until(lambda: bool(first.waiting()))
    me = f"process {os.getpid()} ("
    assert second.holder.startswith(me)
    assert second.problems() == [
        f"{second.holder} answers this runtime already; stop one of the two"
    ]
    (said,) = first.problems()
    assert said.startswith(f"another daemon waits to answer this runtime: {me}")
    assert caplog.text.count("event=another-daemon ") == 1
    assert not waiting.done()
    first.release()
    await asyncio.wait_for(waiting, HANGS)
    assert "event=other-daemon-ended" in caplog.text
    assert second.holder == ""
    assert second.problems() == []
    second.release()


async def test_it_registers_again_with_the_lock_that_it_has(folder: Path) -> None:
    rivals = Rivals(ROOT)
    for _ in range(3):
        await _held(rivals, folder)
    assert _times_open(folder) == 1
    rivals.release()


async def test_a_folder_that_was_made_anew_is_locked_anew(folder: Path) -> None:
    rivals, other = Rivals(ROOT), Rivals(ROOT)
    await _held(rivals, folder)
    _remove(folder)
    await _held(rivals, folder)  # there is none: nobody can be registered
    _make(folder)
    await _held(rivals, folder)
    waiting = asyncio.create_task(other.keep_out(folder / "nri.sock"))
    await _until(lambda: bool(rivals.waiting()))
    rivals.release()
    await asyncio.wait_for(waiting, HANGS)
    other.release()


async def test_one_that_ends_while_it_waits_leaves_the_lock_to_the_next(folder: Path) -> None:
    first, second, third = (Rivals(ROOT) for _ in range(3))
    await _held(first, folder)
    waiting = asyncio.create_task(second.keep_out(folder / "nri.sock"))
    await _until(lambda: bool(first.waiting()))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.release()
    await _held(third, folder)
    third.release()


async def test_a_holder_that_is_killed_holds_nothing(folder: Path) -> None:
    """However it ends: the kernel lets go of it."""
    holding = "import fcntl,os,sys,time\nf=os.open(sys.argv[1],os.O_RDONLY)\n"
    holding += "fcntl.flock(f,fcntl.LOCK_EX)\nprint(flush=True)\ntime.sleep(600)\n"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", holding, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    rivals = Rivals(ROOT)
    waiting = asyncio.create_task(rivals.keep_out(folder / "nri.sock"))
    await _until(lambda: bool(rivals.holder))
    assert rivals.holder.startswith(f"process {process.pid} ({sys.executable} -c import")
    process.kill()
    await asyncio.wait_for(waiting, HANGS)
    await process.wait()
    rivals.release()


async def test_where_no_process_can_be_seen_it_waits_all_the_same(
    folder: Path, tmp_path: Path
) -> None:
    first, second = Rivals(ROOT), Rivals(tmp_path)
    await _held(first, folder)
    waiting = asyncio.create_task(second.keep_out(folder / "nri.sock"))
    await _until(lambda: bool(first.waiting()))
    assert second.holder == "an unknown process"
    first.release()
    await asyncio.wait_for(waiting, HANGS)
    assert second.waiting() == ""
    second.release()


async def test_a_session_connects_to_no_runtime_that_another_daemon_has(tmp_path: Path) -> None:
    asked: list[Path] = []
    never = asyncio.Event()

    async def keep_out(socket: Path) -> None:
        asked.append(socket)
        await never.wait()

    connected = asyncio.Event()
    server = await asyncio.start_unix_server(lambda *_: connected.set(), tmp_path / "nri.sock")
    async with server:
        session = Session(
            RecordingPlugin(),
            PluginIdentity(name="nri-policy", index="90"),
            keep_out=keep_out,
        )
        running = asyncio.create_task(session.run(str(tmp_path / "nri.sock")))
        await _until(lambda: bool(asked))
        assert asked == [tmp_path / "nri.sock"]
        assert not connected.is_set()
        running.cancel()
