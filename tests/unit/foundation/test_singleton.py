from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.singleton import (
    LOOK,
    SUCCESSION,
    AlreadyRunningError,
    only_instance,
    succeed,
)

HOLDER = """
import sys
from collections.abc import Callable
from pathlib import Path
from nri_policy.foundation.singleton import only_instance
with only_instance(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_instance_is_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunningError, match=f"held by process {first.pid}") as refused:
            only_instance(path).__enter__()
        assert (refused.value.path, refused.value.holder) == (path, str(first.pid))
        first.kill()  # the lock goes with its holder, however that ends
    with only_instance(path):
        assert path.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(("first", "second"), [(1, 0), (0, 2), (2, 3)])
def test_a_daemon_waits_for_one_that_is_ending(tmp_path: Path, first: int, second: int) -> None:
    """It needs both locks, and is patient for their sake only once."""
    paths = (tmp_path / "state", tmp_path / "containers")
    slept: list[float] = []

    async def check() -> None:
        with ExitStack() as one, ExitStack() as other:
            one.enter_context(only_instance(paths[0]) if first else ExitStack())
            other.enter_context(only_instance(paths[1]) if second else ExitStack())

            async def sleep(seconds: float) -> None:
                slept.append(seconds)
                if len(slept) == first:
                    one.close()
                if len(slept) == first + second:
                    other.close()

            async with AsyncExitStack() as stack:
                await succeed(paths, stack, Clock(sleep=sleep))
                for path in paths:
                    with pytest.raises(AlreadyRunningError):
                        only_instance(path).__enter__()
            for path in paths:
                with only_instance(path):
                    pass

    asyncio.run(check())
    assert slept == [LOOK] * (first + second)


def test_a_daemon_gives_up_on_one_that_stays(tmp_path: Path) -> None:
    paths = (tmp_path / "state", tmp_path / "containers")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def check() -> None:
        async with AsyncExitStack() as stack:
            await succeed(paths, stack, Clock(sleep=sleep))

    with only_instance(paths[1]), pytest.raises(AlreadyRunningError, match="containers"):
        asyncio.run(check())
    assert sum(slept) == pytest.approx(SUCCESSION)
    with only_instance(paths[0]):
        pass


def test_the_lock_is_free_again_after_its_use(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with only_instance(path):
            pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_held_by_nobody_in_particular_still_refuses(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with only_instance(path):
        path.write_text("")
        with pytest.raises(AlreadyRunningError, match="of unknown id"):
            only_instance(path).__enter__()


def test_a_lock_file_in_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        only_instance(tmp_path / "nowhere" / "lock").__enter__()


def _failing(call: Callable[..., int], number: int, *, flags: int = 0) -> Callable[..., int]:
    """Return *call* as a disk answers it that fails so, for opening only with any of *flags*."""

    def fail(path: Path, *rest: int, **named: int) -> int:
        if not flags or rest[0] & flags:
            raise OSError(number, os.strerror(number), str(path))
        return call(path, *rest, **named)

    return fail


def test_a_disk_that_is_full_keeps_nobody_from_holding_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", _failing(os.pwrite, errno.ENOSPC))
    path = tmp_path / "lock"
    with (
        only_instance(path),
        pytest.raises(AlreadyRunningError, match="of unknown id"),
        only_instance(path),
    ):
        pass


def test_an_old_lock_file_on_a_read_only_disk_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    with only_instance(path):
        pass
    monkeypatch.setattr(os, "open", _failing(os.open, errno.EROFS, flags=os.O_RDWR))
    with only_instance(path), pytest.raises(AlreadyRunningError), only_instance(path):
        pass
    path.unlink()
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        only_instance(path).__enter__()


def test_a_link_is_no_lock_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        only_instance(tmp_path / "lock").__enter__()
    assert precious.read_text() == "precious"
