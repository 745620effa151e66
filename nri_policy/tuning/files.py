"""Files: where the kernel has each item, and what it reads and takes there.

The only module that makes paths of items. Values are in one form, whatever the file's is: CPUs
as the kernel's lists, schemata in one order, everything else without blanks around it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.resctrl import RESCTRL, format_schemata, parse_schemata
from nri_policy.tuning.decision import ReadFailure
from nri_policy.tuning.irqbalance import list_sockets, read_banned, write_banned
from nri_policy.tuning.items import NO_GROUP, Item, Kind

_IRQS = "proc/irq"
_CPUS = "sys/devices/system/cpu"
_RESOURCES = {"L2", "L2CODE", "L2DATA", "L3", "L3CODE", "L3DATA", "MB"}  # that classes share
_CPUFREQ = {
    "min_freq": "scaling_min_freq",
    "max_freq": "scaling_max_freq",
    "governor": "scaling_governor",
    "epp": "energy_performance_preference",
}
_MAX_TEXT = 4096
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.ECONNREFUSED)
_REFUSALS = (errno.EINVAL, errno.ERANGE, errno.ENOSPC)  # the last: no group of resctrl is left
# What a write of a managed interrupt's affinity gives: by the kernel's version, by the rights of
# the process, and on a read-only mount (classes.md §3).
_NOT_MOVABLE = (errno.EPERM, errno.EIO, errno.EACCES, errno.EROFS)
log = logging.getLogger(__name__)


class Files(Protocol):
    """The kernel's files, by items."""

    def read(self, item: Item) -> str | ReadFailure:
        """Return the value of an item."""
        ...

    def write(self, item: Item, value: str) -> None:
        """Set an item; OSError."""
        ...

    def list_balancers(self) -> Iterable[Item]:
        """Return the lists of banned interrupts of irqbalance; none if it does not run."""
        ...


class KernelFiles:
    """The files below a root folder, and irqbalance's socket."""

    def __init__(self, root: Path) -> None:
        """Take the folder with the host's /sys and /proc."""
        self._root = root

    def read(self, item: Item) -> str | ReadFailure:
        """Return the value of an item."""
        try:
            return self._read(item)
        except OSError as error:
            return ReadFailure(error.strerror or str(error), absent=error.errno in _ABSENT)
        except ValueError as error:
            return ReadFailure(str(error))

    def _read(self, item: Item) -> str:
        if item.kind is Kind.IRQBALANCE:
            return read_banned(self._root, item.id)
        path = self._path(item)
        if item.kind is Kind.RESCTRL and not path.exists():
            (self._root / RESCTRL / "schemata").stat()
            return NO_GROUP
        text = path.read_bytes()[:_MAX_TEXT].decode("ascii", "replace").strip()
        if item.kind is Kind.IRQ:
            mask = item.id == "default"
            return str(CPUSet.from_mask(text) if mask else CPUSet.parse(text))
        if item.kind is Kind.RESCTRL:
            shares = parse_schemata(text)
            return format_schemata({k: v for k, v in shares.items() if k in _RESOURCES})
        return text

    def write(self, item: Item, value: str) -> None:
        """Set an item; OSError."""
        if item.kind is Kind.IRQBALANCE:
            write_banned(self._root, item.id, value)
            return
        path = self._path(item)
        if item.kind is Kind.RESCTRL:
            self._write_group(path, value)
            return
        if item.kind is Kind.IRQ and item.id == "default":
            value = _mask(CPUSet.parse(value))
        self.store(path, value)

    def list_balancers(self) -> Iterable[Item]:
        """Return the lists of banned interrupts of irqbalance; none if it does not run."""
        return [Item(Kind.IRQBALANCE, each, "banned") for each in list_sockets(self._root)]

    def _write_group(self, path: Path, schemata: str) -> None:
        """Set the shares of a group, which is made for it, or removed."""
        made = bool(schemata) and not path.exists()
        try:
            if made:
                self.make_group(path.parent)
            if schemata:
                self.store(path, f"{schemata}\n")
            else:
                tasks = len((path.parent / "tasks").read_text().split())
                self.remove_group(path.parent)
                log.info("group-removed", extra={"group": path.parent.name, "tasks": tasks})
        except OSError as error:
            if made and path.exists():
                self.remove_group(path.parent)
            status = (self._root / RESCTRL / "info/last_cmd_status").read_text().strip()
            why = os.strerror(error.errno or 0) + (f" ({status})" if status != "ok" else "")
            raise OSError(error.errno, why) from None

    def make_group(self, path: Path) -> None:
        """Make a group of resctrl; OSError."""
        path.mkdir()

    def remove_group(self, path: Path) -> None:
        """Remove a group of resctrl; its processes go to the root group. OSError."""
        path.rmdir()

    def store(self, path: Path, value: str) -> None:
        """Write a file of the kernel; OSError."""
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(file, value.encode())
        finally:
            os.close(file)

    def _path(self, item: Item) -> Path:
        match item.kind:
            case Kind.IRQ if item.id == "default":
                path = f"{_IRQS}/default_smp_affinity"
            case Kind.IRQ:
                path = f"{_IRQS}/{item.id}/smp_affinity_list"
            case Kind.CPU if item.attribute == "resume_latency":
                path = f"{_CPUS}/cpu{item.id}/power/pm_qos_resume_latency_us"
            case Kind.CPU:
                path = f"{_CPUS}/cpu{item.id}/cpuidle/{item.attribute}/disable"
            case Kind.CPUFREQ:
                path = f"{_CPUS}/cpufreq/policy{item.id}/{_CPUFREQ[item.attribute]}"
            case Kind.UNCORE:
                path = f"{_CPUS}/intel_uncore_frequency/{item.id}/{item.attribute}_khz"
            case _:  # RESCTRL
                path = f"{RESCTRL}/{item.id}/schemata"
        return self._root / path


def _mask(cpus: CPUSet) -> str:
    """Return the kernel's mask: groups of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    groups = range(cpus.highest // 32, -1, -1)
    return ",".join(f"{bits >> (32 * group) & 0xFFFFFFFF:08x}" for group in groups)


def boot_id(root: Path) -> str:
    """Return the id of the host's present boot; OSError."""
    return (root / "proc/sys/kernel/random/boot_id").read_text().strip()


def is_refusal(item: Item, error: OSError) -> bool:
    """Return whether the kernel refuses a value of the settings for good, not while it is busy.

    CPUs of interrupts follow from containers, not from settings alone.
    """
    return item.kind is not Kind.IRQ and error.errno in _REFUSALS


def describe_failure(item: Item, error: OSError) -> tuple[str, bool]:
    """Return why a write failed, and whether it must fail until the next boot."""
    if item.kind is Kind.IRQ and item.id != "default" and error.errno in _NOT_MOVABLE:
        return f"not movable: {errno.errorcode[error.errno]}", True
    code = errno.errorcode.get(error.errno or 0, "")
    return f"{code} {error.strerror or ''}".strip(), False
