"""Reading what the kernel says of a container, from the files of its cgroup and its threads.

Owns where these files are, for cgroup v1 and v2. Nothing is written but the CPUs of a cgroup that
is there, and the CFS quota of a pod's, nothing outside the root is opened, no link is followed that
a container could have made, and every read is bounded. A container that ends half-way is simply not
there.

The cgroup is the one that the runtime names, not the one that a process says it is in: a container
may move its processes. For one that was moved out, the oldest thread ever seen in the cgroup is
remembered by its start time, and its process is looked at wherever it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from nri_policy.audit.comparison import CpusetState, Observed
from nri_policy.audit.first_process import FirstProcess, io_priority_of, process_of, visible
from nri_policy.engine.quota import NO_QUOTA
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import Folder, Tree
from nri_policy.plugin.cpuset_files import Change, Confined, CpusetFiles
from nri_policy.plugin.pod_quotas import Limited
from nri_policy.systemd.scopes import scope_of
from nri_policy.workload.pod import Resources

MOST_THREADS = 32  # looked at in one turn: the others have theirs in the next ones
_LONGEST = 1 << 20  # bytes of a list of threads
_STARTED = 19  # field of /proc/PID/stat behind the name: 22 in proc(5), which counts from 1
# crun keeps processes one level deeper under systemd (its `run.oci.systemd.subgroup`)
_INNER = "container"

_Read = TypeVar("_Read")


class _Hierarchy(Struct, frozen=True, kw_only=True):
    """Where the controllers are, and what the cpuset controller calls its files."""

    mount: str
    cpu: str
    quota: str
    cpu_time: str
    memory: str
    written: str
    effective: str
    threads: str


_V1 = _Hierarchy(
    mount="sys/fs/cgroup/cpuset",
    cpu="sys/fs/cgroup/cpu",
    quota="cpu.cfs_quota_us",
    cpu_time="sys/fs/cgroup/cpuacct",
    memory="sys/fs/cgroup/memory",
    written="cpuset.{}",
    effective="cpuset.effective_{}",
    threads="tasks",
)
_V2 = _Hierarchy(
    mount="sys/fs/cgroup",
    cpu="sys/fs/cgroup",
    quota="cpu.max",
    cpu_time="sys/fs/cgroup",
    memory="sys/fs/cgroup",
    written="cpuset.{}",
    effective="cpuset.{}.effective",
    threads="cgroup.threads",
)


class _OpenCgroup(Struct, frozen=True, kw_only=True):
    """Where a container's cgroup is, with the folder of its cpuset controller open."""

    tree: Tree
    hierarchy: _Hierarchy
    path: str
    folder: Folder


def folder_of(cgroup: str) -> str | None:
    """Return where the runtime's *cgroup* is below a mount point; None for one that is none.

    Its forms: `/parent/name`, and for systemd `SLICE:PREFIX:NAME`, which is the scope PREFIX-NAME
    in that slice.
    """
    path = cgroup.strip("/")
    if scope := scope_of(cgroup):
        slice_ = cgroup.partition(":")[0]
        path = f"{_parent_slices(slice_ or 'system.slice')}{scope}"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return None
    return path


def _parent_slices(slice_: str) -> str:
    """Return the path of a slice with a slash behind: `a-b.slice` is in `a.slice`."""
    names = slice_.removesuffix(".slice").split("-")
    if not any(names):  # `-.slice`, the root
        return ""
    return "".join("-".join(names[: n + 1]) + ".slice/" for n in range(len(names)))


def _path_of_pod(folder: str) -> str | None:
    """Return where a pod's cgroup is below a mount point; None for one that is none."""
    if folder.endswith(".slice") and "/" not in folder:
        return _parent_slices(folder).rstrip("/")
    return folder_of(folder)


