"""The pods and containers that the embedded runtime keeps.

Owns their states and what containers run with. A container's NRI message is its one source of
truth; what reads better (`cpus`, `shares`, …) is computed from it. Must not know of plugins.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from nri_policy.audit.first_process import FirstProcess
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.wording import quoted
from nri_policy.manifests.pod import PodManifest
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.adjustment import overlay
from nri_policy.simulation.kernel import KernelError, check_limits, first_process, read_back
from nri_policy.workload.pod import parse_cpus

_MIN_PERIOD, _MAX_PERIOD = 1000, 1_000_000  # microseconds
_MIN_QUOTA = 1000  # microseconds; kernel/sched/core.c, tg_set_cfs_bandwidth


class CRIError(CallRefused):
    """A CRI call fails; the text is what kubelet shows to the owner of the pod."""


class RuntimeState(StrEnum):
    """Where a container is in its life; CREATING until CreateContainer succeeds."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"
    REMOVED = "removed"


_NRI_STATES = {
    RuntimeState.CREATING: nri.CONTAINER_UNKNOWN,
    RuntimeState.CREATED: nri.CONTAINER_CREATED,
    RuntimeState.RUNNING: nri.CONTAINER_RUNNING,
    RuntimeState.STOPPED: nri.CONTAINER_STOPPED,
    RuntimeState.REMOVED: nri.CONTAINER_UNKNOWN,
}


class Update(Struct, frozen=True, kw_only=True):
    """Resources of a container changed, after its creation."""

    cause: str  # the event and its subject, as in "CreateContainer default/pod1/c0"
    container: str  # key of the container that changed
    resources: nri.LinuxResources  # the values that were set
    changed: bool  # whether anything differs from before


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedContainer:
    """One container; a restart makes a new one of the same name."""

    pod: SimulatedPod
    name: str
    message: nri.Container  # with its specification
    state: RuntimeState = RuntimeState.CREATING
    in_force: nri.LinuxResources | None = None  # of its cgroup, while there is one
    asked: nri.LinuxResources | None = None  # what it was created with
    process: FirstProcess | None = None  # of its start
    volumes: frozenset[str] = frozenset()  # sources of mounts that the kubelet sees to
    usage: int = 0  # bytes of memory that no limit can be set below
    updated_by: list[Update] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The runtime's id."""
        return self.message.id

    @property
    def key(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.pod.key}/{self.name}"

    @property
    def effective(self) -> nri.LinuxResources:
        """The settings of its cgroup; before that exists, the planned ones."""
        return self.message.linux.resources if self.in_force is None else self.in_force

    @property
    def cpus(self) -> CPUSet:
        """The present or planned cpuset of its cgroup; empty for no cpuset."""
        return parse_cpus(self.effective.cpu.cpus)

    @property
    def mems(self) -> CPUSet:
        """The present or planned memory nodes of its cgroup; empty for no cpuset."""
        return parse_cpus(self.effective.cpu.mems)

    @property
    def shares(self) -> int:
        """CPU shares."""
        return self.effective.cpu.shares.value

    @property
    def quota(self) -> int:
        """CFS quota in microseconds per period; 0 or -1: none."""
        return self.effective.cpu.quota.value

    @property
    def memory_limit(self) -> int:
        """Bytes; 0: none."""
        return self.effective.memory.limit.value

    @property
    def env(self) -> dict[str, str]:
        """Environment variables."""
        return {name: value for name, _, value in (v.partition("=") for v in self.message.env)}

    @property
    def mounts(self) -> dict[str, str]:
        """Destination → source."""
        return {mount.destination: mount.source for mount in self.message.mounts}

    def enter(self, state: RuntimeState) -> None:
        """Change to *state*, and show it to plugins."""
        self.state = state
        self.message.state = _NRI_STATES[state]

    def mount(self) -> None:
        """Mount what plugins add; CRIError, in runc's words, where it is not there."""
        for each in self.message.mounts:
            if each.source not in self.volumes and not Path(each.source).exists():
                text = f'error mounting "{each.source}" to rootfs at "{each.destination}"'
                raise CRIError(f"{text}: stat {each.source}: no such file or directory")

    def make_cgroup(self) -> None:
        """Make its cgroup, with the present specification."""
        self.in_force = nri.LinuxResources()
        self.in_force.CopyFrom(self.message.linux.resources)

    def apply(
        self, wanted: nri.LinuxResources, *, machine: SimulatedKernel, cause: str, into_cgroup: bool
    ) -> None:
        """Set what is *wanted*; 0 and "" leave alone. Raises CRIError, and then nothing is set.

        Only a cgroup can refuse a value; what does not go *into_cgroup* changes the specification
        alone, which may or may not be read again.
        """
        effective, before = nri.LinuxResources(), nri.LinuxResources()
        before.CopyFrom(self.effective)
        effective.CopyFrom(self.message.linux.resources)
        asked = _surviving_limits(wanted)
        overlay(effective, asked)
        if into_cgroup and self.in_force is not None:
            machine.check(effective)
            limit = effective.memory.limit.value
            if 0 < limit < self.usage and limit != before.memory.limit.value:
                raise CRIError("runc: cannot decrease memory limit: device or resource busy")
            files = dict(self.in_force.unified)
            for name, text in effective.unified.items():
                files[name] = read_back(name, files.get(name, ""), text)
            cpu = effective.cpu  # runc writes no empty cpuset
            cpus, mems = cpu.cpus or self.in_force.cpu.cpus, cpu.mems or self.in_force.cpu.mems
            self.in_force.CopyFrom(effective)
            self.in_force.unified.update(files)
            if cpus:
                self.in_force.cpu.cpus = cpus
            if mems:
                self.in_force.cpu.mems = mems
        self.message.linux.resources.CopyFrom(effective)
        if asked.ListFields():
            changed = self.effective != before
            self.updated_by.append(
                Update(cause=cause, container=self.key, resources=asked, changed=changed)
            )

    def write_cpus(self, cpus: CPUSet, *, cause: str) -> None:
        """Set only the CPUs of its cgroup, as any program with the right to write it can."""
        assert self.in_force is not None
        self.in_force.cpu.cpus = str(cpus)
        written = nri.LinuxResources(cpu=nri.LinuxCPU(cpus=str(cpus)))
        self.updated_by.append(
            Update(cause=cause, container=self.key, resources=written, changed=True)
        )


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedPod:
    """One pod sandbox and its containers, in the order of their creation."""

    manifest: PodManifest
    message: nri.PodSandbox
    ready: bool = True  # until it is stopped
    calls: asyncio.Lock = field(default_factory=asyncio.Lock)  # the kubelet makes one at a time
    containers: list[SimulatedContainer] = field(default_factory=list)
    # its resized amounts; its sandbox keeps those of the creation, as in real runtimes
    resized: nri.LinuxResources | None = None

    @property
    def amounts(self) -> nri.LinuxResources:
        """What its containers may use in all."""
        return self.resized or self.message.linux.pod_resources

    @property
    def id(self) -> str:
        """The runtime's id."""
        return self.message.id

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.manifest.key

    def container(self, name: str) -> SimulatedContainer:
        """Return the latest container called *name*. Raises KeyError."""
        for container in reversed(self.containers):
            if container.name == name:
                return container
        raise KeyError(f"{self.key}/{name}")


