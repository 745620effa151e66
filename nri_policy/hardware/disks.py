"""Disks: the block devices of a host that I/O can be limited on, with all the paths they have.

A partition stands for its disk: the kernel limits whole disks only. Links are taken from udev's
database, for a service has a /dev of its own; without udev there are the kernel's names.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree

_NUMBER = re.compile(r"[0-9]{1,4}:[0-9]{1,7}")
_SCHEDULER = re.compile(r"\[(\S+)\]")
_DATABASE = "run/udev/data"
_MOST = 1 << 18  # bytes of udev's record of a device


class Disk(Struct, frozen=True, kw_only=True):
    """A whole disk, or what is one to the kernel: dm and loop devices are."""

    number: str  # MAJOR:MINOR
    name: str  # the kernel's
    paths: tuple[str, ...]  # below /dev, those of its partitions too
    scheduler: str = ""  # of I/O; empty where there is none
    costed: bool = False  # io.cost is on for it


def disks_of(root: Path) -> tuple[Disk, ...]:
    """Return the disks below *root*, by number."""
    found, parts = {}, []
    with FileTree(root, Notes()) as tree, tree.folder("sys/class/block") as block:
        costed = _disks_with_cost(tree)
        for name in block.names():
            with tree.folder(f"sys/class/block/{name}") as device:
                number = (device.text("dev") or "").strip()
                if not _NUMBER.fullmatch(number):
                    continue
                size, partition = (device.text("size") or "0").strip(), device.text("partition")
                paths = [f"/dev/{name.replace('!', '/')}", *_links(tree, number)]
                if partition is not None:
                    real = tree.resolve(f"sys/class/block/{name}") or ""
                    parts.append((Path(real).parent.name, paths))
                elif size != "0":  # a loop device, or a drive, without anything in it
                    with device.folder("queue") as queue:
                        scheduler = _SCHEDULER.search(queue.text("scheduler") or "")
                    found[name] = number, paths, scheduler[1] if scheduler else ""
    for disk, paths in parts:
        if disk in found:
            found[disk][1].extend(paths)
    disks = (
        Disk(
            number=number,
            name=name,
            paths=tuple(sorted(paths)),
            scheduler=scheduler,
            costed=number in costed,
        )
        for name, (number, paths, scheduler) in found.items()
    )
    return tuple(sorted(disks, key=lambda disk: [*map(int, disk.number.split(":"))]))


def _links(tree: FileTree, number: str) -> list[str]:
    """Return the links below /dev to a device."""
    with tree.folder(_DATABASE) as database:
        text = database.text(f"b{number}", _MOST) or ""
    return [f"/dev/{line[2:]}" for line in text.split("\n") if line.startswith("S:")]


def _disks_with_cost(tree: FileTree) -> set[str]:
    """Return the numbers of the disks that io.cost is on for."""
    with tree.folder("sys/fs/cgroup") as top:
        lines = (top.text("io.cost.qos") or "").splitlines()
    return {line.partition(" ")[0] for line in lines if "enable=1" in line.split()}
