"""Locality: which CPUs and NUMA nodes a device file, a network interface or a mount is near to.

Owns the way from a device number, an interface's name or a path on the host to the hardware behind
it, through partitions, device-mapper, software RAID, NVMe multi-path, bonds, VLANs and IOMMU
groups. Everything is read below one root folder. Without hardware behind it, or with hardware that
is equally near to all CPUs, a name has no locality.

A mount's device is taken from the host's mount table, never from the mounted path itself: that may
be a network file system whose server is gone, and asking it would hang the caller.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.mounts import MountTable, find_mount, read_mounts
from nri_policy.hardware.devices import ADDRESS, place_of
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree

_MOST_PARTS = 256  # devices that one lies upon, directly or not
_MOST_PLACES = 4096
_LONGEST_PATH = 4096  # characters; the kernel's PATH_MAX
_TABLE_LIMIT = 1 << 24  # bytes; a node of 250 pods has about 1 MiB of mounts

_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_CONTROLLER = re.compile(r"nvme\d+")
_NVIDIA_MAJOR = "195"
_NVIDIA_GPUS = "proc/driver/nvidia/gpus"
_NVIDIA_MINOR = re.compile(r"^Device Minor:\s*(\d+)$", re.MULTILINE)


class Locality(Struct, frozen=True, kw_only=True):
    """What something is near to."""

    cpus: CPUSet  # online ones; some, but not all
    nodes: CPUSet  # ids; empty where only CPUs are known
    path: str = ""  # of its device in sysfs, without links, as in /sys/devices/…/block/sda


class Hardware(Struct, frozen=True):
    """A device in sysfs, and the hardware that it lies upon."""

    path: str = ""  # without links, as in /sys/devices/…/block/sda; empty: no device
    folders: tuple[str, ...] = ()  # of the hardware: below the root, without links


class Locator:
    """Finds localities below *root*; keeps those of hardware until `renew`.

    The hardware below a virtual device is looked up every time: its number can be reused.
    """

    def __init__(self, root: Path, machine: Machine) -> None:
        """Take the machine found below the same *root*."""
        self._root = root
        self.renew(machine)

    def renew(self, machine: Machine) -> None:
        """Look everything up anew from now on: hardware has come or gone, and left *machine*."""
        self._online = machine.online
        self._node_cpus = machine.near_cpus
        self._places: dict[str, tuple[CPUSet, CPUSet]] = {}  # nodes, CPUs by sysfs folder

    def device(self, kind: str, number: str) -> Locality | None:
        """Return the locality of a device file: "block" or "char", and a number as in `259:1`."""
        with FileTree(self._root, Notes()) as tree:
            return self._device(tree, kind, number)

    def interface(self, name: str) -> Locality | None:
        """Return the locality of the host's network interface of that name."""
        if "/" in name:
            return None
        with FileTree(self._root, Notes()) as tree:
            return self._at(tree, f"sys/class/net/{name}")

    def has_node(self, node: int) -> bool:
        """Whether the machine has a NUMA node of that id."""
        return node in self._node_cpus

    def function(self, address: str) -> Locality | None:
        """Return the locality of a PCI function, by an address as in `0000:c1:00.0`."""
        address = address.lower()
        if not ADDRESS.fullmatch(address):
            return None
        with FileTree(self._root, Notes()) as tree:
            return self._at(tree, f"sys/bus/pci/devices/{address}")

    def device_hardware(self, kind: str, number: str) -> Hardware:
        """Return the hardware behind a device file, as for `device`."""
        with FileTree(self._root, Notes()) as tree:
            return _hardware(tree, _device_path(tree, kind, number))

    def interface_hardware(self, name: str) -> Hardware:
        """Return the hardware behind the host's network interface."""
        if "/" in name:
            return Hardware()
        with FileTree(self._root, Notes()) as tree:
            return _hardware(tree, f"sys/class/net/{name}")

    def function_hardware(self, address: str) -> Hardware:
        """Return a PCI function; no hardware if it is not here."""
        address = address.lower()
        if not ADDRESS.fullmatch(address):
            return Hardware()
        with FileTree(self._root, Notes()) as tree:
            return _hardware(tree, f"sys/bus/pci/devices/{address}")

    def mount_hardware(self, paths: Mapping[str, str]) -> dict[str, Hardware]:
        """Return the hardware behind *paths* on the host, as for `mounts`."""
        with FileTree(self._root, Notes()) as tree:
            return {
                path: _hardware(tree, _device_path(tree, kind, number))
                for path, kind, number in _find_backings(tree, paths)
            }

    def root_complex(self, name: str) -> Locality | None:
        """Return the locality of what is below a PCIe root complex, as in `pci0000:c0`."""
        if not _ROOT_COMPLEX.fullmatch(name):
            return None
        with FileTree(self._root, Notes()) as tree:
            with tree.folder(f"sys/devices/{name}") as folder:
                functions = [each for each in folder.names() if ADDRESS.fullmatch(each)]
            places = (self._at(tree, f"sys/devices/{name}/{each}") for each in functions)
            return next(filter(None, places), None)

    def mounts(self, paths: Mapping[str, str]) -> dict[str, Locality]:
        """Return the localities of *paths* on the host, by the device mounted there.

        Each path has a folder: only mount points in it, or the folder itself, count.
        """
        found = {}
        with FileTree(self._root, Notes()) as tree:
            for path, kind, number in _find_backings(tree, paths):
                locality = self._device(tree, kind, number)
                if locality is not None:
                    found[path] = locality
        return found

    def survey(self, tree: FileTree) -> None:
        """Read in *tree*, of the same root, all hardware that can be a container's locality.

        It is behind device files and network interfaces; virtual interfaces of pods are skipped.
        """
        with FileTree(self._root, Notes()) as plain:
            for above in ("sys/dev/block", "sys/dev/char", "sys/class/net"):
                with plain.folder(above) as folder:
                    paths = [f"{above}/{name}" for name in folder.names()]
                for path in paths:
                    if _hardware(plain, path).folders:
                        self._at(tree, path)
        _nvidia_function(tree, "none")  # it looks at all

    def _device(self, tree: FileTree, kind: str, number: str) -> Locality | None:
        return self._at(tree, _device_path(tree, kind, number))

    def _at(self, tree: FileTree, path: str) -> Locality | None:
        """Return what all the hardware behind the device at *path* together is near to."""
        nodes = cpus = EMPTY
        hardware = _hardware(tree, path)
        for part in hardware.folders:
            near, local = self._place(tree, part)
            if local != self._online:
                nodes |= near
                cpus |= local
        if not cpus or cpus == self._online:
            return None
        return Locality(cpus=cpus, nodes=nodes, path=hardware.path)

    def _place(self, tree: FileTree, hardware: str) -> tuple[CPUSet, CPUSet]:
        if hardware not in self._places:
            if len(self._places) == _MOST_PLACES:
                self._places.clear()
            nodes, cpus = place_of(tree, hardware, self._online, self._node_cpus)
            if nodes and cpus == self._online:  # firmware names a node, and all CPUs as local
                cpus = CPUSet.union(self._node_cpus[node] for node in nodes)
            self._places[hardware] = nodes, cpus
        return self._places[hardware]


