"""The files of kernel partitions at one moment, as a value: the fake of the kernel below a world.

(`nri_policy.simulation.cpusets`, which does what Linux 6.12 did in every recorded scene.)
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from nri_policy.delivery.partition_files import EXCLUSIVE, PARTITION, ancestors
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.simulation.cpusets import CPUS, EFFECTIVE, ROOT, CpusetTree, _Cgroup

EVERY = 1000  # writes: more than a pass has


class Tree:
    """The cgroups of a world; not changed."""

    def __init__(self, cpusets: CpusetTree) -> None:
        self._cpusets = cpusets
        machine = (each for name, each in vars(cpusets).items() if name != "_root")
        self.key = *machine, _key(cpusets._root)

    @classmethod
    def of(cls, online: CPUSet, pods: Iterable[str]) -> Tree:
        """Return the cgroups of pods without containers."""
        cpusets = CpusetTree(online)
        for path in pods:
            for each in (*ancestors(path), path):
                if not cpusets.has(each):
                    cpusets.make(each)
        return cls(cpusets)

    def after(self, change: Callable[[CpusetTree], None]) -> Tree:
        """Return what it is after a change."""
        cpusets = copy(self._cpusets)
        cpusets._root = _copied(cpusets._root, None)
        change(cpusets)
        return Tree(cpusets)

    def with_cpus(self, path: str, process: int, cpus: CPUSet | None) -> Tree:
        """Return the cgroups with the CPUs of a container's, which may come and go; None: gone."""

        def change(cpusets: CpusetTree) -> None:
            if cpus is None:
                cpusets.leave(path)
                cpusets.remove(path)
                return
            if not cpusets.has(path):
                cpusets.make(path)
                cpusets.enter(path, process)
            cpusets.write(path, CPUS, str(cpus))

        return self.after(change)

    def read(self, path: str, name: str) -> str:
        """Return the content of a file; empty if it is not there."""
        return self._cpusets.read(path, name) if self._cpusets.has(path) else ""

    @property
    def left(self) -> CPUSet:
        """The CPUs that are in no partition."""
        return CPUSet.parse(self.read(ROOT, EFFECTIVE))

    def runs_on(self, path: str, cpus: CPUSet) -> CPUSet:
        """Return where a container runs that has these CPUs, or gets them."""
        if self.read(path, PARTITION) not in ("", "member"):
            return CPUSet.parse(self.read(path, EFFECTIVE))
        return cpus & self.left or self.left

    def differences(self, due: dict[str, Partition | None], pods: Iterable[str]) -> Iterator[str]:
        """Yield what is not as *due*: the containers' partitions, by path, and what is above."""
        above = dict.fromkeys(pods, EMPTY)
        for path, partition in due.items():
            wanted = ("", "member") if partition is None else (str(partition.cpus), partition.kind)
            found = self.read(path, EXCLUSIVE), self.read(path, PARTITION)
            if found != wanted:
                yield f"{path} is the partition {found}, and is due {wanted}"
            cpus = EMPTY if partition is None else partition.cpus
            for each in ancestors(path):
                above[each] = above.get(each, EMPTY) | cpus
        for each, cpus in above.items():
            if (text := self.read(each, EXCLUSIVE)) != str(cpus):
                yield f"{each} keeps {text}, and is due {cpus}"


class TreeFiles:
    """The files as the daemon reads and writes them, in one pass that may end early."""

    def __init__(self, cpusets: CpusetTree, *, fails: bool, most: int) -> None:
        """Do *most* writes; the first one *fails*, or none."""
        self._cpusets = cpusets
        self._fails = fails
        self._most = most
        self.ends_early = False  # there were more
        self.writes: list[str] = []

    def read(self, path: str, name: str) -> str | None:
        """Return the content of a file; None if it is not there."""
        return self._cpusets.read(path, name) if self._cpusets.has(path) else None

    def children(self, path: str) -> Collection[str]:
        """Return the names of the cgroups right below one."""
        return self._cpusets.children(path)

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file; raises OSError."""
        self.ends_early = len(self.writes) >= self._most
        if self._fails or self.ends_early:
            self._fails = False
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        self._cpusets.write(path, name, text)
        self.writes.append(f"{path} {name.rpartition('.')[2]} {text}".rstrip())


def _copied(cgroup: _Cgroup, parent: _Cgroup | None) -> _Cgroup:
    """Return a copy of a cgroup and of all below it; sets of CPUs do not change."""
    made = replace(cgroup, parent=parent, processes={*cgroup.processes}, children={})
    for name, each in cgroup.children.items():
        made.children[name] = _copied(each, made)
    return made


# what is neither a cgroup nor a table
_PLAIN = attrgetter(
    *(each.name for each in fields(_Cgroup) if each.name not in ("parent", "processes", "children"))
)


def _key(cgroup: _Cgroup) -> Any:
    """Return what tells a cgroup, with all below it, from another."""
    below = tuple([(name, _key(each)) for name, each in sorted(cgroup.children.items())])
    return _PLAIN(cgroup), frozenset(cgroup.processes), below