class Cgroups:
    """The cgroups of a host; for one thread at a time."""

    def __init__(self, root: Path) -> None:
        """Take the folder that holds the host's /sys and /proc."""
        self._root = root
        self._oldest: dict[str, tuple[int, str]] = {}  # thread and its start, by container id

    def observe(
        self, container_id: str, cgroup: str, *, turn: int, watched: Iterable[int] = ()
    ) -> Observed | None:
        """Return what the kernel says of a container; None if it does not run, or not here.

        Of many threads each *turn* shows others, and the *watched* ones.
        """
        with self._open(cgroup) as at:
            if at is None:
                return None
            cpus, mems = (_cpuset(at.folder, at.hierarchy, name) for name in ("cpus", "mems"))
            inside = _inside(at.folder, at.hierarchy)
            populated = "populated 1" in (at.folder.text("cgroup.events") or "")
            with at.tree.folder("proc") as proc:
                hidden = 0 in inside
                inside.discard(0)
                threads = inside | self._process(container_id, proc, inside)
                if cpus is None or mems is None or not (threads or hidden or populated):
                    return None
                shown = sorted(threads)
                start = turn * MOST_THREADS % max(1, len(shown))
                window = (shown[start:] + shown[:start])[:MOST_THREADS]
                found = {each: _affinity(proc, each) for each in {*window, *watched}}
        seen = {each: cpus for each, cpus in found.items() if cpus is not None}
        return Observed(cpus=cpus, mems=mems, threads=seen, hidden=hidden)

    def resources(self, cgroup: str) -> Resources | None:
        """Return what a cgroup is set to; None if it is not here.

        What this kernel does not say, or says in a form that the runtime's cannot be told from, is
        not set. Where the cpuset was never set, it is what the cgroup may use.
        """
        with self._open(cgroup) as at:
            if at is None:
                return None
            hierarchy = at.hierarchy
            cpus, mems = (_cpuset(at.folder, hierarchy, name) for name in ("cpus", "mems"))
            if cpus is None or mems is None:
                return None
            with at.tree.folder(f"{hierarchy.cpu}/{at.path}") as folder:
                shares, quota, period = _v1_cpu(folder) if hierarchy is _V1 else _v2_cpu(folder)
            with at.tree.folder(f"{hierarchy.memory}/{at.path}") as folder:
                name = "memory.limit_in_bytes" if hierarchy is _V1 else "memory.max"
                limit = _number(folder.text(name))
        return Resources(
            cpu_shares=shares,
            cpu_quota=quota,
            cpu_period=period,
            memory_limit=limit,
            cpus=str(cpus.written or cpus.effective),
            mems=str(mems.written or mems.effective),
        )

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of those of *cgroups* that are here and have any.

        On version 2 one that has none of its own may use all of its parent's.
        """

        def read(top: Folder, path: str, hierarchy: _Hierarchy) -> CPUSet | None:
            forms = (hierarchy.written, hierarchy.effective)
            found = (top.set(f"{path}/{form.format('cpus')}") for form in forms)
            return next(filter(None, found), None)

        return self._of_each(cgroups, lambda hierarchy: hierarchy.mount, read)

    def cpuset_files(self, cgroups: Iterable[str]) -> Collection[str]:
        """Return the files that hold these CPUs, be they there or not."""
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            mount = self._root / (tree.resolve(hierarchy.mount) or hierarchy.mount)
        name = hierarchy.written.format("cpus")
        paths = filter(None, map(folder_of, cgroups))
        return {f"{mount}/{path}/{name}" for path in paths}

    def cpu_seconds(self, cgroups: Iterable[str]) -> Mapping[str, float]:
        """Return the CPU time that those of *cgroups* have used that are here; for any thread."""
        return self._of_each(cgroups, lambda hierarchy: hierarchy.cpu_time, _cpu_seconds)

    def limits(self, cgroup: str, names: Iterable[str]) -> Mapping[str, str]:
        """Return what files of a cgroup about I/O hold, as far as they are there."""
        with self._open(cgroup) as at:
            texts = {} if at is None else {name: at.folder.text(name) for name in names}
        return {name: text.strip() for name, text in texts.items() if text is not None}

    def first_process(self, cgroup: str) -> FirstProcess | None:
        """Return what the oldest process of a cgroup runs with, None if none can be seen."""
        with self._open(cgroup) as at:
            if at is None:
                return None
            oldest = min(_inside(at.folder, at.hierarchy) - {0}, default=0)
            with at.tree.folder("proc") as proc, proc.folder(str(oldest)) as process:
                stat = process.text("stat") if oldest else None
        if stat is None:
            return None
        return process_of(stat, io_priority_of(oldest) if visible(self._root) else None)

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        """Change the CPUs of cgroups, one after the other; return what became of each."""
        done = {}
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            # no link is below a mount
            top = tree.open(hierarchy.mount, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if top is None:
                return {each: Confined(cpus=None) for each in wanted}
            try:
                files = CpusetFiles(
                    top, lambda text: tree.parse(text, "cpuset.cpus"), nested=hierarchy is _V1
                )
                for each, cpus in wanted.items():
                    path = folder_of(each)
                    done[each] = (
                        Confined(cpus=None) if path is None else files.confine(path, cpus, change)
                    )
            finally:
                os.close(top)
        return done

    def limit(self, wanted: Mapping[str, int]) -> Mapping[str, Limited]:
        """Take the CFS quota from pods' cgroups, or give one to those that have none.

        *wanted* has them by the runtime's name: µs a period, or NO_QUOTA. Of those that are here.
        """
        done = {}
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            top = tree.open(hierarchy.cpu, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if top is None:
                return {}
            try:
                for folder, quota in wanted.items():
                    path = _path_of_pod(folder)
                    if path is not None:
                        done[folder] = _limit(top, f"{path}/{hierarchy.quota}", quota)
            finally:
                os.close(top)
        return {folder: each for folder, each in done.items() if each is not None}

    def kept_by_systemd(self, cgroup: str) -> bool:
        """Return whether systemd writes the cpuset of a cgroup again: a scope, on cgroup v2.

        What `confine` sets there lasts only if `Scopes.allow` has systemd keep it.
        """
        if scope_of(cgroup) is None:
            return False
        with Tree(self._root, Notes()) as tree:
            return _hierarchy(tree) is _V2

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the threads in a cgroup; 0 stands for those that cannot be seen from here."""
        with self._open(cgroup) as at:
            return () if at is None else _inside(at.folder, at.hierarchy)

    def has_process(self, pid: int) -> bool:
        """Return whether there is a process."""
        with Tree(self._root, Notes()) as tree, tree.folder("proc") as proc:
            return proc.has(str(pid))

    def inhabited(self, folder: str) -> Mapping[str, Collection[int]]:
        """Return the cgroups below a pod's that have threads, by name, and these."""
        path = _path_of_pod(folder)
        if path is None:
            return {}
        found = {}
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            with tree.folder(f"{hierarchy.mount}/{path}") as pod:
                for name in pod.names():
                    with pod.folder(name) as each:
                        if threads := _inside(each, hierarchy):
                            found[name] = threads
        return found

    def outside(self, folders: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the top cgroups that have no pod of these *folders*, and their CPUs.

        Those that have processes, as far as the kernel says so (cgroup v2).
        """
        pods = {path.partition("/")[0] for each in folders if (path := _path_of_pod(each))}
        found = {}
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            with tree.folder(hierarchy.mount) as top:
                whole = _cpuset(top, hierarchy, "cpus")
                for name in top.names():
                    with top.folder(name) as each:
                        # a file, a cgroup without processes, or one of pods
                        if name in pods or "populated 0" in (each.text("cgroup.events") or ""):
                            continue
                        cpus = _cpuset(each, hierarchy, "cpus") or whole
                        if each.text(hierarchy.threads) is not None and cpus is not None:
                            found[name] = cpus.effective
        return found

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget all other containers."""
        self._oldest = {each: self._oldest[each] for each in container_ids if each in self._oldest}

    @contextmanager
    def _open(self, cgroup: str) -> Iterator[_OpenCgroup | None]:
        """Open where the runtime's *cgroup* is, or would be; None for one that is none."""
        path = folder_of(cgroup)
        if path is None:
            yield None
            return
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            with tree.folder(f"{hierarchy.mount}/{path}") as folder:
                yield _OpenCgroup(tree=tree, hierarchy=hierarchy, path=path, folder=folder)

    def _of_each(
        self,
        cgroups: Iterable[str],
        mount: Callable[[_Hierarchy], str],
        read: Callable[[Folder, str, _Hierarchy], _Read | None],
    ) -> dict[str, _Read]:
        """Return what *read* finds of each cgroup below a mount, of those where it finds any."""
        found = {}
        with Tree(self._root, Notes()) as tree:
            hierarchy = _hierarchy(tree)
            with tree.folder(mount(hierarchy)) as top:  # no link is below
                for each in cgroups:
                    path = folder_of(each)
                    if path is not None and (what := read(top, path, hierarchy)) is not None:
                        found[each] = what
        return found

    def _process(self, container_id: str, proc: Folder, inside: set[int]) -> set[int]:
        """Return the threads of the container's oldest process, wherever they are now."""
        if container_id not in self._oldest:
            oldest = min(inside, default=0)
            started = _start_time(proc, oldest) if oldest else None
            if started is None:
                return set()
            self._oldest[container_id] = oldest, started
        thread, started = self._oldest[container_id]
        if _start_time(proc, thread) != started:  # it ended: the next oldest takes over
            del self._oldest[container_id]
            return set()
        with proc.folder(str(thread)) as process, process.folder("task") as tasks:
            return set(tasks.numbered(""))


def _hierarchy(tree: Tree) -> _Hierarchy:
    with tree.folder(_V2.mount) as top:
        controllers = top.text("cgroup.controllers") or ""
    return _V2 if "cpuset" in controllers.split() else _V1


def _cpu_seconds(top: Folder, path: str, hierarchy: _Hierarchy) -> float | None:
    """Return the CPU time that a cgroup has used, None if it is not there."""
    if hierarchy is _V1:  # in ns
        text = (top.text(f"{path}/cpuacct.usage") or "").strip()
        return int(text) / 1e9 if text.isdecimal() else None
    for line in (top.text(f"{path}/cpu.stat") or "").splitlines():  # in µs
        name, _, value = line.partition(" ")
        if name == "usage_usec" and value.isdecimal():
            return int(value) / 1e6
    return None


def _limit(top: int, path: str, quota: int) -> Limited | None:
    """Write a file of CFS quota below *top* where it is on the other side; None if it is not here.

    The period stays in both versions.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Limited(before=0, error=os.strerror(error.errno or errno.EIO))
    try:
        text = os.pread(file, 64, 0).decode("ascii", "replace").partition(" ")[0].strip()
        before = NO_QUOTA if text == "max" else _number(text)
        if (before > 0) == (quota == NO_QUOTA):
            os.ftruncate(file, 0)  # as a shell's `>` does
            none = "max" if path.endswith(_V2.quota) else str(NO_QUOTA)
            os.pwrite(file, (none if quota == NO_QUOTA else str(quota)).encode(), 0)
        return Limited(before=before)
    except OSError as error:
        if error.errno == errno.ENODEV:  # it was removed after it was opened
            return None
        return Limited(before=0, error=os.strerror(error.errno or errno.EIO))
    finally:
        os.close(file)


def _cpuset(folder: Folder, hierarchy: _Hierarchy, name: str) -> CpusetState | None:
    written, effective = (
        folder.set(form.format(name)) for form in (hierarchy.written, hierarchy.effective)
    )
    if effective is None:  # before Linux 3.17 there was one file
        effective = written
    return None if effective is None else CpusetState(written=written or EMPTY, effective=effective)


def _v1_cpu(folder: Folder) -> tuple[int, int, int]:
    """Return shares, quota and period."""
    names = ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    shares, quota, period = (_number(folder.text(name)) for name in names)
    return shares, quota, period


def _v2_cpu(folder: Folder) -> tuple[int, int, int]:
    """Return quota and period; runtimes turn shares into weights in more than one way."""
    quota, _, period = (folder.text("cpu.max") or "").partition(" ")
    return 0, -1 if quota == "max" else _number(quota), _number(period)


def _number(text: str | None) -> int:
    """Return a number, 0 for anything else."""
    try:
        return int(text or "0")
    except ValueError:
        return 0


def _inside(folder: Folder, hierarchy: _Hierarchy) -> set[int]:
    """Return the threads of a container's cgroup."""
    inside = _numbers(folder, hierarchy.threads)
    with folder.folder(_INNER) as inner:
        return inside | _numbers(inner, hierarchy.threads)


def _numbers(folder: Folder, name: str) -> set[int]:
    """Return the threads in a cgroup; 0 stands for those of another PID namespace."""
    text = folder.text(name, _LONGEST) or ""
    lines = text.split("\n")
    if len(text) > _LONGEST - 16:  # the last may be cut
        lines.pop()
    return {int(line) for line in lines if line.isascii() and line.isdigit()}


def _start_time(proc: Folder, thread: int) -> str | None:
    """Return when a thread started, None if it is not there."""
    with proc.folder(str(thread)) as process:
        fields = (process.text("stat") or "").rpartition(")")[2].split()
    return fields[_STARTED] if len(fields) > _STARTED else None


def _affinity(proc: Folder, thread: int) -> CPUSet | None:
    """Return the CPUs that a thread may use, None if it is not there."""
    with proc.folder(str(thread)) as process:
        lines = (process.text("status") or "").split("\n")
    for line in lines:
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return process.tree.parse(value.strip(), f"proc/{thread}/status")
    return None
