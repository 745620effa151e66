"""Which folders a container has of its host, as the mount tables of both say."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.foundation.mounts import is_shared, mount_point

OWN = Path("/proc/self/mountinfo")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the mount table of a host whose /proc is mounted in a container."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "host/proc")
    table = tmp_path / "host/proc/1/mountinfo"
    table.parent.mkdir(parents=True)
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "some folder"


def mount(point: Path | str, *, device: str = "7:7", root: str = "/") -> str:
    escaped = str(point).replace(" ", r"\040")
    return f"1 1 {device} {root} {escaped} rw - ext4 /dev/x rw\n"


def test_a_folder_of_the_same_file_system_is_the_hosts(host: Path, folder: Path) -> None:
    host.write_text(OWN.read_text())
    assert is_shared(folder, host.parents[2])


@pytest.mark.parametrize("more", ["", "/elsewhere"])
def test_a_folder_of_another_file_system_or_at_another_path_is_not(
    more: str, host: Path, folder: Path
) -> None:
    host.write_text(mount("/") + (mount("/elsewhere") if more else ""))
    assert not is_shared(folder, host.parents[2])


def test_the_innermost_and_latest_mount_counts(host: Path, folder: Path) -> None:
    own = OWN.read_text()
    host.write_text(own + mount(folder))
    assert not is_shared(folder, host.parents[2])
    assert not is_shared(folder / "below", host.parents[2])
    assert is_shared(folder.with_name(f"{folder.name}2"), host.parents[2])
    host.write_text(own + mount(folder.parent))
    assert not is_shared(folder, host.parents[2])


def test_a_volume_of_the_hosts_folder_is_the_same_wherever_its_file_system_is_mounted(
    host: Path, tmp_path: Path
) -> None:
    """As a hostPath is: the container mounts a part of what the host has as a whole."""
    at = Path("/proc")
    (line,) = (line for line in OWN.read_text().splitlines() if line.split()[4] == "/proc")
    device = line.split()[2]
    host.write_text(mount("/", device=device))
    assert not is_shared(at, tmp_path / "host"), "there it is /proc of that file system"
    host.write_text(mount("/") + mount("/proc/sys", device=device, root="/sys"))
    assert is_shared(at / "sys/kernel", tmp_path / "host")


def test_without_the_hosts_table_nothing_is_missed(host: Path, folder: Path) -> None:
    assert is_shared(folder, host.parents[2]), "it cannot be read"
    host.write_text("")
    assert is_shared(folder, host.parents[2])


def test_a_capture_is_no_host(tmp_path: Path) -> None:
    table = tmp_path / "proc/1/mountinfo"
    table.parent.mkdir(parents=True)
    table.write_text(mount("/"))
    assert is_shared(tmp_path, tmp_path)


def test_a_mount_point_is_that_of_the_innermost_file_system() -> None:
    assert mount_point(Path("/proc")) == mount_point(Path("/proc/self")) == Path("/proc")
    assert mount_point(Path("/nowhere")) == Path("/")
