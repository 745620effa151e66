"""What containers are told of themselves, on a disk that may hold or do anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_policy.nri.exposure import FILE, Exposure

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
    monkeypatch.setattr(os, "chmod", None)
    exposure.add("c1", RESOURCES)


@pytest.mark.parametrize("name", ["containers", "containers/c1", f"containers/c1/.{FILE}"])
def test_a_link_is_never_written_through(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    target = elsewhere
    if name.endswith(FILE):
        target = elsewhere / "file"
        target.write_text("precious")
    link = tmp_path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    with pytest.raises(OSError, match=r"(?i)exists|symbolic links"):
        Exposure(tmp_path / "containers").add("c1", RESOURCES)
    assert [path.read_text() for path in elsewhere.iterdir()] == ["precious"] * (
        target != elsewhere
    )
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_place_of_the_file_is_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    exposure = Exposure(tmp_path / "containers")
    exposure.add("c1", {})
    file = Path(exposure.mount("c1").source) / FILE
    file.unlink()
    file.symlink_to(precious)
    exposure.replace("c1", RESOURCES)
    assert not file.is_symlink()
    assert (file.read_text(), precious.read_text()) == (TEXT, "precious")


def test_what_is_forgotten_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere" / "precious"
    precious.parent.mkdir()
    precious.write_text("precious")
    exposure = Exposure(tmp_path / "containers")
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
