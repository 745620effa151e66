"""The host's processes by their command lines, as far as we may see them.

Not by psutil: where its processes are is one variable for all threads, while each part of what
`doctor` reads has a thread; and it asks the kernel for the affinity of a process, by an id of our
own PID namespace. The files below the host's root folder are read by `Host`, bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import PurePosixPath

from msgspec import Struct

from nri_policy.doctor.host import Host
from nri_policy.foundation.cpuset import CPUSet

_IDS = re.compile(r"^NSpid:\s*\d+\s+\d", re.MULTILINE)  # one id in each namespace from /proc's on
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE)


class Process(Struct, frozen=True):
    """A process of the host."""

    id: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of its program."""
        return PurePosixPath(self.arguments[0]).name

    def option(self, *names: str) -> str | None:
        """Return the last value of an option, by its *names*."""
        return next(reversed(self.options(*names)), None)

    def options(self, *names: str) -> list[str]:
        """Return all values of an option, `--name value` or `--name=value`, by its *names*."""
        values, rest = [], iter(self.arguments[1:])
        for argument in rest:
            name, equals, after = argument.partition("=")
            if name in names:
                values += [after] if equals else [*islice(rest, 1)]
        return values


def processes(host: Host) -> tuple[Process, ...]:
    """Return the processes that have a command line: kernel threads have none."""
    found = []
    for name in host.names("/proc"):
        line = host.read(f"/proc/{name}/cmdline") if name.isdecimal() else None
        if line and line.strip("\0"):
            found.append(Process(int(name), tuple(line.rstrip("\0").split("\0"))))
    return tuple(found)


def find_named(processes: Iterable[Process], *names: str) -> list[Process]:
    """Return the processes of programs with these names."""
    return [process for process in processes if process.name in names]


def has_own_ids(host: Host) -> bool:
    """Return whether we are in a PID namespace of our own, below that of the host's /proc."""
    return _IDS.search(host.read("/proc/self/status") or "") is not None


def own_affinity(host: Host, process: Process) -> CPUSet | None:
    """Return a process's CPU affinity if narrower than its cgroup's CPUs, else None.

    Only on cgroup v2; None elsewhere, and where its files cannot be read.
    """
    status = _ALLOWED.search(host.read(f"/proc/{process.id}/status") or "")
    given = _cpus_of_cgroup(host, host.read(f"/proc/{process.id}/cgroup") or "")
    isolated = host.read("/sys/devices/system/cpu/isolated") or ""
    if status is None or given is None:
        return None
    try:
        allowed = CPUSet.parse(status[1])
        # the boot parameter isolcpus= excludes these from the default affinity
        return allowed if allowed < CPUSet.parse(given) - CPUSet.parse(isolated) else None
    except ValueError:
        return None


def _cpus_of_cgroup(host: Host, membership: str) -> str | None:
    """Return the CPUs of the cgroup v2 that a /proc/PID/cgroup names, or of the nearest above it.

    Cgroups without the cpuset controller have no such file.
    """
    name = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    if name is None:
        return None
    for folder in (PurePosixPath(name), *PurePosixPath(name).parents):
        if given := host.read(f"/sys/fs/cgroup{folder}/cpuset.cpus.effective"):
            return given
    return host.read("/sys/devices/system/cpu/online")
