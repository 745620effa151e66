"""Which scheduling attributes and I/O limits of a container the kernel and runc accept.

As strict as they are: a value that fails there fails here, with the same message.

| attribute | refused by | error |
|---|---|---|
| nice beyond -20 to 19; a priority without fifo or rr; times without deadline | runc | text |
| policy iso; fifo, rr with a priority beyond 1 to 99; utilization clamps | the kernel | EINVAL |
| fifo, rr in a cgroup without a real-time budget (RT_GROUP_SCHED) | the kernel | EPERM |
| deadline: not 1024 <= runtime <= deadline <= period, period beyond 100us to 4.19s | | EINVAL |
| deadline, pinned to fewer CPUs than the machine has | the kernel | EPERM |
| deadline without reset-on-fork, at the first fork | the kernel | EAGAIN |
| deadlines of more than 95 % of all CPU time together | the kernel | EBUSY |
| I/O level beyond 0 to 7, or with class none | the kernel | EINVAL |
| an RDT class without a group of resctrl | runc | text |
| unified on cgroup v1 | runc | text |
| io.max: no MAJ:MIN, unknown key or no number | the kernel | EINVAL |
| io.max: no such disk; 0 | the kernel | ENODEV; ERANGE |
| io.weight beyond 1 to 10000, io.bfq.weight beyond 1 to 1000 | the kernel | ERANGE |
| several lines in one file, by runc before 1.2 | accepted: the first disk gets the last limits | |
"""

from __future__ import annotations

import re
from collections.abc import Collection

from nri_policy.audit.first_process import FirstProcess
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.proto import nri_pb2 as nri
from nri_policy.settings import IOClass, SchedulingPolicy

_POLICIES = {getattr(nri, f"SCHED_{each.name}"): each for each in SchedulingPolicy}
_IO_CLASSES = {getattr(nri, f"IOPRIO_CLASS_{each.name}"): each for each in IOClass}
_REALTIME = (nri.SCHED_FIFO, nri.SCHED_RR)
_CLAMPS = {nri.SCHED_FLAG_UTIL_CLAMP_MIN, nri.SCHED_FLAG_UTIL_CLAMP_MAX}
_LINE = re.compile(r"(\S+) (.*)")
_DISK = re.compile(r"[0-9]+:[0-9]+")
_RATE = re.compile(r"(rbps|wbps|riops|wiops)=(max|[0-9]+)")
_WEIGHTS = {"io.weight": 10_000, "io.bfq.weight": 1000}
_LEVEL = 4  # of class be, if it has none
_PROMISES = 0.95  # maximum of deadlines in all CPU time; sched_rt_runtime_us
_UNLIMITED = "rbps=max wbps=max riops=max wiops=max"


class KernelError(Exception):
    """The kernel, or runc, refuses a value; the text is what the runtime passes on."""


def first_process(  # noqa: PLR0913 - what kernels differ in
    linux: nri.LinuxContainer,
    cpus: CPUSet,
    *,
    online: CPUSet,
    realtime: bool,
    promised: float = 0,
    groups: Collection[str] | None = (),
) -> FirstProcess:
    """Return the attributes of a container's first process on *cpus*; raises KernelError.

    *realtime*: whether cgroups have a real-time budget; *promised*: CPU time, in CPUs, of other
    processes with deadlines; *groups*: those of resctrl, None for any.
    """
    group = linux.resources.rdt_class.value
    if group and groups is not None and group not in groups:
        raise KernelError(f"runc: intelRdt: group {group} does not exist and has no schemata")
    scheduler, io = linux.scheduler, linux.io_priority
    nice = priority = 0
    policy = SchedulingPolicy.OTHER
    if linux.HasField("scheduler") and scheduler.policy != nri.SCHED_NONE:
        _check_scheduler(scheduler, pinned=bool(cpus) and cpus != online, realtime=realtime)
        if scheduler.policy == nri.SCHED_DEADLINE:
            share = scheduler.runtime / (scheduler.period or scheduler.deadline)
            if promised + share > _PROMISES * len(online):
                raise KernelError("runc: failed to set scheduler: device or resource busy")
        policy = _POLICIES[scheduler.policy]
        if policy in (SchedulingPolicy.OTHER, SchedulingPolicy.BATCH):
            nice = scheduler.nice
        priority = scheduler.priority
    io_class, level = IOClass.BE, _LEVEL
    if linux.HasField("io_priority"):
        io_class, level = _IO_CLASSES[getattr(io, "class")], io.priority
        if not 0 <= level <= 7 or (io_class is IOClass.NONE and level):
            raise KernelError("runc: failed to set I/O priority: invalid argument")
    return FirstProcess(
        policy=policy,
        nice=nice,
        priority=priority,
        io_class=io_class,
        io_level=level,
        rdt_group=group if groups or groups is None else None,
    )


