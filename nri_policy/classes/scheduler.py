"""The attributes that a scheduling class sets, and those that the kernel would refuse."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.settings import REALTIME, IOClass, SchedulingClass, SchedulingFlag, SchedulingPolicy


class Scheduler(Struct, frozen=True, kw_only=True):
    """Scheduling attributes, as sched_setattr(2) takes them; times in nanoseconds."""

    policy: SchedulingPolicy
    nice: int = 0
    priority: int = 0
    flags: tuple[SchedulingFlag, ...] = ()
    runtime: int = 0
    deadline: int = 0
    period: int = 0

    def __str__(self) -> str:
        parts = [self.policy.value]
        if self.policy in REALTIME:
            parts.append(f"priority {self.priority}")
        elif self.policy is SchedulingPolicy.DEADLINE:
            parts += [f"{name} {getattr(self, name)} ns" for name in ("runtime", "deadline")]
            parts.append(f"period {self.period} ns")
        elif self.policy is not SchedulingPolicy.IDLE:
            parts.append(f"nice {self.nice}")
        return ", ".join([*parts, *self.flags])


class IOPriority(Struct, frozen=True, kw_only=True):
    """A class and level of ioprio_set(2)."""

    io_class: IOClass
    level: int = 0

    def __str__(self) -> str:
        levels = self.io_class in (IOClass.BE, IOClass.RT)
        return f"{self.io_class.value} {self.level}" if levels else self.io_class.value


def scheduler_of(given: SchedulingClass) -> Scheduler | None:
    """Return the attributes that a class sets; None if it sets none."""
    policy = given.policy
    if policy is SchedulingPolicy.NONE:
        if given.nice is None and not given.flags:
            return None
        policy = SchedulingPolicy.OTHER
    return Scheduler(
        policy=policy,
        nice=given.nice or 0,
        priority=given.priority,
        flags=given.flags,
        runtime=given.runtime,
        deadline=given.deadline,
        period=given.period or given.deadline,
    )


def io_priority_of(given: SchedulingClass) -> IOPriority | None:
    """Return the I/O priority that a class sets; None if it sets none."""
    if given.io_class is None:
        return None
    levels = given.io_class in (IOClass.BE, IOClass.RT)
    return IOPriority(io_class=given.io_class, level=given.io_priority or 0 if levels else 0)


def kernel_refusal(scheduler: Scheduler, *, pinned: bool, no_realtime: str) -> str:
    """Return why the kernel would refuse these attributes; empty if it would not."""
    if scheduler.policy is SchedulingPolicy.DEADLINE and pinned:
        return (
            "the kernel refuses policy deadline for a process that is pinned to some CPUs: use the"
            " annotation cpu.preserve, or pinCPU: false"
        )
    if scheduler.policy in REALTIME and no_realtime:
        return f"policy {scheduler.policy}: {no_realtime}"
    return ""
