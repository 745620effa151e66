"""A fake of the kernel's cpusets of cgroup v2 with partitions, as strict as Linux 6.12.

A *partition* is a cgroup that has CPUs against the whole machine: they are in its own
`cpuset.cpus.exclusive` and in that of each cgroup above it, and `root` or `isolated` was written to
its `cpuset.cpus.partition`.

| written | what comes of it |
|---|---|
| a list that cannot be read; CPUs that no machine can have | EINVAL; ERANGE |
| no CPUs to a cgroup with a process; to a partition | ENOSPC; EBUSY |
| exclusive CPUs that a sibling has exclusively, or that are all CPUs of a sibling | EINVAL |
| CPUs that a partition beside it has | taken; that partition is invalid, without a reason |
| `root`, while a sibling has some of the CPUs | invalid: not exclusive |
| `root`, with CPUs that an ancestor lacks, or of another partition | invalid |
| `root`, with all CPUs that are left to the machine | invalid |
| other CPUs to the owner, an ancestor or anyone else | taken; the partition stays as it is |
| fewer exclusive CPUs to an ancestor | the partition has fewer; none left: invalid |
| the last CPU of a partition offline | of `isolated`: invalid; of `root`: EBUSY |

A partition that a sibling made invalid keeps its CPUs from all others, the owner included once
`root` is written again, until `member` is written. If its cgroup is removed before that, the
machine has lost them: a fault of that kernel.

No partition is made right below the root, where the kernel has other rules, or below a partition.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from nri_policy.foundation.cpuset import EMPTY, CPUSet

CPUS = "cpuset.cpus"
EXCLUSIVE = "cpuset.cpus.exclusive"
EFFECTIVE = "cpuset.cpus.effective"
PARTITION = "cpuset.cpus.partition"
ISOLATED = "cpuset.cpus.isolated"  # of the root only

MEMBER = "member"
KINDS = (MEMBER, "root", "isolated")
ROOT = "."  # the path of the root

_BAD_LIST = "Invalid cpu list in cpuset.cpus.exclusive"
_NOT_EXCLUSIVE = "Cpu list in cpuset.cpus not exclusive"
_NO_CPUS = "Parent unable to distribute cpu downstream"
_NO_PARENT = "Parent is not a partition root"
_INVALID_PARENT = "Parent is an invalid partition root"
_HOTPLUG = "No cpu available due to hotplug"
_EMPTY = "cpuset.cpus and cpuset.cpus.exclusive are empty"
_HOUSEKEEPING = "partition config conflicts with housekeeping setup"


@dataclass(slots=True, kw_only=True, eq=False)
class _Cgroup:
    """One cgroup; `kind` is the last value written, valid or invalid."""

    parent: _Cgroup | None
    effective: CPUSet
    cpus: CPUSet = EMPTY
    exclusive: CPUSet = EMPTY
    granted: CPUSet = EMPTY  # exclusive CPUs that the parent has been granted, too
    kind: str = MEMBER
    valid: bool = False  # whether the partition is in force
    reason: str = ""  # why the partition is not in force
    closed: bool = False  # no sibling may overlap
    holds: bool = False  # its granted CPUs are taken from the machine
    processes: set[int] = field(default_factory=set)
    affinity: CPUSet = EMPTY  # set by the processes themselves; empty: by none
    children: dict[str, _Cgroup] = field(default_factory=dict)

    @property
    def above(self) -> _Cgroup:
        """The parent."""
        assert self.parent is not None
        return self.parent

    @property
    def populated(self) -> bool:
        """Whether it or a cgroup below it has a process."""
        return bool(self.processes) or any(each.populated for each in self.children.values())

    @property
    def own(self) -> CPUSet:
        """The CPUs that it would have exclusively."""
        return self.exclusive or self.cpus

    @property
    def siblings(self) -> Iterator[_Cgroup]:
        """The other cgroups of its parent."""
        return (each for each in self.above.children.values() if each is not self)

    @property
    def state(self) -> str:
        """The content of its file."""
        if self.kind == MEMBER or self.valid:
            return self.kind
        return f"{self.kind} invalid" + (f" ({self.reason})" if self.reason else "")

    def inherit(self) -> CPUSet:
        """Return the CPUs that it may use of its parent's."""
        return self.cpus & self.above.effective or self.above.effective


