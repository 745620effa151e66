"""Writing the CPUs of cgroups that are there, in as few system calls as possible.

Owns the order in which a cgroup of version 1 and the cgroups below it are written. There the kernel
refuses (EBUSY) a cgroup that would lose CPUs of one below it, and one below that would get CPUs
which its parent does not have; on version 2 what is below follows by itself. Every cgroup is read
before it is written, and read again afterwards: the kernel's word counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from nri_policy.delivery.cgroup_tree import FLAGS, LONGEST, FolderTree
from nri_policy.foundation.cpuset import CPUSet

MOST_BELOW = 256  # cgroups below a container's that are written with it
_FILE = "cpuset.cpus"  # in both versions


class Change(Enum):
    """Which part of the way to the CPUs wanted a cgroup goes."""

    LEAVE = "leave"  # it gives up CPUs, and gets new ones only if none remain
    WHOLE = "whole"
    REWRITE = "rewrite"  # the same CPUs, to find out whether it can be written

    def target(self, now: CPUSet, wanted: CPUSet) -> CPUSet:
        """Return the CPUs to write to a cgroup that has *now*.

        On version 2 one that has nothing of its own, the empty set, may use all of its parent's.
        """
        if not now and self is not Change.REWRITE:
            return wanted
        match self:
            case Change.LEAVE:
                return now & wanted or wanted if now - wanted else now
            case Change.WHOLE:
                return wanted
            case Change.REWRITE:
                return now


class Confined(Struct, frozen=True, kw_only=True):
    """What became of one cgroup."""

    cpus: CPUSet | None  # the cgroup's CPUs after the write; None: no such cgroup
    written: bool = False
    error: str = ""  # why the cpuset could not be set


class CpusetFiles:
    """The cpuset files below one open folder; version 1 of cgroups where *nested* ones matter."""

    def __init__(self, top: int, parse: Callable[[str], CPUSet | None], *, nested: bool) -> None:
        """Take the cpuset controller's folder, as a file descriptor that stays its opener's."""
        self._top = top
        self._tree = FolderTree(top)
        self._parse = parse
        self._nested = nested

    def confine(self, path: str, wanted: CPUSet, change: Change) -> Confined:
        """Change the CPUs of the cgroup at *path* below the folder."""
        try:
            file = os.open(f"{path}/{_FILE}", os.O_RDWR | FLAGS, dir_fd=self._top)
        except (FileNotFoundError, NotADirectoryError):
            return Confined(cpus=None)
        except OSError as error:
            return Confined(cpus=self._get(path), error=_text(error))
        try:
            return self._confine(path, file, wanted, change)
        except OSError as error:
            if error.errno == errno.ENODEV:  # it was removed after it was opened
                return Confined(cpus=None)
            return Confined(cpus=self._read(file), error=_text(error))
        finally:
            os.close(file)

    def _confine(self, path: str, file: int, wanted: CPUSet, change: Change) -> Confined:
        now = self._read(file)
        if now is None:
            return Confined(cpus=None)
        target = change.target(now, wanted)
        if now == target and change is not Change.REWRITE:
            return Confined(cpus=now)
        if target - now and self._has_below(path):
            self._move(path, now, target, [MOST_BELOW])
        else:
            self._narrow(path, file, now, target)
        after = self._read(file)
        error = "" if after == target else f"it has {after} after {target} was written"
        return Confined(cpus=after, written=True, error=error)

    def _has_below(self, path: str) -> bool:
        """Whether cgroups below must be written, too: on version 1, their cpusets do not follow."""
        return self._nested and os.stat(path, dir_fd=self._top).st_nlink > 2  # it has folders

    def _narrow(self, path: str, file: int, now: CPUSet, target: CPUSet) -> None:
        """Write a cgroup where only what it loses can matter to those below it."""
        try:
            _write(file, target)
        except OSError as error:
            if error.errno != errno.EBUSY or not self._has_below(path):
                raise
            self._move(path, now, target, [MOST_BELOW])

    def _move(self, path: str, had: CPUSet, target: CPUSet, left: list[int]) -> None:
        """Move a cgroup and those below it; *left* is how many more may be moved.

        A cgroup gets its new CPUs before those below it, and loses the old ones after them.
        A child with all CPUs of its parent gets all again; any other keeps its remaining CPUs.
        """
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EBUSY, "")
        self._tree.write(path, _FILE, str(had | target))
        for name in sorted(self._tree.children(path)):
            each = f"{path}/{name}"
            inner = self._get(each)
            if inner:
                kept = target if inner == had else inner & target or target
                self._move(each, inner, kept, left)
        self._tree.write(path, _FILE, str(target))

    def _get(self, path: str) -> CPUSet | None:
        text = self._tree.read(path, _FILE)
        return None if text is None else self._parse(text)

    def _read(self, file: int) -> CPUSet | None:
        return self._parse(os.pread(file, LONGEST, 0).decode("ascii", "replace").strip())


def _write(file: int, cpus: CPUSet) -> None:
    os.ftruncate(file, 0)  # as a shell's `>` does
    os.pwrite(file, f"{cpus}\n".encode(), 0)


def _text(error: OSError) -> str:
    return os.strerror(error.errno or errno.EIO)
