"""What containers are told of themselves, on a disk that may hold or do anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_policy.plugin.exposure import FILE, Exposure

RESOURCES = {"SHARED_CPUS": "0-3", "ALL_MEMS": "0"}
TEXT = 'SHARED_CPUS="0-3"\nALL_MEMS="0"\n'


def shown(exposure: Exposure, container_id: str) -> Path:
    """Make a container's folder, and show it the resources; return the file."""
    mount = exposure.make(container_id)
    exposure.write(container_id, RESOURCES)
    return Path(mount.source) / FILE


def test_a_container_finds_its_resources_whatever_our_umask_is(tmp_path: Path) -> None:
    exposure = Exposure(tmp_path / "containers")
    before = os.umask(0o077)
    try:
        file = shown(exposure, "c1")
    finally:
        os.umask(before)
    assert file.read_text() == TEXT
    modes = [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o644, 0o755, 0o755]
    exposure.remove("c1")
    assert list((tmp_path / "containers").iterdir()) == []


def test_only_what_is_no_container_is_removed_unasked(tmp_path: Path) -> None:
    """No runtime lists a container while it makes it, and it could not start without the folder."""
    exposure = Exposure(tmp_path)
    for each in ("coming", "listed"):
        shown(exposure, each)
    (tmp_path / ".odd").mkdir()
    assert exposure.others({"listed"}) == {"coming"}
    assert {path.name for path in tmp_path.iterdir()} == {"coming", "listed"}


def test_nothing_is_made_before_there_is_a_container(tmp_path: Path) -> None:
    exposure = Exposure(tmp_path / "nowhere" / "containers")
    assert exposure.others({"c1"}) == set()
    exposure.remove("c1")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_right_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be read-only; what it shows of the resources then stays as it was."""
    exposure = Exposure(tmp_path / "containers")
    shown(exposure, "c1")
    for name in ("fchmod", "write", "replace"):
        monkeypatch.setattr(os, name, None)
    shown(exposure, "c1")


def test_a_container_that_has_a_folder_keeps_it(tmp_path: Path) -> None:
    """It may be created again."""
    exposure = Exposure(tmp_path)
    shown(exposure, "c1")
    exposure.make("c1")
    assert (tmp_path / "c1" / FILE).read_text() == TEXT


@pytest.mark.parametrize("name", ["containers", "containers/c1"])
def test_a_link_in_the_place_of_a_folder_is_never_followed(tmp_path: Path, name: str) -> None:
    """Also not where it comes after the folder was made: nothing is written, read or removed."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "c1").mkdir(parents=True)
    precious = [elsewhere / FILE, elsewhere / "c1" / FILE]
    for file in precious:
        file.write_text("precious")
    elsewhere.chmod(0o700)
    exposure = Exposure(tmp_path / "containers")
    exposure.make("c1")
    link = tmp_path / name
    link.rename(tmp_path / "aside")
    link.symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        exposure.make("c1")
    with pytest.raises(NotADirectoryError):
        exposure.write("c1", RESOURCES)
    exposure.remove("c1")
    exposure.others({"c1"})
    assert [file.read_text() for file in precious] == ["precious"] * 2
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def _link(path: Path) -> None:
    path.with_name("precious").write_text(TEXT)
    path.symlink_to("precious")


def _device(path: Path) -> None:
    """Make what /dev/zero is: there is no end to reading it."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("name", [FILE, f".{FILE}"])
@pytest.mark.parametrize("make", [_link, os.mkfifo, _device, Path.touch])
def test_what_is_in_the_place_of_the_file_is_replaced(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    """A link is not followed, and nobody waits for the other end of a FIFO."""
    exposure = Exposure(tmp_path / "containers")
    file = Path(exposure.make("c1").source) / FILE
    make(file.with_name(name))
    exposure.write("c1", RESOURCES)
    assert file.is_file()
    assert not file.is_symlink()
    assert {*file.parent.iterdir()} <= {file, file.with_name("precious")}
    assert file.read_text() == TEXT


@pytest.mark.parametrize("name", [FILE, f".{FILE}"])
def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path, name: str) -> None:
    exposure = Exposure(tmp_path / "containers")
    (tmp_path / "containers" / "c1" / name / "precious").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        exposure.write("c1", RESOURCES)


def test_what_is_forgotten_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.write_text("precious")
    exposure = Exposure(tmp_path / "containers")
    for each in ("gone", ".odd"):
        (tmp_path / "containers" / each).mkdir(parents=True)
        (tmp_path / "containers" / each / "link").symlink_to(precious.parent)
    for each in ("c2", ".odd link"):
        (tmp_path / "containers" / each).symlink_to(precious.parent)
    exposure.remove("c2")
    exposure.remove("gone")
    assert exposure.others({}) == {"c2"}
    assert precious.read_text() == "precious"
    assert {path.name for path in (tmp_path / "containers").iterdir()} == {"c2", ".odd link"}


@pytest.mark.parametrize(
    "odd", ["", ".", "..", "../c1", "a/b", "/etc", ".hidden", "a\n", "a\0", "ü", "x" * 257]
)
def test_an_id_that_is_no_name_of_a_folder_is_refused(tmp_path: Path, odd: str) -> None:
    exposure = Exposure(tmp_path / "containers")
    exposure.remove(odd)  # there is nothing to remove
    for each in (exposure.make, lambda name: exposure.write(name, RESOURCES)):
        with pytest.raises(ValueError, match="is not one"):
            each(odd)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_right_already_is_left_alone(tmp_path: Path) -> None:
    """Replacing a file can wait for the disk; a restart finds hundreds as they should be."""
    exposure = Exposure(tmp_path / "containers")
    file = shown(exposure, "c1")
    before = file.stat().st_ino
    exposure.write("c1", RESOURCES)
    assert file.stat().st_ino == before
    exposure.write("c1", {**RESOURCES, "ALL_MEMS": "01"})
    assert file.read_text() == TEXT.replace('"0"', '"01"')
    exposure.write("c1", RESOURCES)
    assert file.read_text() == TEXT


def test_a_text_that_the_disk_has_no_room_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposure = Exposure(tmp_path)
    exposure.make("c1")
    monkeypatch.setattr(os, "write", lambda _file, text: len(text) - 1)
    with pytest.raises(OSError, match="No space left"):
        exposure.write("c1", RESOURCES)
    assert not (tmp_path / "c1" / FILE).exists()


def test_a_container_without_a_folder_is_shown_nothing(tmp_path: Path) -> None:
    exposure = Exposure(tmp_path)
    with pytest.raises(FileNotFoundError):
        exposure.write("c1", RESOURCES)
    assert list(tmp_path.iterdir()) == []