@dataclass(slots=True, kw_only=True)
class SimulatedKernel:
    """What the kernel lets a cgroup use."""

    online_cpus: CPUSet
    memory_nodes: CPUSet
    disks: frozenset[str] = frozenset()  # MAJOR:MINOR
    cgroup_v2: bool = True
    realtime: bool = True  # whether cgroups have a real-time budget
    rdt_groups: frozenset[str] | None = frozenset()  # of resctrl; None: any
    several_lines: bool = False  # whether runc writes files of cgroups line by line
    promised: float = 0  # CPU time that processes outside of containers have by deadlines, in CPUs

    def first_process(self, linux: nri.LinuxContainer, cpus: CPUSet) -> FirstProcess:
        """Return what a container's first process runs with; raises CRIError."""
        try:
            return first_process(
                linux,
                cpus,
                online=self.online_cpus,
                realtime=self.realtime,
                groups=self.rdt_groups,
                promised=self.promised,
            )
        except KernelError as error:
            raise CRIError(str(error), code=Code.UNKNOWN) from error

    def check(self, resources: nri.LinuxResources) -> None:
        """Raise CRIError for values that runc could not write to a cgroup of this machine."""
        cpu = resources.cpu
        try:
            check_limits(
                dict(resources.unified),
                self.disks,
                cgroup_v2=self.cgroup_v2,
                several=self.several_lines,
            )
        except KernelError as error:
            raise CRIError(str(error), code=Code.UNKNOWN) from error
        for file, text, present in (
            ("cpuset.cpus", cpu.cpus, self.online_cpus),
            ("cpuset.mems", cpu.mems, self.memory_nodes),
        ):
            if text and not EMPTY < parse_cpus(text) <= present:
                raise CRIError(
                    f"runc: failed to write {quoted(text)} to {file}: invalid argument "
                    f"(there are {present})",
                    code=Code.UNKNOWN,
                )
        if cpu.period.value and not _MIN_PERIOD <= cpu.period.value <= _MAX_PERIOD:
            raise CRIError(
                f"runc: failed to write {cpu.period.value} to the CPU period: invalid argument"
            )
        if 0 < cpu.quota.value < _MIN_QUOTA:
            raise CRIError(
                f"runc: failed to write {cpu.quota.value} to the CPU quota: invalid argument"
            )


def _surviving_limits(wanted: nri.LinuxResources) -> nri.LinuxResources:
    """Return what is left of an update on its way through CRI's LinuxContainerResources."""
    kept = nri.LinuxResources()
    for name in ("shares", "quota", "period"):
        if value := getattr(wanted.cpu, name).value:
            getattr(kept.cpu, name).value = value
    if wanted.cpu.cpus:
        kept.cpu.cpus = wanted.cpu.cpus
    if wanted.cpu.mems:
        kept.cpu.mems = wanted.cpu.mems
    if limit := wanted.memory.limit.value:
        kept.memory.limit.value = kept.memory.swap.value = limit
    kept.hugepage_limits.extend(limit for limit in wanted.hugepage_limits if limit.limit)
    kept.unified.update(wanted.unified)
    return kept
