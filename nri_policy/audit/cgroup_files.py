"""The two versions of cgroups: where their files are, and what these say.

Every read is limited; what is absent or malformed reads as nothing.
"""

from __future__ import annotations

from msgspec import Struct

from nri_policy.audit.deviations import CpusetState
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.sysfs import FileTree, Folder

_LONGEST = 1 << 20  # bytes of a list of threads
_STARTED = 19  # field of /proc/PID/stat behind the name: 22 in proc(5), which counts from 1
# crun keeps processes one level deeper under systemd (its `run.oci.systemd.subgroup`)
_INNER = "container"


class Hierarchy(Struct, frozen=True, kw_only=True):
    """Where the controllers are mounted, and the names of the cpuset controller's files."""

    mount: str
    cpu: str
    quota: str
    cpu_time: str
    memory: str
    memory_limit: str
    written: str
    effective: str
    threads: str


V1 = Hierarchy(
    mount="sys/fs/cgroup/cpuset",
    cpu="sys/fs/cgroup/cpu",
    quota="cpu.cfs_quota_us",
    cpu_time="sys/fs/cgroup/cpuacct",
    memory="sys/fs/cgroup/memory",
    memory_limit="memory.limit_in_bytes",
    written="cpuset.{}",
    effective="cpuset.effective_{}",
    threads="tasks",
)
V2 = Hierarchy(
    mount="sys/fs/cgroup",
    cpu="sys/fs/cgroup",
    quota="cpu.max",
    cpu_time="sys/fs/cgroup",
    memory="sys/fs/cgroup",
    memory_limit="memory.max",
    written="cpuset.{}",
    effective="cpuset.{}.effective",
    threads="cgroup.threads",
)


def hierarchy_of(tree: FileTree) -> Hierarchy:
    """Return the version that has the cpuset controller."""
    with tree.folder(V2.mount) as top:
        controllers = top.text("cgroup.controllers") or ""
    return V2 if "cpuset" in controllers.split() else V1


def cpuset_state(folder: Folder, hierarchy: Hierarchy, name: str) -> CpusetState | None:
    """Return a cgroup's "cpus" or "mems"; None if it does not exist."""
    written, effective = (
        folder.set(form.format(name)) for form in (hierarchy.written, hierarchy.effective)
    )
    if effective is None:  # Linux before 3.17 had only one file
        effective = written
    return None if effective is None else CpusetState(written=written or EMPTY, effective=effective)


def usable_cpuset(folder: Folder, hierarchy: Hierarchy, name: str) -> CPUSet | None:
    """Return a cgroup's own "cpus" or "mems", else those that it may use; None without a cgroup."""
    if written := folder.set(hierarchy.written.format(name)):
        return written
    effective = folder.set(hierarchy.effective.format(name))
    return written if effective is None else effective


def cpu_amounts(folder: Folder, hierarchy: Hierarchy) -> tuple[int, int, int]:
    """Return shares, quota and period of a cgroup.

    On version 2 no shares: runtimes turn these into weights in several ways.
    """
    if hierarchy is V1:
        names = ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        shares, quota, period = (number_of(folder.text(name)) for name in names)
        return shares, quota, period
    limit, _, text = (folder.text("cpu.max") or "").partition(" ")
    return 0, -1 if limit == "max" else number_of(limit), number_of(text)


def number_of(text: str | None) -> int:
    """Return a number, 0 for anything else."""
    try:
        return int(text or "0")
    except ValueError:
        return 0


def cpu_seconds_of(top: Folder, path: str, hierarchy: Hierarchy) -> float | None:
    """Return the CPU time that a cgroup has used; None if it does not exist."""
    if hierarchy is V1:  # in ns
        text = (top.text(f"{path}/cpuacct.usage") or "").strip()
        return int(text) / 1e9 if text.isdecimal() else None
    usage = statistics_of(top.text(f"{path}/cpu.stat")).get("usage_usec")
    return None if usage is None else usage / 1e6


def statistics_of(text: str | None) -> dict[str, int]:
    """Return the counters of a file with a name and a number on each line."""
    pairs = (line.partition(" ") for line in (text or "").splitlines())
    return {name: int(value) for name, _, value in pairs if value.isdecimal()}


def run_delay(proc: Folder, thread: int) -> float | None:
    """Return how many seconds a thread has waited for a CPU, None if the kernel does not say."""
    fields = (proc.text(f"{thread}/schedstat") or "").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 and fields[1].isdecimal() else None


def list_threads(folder: Folder, hierarchy: Hierarchy) -> set[int]:
    """Return the threads of a container's cgroup."""
    inside = _read_threads(folder, hierarchy.threads)
    with folder.folder(_INNER) as inner:
        return inside | _read_threads(inner, hierarchy.threads)


def _read_threads(folder: Folder, name: str) -> set[int]:
    """Return the threads in a cgroup; 0 stands for those of another PID namespace."""
    text = folder.text(name, _LONGEST) or ""
    lines = text.split("\n")
    if len(text) > _LONGEST - 16:  # the last line may be incomplete
        lines.pop()
    return {int(line) for line in lines if line.isascii() and line.isdigit()}


def start_time(proc: Folder, thread: int) -> str | None:
    """Return when a thread started; None if it does not exist."""
    with proc.folder(str(thread)) as process:
        fields = (process.text("stat") or "").rpartition(")")[2].split()
    return fields[_STARTED] if len(fields) > _STARTED else None


def affinity(proc: Folder, thread: int) -> CPUSet | None:
    """Return the CPUs that a thread may use; None if it does not exist."""
    with proc.folder(str(thread)) as process:
        lines = (process.text("status") or "").split("\n")
    for line in lines:
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return process.tree.parse(value.strip(), f"proc/{thread}/status")
    return None