class CpusetTree:
    """Cgroups by their path below the root, and what the files of each read as."""

    def __init__(self, online: CPUSet, *, isolated: CPUSet = EMPTY) -> None:
        """Take the CPUs of the machine, and those of them that were isolated at boot."""
        self._possible = self._online = online
        self._boot_isolated = self._isolated = isolated
        self._taken = EMPTY  # CPUs of partitions
        self._root = _Cgroup(parent=None, effective=online, granted=online)

    # ---- cgroups and processes

    def make(self, path: str) -> None:
        """Make a cgroup."""
        above, _, name = path.rpartition("/")
        parent = self._at(above or ROOT)
        if name in parent.children:
            raise _error(errno.EEXIST)
        parent.children[name] = _Cgroup(parent=parent, effective=parent.effective)

    def has(self, path: str) -> bool:
        """Return whether there is a cgroup."""
        try:
            self._at(path)
        except FileNotFoundError:
            return False
        return True

    def children(self, path: str) -> Collection[str]:
        """Return the names of the cgroups right below one."""
        return [*self._at(path).children] if self.has(path) else []

    def remove(self, path: str) -> None:
        """Remove a cgroup."""
        cgroup = self._at(path)
        if cgroup.populated or cgroup.children:
            raise _error(errno.EBUSY)
        if cgroup.valid:
            self._write_partition(cgroup, MEMBER)
        del cgroup.above.children[path.rpartition("/")[2]]

    def enter(self, path: str, process: int) -> None:
        """Move a process into a cgroup."""
        self._at(path).processes.add(process)

    def leave(self, path: str) -> None:
        """End the processes in a cgroup."""
        self._at(path).processes.clear()

    def pin(self, path: str, cpus: CPUSet) -> None:
        """Set the affinity of the processes of a cgroup."""
        cgroup = self._at(path)
        if cpus.isdisjoint(cgroup.effective):
            raise _error(errno.EINVAL)
        cgroup.affinity = cpus

    def allowed(self, path: str) -> CPUSet:
        """Return the CPUs that processes of a cgroup may run on."""
        cgroup = self._at(path)
        cpus = cgroup.effective or cgroup.above.effective
        return cgroup.affinity & cpus or cpus

    def plug(self, cpu: int, *, on: bool) -> None:
        """Switch a CPU on or off."""
        if cpu == 0:
            raise _error(errno.EACCES)
        last = CPUSet([cpu])
        if not on and any(
            each.valid and each.kind == "root" and each.effective == last for each in self._all()
        ):
            raise _error(errno.EBUSY)  # a root domain of the scheduler keeps a CPU
        self.set_online(self._online | last if on else self._online - last)

    def set_online(self, online: CPUSet) -> None:
        """Have these CPUs online, whatever that leaves."""
        self._online, left = online, online - self._taken
        if not left:
            self._taken, left = EMPTY, online
        self._root.effective = left
        for each in self._all():
            self._follow_hotplug(each)

    # ---- files

    def read(self, path: str, name: str) -> str:
        """Return the content of a file, without the end of the line."""
        cgroup = self._at(path)
        if cgroup is self._root and name not in (EFFECTIVE, ISOLATED):
            raise _error(errno.ENOENT)
        match name:
            case "cpuset.cpus":
                return str(cgroup.cpus)
            case "cpuset.cpus.exclusive":
                return str(cgroup.exclusive)
            case "cpuset.cpus.effective":
                return str(cgroup.effective)
            case "cpuset.cpus.partition":
                return cgroup.state
            case "cpuset.cpus.isolated" if cgroup is self._root:
                return str(self._isolated)
        raise _error(errno.ENOENT)

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file."""
        cgroup = self._at(path)
        if cgroup is self._root:
            raise _error(errno.EACCES)
        match name:
            case "cpuset.cpus":
                self._write_cpus(cgroup, self._parse(text))
            case "cpuset.cpus.exclusive":
                self._write_exclusive(cgroup, self._parse(text))
            case "cpuset.cpus.partition":
                if text.strip() not in KINDS:
                    raise _error(errno.EINVAL)
                self._write_partition(cgroup, text.strip())
            case _:
                raise _error(errno.EACCES)

    def _parse(self, text: str) -> CPUSet:
        try:
            cpus = CPUSet.parse(text.strip())
        except ValueError:
            raise _error(errno.EINVAL) from None
        if not cpus <= self._possible:
            raise _error(errno.ERANGE)
        return cpus

    def _write_cpus(self, cgroup: _Cgroup, cpus: CPUSet) -> None:
        if cpus == cgroup.cpus:
            return
        granted = cgroup.granted
        if not cpus:
            granted = granted if cgroup.exclusive else EMPTY
        elif cgroup.exclusive or cgroup.valid:
            granted = (cgroup.exclusive or cpus) & cgroup.above.granted
        overlaps = self._check(cgroup, cpus=cpus)
        if overlaps:
            own = cgroup.exclusive or cpus
            for each in cgroup.siblings:
                if each.valid and own & each.granted:
                    each.valid = each.closed = False  # but it still holds its CPUs
        if cgroup.kind != MEMBER:
            self._judge(cgroup, granted, by_exclusive=False)
            if cgroup.holds and not (overlaps and not cgroup.valid):
                self._regrant(cgroup, granted)
        was_valid = cgroup.valid
        changed = granted != cgroup.granted
        cgroup.cpus, cgroup.granted = cpus, granted
        if was_valid and not cgroup.valid:
            _reset(cgroup)
        self._update(cgroup, cgroup, force=changed)

    def _write_exclusive(self, cgroup: _Cgroup, exclusive: CPUSet) -> None:
        if exclusive == cgroup.exclusive:
            return
        granted = exclusive & cgroup.above.granted
        if self._check(cgroup, exclusive=exclusive):
            raise _error(errno.EINVAL)
        was_valid, changed = cgroup.valid, granted != cgroup.granted
        if cgroup.kind != MEMBER:
            refused = self._judge(cgroup, granted, by_exclusive=True)
            if cgroup.holds:
                cgroup.exclusive = exclusive
                if refused:
                    self._release(cgroup)
                else:
                    self._regrant(cgroup, granted)
        cgroup.exclusive, cgroup.granted = exclusive, granted
        if was_valid and not cgroup.valid:
            _reset(cgroup)
        if cgroup.valid or changed:
            self._update(cgroup, cgroup, force=changed)

    def _write_partition(self, cgroup: _Cgroup, kind: str) -> None:
        if kind == cgroup.kind and (cgroup.valid or kind == MEMBER):
            return
        if kind != MEMBER and not cgroup.exclusive:
            cgroup.granted = cgroup.cpus & cgroup.above.granted
        reason = ""
        if kind != MEMBER and not cgroup.closed and self._check(cgroup, closed=True):
            reason = _NOT_EXCLUSIVE
        elif kind == MEMBER:
            cgroup.closed = False
            if cgroup.holds:
                self._release(cgroup)
        elif cgroup.valid:
            self._isolate(cgroup.granted, on=kind == "isolated")
        else:
            cgroup.closed = True
            reason = self._enable(cgroup, kind)
        cgroup.kind, cgroup.reason = kind, reason
        cgroup.valid = kind != MEMBER and not reason
        if not cgroup.valid:
            cgroup.closed = False
            _reset(cgroup)
        self._update(cgroup, cgroup, force=kind == MEMBER)

    # ---- rules

    def _check(
        self,
        cgroup: _Cgroup,
        *,
        cpus: CPUSet | None = None,
        exclusive: CPUSet | None = None,
        closed: bool = False,
    ) -> bool:
        """Return whether a cgroup would overlap with a sibling; raises OSError for other faults."""
        closed = closed or cgroup.closed
        if cpus is not None and not cpus and cgroup.cpus:
            if cgroup.populated:
                raise _error(errno.ENOSPC)
            if cgroup.valid and cgroup.kind == "root":
                raise _error(errno.EBUSY)
        cpus = cgroup.cpus if cpus is None else cpus
        exclusive = cgroup.exclusive if exclusive is None else exclusive
        for each in cgroup.siblings:
            if closed or each.closed or (exclusive and each.exclusive):
                if (exclusive or cpus) & each.own:
                    return True
            elif (exclusive and EMPTY < each.cpus <= exclusive) or EMPTY < cpus <= each.exclusive:
                return True
        return False

    def _judge(self, cgroup: _Cgroup, granted: CPUSet, *, by_exclusive: bool) -> bool:
        """Return whether a cgroup cannot be a partition with these CPUs, and note why."""
        if not granted and (cgroup.valid or by_exclusive):
            cgroup.reason = _BAD_LIST
        elif cgroup.kind == "root" and granted & self._boot_isolated:
            cgroup.reason = _HOUSEKEEPING
        elif not granted & self._online and cgroup.populated:
            cgroup.reason = _NO_CPUS
        else:
            return False
        return True

    def _enable(self, cgroup: _Cgroup, kind: str) -> str:
        """Take the CPUs of a partition from the machine; return why that is not possible."""
        if not cgroup.own:
            return _EMPTY
        wanted = cgroup.own & cgroup.above.granted
        if not wanted or wanted & self._taken or self._root.effective <= wanted:
            return _BAD_LIST
        cgroup.holds, cgroup.granted = True, wanted
        self._taken |= wanted
        self._root.effective -= wanted
        if kind == "isolated":
            self._isolate(wanted, on=True)
        self._spread()
        return ""

    def _isolate(self, cpus: CPUSet, *, on: bool) -> None:
        """Isolate CPUs, or end that, without regard to the boot parameter `isolcpus`."""
        self._isolated = self._isolated | cpus if on else self._isolated - cpus

    def _regrant(self, cgroup: _Cgroup, granted: CPUSet) -> None:
        """Change the CPUs that a partition holds."""
        more, less = granted - cgroup.granted, cgroup.granted - granted
        if not granted:
            cgroup.reason = _EMPTY
        if not granted or (more and (more & self._taken or self._root.effective <= more)):
            self._release(cgroup)
            return
        cgroup.granted = granted
        self._taken = self._taken - less | more
        self._root.effective = self._root.effective - more | less & self._online
        if cgroup.kind == "isolated":
            self._isolate(more, on=True)
            self._isolate(less, on=False)
        self._spread()

    def _release(self, cgroup: _Cgroup) -> None:
        """Give the CPUs back that a partition holds: it is invalid then."""
        released = cgroup.granted
        cgroup.holds = cgroup.valid = False
        cgroup.reason = cgroup.reason or _BAD_LIST
        self._taken -= released
        self._root.effective |= released & self._online
        if cgroup.kind == "isolated":
            self._isolate(released, on=False)
        _reset(cgroup)
        self._spread()

    def _spread(self) -> None:
        """Have all cgroups follow a change of the CPUs that are left to the machine."""
        for each in self._root.children.values():
            if each.cpus & self._root.effective != each.effective:
                self._update(each, each, force=False)

    def _update(self, cgroup: _Cgroup, top: _Cgroup, *, force: bool) -> None:
        """Have a cgroup and those below it follow a change of *top*."""
        if cgroup.holds and cgroup is not top:
            wanted = cgroup.own & cgroup.above.granted
            if wanted == cgroup.granted:
                return
            self._regrant(cgroup, wanted)
        if cgroup.holds:
            cgroup.effective = cgroup.own & cgroup.above.granted & self._online
        else:
            effective = cgroup.inherit()
            if cgroup.kind == MEMBER and not force and effective == cgroup.effective:
                return
            if cgroup.kind != MEMBER and cgroup is not top:
                above = cgroup.above
                cgroup.valid = False
                cgroup.reason = _NO_PARENT if above.kind == MEMBER else _INVALID_PARENT
            cgroup.effective = effective
        if cgroup.exclusive and cgroup is not top:
            cgroup.granted = cgroup.exclusive & cgroup.above.granted
        if cgroup.valid and not cgroup.exclusive:
            cgroup.granted = cgroup.cpus & cgroup.above.granted
        elif cgroup.kind != MEMBER and not cgroup.valid:
            _reset(cgroup)
        for each in cgroup.children.values():
            self._update(each, top, force=force)

    def _follow_hotplug(self, cgroup: _Cgroup) -> None:
        if not cgroup.holds:
            cgroup.effective = cgroup.inherit()
            return
        left = cgroup.own & cgroup.above.granted & self._online
        if not left and cgroup.populated:
            cgroup.reason = _HOTPLUG
            self._release(cgroup)
            cgroup.reason = _HOTPLUG
            left = cgroup.inherit()
        cgroup.effective = left

    # ---- the tree

    def _at(self, path: str) -> _Cgroup:
        cgroup = self._root
        for name in path.split("/") if path != ROOT else ():
            if name not in cgroup.children:
                raise _error(errno.ENOENT)
            cgroup = cgroup.children[name]
        return cgroup

    def _all(self, top: _Cgroup | None = None) -> Iterator[_Cgroup]:
        """Yield all cgroups but the root, each before those below it."""
        for each in (top or self._root).children.values():
            yield each
            yield from self._all(each)


def _reset(cgroup: _Cgroup) -> None:
    """Make a partition a cgroup like others again."""
    if not cgroup.exclusive:
        cgroup.granted, cgroup.closed = EMPTY, False
    cgroup.effective = cgroup.inherit()


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
