from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nri_policy.foundation.yamltext import MAX_SIZE
from nri_policy.settings import SettingsError
from nri_policy.settings.sources.file import PERIOD, SettingsFile, watch

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


async def test_the_watch_tells_of_each_change() -> None:
    answers = iter((False, True, False))
    slept: asyncio.Queue[float] = asyncio.Queue()
    go_on = asyncio.Semaphore(0)
    changes: list[int] = []

    async def sleep(seconds: float) -> None:
        slept.put_nowait(seconds)
        await go_on.acquire()

    class File(SettingsFile):
        def changed(self) -> bool:
            return next(answers)

    watching = asyncio.create_task(watch(File(Path()), lambda: changes.append(1), sleep=sleep))
    for seen in (0, 0, 1, 1):
        assert await slept.get() == PERIOD
        assert len(changes) == seen
        go_on.release()
    watching.cancel()
