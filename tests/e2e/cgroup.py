"""The real cgroups of containers, v1 and v2: read, and swept at the end.

Paths are as the kubelet gives them: absolute, below every hierarchy's mount point.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nri_policy.cpuset import CPUSet
from tests.e2e.waiting import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusetFiles:
    """CPUs and memory nodes that something may use."""

    cpus: CPUSet
    mems: CPUSet


def cpuset_hierarchy() -> Path | None:
    """Return where the hierarchy with the cpuset controller is mounted, if anywhere."""
    for mount, version, options in _hierarchies():
        if version == "cgroup":
            if "cpuset" in options:
                return mount
        elif "cpuset" in (mount / "cgroup.controllers").read_text().split():
            return mount
    return None


def cpuset(path: str) -> CpusetFiles:
    """Return what cpuset.cpus and cpuset.mems of the cgroup *path* say.

    On cgroup v2 they are empty where nothing was asked for; there, what the cgroup inherits.
    """
    folder = _folder(path)

    def value(name: str) -> CPUSet:
        text = (folder / f"cpuset.{name}").read_text()
        if not text.strip():
            text = (folder / f"cpuset.{name}.effective").read_text()
        return CPUSet.parse(text)

    return CpusetFiles(cpus=value("cpus"), mems=value("mems"))


def write(path: str, name: str, text: str) -> None:
    """Write a file of the cgroup *path*, behind everybody's back."""
    (_folder(path) / name).write_text(text)


def enter(path: str, pid: int) -> None:
    """Move a process into the cgroup *path*."""
    write(path, "cgroup.procs", str(pid))


def processes(path: str) -> list[int]:
    """Return the ids of the processes in the cgroup *path* itself."""
    return [int(pid) for pid in (_folder(path) / "cgroup.procs").read_text().split()]


def allowed(pid: int) -> CpusetFiles:
    """Return where the process may run, from /proc/PID/status."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return CpusetFiles(
        cpus=CPUSet.parse(status["Cpus_allowed_list"]),
        mems=CPUSet.parse(status["Mems_allowed_list"]),
    )


def sweep(path: str) -> None:
    """Kill every process below the cgroup *path* and remove it, in all hierarchies."""
    folders = [mount / path.strip("/") for mount, _, _ in _hierarchies()]
    trees = [Path(inner) for folder in folders for inner, _, _ in os.walk(folder, topdown=False)]
    kill({int(pid) for tree in trees for pid in (tree / "cgroup.procs").read_text().split()})
    for tree in trees:
        if not eventually(partial(_removed, tree), bool):
            raise TimeoutError(f"cgroup {tree} cannot be removed: still in use")


def kill(pids: Iterable[int]) -> None:
    """Kill the processes and wait until each is gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                if not poll.poll(60_000):
                    raise TimeoutError(f"process {pid} outlives SIGKILL")
            finally:
                os.close(descriptor)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # EBUSY until the last process is reaped
        return False
    return True


def _folder(path: str) -> Path:
    mount = cpuset_hierarchy()
    assert mount is not None, "no cpuset controller is mounted"
    return mount / path.strip("/")


def _hierarchies() -> Iterator[tuple[Path, str, list[str]]]:
    """Yield (mount point, "cgroup" or "cgroup2", options) of each; proc(5) on mountinfo."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            yield Path(left.split()[4]), kind, options.split(",")