def _device_path(tree: FileTree, kind: str, number: str) -> str:
    """Return where sysfs has the device with this number."""
    path = f"sys/dev/{kind}/{number}"
    if kind == "char" and number.startswith(f"{_NVIDIA_MAJOR}:"):
        # the driver tells sysfs nothing of its device files
        path = _nvidia_function(tree, number.partition(":")[2]) or path
    return path


def _hardware(tree: FileTree, path: str) -> Hardware:
    """Return the device at *path*, and the hardware that it lies upon."""
    found, seen, todo = [], dict[str, None](), [path]  # the device itself is seen first
    while todo and len(seen) < _MOST_PARTS:
        real = tree.resolve(todo.pop())
        if not real or not real.startswith("sys/devices/") or real in seen:
            continue
        seen[real] = None
        parts = real.split("/")
        functions = [i for i, part in enumerate(parts) if ADDRESS.fullmatch(part)]
        if functions:  # the one nearest to the device, below its bridges
            found.append("/".join(parts[: functions[-1] + 1]))
            continue
        while len(parts) > 2:  # sys/devices
            at = "/".join(parts)
            lower = _lower(tree, at)
            todo.extend(lower)
            if lower:
                break
            if _has_node(tree, at):  # no PCI device: persistent memory, platform devices
                found.append(at)
                break
            parts.pop()
    return Hardware(f"/{next(iter(seen))}" if seen else "", tuple(found))


