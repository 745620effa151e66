from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_policy.hardware import sysfs
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree, TopologyError

from .conftest import Link, Plant, change

CPU = "sys/devices/system/cpu"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[FileTree]:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("7")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("7")
    with FileTree(tmp_path / "root", Notes()) as opened:
        yield opened


def test_links_inside_the_root_are_followed(tree: FileTree) -> None:
    change(tree.root, {"a/b/file": "5", "a/link": Link("b"), "c": Link("a/link/../b/file")})
    with tree.folder("a") as folder, folder.folder("link") as inner:
        assert inner.integer("file") == 5
    with tree.folder("") as top:
        assert top.integer("c") == 5


@pytest.mark.parametrize("target", ["../secret", "x/../../secret", "../../../../../etc/passwd"])
def test_links_out_of_the_root_are_noted_not_followed(tree: FileTree, target: str) -> None:
    change(tree.root, {"x/file": "1", "link": Link(target)})
    with tree.folder("") as top:
        assert top.text("link") is None
    assert tree.notes.texts() == ("/link: is a link to nothing below the root folder",)


def test_folders_linked_out_of_the_root_are_not_entered(tree: FileTree) -> None:
    change(tree.root, {"link": Link("../outside"), "sub/link": Link("../../outside")})
    with tree.folder("link") as folder:
        assert not folder
    with tree.folder("sub") as sub, sub.folder("link") as folder:
        assert folder.text("file") is None
    with tree.folder("sub/link/..") as folder:
        assert not folder


def test_absolute_links_start_at_the_root(tree: FileTree) -> None:
    change(tree.root, {"etc/passwd": "5", "link": Link("/etc/passwd")})
    with tree.folder("") as top:
        assert top.integer("link") == 5


def test_links_that_loop_end(tree: FileTree) -> None:
    change(tree.root, {"a": Link("b"), "b": Link("a"), "c": Link("c/c")})
    with tree.folder("") as top:
        assert [top.text(name) for name in "abc"] == [None] * 3
        with top.folder("a") as folder:
            assert not folder


def test_reads_are_bounded(tree: FileTree) -> None:
    change(tree.root, {"huge": b"1" * (1 << 20)})
    with tree.folder("") as top:
        assert len(top.text("huge") or "") == 1 << 16
        assert len(top.text("huge", 10) or "") == 10


@pytest.mark.parametrize("length", [0, 1, 255, 256, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40000])
def test_files_of_any_length_are_read_to_their_end(tree: FileTree, length: int) -> None:
    (tree.root / "file").write_text("x" * length)
    with tree.folder("") as folder:
        assert folder.text("file") == "x" * length


def test_of_a_folder_with_too_many_names_some_are_looked_at(
    tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "_ENTRIES", 3)
    change(tree.root, {f"few/{number}": "" for number in range(3)})
    change(tree.root, {f"many/{number}": "" for number in range(4)})
    with tree.folder("few") as folder:
        assert folder.names() == ["0", "1", "2"]
    assert not tree.notes.texts()
    with tree.folder("many") as folder:
        assert len(folder.names()) == 3
    assert tree.notes.texts() == ("many: only 3 names were looked at",)


def test_pipes_do_not_block_and_folders_are_no_files(tree: FileTree) -> None:
    os.mkfifo(tree.root / "pipe")
    change(tree.root, {"folder/file": "1"})
    with tree.folder("") as top:
        assert top.text("pipe") == ""
        assert top.text("folder") is None
        with top.folder("pipe") as folder:
            assert folder.names() == []
    assert "/folder: cannot be read: Is a directory" in tree.notes.texts()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5\n", 5),
        ("-1\n", -1),
        ("0x8086", 0x8086),
        ("007", 7),
        ("5\n\0", 5),
        ("", None),
        ("five", None),
        ("1_000", None),
        ("٣", None),
        ("9" * 5000, None),
        ("1 2", None),
    ],
)
def test_numbers_are_decimal_or_prefixed_hexadecimal(
    tree: FileTree, text: str, number: int | None
) -> None:
    change(tree.root, {"file": text})
    with tree.folder("") as top:
        assert top.integer("file") == number
    assert bool(tree.notes.texts()) == (number is None)


def test_bad_lists_fall_back_on_masks(tree: FileTree) -> None:
    change(tree.root, {"list": "0-", "mask": "f"})
    with tree.folder("") as top:
        assert str(top.set("list", "mask")) == "0-3"
        assert top.set("list") is None
    assert len(tree.notes.texts()) == 1


def test_the_root_itself_may_be_a_link(plant: Plant, tmp_path: Path) -> None:
    root = plant("core:2")
    (tmp_path / "alias").symlink_to(root)
    assert str(discover(tmp_path / "alias").online) == "0-1"


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TopologyError, match="Not a directory"):
        discover(tmp_path / "file")


def test_a_machine_is_never_read_through_links_out_of_the_root(
    plant: Plant, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    change(tmp_path / "elsewhere", {"topology/core_cpus_list": "0-1"})
    root = plant("core:2", {f"{CPU}/cpu1": Link("../../../../../elsewhere")})
    assert [str(core.cpus) for core in discover(root).cores] == ["0", "1"]


def test_notes_are_bounded() -> None:
    notes = Notes()
    for number in range(1000):
        notes.add(f"odd {number}")
        notes.add("odd 1", number)
    assert len(notes.texts()) == 201
    assert notes.texts()[1] == "odd 1 (CPUs 0-999)"
    assert notes.texts()[-1] == "800 more notes left out"
