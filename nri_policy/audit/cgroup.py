"""Reads what the kernel says about a container, from its cgroup's files and its threads.

Where these files are is in `cgroup_paths` and `cgroup_files`. Only in cgroups that exist is
anything written: the CPUs of a container's cgroup, its partition with those of the cgroups above,
and the CFS quota of a pod's. Nothing outside the root is opened, no link that a container could
have made is followed, and every read is limited. A container that ends during a read counts as
absent.

The cgroup is the one that the runtime names, not the one that a process reports: a container may
move its processes out. So the oldest thread ever seen in the cgroup is remembered by its start
time, and its process is checked in whichever cgroup it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from nri_policy.audit.above_pods import read_above
from nri_policy.audit.cgroup_files import (
    V1,
    V2,
    Hierarchy,
    affinity,
    cpu_amounts,
    cpu_seconds_of,
    cpuset_state,
    hierarchy_of,
    list_threads,
    number_of,
    run_delay,
    start_time,
    statistics_of,
    usable_cpuset,
)
from nri_policy.audit.cgroup_paths import folder_of, folder_of_pod, settle_partitions
from nri_policy.audit.cpu_use import CpuUse
from nri_policy.audit.deviations import KernelState
from nri_policy.audit.first_process import FirstProcess, has_same_pids, io_priority_of, process_of
from nri_policy.delivery.cgroup_tree import FolderTree
from nri_policy.delivery.cpuset_files import Change, Confined, CpusetFiles
from nri_policy.delivery.host_cgroups import HostCgroups, Limited
from nri_policy.delivery.partition_files import PARTITION, Settled
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree, Folder
from nri_policy.systemd.scopes import scope_of
from nri_policy.workload.pod import Resources

MAX_THREADS = 32  # checked in one turn; the next turns check the others

_Read = TypeVar("_Read")


class _OpenCgroup(Struct, frozen=True, kw_only=True):
    """A container's cgroup, with the folder of its cpuset controller open."""

    tree: FileTree
    hierarchy: Hierarchy
    path: str
    folder: Folder

    @contextmanager
    def of(self, mount: str) -> Iterator[Folder]:
        """Open its folder of the controller at *mount*: the same one on version 2."""
        if mount == self.hierarchy.mount:
            yield self.folder
            return
        with self.tree.folder(mount) as top, top.folder(self.path) as folder:
            yield folder


