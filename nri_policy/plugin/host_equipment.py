"""What the host can do for classes, as the kernel and the OCI runtime say.

Owns where that is read. Disks come and go: they are looked at again when the kernel has news of
them, and now and then.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path

from nri_policy.classes import Equipment
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.hardware.disks import disks_of
from nri_policy.hardware.hotplug import Listen, uevents_of
from nri_policy.hardware.interrupts import read_names
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.resctrl import read_resctrl
from nri_policy.hardware.sysfs import FileTree
from nri_policy.nri.versions import Version

PERIOD = 60.0  # seconds between looks at the disks
SOON = 1.0  # seconds to the next look while there is no cgroup, whose files would show a feature
QUIET = 0.5  # seconds from news of a disk to the look at it: udev names it meanwhile
NO_CGROUP_YET = "not known yet: /sys/fs/cgroup has no cgroup whose files would show it"
_CGROUPS = "sys/fs/cgroup"
_WEIGHTS = ("io.weight", "io.bfq.weight")
_PATIENCE = 2.0  # seconds for a program to tell its version
_VERSION = re.compile(r"version ([0-9.]+)")
# Since when a container's `scheduler` and `ioPriority` count; an older one ignores both.
_SINCE = {"runc": Version(1, 2, 0), "crun": Version(1, 8, 6)}
_GROUPS = re.compile(r"^CONFIG_RT_GROUP_SCHED=y$", re.MULTILINE)
_GROUPS_OFF = re.compile(r"^CONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED=y$", re.MULTILINE)
_DISKS = uevents_of(("block",), ("add", "remove", "change"))
_MOST = 1 << 20  # bytes of the kernel's configuration


def equipment_of(root: Path, oci: tuple[str, Version] | None) -> Equipment:
    """Return what the host below *root* can do, with an OCI runtime if that is known."""
    with FileTree(root, Notes()) as tree:
        with tree.folder(_CGROUPS) as top:
            controllers = (top.text("cgroup.controllers") or "").split()
            files = {name for each in _children(tree) for name in each}
        no_partition = _no_partition(tree, controllers, files)
        no_realtime = _no_realtime(tree)
        resctrl = read_resctrl(tree)
        interrupts = (*read_names(tree).items(),)
    no_limits = "" if "io" in controllers else "this host has no cgroup v2 with the io controller"
    name, version = oci or ("", None)
    too_old = ""
    if version is not None and version < _SINCE[name]:
        too_old = f"runtime too old: {name} {version} ignores it, it needs {_SINCE[name]}"
    several = name == "runc" and version is not None and version >= _SINCE[name]
    return Equipment(
        no_scheduler=too_old,
        no_io_priority=too_old,
        no_realtime=no_realtime,
        no_io_limits=no_limits,
        no_io_updates=no_limits,
        no_rdt="" if resctrl is not None else "/sys/fs/resctrl is not mounted on this host",
        rdt_groups=None if resctrl is None else resctrl.existing,
        no_partition=no_partition,
        one_disk="" if several else "only runc 1.2 and newer is sure to take several disks",
        weights=tuple(name for name in _WEIGHTS if name in files),
        disks=disks_of(root),
        interrupts=interrupts,
    )


def oci_runtime(root: Path) -> tuple[str, Version] | None:
    """Return the OCI runtime that this host has, and its version.

    None where there are several, or *root* is not this host's: its programs cannot be run then.
    """
    programs = {name: shutil.which(name, path=_path()) for name in _SINCE}
    found = [(name, program) for name, program in programs.items() if program]
    if root != Path("/") or len(found) != 1:
        return None
    ((name, program),) = found
    try:
        result = subprocess.run(  # noqa: S603 - found where root's programs are
            [program, "--version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    line = _VERSION.search(result.stdout)
    version = None if line is None else Version.parse(line[1] + ".0" * (2 - line[1].count(".")))
    return None if version is None else (name, version)


def _path() -> str:
    usual = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
    return os.pathsep.join([*usual, os.environ.get("PATH", "")])


def _children(tree: FileTree) -> Iterator[list[str]]:
    """Yield the names of the files of each cgroup below the top: there alone the weights are."""
    with tree.folder(_CGROUPS) as top:
        for name in top.names():
            with top.folder(name) as child:
                yield child.names()


def _no_realtime(tree: FileTree) -> str:
    """Return why no container can have a real-time policy, empty if it can."""
    with tree.folder(f"{_CGROUPS}/cpu") as v1:
        grouped = v1.has("cpu.rt_runtime_us")
    if not grouped:
        text = _kernel_config(tree)
        grouped = bool(_GROUPS.search(text)) and not _GROUPS_OFF.search(text)
    if not grouped:
        return ""
    return "this kernel has RT_GROUP_SCHED, which gives cgroups no real-time budget: EPERM"


def _no_partition(tree: FileTree, controllers: Collection[str], files: Collection[str]) -> str:
    """Return why no cgroup can be a partition; *files* are those of the cgroups below the top."""
    if "cpuset" not in controllers:
        return "this host has no cgroup v2 with the cpuset controller"
    if not files:
        return NO_CGROUP_YET
    if "cpuset.cpus" not in files:
        return "cpuset is not delegated: cgroup.subtree_control does not have it"
    if "cpuset.cpus.exclusive" not in files:
        return (
            "kernel too old: cgroups have no cpuset.cpus.exclusive, which Linux 6.7 and newer have"
        )
    if _is_read_only(tree):
        return "/sys/fs/cgroup is mounted read-only"
    return ""


def _is_read_only(tree: FileTree) -> bool:
    descriptor = tree.open(_CGROUPS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if descriptor is None:
        return True
    try:
        return bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY)
    finally:
        os.close(descriptor)


def _kernel_config(tree: FileTree) -> str:
    """Return how the kernel was configured, empty where that is not told."""
    with tree.folder("proc/sys/kernel") as kernel:
        release = (kernel.text("osrelease") or "").strip()
    for path in ("proc/config.gz", f"boot/config-{release}"):
        descriptor = tree.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor is None:
            continue
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_MOST)
        try:
            return (gzip.decompress(data) if path.endswith(".gz") else data).decode()
        except (OSError, EOFError, ValueError):
            continue
    return ""


class HostEquipment:
    """What the host can do, kept up to date; `latest` is what was found last."""

    def __init__(
        self,
        root: Path,
        *,
        listen: Listen = _DISKS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Look once; OCI runtimes stay what they are until the daemon's next start."""
        self._root = root
        self._listen = listen
        self._clock = clock
        self._oci = oci_runtime(root)
        self._notified = asyncio.Event()
        self.latest = equipment_of(root, self._oci)

    def look_soon(self) -> None:
        """Look again, as if the kernel had news."""
        self._notified.set()

    async def run(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Look again and again, and await *changed* where `latest` is another."""
        with self._listen(self._notified.set):
            while True:
                await self._until(self._notified)
                self._notified.clear()
                found = await asyncio.to_thread(equipment_of, self._root, self._oci)
                if found != self.latest:
                    self.latest = found
                    await changed()

    async def _until(self, notified: asyncio.Event) -> None:
        """Wait until there is news and a moment more, at most for the period."""
        period = SOON if self.latest.no_partition == NO_CGROUP_YET else PERIOD
        await self._clock.set_within(period, notified)
        if notified.is_set():
            await self._clock.sleep(QUIET)
