"""The real cgroups of containers, v1 and v2: read, and swept at the end.

Paths are as the kubelet gives them: absolute, below every hierarchy's mount point.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from io import FileIO
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.waiting import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusetFiles:
    """CPUs and memory nodes that something may use."""

    cpus: CPUSet
    mems: CPUSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What a cgroup may use: weight, microseconds of each period, bytes; -1 for no limit."""

    shares: int  # of cgroup v1
    quota: int
    memory: int


def cpuset_hierarchy() -> Path | None:
    """Return where the hierarchy with the cpuset controller is mounted, if anywhere."""
    return _hierarchy_of("cpuset")


def cpuset(path: str) -> CpusetFiles:
    """Return what cpuset.cpus and cpuset.mems of the cgroup *path* say.

    On cgroup v2 they are empty where nothing was asked for; there, what the cgroup inherits.
    """
    folder = _folder(path)

    def value(name: str) -> CPUSet:
        text = text_of(folder / f"cpuset.{name}")
        if not text.strip():
            text = text_of(folder / f"cpuset.{name}.effective")
        return CPUSet.parse(text)

    return CpusetFiles(cpus=value("cpus"), mems=value("mems"))


def text_of(file: Path) -> str:
    """Return the text of a small file; Path.read_text() takes an emulated machine much longer."""
    with FileIO(file) as raw:
        return raw.readall().decode()


def children(path: str) -> set[str]:
    """Return the names of the cgroups right below the cgroup *path*."""
    return {each.name for each in _folder(path).iterdir() if each.is_dir()}


def quota(path: str) -> str:
    """Return the limit of CPU time of the cgroup *path*, as its file has it."""
    return _quota_file(path).read_text().strip()


def limit(path: str, quota: int) -> None:
    """Set the limit of CPU time of the cgroup *path*, in µs of a period, as a kubelet does."""
    _quota_file(path).write_text(str(quota))


def limit_of(path: str) -> int | None:
    """Return that limit, None if there is none."""
    text, _, _ = _quota_file(path).read_text().strip().partition(" ")
    return None if text in ("max", "-1") else int(text)


def throttled(path: str) -> int:
    """Return how often the cgroup *path* had used up its quota."""
    lines = (_folder(path, "cpu") / "cpu.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["nr_throttled"])


def seconds(path: str) -> float:
    """Return the CPU time that the cgroup *path* has used."""
    if _hierarchy_of("cpuacct") is not None:
        return int((_folder(path, "cpuacct") / "cpuacct.usage").read_text()) / 1e9
    lines = (_folder(path) / "cpu.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6


def _quota_file(path: str) -> Path:
    folder = _folder(path, "cpu")
    unified = folder / "cpu.max"
    return unified if unified.exists() else folder / "cpu.cfs_quota_us"


@contextmanager
def frozen(path: str) -> Iterator[None]:
    """Freeze the processes of the cgroup *path* for the while, as far as the host can."""
    if _hierarchy_of("freezer") is not None:  # only cgroup v1 has this controller
        file, freeze, thaw = _folder(path, "freezer") / "freezer.state", "FROZEN", "THAWED"
    else:
        file, freeze, thaw = _folder(path) / "cgroup.freeze", "1", "0"
    file.write_text(freeze)
    try:
        yield
    finally:
        with suppress(OSError):  # it is gone
            file.write_text(thaw)


def amounts(path: str) -> Amounts:
    """Return the amounts of the cgroup *path*, of version 1."""

    def value(controller: str, name: str) -> int:
        return int((_folder(path, controller) / f"{controller}.{name}").read_text())

    return Amounts(
        shares=value("cpu", "shares"),
        quota=value("cpu", "cfs_quota_us"),
        memory=value("memory", "limit_in_bytes"),
    )


def make(path: str) -> None:
    """Make the cgroup *path* in all hierarchies, with the CPUs and memory of its parent."""
    for mount, version, options in _hierarchies():
        folder = mount / path.strip("/")
        folder.mkdir(exist_ok=True)
        if version == "cgroup" and "cpuset" in options:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((folder.parent / name).read_text())


def write(path: str, name: str, text: str) -> None:
    """Write a file of the cgroup *path*, behind everybody's back."""
    (_folder(path) / name).write_text(text)


def enter(path: str, pid: int, controller: str = "cpuset") -> None:
    """Move a process into the cgroup *path* of a controller."""
    (_folder(path, controller) / "cgroup.procs").write_text(str(pid))


def weigh(path: str, shares: int) -> None:
    """Set the weight of the cgroup *path* for CPU time, as a kubelet and a runtime do."""
    folder = _folder(path, "cpu")
    if (folder / "cpu.shares").exists():
        (folder / "cpu.shares").write_text(str(shares))
    else:
        (folder / "cpu.weight").write_text(str(1 + (shares - 2) * 9999 // 262142))


def processes(path: str) -> list[int]:
    """Return the ids of the processes in the cgroup *path* itself."""
    return [int(pid) for pid in text_of(_folder(path) / "cgroup.procs").split()]


def allowed(pid: int) -> CpusetFiles:
    """Return where the process may run, from /proc/PID/status."""
    status = dict(
        line.split(":\t", 1) for line in text_of(Path(f"/proc/{pid}/status")).splitlines()
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


def _folder(path: str, controller: str = "cpuset") -> Path:
    mount = _hierarchy_of(controller)
    assert mount is not None, f"no {controller} controller is mounted"
    return mount / path.strip("/")


@cache
def _hierarchy_of(controller: str) -> Path | None:
    """Return where the hierarchy with a controller is mounted, if anywhere; no test moves it."""
    for mount, version, options in _hierarchies():
        if controller in (options if version == "cgroup" else _controllers(mount)):
            return mount
    return None


def _controllers(mount: Path) -> list[str]:
    """Return the controllers of a hierarchy of cgroup v2."""
    return (mount / "cgroup.controllers").read_text().split()


def _hierarchies() -> Iterator[tuple[Path, str, list[str]]]:
    """Yield (mount point, "cgroup" or "cgroup2", options) of each; proc(5) on mountinfo."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            yield Path(left.split()[4]), kind, options.split(",")