class ContainerCgroups(HostCgroups, Protocol):
    """The cgroups of a host's containers, and their processes; simulated by `simulation`."""

    def observe(
        self, container_id: str, cgroup: str, *, turn: int, watched: Iterable[int] = ()
    ) -> KernelState | None:
        """Return what the kernel says about a container; None if it does not run."""
        ...

    def limits(self, cgroup: str, names: Iterable[str]) -> Mapping[str, str]:
        """Return the content of those I/O files of a cgroup that exist."""
        ...

    def first_process(self, cgroup: str) -> FirstProcess | None:
        """Return the attributes of the oldest process of a cgroup; None if none is visible."""
        ...

    def has_process(self, pid: int) -> bool:
        """Return whether a process exists."""
        ...

    def find_populated(self, folder: str) -> Mapping[str, Collection[int]]:
        """Return the cgroups below a pod's that have threads, with these, by name."""
        ...

    def outside(self, folders: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the top cgroups that have no pod of these *folders*, and their CPUs."""
        ...

    def cpus_above(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of the cgroups above those of containers, by path; for any thread."""
        ...

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget all other containers."""

    def cpu_seconds(self, cgroups: Iterable[str]) -> Mapping[str, float]:
        """Return the CPU time of those of *cgroups* that exist here; for any thread."""
        ...

    def cpu_use(self, cgroups: Iterable[str]) -> Mapping[str, CpuUse]:
        """Return the kernel's counters of those of *cgroups* that exist here; for any thread."""
        ...


class Cgroups:
    """The cgroups of a host; for one thread at a time."""

    def __init__(self, root: Path) -> None:
        """Take the folder that holds the host's /sys and /proc."""
        self._root = root
        self._is_v2 = False  # until it is known
        self._oldest: dict[str, tuple[int, str]] = {}  # thread and start time, by container id

    def observe(
        self, container_id: str, cgroup: str, *, turn: int, watched: Iterable[int] = ()
    ) -> KernelState | None:
        """Return what the kernel says about a container; None if it does not run here.

        If there are many threads, each *turn* reads some of them, and always the *watched* ones.
        """
        with self._open(cgroup) as at:
            if at is None:
                return None
            cpus, mems = (cpuset_state(at.folder, at.hierarchy, name) for name in ("cpus", "mems"))
            inside = list_threads(at.folder, at.hierarchy)
            partition = (at.folder.text(PARTITION) or "").strip()
            find_populated = "populated 1" in (at.folder.text("cgroup.events") or "")
            with at.tree.folder("proc") as proc:
                hidden = 0 in inside
                inside.discard(0)
                threads = inside | self._process(container_id, proc, inside)
                if cpus is None or mems is None or not (threads or hidden or find_populated):
                    return None
                shown = sorted(threads)
                start = turn * MAX_THREADS % max(1, len(shown))
                window = (shown[start:] + shown[:start])[:MAX_THREADS]
                found = {each: affinity(proc, each) for each in {*window, *watched}}
        seen = {each: cpus for each, cpus in found.items() if cpus is not None}
        return KernelState(cpus=cpus, mems=mems, threads=seen, partition=partition, hidden=hidden)

    def are_usable(self) -> bool:
        """Return whether the top cgroup shows its CPUs, and is not mounted read-only."""
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            mount = self._root / (tree.resolve(hierarchy.mount) or hierarchy.mount)
            with tree.folder(hierarchy.mount) as top:
                forms = (hierarchy.written, hierarchy.effective)
                there = any(top.set(form.format("cpus")) for form in forms)
        return there and not os.statvfs(mount).f_flag & os.ST_RDONLY

    def resources(self, cgroup: str) -> Resources | None:
        """Return the settings of a cgroup; None if it does not exist here.

        A field stays unset if this kernel has no file for it, or if its file does not show the
        value that the runtime set. For a cpuset that was never set, the one that it may use.
        """
        with self._open(cgroup) as at:
            if at is None:
                return None
            hierarchy = at.hierarchy
            cpus, mems = (usable_cpuset(at.folder, hierarchy, name) for name in ("cpus", "mems"))
            if cpus is None or mems is None:
                return None
            with at.of(hierarchy.cpu) as folder:
                shares, quota, period = cpu_amounts(folder, hierarchy)
            with at.of(hierarchy.memory) as folder:
                limit = number_of(folder.text(hierarchy.memory_limit))
        return Resources(
            cpu_shares=shares,
            cpu_quota=quota,
            cpu_period=period,
            memory_limit=limit,
            cpus=str(cpus),
            mems=str(mems),
        )

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs by cgroup, for the visible *cgroups* with a non-empty cpuset.

        On version 2 a cgroup without CPUs of its own may use all CPUs of its parent.
        """

        def read(top: Folder, path: str, hierarchy: Hierarchy) -> CPUSet | None:
            forms = (hierarchy.written, hierarchy.effective)
            found = (top.set(f"{path}/{form.format('cpus')}") for form in forms)
            return next(filter(None, found), None)

        return self._read_each(cgroups, lambda hierarchy: hierarchy.mount, read)

    def cpuset_files(self, cgroups: Iterable[str], partitions: Iterable[str]) -> Collection[str]:
        """Return the paths of the files with these CPUs, whether they exist or not.

        For *partitions* also the files with their validity.
        """
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            mount = self._root / (tree.resolve(hierarchy.mount) or hierarchy.mount)
        files = {hierarchy.written.format("cpus"): cgroups, PARTITION: partitions}
        return {
            f"{mount}/{path}/{name}"
            for name, those in files.items()
            for path in map(folder_of, those)
            if path is not None
        }

    def cpu_seconds(self, cgroups: Iterable[str]) -> Mapping[str, float]:
        """Return the CPU time of those of *cgroups* that exist here; callable from any thread."""
        return self._read_each(cgroups, lambda hierarchy: hierarchy.cpu_time, cpu_seconds_of)

    def cpu_use(self, cgroups: Iterable[str]) -> Mapping[str, CpuUse]:
        """Return the kernel's counters by cgroup, for the visible *cgroups*; for any thread.

        Of many threads, those with the lowest ids.
        """
        found = {}
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            with (
                tree.folder(hierarchy.mount) as top,
                tree.folder(hierarchy.cpu) as cpu,
                tree.folder(hierarchy.cpu_time) as times,
                tree.folder("proc") as proc,
            ):
                for each in cgroups:
                    path = folder_of(each)
                    if path is None or (seconds := cpu_seconds_of(times, path, hierarchy)) is None:
                        continue
                    with top.folder(path) as folder:
                        threads = sorted(list_threads(folder, hierarchy) - {0})[:MAX_THREADS]
                    delays = {thread: run_delay(proc, thread) for thread in threads}
                    stat = statistics_of(cpu.text(f"{path}/cpu.stat"))
                    found[each] = CpuUse(
                        seconds=seconds,
                        periods=stat.get("nr_periods", 0),
                        throttled=stat.get("nr_throttled", 0),
                        throttled_seconds=stat.get("throttled_usec", 0) / 1e6
                        + stat.get("throttled_time", 0) / 1e9,  # of version 1
                        waited={t: delay for t, delay in delays.items() if delay is not None},
                    )
        return found

    def limits(self, cgroup: str, names: Iterable[str]) -> Mapping[str, str]:
        """Return the content of those I/O files of a cgroup that exist."""
        with self._open(cgroup) as at:
            texts = {} if at is None else {name: at.folder.text(name) for name in names}
        return {name: text.strip() for name, text in texts.items() if text is not None}

    def first_process(self, cgroup: str) -> FirstProcess | None:
        """Return the attributes of the oldest process of a cgroup; None if none is visible."""
        with self._open(cgroup) as at:
            if at is None:
                return None
            oldest = min(list_threads(at.folder, at.hierarchy) - {0}, default=0)
            with at.tree.folder("proc") as proc, proc.folder(str(oldest)) as process:
                stat = process.text("stat") if oldest else None
                groups = process.text("cpu_resctrl_groups") if oldest else None
        if stat is None:
            return None
        io_priority = io_priority_of(oldest) if has_same_pids(self._root) else None
        return process_of(stat, io_priority, groups)

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        """Change the CPUs of cgroups, one after the other; return the result of each."""
        done = dict.fromkeys(wanted, Confined(cpus=None))
        with self._open_mount(lambda hierarchy: hierarchy.mount) as (tree, hierarchy, top):
            if top is None:
                return done
            files = CpusetFiles(
                top, lambda text: tree.parse(text, "cpuset.cpus"), nested=hierarchy is V1
            )
            for each, cpus in wanted.items():
                if (path := folder_of(each)) is not None:
                    done[each] = files.confine(path, cpus, change)
        return done

    def partition(
        self,
        wanted: Mapping[str, Partition | None],
        above: Collection[str] | None,
        kept: Mapping[str, CPUSet],
    ) -> Settled:
        """Make cgroups the partitions wanted, or none; for any thread.

        *wanted* is by the runtime's name; *kept* are the CPUs of all other partitions, and *above*
        the paths of cgroups above that earlier calls have returned; None: all are looked for.
        """
        with self._open_mount(lambda hierarchy: hierarchy.mount) as (_, _, top):
            if top is None:
                return Settled(outcomes={})
            return settle_partitions(FolderTree(top), wanted, above, kept)

    def limit(self, wanted: Mapping[str, int]) -> Mapping[str, Limited]:
        """Remove the CFS quota from pods' cgroups, or set one where there is none.

        *wanted* is by the runtime's name: µs in a period, or NO_QUOTA. The result has only cgroups
        that exist here.
        """
        done = {}
        with self._open_mount(lambda hierarchy: hierarchy.cpu) as (_, hierarchy, top):
            if top is not None:
                for folder, quota in wanted.items():
                    if (path := folder_of_pod(folder)) is not None:
                        done[folder] = _limit(top, f"{path}/{hierarchy.quota}", quota)
        return {folder: each for folder, each in done.items() if each is not None}

    def kept_by_systemd(self, cgroup: str) -> bool:
        """Return whether systemd rewrites the cpuset of a cgroup: of a scope, on cgroup v2.

        There a change by `confine` only lasts if `Scopes.allow` stores it in systemd.
        """
        if scope_of(cgroup) is None:
            return False
        with FileTree(self._root, Notes()) as tree:
            return self._hierarchy_of(tree) is V2

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the threads in a cgroup; 0 stands for threads that are not visible from here."""
        with self._open(cgroup) as at:
            return () if at is None else list_threads(at.folder, at.hierarchy)

    def has_process(self, pid: int) -> bool:
        """Return whether a process exists."""
        with FileTree(self._root, Notes()) as tree, tree.folder("proc") as proc:
            return proc.has(str(pid))

    def find_populated(self, folder: str) -> Mapping[str, Collection[int]]:
        """Return the cgroups below a pod's that have threads, with these, by name."""
        path = folder_of_pod(folder)
        if path is None:
            return {}
        found = {}
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            with tree.folder(f"{hierarchy.mount}/{path}") as pod:
                for name in pod.names():
                    with pod.folder(name) as each:
                        if threads := list_threads(each, hierarchy):
                            found[name] = threads
        return found

    def outside(self, folders: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the top cgroups without a pod of these *folders*, and their CPUs.

        On cgroup v2, only those with processes.
        """
        pods = {path.partition("/")[0] for each in folders if (path := folder_of_pod(each))}
        found = {}
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            with tree.folder(hierarchy.mount) as top:
                whole = cpuset_state(top, hierarchy, "cpus")
                for name in top.names():
                    with top.folder(name) as each:
                        # a file, a cgroup without processes, or one of pods
                        if name in pods or "populated 0" in (each.text("cgroup.events") or ""):
                            continue
                        cpus = cpuset_state(each, hierarchy, "cpus") or whole
                        if each.text(hierarchy.threads) is not None and cpus is not None:
                            found[name] = cpus.effective
        return found

    def cpus_above(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of the cgroups above those of containers, by path; for any thread.

        Above *cgroups*, and all that kubelets make; see `above_pods`.
        """
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            with tree.folder(hierarchy.mount) as top:
                return read_above(top, hierarchy.written.format("cpus"), cgroups)

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget all other containers."""
        self._oldest = {each: self._oldest[each] for each in container_ids if each in self._oldest}

    def _hierarchy_of(self, tree: FileTree) -> Hierarchy:
        """Return the version of cgroups: read until it is 2, which a host keeps until it boots."""
        self._is_v2 = self._is_v2 or hierarchy_of(tree) is V2
        return V2 if self._is_v2 else V1

    @contextmanager
    def _open(self, cgroup: str) -> Iterator[_OpenCgroup | None]:
        """Open the runtime's *cgroup*, whether it exists or not; None if it is malformed."""
        path = folder_of(cgroup)
        if path is None:
            yield None
            return
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            # below the mount are no links
            with tree.folder(hierarchy.mount) as top, top.folder(path) as folder:
                yield _OpenCgroup(tree=tree, hierarchy=hierarchy, path=path, folder=folder)

    @contextmanager
    def _open_mount(
        self, mount: Callable[[Hierarchy], str]
    ) -> Iterator[tuple[FileTree, Hierarchy, int | None]]:
        """Open a controller's mount point, below which there are no links; None if it is absent."""
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            top = tree.open(mount(hierarchy), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield tree, hierarchy, top
            finally:
                if top is not None:
                    os.close(top)

    def _read_each(
        self,
        cgroups: Iterable[str],
        mount: Callable[[Hierarchy], str],
        read: Callable[[Folder, str, Hierarchy], _Read | None],
    ) -> dict[str, _Read]:
        """Return what *read* returns for each cgroup below a mount, without None."""
        found = {}
        with FileTree(self._root, Notes()) as tree:
            hierarchy = self._hierarchy_of(tree)
            with tree.folder(mount(hierarchy)) as top:  # below it are no links
                for each in cgroups:
                    path = folder_of(each)
                    if path is not None and (what := read(top, path, hierarchy)) is not None:
                        found[each] = what
        return found

    def _process(self, container_id: str, proc: Folder, inside: set[int]) -> set[int]:
        """Return the threads of the container's oldest process, in any cgroup."""
        if container_id not in self._oldest:
            oldest = min(inside, default=0)
            started = start_time(proc, oldest) if oldest else None
            if started is None:
                return set()
            self._oldest[container_id] = oldest, started
        thread, started = self._oldest[container_id]
        if start_time(proc, thread) != started:  # it ended: use the next oldest
            del self._oldest[container_id]
            return set()
        with proc.folder(str(thread)) as process, process.folder("task") as tasks:
            return set(tasks.numbered(""))


def _limit(top: int, path: str, quota: int) -> Limited | None:
    """Write a file of CFS quota below *top* if it changes between none and some; None if absent.

    The period does not change, in both versions.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Limited(before=0, error=os.strerror(error.errno or errno.EIO))
    try:
        text = os.pread(file, 64, 0).decode("ascii", "replace").partition(" ")[0].strip()
        before = NO_QUOTA if text == "max" else number_of(text)
        if (before > 0) == (quota == NO_QUOTA):
            os.ftruncate(file, 0)  # as a shell's `>` does
            none = "max" if path.endswith(V2.quota) else str(NO_QUOTA)
            os.pwrite(file, (none if quota == NO_QUOTA else str(quota)).encode(), 0)
        return Limited(before=before)
    except OSError as error:
        if error.errno == errno.ENODEV:  # it was removed after it was opened
            return None
        return Limited(before=0, error=os.strerror(error.errno or errno.EIO))
    finally:
        os.close(file)
