from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
from pathlib import Path

import pytest

from nri_policy.foundation.inotify import Inotify
from tests.support.patience import HANGS


def write(file: Path) -> None:
    """Write to a file as another process."""
    subprocess.run(["sh", "-c", 'echo 1 > "$0"', file], check=True)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files with a name that is none of a string's."""
    pair = tmp_path / os.fsdecode(b"\xff"), tmp_path / "second"
    for each in pair:
        each.touch()
    return pair


async def test_a_write_by_another_process_is_told_and_of_watched_files_alone(
    files: tuple[Path, Path],
) -> None:
    first, second = files
    changed = asyncio.Event()
    with Inotify(changed.set) as inotify:
        inotify.watch([str(first)])
        write(second)
        first.read_text()
        await asyncio.sleep(0)
        assert not changed.is_set()
        write(first)
        await asyncio.wait_for(changed.wait(), HANGS)
        inotify.watch([str(second)])
        changed.clear()
        write(first)
        for _ in range(3):  # the kernel also sends an event about the end of the first watch
            await asyncio.sleep(0)
        assert not changed.is_set()
        write(second)
        await asyncio.wait_for(changed.wait(), HANGS)


async def test_what_is_not_there_is_watched_once_it_is(tmp_path: Path) -> None:
    changed, file = asyncio.Event(), tmp_path / "late"
    with Inotify(changed.set) as inotify:
        inotify.watch([str(file), str(file / "below")])
        file.touch()
        inotify.watch([str(file)])
        write(file)
        await asyncio.wait_for(changed.wait(), HANGS)


async def test_what_cannot_be_watched_is_an_error_and_the_others_are_watched(
    files: tuple[Path, Path],
) -> None:
    first, _ = files
    changed = asyncio.Event()
    with Inotify(changed.set) as inotify:
        with pytest.raises(OSError, match="name too long") as raised:
            inotify.watch([str(first), "x" * 300])
        assert raised.value.errno == errno.ENAMETOOLONG
        write(first)
        await asyncio.wait_for(changed.wait(), HANGS)


async def test_no_more_instances_are_an_error() -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Inotify(lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