def _check_scheduler(scheduler: nri.LinuxScheduler, *, pinned: bool, realtime: bool) -> None:
    policy, deadline = scheduler.policy, scheduler.policy == nri.SCHED_DEADLINE
    if not -20 <= scheduler.nice <= 19:
        raise KernelError(f"runc: invalid scheduler.nice: {scheduler.nice}")
    if scheduler.priority and policy not in _REALTIME:
        raise KernelError("runc: scheduler.priority is for SCHED_FIFO and SCHED_RR only")
    if not deadline and (scheduler.runtime or scheduler.deadline or scheduler.period):
        raise KernelError("runc: scheduler runtime, deadline, period are for SCHED_DEADLINE only")
    invalid = policy == nri.SCHED_ISO or bool(_CLAMPS & {*scheduler.flags})
    if policy in _REALTIME:
        invalid = invalid or not 1 <= scheduler.priority <= 99
    if deadline:
        period = scheduler.period or scheduler.deadline
        ordered = 1024 <= scheduler.runtime <= scheduler.deadline <= period
        invalid = invalid or not (ordered and 100_000 <= period <= 4_194_304_000)
    if invalid:
        raise KernelError("runc: failed to set scheduler: invalid argument")
    if (policy in _REALTIME and not realtime) or (deadline and pinned):
        raise KernelError("runc: failed to set scheduler: operation not permitted")
    if deadline and nri.SCHED_FLAG_RESET_ON_FORK not in scheduler.flags:
        raise KernelError("sh: cannot fork: resource temporarily unavailable")


def check_limits(
    unified: dict[str, str], disks: Collection[str], *, cgroup_v2: bool, several: bool
) -> None:
    """Raise KernelError for files of a cgroup about I/O that cannot be written so.

    *several*: runc writes line by line.
    """
    if unified and not cgroup_v2:
        raise KernelError("runc: invalid configuration: unified resources need cgroup v2")
    for name, text in unified.items():
        lines = text.splitlines()
        if len(lines) > 1 and not several:
            raise KernelError(f"{name}: this runc makes one line of {len(lines)}")
        for line in lines:
            if name == "io.max":
                _check_rates(line, disks)
            elif name in _WEIGHTS:
                _check_weight(line, disks, _WEIGHTS[name])


def read_back(name: str, before: str, written: str) -> str:
    """Return what a cgroup's file reads as that read as *before*, after text was *written* to it.

    Files about I/O have a line for each disk that is limited.
    """
    if name != "io.max" and name not in _WEIGHTS:
        return written
    lines = {}
    for line in (*before.splitlines(), *written.splitlines()):
        disk, _, value = line.partition(" ")
        lines[disk] = value
    return "\n".join(
        f"{disk} {value}" for disk, value in lines.items() if value not in (_UNLIMITED, "default")
    )


def _check_rates(line: str, disks: Collection[str]) -> None:
    found = _LINE.fullmatch(line)
    if found is None or not _DISK.fullmatch(found[1]):
        raise KernelError(f"runc: io.max: {line!r}: invalid argument")
    _check_disk(found[1], disks)
    for part in found[2].split():
        rate = _RATE.fullmatch(part)
        if rate is None:
            raise KernelError(f"runc: io.max: {line!r}: invalid argument")
        if rate[2] == "0":
            raise KernelError(f"runc: io.max: {line!r}: numerical result out of range")


def _check_weight(line: str, disks: Collection[str], most: int) -> None:
    disk, _, weight = line.rpartition(" ")
    if disk not in ("", "default"):
        _check_disk(disk, disks)
    if weight == "default" and disk not in ("", "default"):
        return
    if not weight.isdigit():
        raise KernelError(f"runc: weight {line!r}: invalid argument")
    if not 1 <= int(weight) <= most:
        raise KernelError(f"runc: weight {line!r}: numerical result out of range")


def _check_disk(number: str, disks: Collection[str]) -> None:
    if number not in disks:
        raise KernelError(f"runc: io.max: {number}: no such device")
