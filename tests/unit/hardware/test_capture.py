from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_policy.hardware import capture
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.sysfs import TopologyError

from .conftest import Plant

Pack = Callable[..., Path]


def member(name: str, type_: bytes = tarfile.REGTYPE, linkname: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type_, linkname
    return info


def link(name: str, target: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, target)


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    def pack(*members: tarfile.TarInfo, content: bytes = b"1\n") -> Path:
        path = tmp_path / "capture.tar.xz"
        with tarfile.open(path, "w:xz") as archive:
            for info in members:
                if info.isreg():
                    info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return path

    return pack


@pytest.mark.parametrize("folder", [".", "machine"])
def test_a_packed_tree_reads_like_the_tree(plant: Plant, tmp_path: Path, folder: str) -> None:
    root = plant("package:2(pmem=1GiB) core:2 pu:2")
    path = tmp_path / "capture.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.add(root, folder)
    with open_capture(path) as unpacked:
        assert discover(unpacked) == discover(root)
    assert not unpacked.exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "sys/../../evil", "a/../b"])
def test_names_that_leave_the_folder_are_refused(pack: Pack, name: str) -> None:
    with pytest.raises(TopologyError, match="leaves its folder"), open_capture(pack(member(name))):
        pass


@pytest.mark.parametrize(
    "target", ["/etc", "../../etc", "sys/../../..", "./../x", "a/b/../../../.."]
)
def test_links_out_of_the_folder_are_not_made(pack: Pack, target: str) -> None:
    with open_capture(pack(member("sys/x"), link("link", target))) as root:
        assert not (root / "link").is_symlink()


def test_nothing_is_written_through_links(pack: Pack) -> None:
    packed = pack(
        link("p/q/d", "../../r"),
        link("a", "p/q/d/../../.."),
        member("r/x"),
        link("a/evil", "x"),
        member("a/file"),
        link("b", "r"),
        member("b"),
    )
    with open_capture(packed) as root:
        inside = {str(path.relative_to(root)) for path in root.rglob("*")}
        assert {"a/evil", "a/file", "r/x", "b"} <= inside
        assert not (root / "a").is_symlink()
        assert not (root / "b").is_symlink()
        assert [path.name for path in root.parent.glob("evil")] == []


@pytest.mark.parametrize("type_", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_device_files_and_pipes_are_left_out(pack: Pack, type_: bytes) -> None:
    with open_capture(pack(member("sys/x"), member("sys/dev", type_))) as root:
        assert not (root / "sys" / "dev").exists()


def test_size_is_bounded(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MOST_BYTES", 1 << 16)
    packed = pack(member("sys/x"), content=bytes(1 << 17))
    assert packed.stat().st_size < 1000
    with pytest.raises(TopologyError, match="65536 bytes"), open_capture(packed):
        pass


def test_what_is_read_of_a_packed_file_is_bounded(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers count, too: each file has one, be it empty."""
    monkeypatch.setattr(capture, "_MOST_BYTES", 1 << 16)
    packed = pack(*(member(f"sys/{number}") for number in range(200)), content=b"")
    with pytest.raises(TopologyError, match="holds over 65536 bytes"), open_capture(packed):
        pass


def test_count_is_bounded(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MOST_MEMBERS", 10)
    packed = pack(*(member(f"sys/{number}") for number in range(11)))
    with pytest.raises(TopologyError, match="over 10 files"), open_capture(packed):
        pass


@pytest.mark.parametrize(
    "data",
    [b"", b"not xz", lzma.compress(b"not tar" * 100), lzma.compress(b"\0" * 512)[:-4]],
)
def test_what_is_no_capture_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.tar.xz"
    path.write_bytes(data)
    with (
        pytest.raises(TopologyError, match=r"bad\.tar\.xz: it is not a capture"),
        open_capture(path),
    ):
        pass


def test_an_absent_capture_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file"), open_capture(tmp_path / "none.tar.xz"):
        pass
