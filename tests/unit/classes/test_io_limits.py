"""Classes of block I/O, on the disks of a node."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.classes import Equipment, join_changes, limits_to_write, parse_limits
from nri_policy.classes.io_limits import compute_limits
from nri_policy.hardware.disks import Disk
from nri_policy.settings import SettingsError
from tests.support import nodes

SDA = Disk(
    number="8:0",
    name="sda",
    paths=("/dev/disk/by-id/wwn-1", "/dev/sda", "/dev/sda1"),
    scheduler="bfq",
)
SDB = Disk(number="8:16", name="sdb", paths=("/dev/sdb",), scheduler="bfq")
LOOP = Disk(number="7:3", name="loop3", paths=("/dev/loop3",), costed=True)
NVME = Disk(number="259:0", name="nvme0n1", paths=("/dev/nvme0n1",), scheduler="none")
EQUIPMENT = Equipment(disks=(LOOP, SDA, SDB), weights=("io.weight", "io.bfq.weight"))


def limits(
    *entries: dict[str, Any], equipment: Equipment = EQUIPMENT
) -> tuple[dict[str, str], list[str]]:
    control = {"blockio": {"enable": True, "classes": {"a": list(entries)}}}
    return compute_limits(nodes.settings(control=control).control.blockio.classes["a"], equipment)


def test_limits_are_lines_of_all_four_for_each_disk_that_a_glob_names() -> None:
    found = limits({"Devices": ["/dev/sd?"], "ThrottleReadBps": "50M", "ThrottleWriteIOPS": 100})
    assert found == (
        {
            "io.max": "8:0 rbps=50000000 wbps=max riops=max wiops=100\n"
            "8:16 rbps=50000000 wbps=max riops=max wiops=100"
        },
        [],
    )


@pytest.mark.parametrize("glob", ["/dev/sda1", "/dev/disk/by-id/wwn-*", "/dev/sda"])
def test_links_and_partitions_stand_for_their_disk(glob: str) -> None:
    found, _ = limits({"Devices": [glob], "ThrottleWriteBps": "1Mi"})
    assert found == {"io.max": "8:0 rbps=max wbps=1048576 riops=max wiops=max"}


def test_later_entries_count_for_each_disk_and_limit() -> None:
    found, _ = limits(
        {"Devices": ["/dev/sd*"], "ThrottleReadBps": 100, "ThrottleWriteBps": 100},
        {"Devices": ["/dev/sdb"], "ThrottleReadBps": 5},
    )
    assert found["io.max"].splitlines() == [
        "8:0 rbps=100 wbps=100 riops=max wiops=max",
        "8:16 rbps=5 wbps=100 riops=max wiops=max",
    ]


def test_a_weight_without_devices_is_for_all_and_in_each_file_s_own_range() -> None:
    found, lacking = limits({"Weight": 10}, {"Devices": ["/dev/sda"], "Weight": "1000"})
    assert found == {
        "io.weight": "default 1\n8:0 10000",
        "io.bfq.weight": "default 10\n8:0 1000",
    }
    assert not lacking


def test_what_has_no_effect_is_said() -> None:
    _, lacking = limits({"Devices": ["/dev/vd*"], "ThrottleReadBps": 1})
    assert lacking == ["no disk is /dev/vd*"]
    _, lacking = limits({"Weight": 100}, equipment=Equipment(disks=(SDA,)))
    assert lacking == ["no weights: this kernel has neither io.weight nor io.bfq.weight"]
    _, lacking = limits({"Weight": 100}, equipment=Equipment(disks=(NVME,), weights=("io.weight",)))
    assert lacking == ["no weights on nvme0n1: the disk needs the scheduler bfq, or io.cost"]


def test_a_runc_that_writes_one_line_gets_one() -> None:
    one = Equipment(disks=EQUIPMENT.disks, one_disk="only runc 1.2")
    found, lacking = limits({"Devices": ["/dev/sd*"], "ThrottleReadBps": 1}, equipment=one)
    assert found == {"io.max": "8:0 rbps=1 wbps=max riops=max wiops=max"}
    assert lacking == ["io.max of 8:16: only runc 1.2"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"Devices": ["/dev/sda"], "ThrottleReadBps": 0},
            "ThrottleReadBps: 0: the kernel does not accept a limit of 0",
        ),
        (
            {"Devices": ["/dev/sda"], "ThrottleWriteIOPS": "many"},
            "ThrottleWriteIOPS: 'many' is not a memory quantity, such as 512Mi, 2G or 1073741824",
        ),
        ({"Weight": 9}, "Weight: 9 is not from 10 to 1000"),
        ({"Weight": "1001"}, "Weight: 1001 is not from 10 to 1000"),
        ({"ThrottleReadBps": 1}, "Devices: a limit requires the devices that it is for"),
        (
            {"Devices": ["sda"], "ThrottleReadBps": 1},
            "Devices: 'sda' does not begin with /dev/",
        ),
    ],
)
def test_what_the_kernel_would_refuse_is_an_error_of_the_settings(
    entry: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        limits(entry)
    (found,) = caught.value.problems
    assert str(found).removeprefix("control.blockio.classes.a[0].") == problem


def test_a_disk_that_came_is_the_only_line_that_is_written() -> None:
    before, _ = limits({"Devices": ["/dev/sda"], "ThrottleReadBps": 1})
    after, _ = limits({"Devices": ["/dev/sd*"], "ThrottleReadBps": 1})
    assert limits_to_write(before, after, EQUIPMENT) == {
        "io.max": "8:16 rbps=1 wbps=max riops=max wiops=max"
    }


def test_what_is_limited_no_more_is_lifted_unless_it_is_gone() -> None:
    before, _ = limits({"Devices": ["/dev/sd*"], "ThrottleReadBps": 1, "Weight": 50})
    there = Equipment(disks=(SDA,))
    assert limits_to_write(before, {}, there) == {
        "io.max": "8:0 rbps=max wbps=max riops=max wiops=max",
        "io.weight": "8:0 default",
        "io.bfq.weight": "8:0 default",
    }
    weight, _ = limits({"Weight": 50})
    assert limits_to_write(weight, {}, there)["io.weight"] == "default 100"


def test_two_changes_one_after_the_other_are_one() -> None:
    first = {"io.max": "8:0 rbps=1 wbps=max riops=max wiops=max"}
    then = {"io.max": "8:16 rbps=2 wbps=max riops=max wiops=max", "io.weight": "default 5"}
    assert join_changes(first, then) == {
        "io.max": f"{first['io.max']}\n{then['io.max']}",
        "io.weight": "default 5",
    }
    again = {"io.max": "8:0 rbps=9 wbps=max riops=max wiops=max"}
    assert join_changes(first, again) == again


def test_what_limits_nothing_is_not_read() -> None:
    assert parse_limits("8:0 rbps=max wbps=max riops=max wiops=max\n8:16 rbps=1 wbps=max\n") == {
        "8:16": "rbps=1 wbps=max"
    }
