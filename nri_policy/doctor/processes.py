"""The host's processes by their command lines, as far as we may see them.

psutil lists those of the host, whose /proc may be below any root folder. Their affinities it would
ask the kernel for, by an id of our own PID namespace: these are read from files, by `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

import psutil
from msgspec import Struct

from nri_policy.doctor.host import Host
from nri_policy.foundation.cpuset import CPUSet

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
        """Return the last value of an option, `--name value` or `--name=value`, by its *names*."""
        value, rest = None, iter(self.arguments[1:])
        for argument in rest:
            name, equals, after = argument.partition("=")
            if name in names:
                value = after if equals else next(rest, value)
        return value


def processes(host: Host) -> tuple[Process, ...]:
    """Return the processes that have a command line: kernel threads have none."""
    found = []
    with _proc_of(host):
        for number in _ids():
            try:
                arguments = psutil.Process(number).cmdline()
            except (psutil.Error, OSError, ValueError, IndexError):  # ended, hidden or malformed
                continue
            if any(arguments):
                found.append(Process(number, tuple(arguments)))
    return tuple(found)


@contextmanager
def _proc_of(host: Host) -> Iterator[None]:
    """Have psutil look at the host's /proc."""
    own, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(host.path("/proc"))
    try:
        yield
    finally:
        psutil.PROCFS_PATH = own


def _ids() -> list[int]:
    try:
        return psutil.pids()
    except OSError:
        return []


def find_named(processes: Iterable[Process], *names: str) -> list[Process]:
    """Return the processes of programs with these names."""
    return [process for process in processes if process.name in names]


def own_affinity(host: Host, process: Process) -> CPUSet | None:
    """Return the CPUs that a process was confined to, but not by its cgroup; None if it was not.

    Only on cgroup v2; None elsewhere, and where its files cannot be read.
    """
    status = _ALLOWED.search(host.read(f"/proc/{process.id}/status") or "")
    given = _cpus_of_cgroup(host, host.read(f"/proc/{process.id}/cgroup") or "")
    isolated = host.read("/sys/devices/system/cpu/isolated") or ""
    if status is None or given is None:
        return None
    try:
        allowed = CPUSet.parse(status[1])
        # at boot the kernel keeps everybody off those
        return allowed if allowed < CPUSet.parse(given) - CPUSet.parse(isolated) else None
    except ValueError:
        return None


def _cpus_of_cgroup(host: Host, membership: str) -> str | None:
    """Return the CPUs of the cgroup v2 that a /proc/PID/cgroup names, or of the nearest above it.

    Those have no cpuset of their own where the controller is not on for them.
    """
    name = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    if name is None:
        return None
    for folder in (PurePosixPath(name), *PurePosixPath(name).parents):
        if given := host.read(f"/sys/fs/cgroup{folder}/cpuset.cpus.effective"):
            return given
    return host.read("/sys/devices/system/cpu/online")