def _lower(tree: FileTree, path: str) -> list[str]:
    """Return the devices that the virtual one at *path* is made of."""
    above, name = posixpath.split(path)
    if above == "sys/devices/virtual/vfio":
        path = f"sys/kernel/iommu_groups/{name}/devices"
        with tree.folder(path) as folder:
            names = folder.names()
    elif above == "sys/devices/virtual/nvme-subsystem":
        with tree.folder(path) as folder:
            names = [each for each in folder.names() if _CONTROLLER.fullmatch(each)]
    else:
        with tree.folder(path) as folder, folder.folder("slaves") as slaves:
            names = [each for each in folder.names() if each.startswith("lower_")]
            names += [f"slaves/{each}" for each in slaves.names()]
    return [f"{path}/{each}" for each in names]


def _has_node(tree: FileTree, path: str) -> bool:
    with tree.folder(path) as folder:
        node = folder.integer("numa_node")
    return node is not None and node >= 0


def _nvidia_function(tree: FileTree, minor: str) -> str | None:
    """Return the PCI function of the GPU that NVIDIA's driver gives the device file *minor*."""
    with tree.folder(_NVIDIA_GPUS) as gpus:
        for address in gpus.names():
            with gpus.folder(address) as gpu:
                match = _NVIDIA_MINOR.search(gpu.text("information") or "")
            if match and match[1] == minor:
                return f"sys/bus/pci/devices/{address}"
    return None


def _mount_table(tree: FileTree) -> MountTable:
    """Return the mounts, as the host sees them.

    Without the right to read the first process's table it is our own: the same where we run beside
    the host's services, and without the host's mounts, so of no harm, in a container.
    """
    for process in ("1", "self"):
        with tree.folder(f"proc/{process}") as folder:
            text = folder.text("mountinfo", _TABLE_LIMIT)
        if text:
            return read_mounts(text)
    return {}


def _find_backings(tree: FileTree, paths: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each of *paths* that a device is below, with the device's kind and number."""
    table = _mount_table(tree)
    for path, folder in paths.items() if table else ():
        kind, number = _find_backing(tree, table, path, folder)
        if number:
            yield path, kind, number


def _find_backing(tree: FileTree, table: MountTable, path: str, folder: str) -> tuple[str, str]:
    """Return kind and number of the device below *path*, by a mount point in *folder*.

    The number is empty without a device. File systems without a device of their own have the major
    number 0: overlay, tmpfs, network file systems.
    """
    if len(path) > _LONGEST_PATH:
        return "", ""
    at, mount = find_mount(table, "/" + posixpath.normpath(f"/{path}").lstrip("/"))
    if mount is None or posixpath.commonpath((at, folder)) != folder:
        return "", ""
    if not mount.device.startswith("0:"):
        return "block", mount.device
    # the file system's type follows the dash
    return _device_file(tree, path) if " - devtmpfs " in mount.rest else ("", "")


def _device_file(tree: FileTree, path: str) -> tuple[str, str]:
    """Return kind and number of the device file at *path*, which is on a devtmpfs."""
    # a path alone: the device itself is not opened
    descriptor = tree.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if descriptor is None:
        return "", ""
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if stat.S_ISBLK(status.st_mode):
        return "block", number
    return ("char", number) if stat.S_ISCHR(status.st_mode) else ("", "")
