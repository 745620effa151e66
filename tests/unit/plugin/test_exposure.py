"""What containers are told of themselves, on a disk that may hold or do anything."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_policy.plugin.exposure import FILE, MAX_CREATION, PREPARED, Exposure

RESOURCES = {"SHARED_CPUS": "0-3", "ALL_MEMS": "0"}
TEXT = 'SHARED_CPUS="0-3"\nALL_MEMS="0"\n'


def test_a_container_finds_its_resources_whatever_our_umask_is(tmp_path: Path) -> None:
    exposure = Exposure(tmp_path / "containers")
    before = os.umask(0o077)
    try:
        exposure.add("c1", RESOURCES)
    finally:
        os.umask(before)
    file = Path(exposure.mount("c1").source) / FILE
    assert file.read_text() == TEXT
    modes = [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o644, 0o755, 0o755]
    exposure.remove("c1")
    assert list((tmp_path / "containers").iterdir()) == []


def much_later() -> float:
    return time.time() + MAX_CREATION


def test_a_container_that_may_be_under_creation_keeps_its_folder(tmp_path: Path) -> None:
    """No runtime lists one while it makes it, and it could not start without the folder."""
    Exposure(tmp_path).add("coming", RESOURCES)
    Exposure(tmp_path).keep_only({})
    assert (tmp_path / "coming" / FILE).read_text() == TEXT
    Exposure(tmp_path, now=much_later).keep_only({})
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_made_before_there_is_a_container(tmp_path: Path) -> None:
    exposure = Exposure(tmp_path / "nowhere" / "containers")
    exposure.keep_only({"c1"})
    exposure.remove("c1")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_right_already_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be read-only; what it shows of the resources then stays as it was."""
    exposure = Exposure(tmp_path / "containers")
    exposure.add("c1", RESOURCES)
    for name in ("fchmod", "write", "replace"):
        monkeypatch.setattr(os, name, None)
    exposure.add("c1", RESOURCES)


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
    exposure.add("c1", {})
    link = tmp_path / name
    link.rename(tmp_path / "aside")
    link.symlink_to(elsewhere)
    for write in (exposure.add, exposure.replace):
        with pytest.raises(NotADirectoryError):
            write("c1", RESOURCES)
    exposure.remove("c1")
    exposure.keep_only({"c2"})
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
    exposure.add("c1", {})
    file = Path(exposure.mount("c1").source) / FILE
    for write in (exposure.replace, exposure.add):
        for each in file.parent.iterdir():
            each.unlink()
        make(file.with_name(name))
        write("c1", RESOURCES)
        assert file.is_file()
        assert not file.is_symlink()
        assert {*file.parent.iterdir()} <= {file, file.with_name("precious")}
        assert file.read_text() == TEXT


@pytest.mark.parametrize("name", [FILE, f".{FILE}"])
def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path, name: str) -> None:
    exposure = Exposure(tmp_path / "containers")
    (tmp_path / "containers" / "c1" / name / "precious").mkdir(parents=True)
    for write in (exposure.replace, exposure.add):
        with pytest.raises(IsADirectoryError):
            write("c1", RESOURCES)


def test_what_is_forgotten_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.write_text("precious")
    exposure = Exposure(tmp_path / "containers", now=much_later)
    exposure.add("c1", RESOURCES)
    exposure.add("gone", RESOURCES)
    (tmp_path / "containers" / "c2").symlink_to(precious.parent)
    (tmp_path / "containers" / "gone" / "link").symlink_to(precious.parent)
    exposure.remove("c2")
    exposure.keep_only({"c1"})
    assert precious.read_text() == "precious"
    assert not (tmp_path / "containers" / "gone").exists()


@pytest.mark.parametrize(
    "odd", ["", ".", "..", "../c1", "a/b", "/etc", ".hidden", "a\n", "a\0", "ü", "x" * 257]
)
def test_an_id_that_is_no_name_of_a_folder_is_refused(tmp_path: Path, odd: str) -> None:
    exposure = Exposure(tmp_path / "containers")
    with pytest.raises(ValueError, match="is not one"):
        exposure.mount(odd)
    exposure.remove(odd)  # there is nothing to remove
    for write in (exposure.add, exposure.replace):
        with pytest.raises(ValueError, match="is not one"):
            write(odd, RESOURCES)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_right_already_is_left_alone(tmp_path: Path) -> None:
    """Replacing a file can wait for the disk; a restart finds hundreds as they should be."""
    exposure = Exposure(tmp_path / "containers")
    exposure.add("c1", RESOURCES)
    file = Path(exposure.mount("c1").source) / FILE
    before = file.stat().st_ino
    exposure.replace("c1", RESOURCES)
    assert file.stat().st_ino == before
    exposure.replace("c1", {**RESOURCES, "ALL_MEMS": "01"})
    assert file.read_text() == TEXT.replace('"0"', '"01"')
    exposure.replace("c1", RESOURCES)
    assert file.read_text() == TEXT


def prepared(folder: Path) -> set[int]:
    """Return the files that wait for containers to come."""
    return {path.stat().st_ino for path in folder.glob(f".*/{FILE}")}


def test_a_container_gets_a_folder_that_was_made_before(tmp_path: Path) -> None:
    folder = tmp_path / "containers"
    exposure = Exposure(folder)
    exposure.prepare()
    assert not folder.exists(), "there was no container yet"
    exposure.add("c1", RESOURCES)
    before = os.umask(0o077)
    try:
        exposure.prepare()
        exposure.prepare()
    finally:
        os.umask(before)
    files = prepared(folder)
    assert len(files) == PREPARED
    exposure.add("c2", RESOURCES)
    file = folder / "c2" / FILE
    assert file.stat().st_ino in files
    assert file.read_text() == TEXT
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o644, 0o755]
    exposure.prepare()
    assert len(prepared(folder)) == PREPARED
    Exposure(folder).keep_only({"c1", "c2"})
    assert {path.name for path in folder.iterdir()} == {"c1", "c2"}


def test_a_container_that_has_a_folder_keeps_it(tmp_path: Path) -> None:
    exposure = Exposure(tmp_path)
    exposure.add("c1", {})
    exposure.prepare()
    exposure.add("c1", RESOURCES)
    assert (tmp_path / "c1" / FILE).read_text() == TEXT


def test_without_what_was_prepared_a_folder_is_made(tmp_path: Path) -> None:
    """Of an earlier daemon's nothing is used, nor what anybody put into its place."""
    exposure = Exposure(tmp_path)
    Exposure(tmp_path).prepare()
    exposure.prepare()
    for number, each in enumerate(sorted(tmp_path.iterdir())):
        (each / FILE).unlink()
        if number % 2:
            (each / FILE).symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("precious")
    for number in range(PREPARED + 1):
        exposure.add(f"c{number}", RESOURCES)
        assert (tmp_path / f"c{number}" / FILE).read_text() == TEXT
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_text_that_the_disk_has_no_room_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exposure = Exposure(tmp_path)
    exposure.prepare()
    monkeypatch.setattr(os, "write", lambda _file, text: len(text) - 1)
    with pytest.raises(OSError, match="No space left"):
        exposure.add("c1", RESOURCES)


def test_a_link_in_the_place_of_the_folder_of_all_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "containers"
    folder.mkdir()
    exposure = Exposure(folder)
    exposure.prepare()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        exposure.add("c1", RESOURCES)
    assert not (tmp_path / "elsewhere" / "c1").exists()
