"""Disks of a host: numbers, partitions, links of udev."""

from __future__ import annotations

from pathlib import Path

from nri_policy.hardware.disks import Disk, disks_of


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def block(root: Path, name: str, number: str, *, disk: str = "", size: str = "2048") -> None:
    """Write a block device as sysfs has it; a partition is in the folder of its *disk*."""
    place = f"devices/pci/block/{disk}/{name}" if disk else f"devices/pci/block/{name}"
    put(root, f"sys/{place}/dev", f"{number}\n")
    put(root, f"sys/{place}/size", f"{size}\n")
    if disk:
        put(root, f"sys/{place}/partition", "1\n")
    link = root / "sys/class/block" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../{place}")


def test_a_partition_and_the_links_of_udev_stand_for_the_disk(tmp_path: Path) -> None:
    block(tmp_path, "sdb", "8:16")
    block(tmp_path, "sda", "8:0")
    block(tmp_path, "sda1", "8:1", disk="sda")
    block(tmp_path, "dm-0", "254:0")
    block(tmp_path, "loop0", "7:0", size="0")
    block(tmp_path, "cciss!c0d0", "104:0")
    put(tmp_path, "sys/devices/pci/block/sda/queue/scheduler", "none mq-deadline [bfq]\n")
    put(tmp_path, "run/udev/data/b8:0", "S:disk/by-id/wwn-1\nI:5\n")
    put(tmp_path, "run/udev/data/b8:1", "S:disk/by-uuid/abc\n")
    put(tmp_path, "run/udev/data/b254:0", "S:mapper/vg-data\n")
    put(tmp_path, "sys/fs/cgroup/io.cost.qos", "8:16 enable=1 ctrl=auto\n8:0 enable=0\n")
    assert disks_of(tmp_path) == (
        Disk(
            number="8:0",
            name="sda",
            paths=("/dev/disk/by-id/wwn-1", "/dev/disk/by-uuid/abc", "/dev/sda", "/dev/sda1"),
            scheduler="bfq",
        ),
        Disk(number="8:16", name="sdb", paths=("/dev/sdb",), costed=True),
        Disk(number="104:0", name="cciss!c0d0", paths=("/dev/cciss/c0d0",)),
        Disk(number="254:0", name="dm-0", paths=("/dev/dm-0", "/dev/mapper/vg-data")),
    )


def test_a_host_without_sysfs_has_no_disks(tmp_path: Path) -> None:
    assert disks_of(tmp_path) == ()


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    block(tmp_path, "sda", "8:0:0")
    assert disks_of(tmp_path) == ()
