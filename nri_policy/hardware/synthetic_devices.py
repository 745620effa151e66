"""Synthetic devices: files that show devices and their places as a kernel would.

Owns the least of sysfs and of the mount table that `devices` and `locality` read: PCI functions on
NUMA nodes, the device file of each, and disks with their mounts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

MAJOR = 511  # of device files; the last that the kernel gives to drivers

_BLOCK_MAJOR = 259
ACCELERATOR = "0x120000"  # the class of a PCI function
_NVME = "0x010802"


def write_devices(root: Path, devices: Mapping[int, int | None], disks: Mapping[str, int]) -> None:
    """Write into *root* devices, and disks mounted at paths, and nothing that was there before.

    *devices* are NUMA nodes, or None for an unknown one, by the minor number of a device file of
    major number MAJOR; *disks* NUMA nodes by mount point.
    """
    for folder in ("sys", "proc"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for minor, node in devices.items():
        _write(root, address_of(0xF000, minor), ACCELERATOR, node, f"char/{MAJOR}:{minor}")
    table = []
    for number, (path, node) in enumerate(disks.items()):
        _write(root, address_of(0xE000, number), _NVME, node, f"block/{_BLOCK_MAJOR}:{number}")
        table.append(f"{number} 0 {_BLOCK_MAJOR}:{number} / {path} rw - ext4 /dev/disk rw\n")
    _put(root / "proc/1/mountinfo", "".join(table))
    (root / "sys").mkdir(exist_ok=True)


def address_of(domain: int, number: int) -> str:
    """Return the address of a function that has a bus for itself."""
    return f"{domain + number // 256:04x}:{number % 256:02x}:00.0"


def _write(root: Path, address: str, class_: str, node: int | None, number: str) -> None:
    """Write a PCI function and the device with a file of that *number*."""
    place = f"devices/pci{address[:7]}/{address}"
    _put(root / "sys" / place / "class", class_)
    _put(root / "sys" / place / "numa_node", str(-1 if node is None else node))
    (root / "sys" / place / "device").mkdir()
    for link, target in (
        (f"bus/pci/devices/{address}", place),
        (f"dev/{number}", f"{place}/device"),
    ):
        path = root / "sys" / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("../" * link.count("/") + target)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
