from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.foundation.inotify import Inotify
from nri_policy.foundation.yamltext import MAX_SIZE
from nri_policy.settings import SettingsError
from nri_policy.settings_sources import settings_file as source
from nri_policy.settings_sources.settings_file import (
    PERIOD,
    SETTLE,
    SettingsFile,
    WatchedFile,
    watch,
)
from tests.support.turned_time import Time

TEXT = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec: {reservedResources: {cpu: 1}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    return path


def loaded(path: Path) -> SettingsFile:
    file = SettingsFile(path)
    file.load()
    assert [file.changed(), file.changed()] == [False, False]
    return file


def mounted(tmp_path: Path, name: str, text: str) -> Path:
    """Write a file the way that a ConfigMap is mounted, and return its path."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    new = tmp_path / "..data_tmp"
    new.symlink_to(name)
    new.rename(tmp_path / "..data")
    path = tmp_path / "mounted.yaml"
    if not path.is_symlink():
        path.symlink_to("..data/config.yaml")
    return path


def test_a_changed_file_is_noticed_once_it_rests(path: Path) -> None:
    file = loaded(path)
    path.write_text(TEXT + "# half\n")
    assert not file.changed(), "it may still be written"
    path.write_text(TEXT + "# half and the other\n")
    assert not file.changed()
    assert file.changed()
    assert not file.changed(), "it is changes once"


def test_a_file_that_nobody_loads_is_no_news(path: Path) -> None:
    file = SettingsFile(path)
    assert [file.changed(), file.changed(), file.changed()] == [False] * 3


def test_another_file_of_the_same_size_and_time_is_noticed(path: Path) -> None:
    file = loaded(path)
    status = path.stat()
    new = path.with_suffix(".new")
    new.write_text(TEXT.replace("cpu: 1", "cpu: 2"))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.rename(path)
    assert [file.changed(), file.changed()] == [False, True]


def test_a_configmap_that_is_swapped_is_noticed(tmp_path: Path) -> None:
    path = mounted(tmp_path, "..one", TEXT)
    file = loaded(path)
    mounted(tmp_path, "..two", TEXT)
    assert [file.changed(), file.changed()] == [False, True]
    assert str(file.load().reserved.cpu) == str(SettingsFile(path).load().reserved.cpu)


def test_a_file_that_is_removed_is_noticed_once_and_when_it_comes_back(path: Path) -> None:
    file = loaded(path)
    path.unlink()
    assert [file.changed(), file.changed()] == [False, True]
    with pytest.raises(SettingsError, match=r"cannot be read: No such file"):
        file.load()
    assert [file.changed(), file.changed()] == [False, False]
    path.write_text(TEXT)
    assert [file.changed(), file.changed()] == [False, True]


def test_links_that_go_round_are_like_no_file(path: Path) -> None:
    file = loaded(path)
    path.unlink()
    path.symlink_to(path.name)
    assert [file.changed(), file.changed()] == [False, True]
    with pytest.raises(SettingsError, match="cannot be read"):
        file.load()


def test_no_more_of_a_file_is_read_than_settings_can_have(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SettingsError, match=f"longer than {MAX_SIZE} bytes"):
        SettingsFile(path).load()


@asynccontextmanager
async def watched(file: WatchedFile) -> AsyncIterator[tuple[Time, list[int]]]:
    """Yield the time of a watch, and an entry for each change that it told of."""
    time, changes = Time(), list[int]()
    task = asyncio.create_task(watch(file, lambda: changes.append(1), time.clock))
    yield time, changes
    task.cancel()
    await asyncio.wait({task})


def replace_by_another(path: Path) -> None:
    """Replace a file as editors do."""
    path.with_suffix(".new").write_text(f"{TEXT}# other\n")
    path.with_suffix(".new").rename(path)


def swap_the_configmap(path: Path) -> None:
    mounted(path.parent, "..two", f"{TEXT}# other\n")


def write_into_it(path: Path) -> None:
    path.write_text(f"{TEXT}# other\n")


@pytest.mark.parametrize("change", [replace_by_another, swap_the_configmap, write_into_it])
async def test_the_kernel_tells_of_a_change_and_is_else_trusted_for_long(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = mounted(tmp_path, "..one", TEXT)
    async with watched(loaded(path)) as (time, changes):
        for seen in (0, 1):
            assert await time.next_sleep(over=False) > PERIOD
            assert len(changes) == seen
            change(path)
            assert [await time.next_sleep(), await time.next_sleep()] == [SETTLE, SETTLE]
            change = Path.unlink
        assert await time.next_sleep(over=False) > PERIOD
        assert len(changes) == 2, "there is no file any more"


async def test_a_link_further_up_that_is_turned_is_told(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(TEXT)
    (tmp_path / "now").symlink_to("one")
    async with watched(loaded(tmp_path / "now" / "config.yaml")) as (time, changes):
        await time.next_sleep(over=False)
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(tmp_path / "now")
        assert [await time.next_sleep(), await time.next_sleep()] == [SETTLE, SETTLE]
        await time.next_sleep(over=False)
        assert changes == [1]


async def test_a_folder_that_is_made_again_is_watched_again(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "config.yaml"

    def make(text: str) -> None:
        file.parent.mkdir()
        file.write_text(text)

    make(TEXT)
    async with watched(loaded(file)) as (time, changes):
        await time.next_sleep(over=False)
        shutil.rmtree(file.parent)
        make(f"{TEXT}# made again\n")
        assert [await time.next_sleep(), await time.next_sleep()] == [SETTLE, SETTLE]
        assert await time.next_sleep(over=False) > PERIOD
        write_into_it(file)
        assert [await time.next_sleep(), await time.next_sleep()] == [SETTLE, SETTLE]
        await time.next_sleep(over=False)
        assert changes == [1, 1]


async def test_where_the_kernel_does_not_tell_it_is_looked_at_every_period(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "Inotify", no_more)
    async with watched(loaded(path)) as (time, changes):
        for seen in (0, 0):
            assert await time.next_sleep() <= PERIOD
            assert len(changes) == seen
        write_into_it(path)
        assert await time.next_sleep() == PERIOD, "it may still be written"
        assert await time.next_sleep() == PERIOD
        await time.next_sleep(over=False)
        assert changes == [1]


def no_more(*_: object) -> Inotify:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_file_system_that_others_change_is_looked_at_every_period(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "is_local", lambda _: False)
    async with watched(loaded(path)) as (time, _):
        for _ in range(3):
            assert await time.next_sleep() <= PERIOD
