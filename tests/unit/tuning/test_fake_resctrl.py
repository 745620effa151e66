"""The fake resctrl refuses what the kernel refuses, with its words (spec classes.md §4)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.fake_resctrl import FakeResctrl


@pytest.fixture(name="resctrl")
def _resctrl(tmp_path: Path) -> FakeResctrl:
    resctrl = FakeResctrl(tmp_path, caches={"L3": 12}, least=2, closids=3)
    resctrl.mkdir("gold")
    return resctrl


def shown(resctrl: FakeResctrl, group: str = "gold") -> str:
    return (resctrl.top / group / "schemata").read_text()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("L3:0=f", "ok"),  # no end of line: the kernel does not get to its own checks
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L4:0=f\n", "Unknown or unsupported resource name 'L4'"),
        ("L3:0\n", "Missing '=' or non-numeric domain"),
        ("L3:x=f\n", "Missing '=' or non-numeric domain"),
        ("L3:0=f;0=f\n", "Duplicate domain 0"),
        ("L3:7=f\n", "ok"),  # without a text
        ("L3:0=xyz\n", "Non-hex character in the mask xyz"),
        ("L3:0=1fff\n", "Mask out of range"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=f0f\n", "The mask f0f has non-consecutive 1-bits"),
        ("L3:0=1\n", "Need at least 2 bits in the mask"),
        ("MB:0=fast\n", "Invalid MB value fast"),
        ("MB:0=5\n", "MB value 5 out of range [10,100]"),
        ("MB:0=101\n", "MB value 101 out of range [10,100]"),
        ("L3:0=f\nMB:0=5\n", "MB value 5 out of range [10,100]"),
        ("L3:0=f;1=1fff\n", "Mask out of range"),
    ],
)
def test_a_wrong_line_changes_nothing(resctrl: FakeResctrl, text: str, status: str) -> None:
    before = shown(resctrl)
    with pytest.raises(OSError, match="Invalid argument"):
        resctrl.write("gold/schemata", text.encode())
    assert resctrl.status == status
    assert shown(resctrl) == before, "what came before in the write is not applied"


def test_caches_that_are_not_named_keep_their_shares(resctrl: FakeResctrl) -> None:
    assert shown(resctrl) == "L3:0=fff;1=fff\nMB:0=100;1=100\n"
    resctrl.write("gold/schemata", b"L3:1=0FF\n MB:0=11\n")
    assert shown(resctrl) == "L3:0=fff;1=ff\nMB:0=20;1=100\n", "bandwidth is rounded up"
    assert resctrl.status == "ok"


def test_bandwidth_in_megabytes_has_no_range(tmp_path: Path) -> None:
    resctrl = FakeResctrl(tmp_path, caches={"L3": 4}, ids=[0], mbps=True)
    resctrl.write("schemata", b"MB:0=5\n")
    assert shown(resctrl, "") == "L3:0=f\nMB:0=5\n"


def test_some_processors_take_sparse_masks(tmp_path: Path) -> None:
    FakeResctrl(tmp_path, caches={"L3": 12}, sparse=True).write("schemata", b"L3:0=f0f\n")


def test_exclusive_shares_are_not_overlapped(resctrl: FakeResctrl) -> None:
    resctrl.write("gold/schemata", b"L3:0=f\n")
    resctrl.exclusive.add("gold")
    resctrl.mkdir("new")
    assert shown(resctrl, "new").startswith("L3:0=ff0;"), "it begins with what is shareable"
    with pytest.raises(OSError, match="Invalid argument"):
        resctrl.write("new/schemata", b"L3:0=ff\n")
    assert resctrl.status == "Overlaps with exclusive group"


def failure(resctrl: FakeResctrl, change: str, name: str) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is compared
        getattr(resctrl, change)(name)
    return caught.value.errno


def test_groups_are_made_in_the_root_and_limited_in_number(resctrl: FakeResctrl) -> None:
    assert failure(resctrl, "mkdir", "gold/inner") == errno.EPERM
    assert failure(resctrl, "mkdir", "new\n") == errno.EINVAL
    assert failure(resctrl, "mkdir", "gold") == errno.EEXIST
    resctrl.mkdir("silver")
    assert failure(resctrl, "mkdir", "bronze") == errno.ENOSPC
    assert resctrl.status == "Out of CLOSIDs"
    resctrl.rmdir("silver")
    resctrl.mkdir("bronze")


def test_processes_of_a_removed_group_go_to_the_root(resctrl: FakeResctrl) -> None:
    resctrl.tasks = {7: ""}
    resctrl.write("gold/tasks", b"7\n")
    resctrl.rmdir("gold")
    assert resctrl.tasks == {7: ""}
    assert failure(resctrl, "rmdir", "info") == errno.EPERM
    assert failure(resctrl, "rmdir", "") == errno.EPERM
    assert failure(resctrl, "rmdir", "gold") == errno.ENOENT


@pytest.mark.parametrize(
    ("text", "number", "status"),
    [
        (b"8\n", errno.ESRCH, "No task 8"),
        (b"x\n", errno.EINVAL, "Task list parsing error pid x"),
    ],
)
def test_only_processes_that_there_are_can_be_moved(
    resctrl: FakeResctrl, text: bytes, number: int, status: str
) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is compared
        resctrl.write("gold/tasks", text)
    assert (caught.value.errno, resctrl.status) == (number, status)


def test_other_files_are_not_written(resctrl: FakeResctrl) -> None:
    with pytest.raises(PermissionError):
        resctrl.write("gold/size", b"1\n")
    with pytest.raises(FileNotFoundError):
        resctrl.write("silver/schemata", b"L3:0=f\n")
