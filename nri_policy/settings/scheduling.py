"""Scheduling classes: Linux scheduling policy, nice and I/O priority, by name.

Owns which values the kernel and runc accept. A combination with which a container could not start
is an error of the settings.

| policy | takes | else |
|---|---|---|
| other, batch | nice | runc refuses a nice beyond -20 to 19, and a priority |
| idle | | |
| fifo, rr | priority 1 to 99 | EINVAL |
| deadline | runtime <= deadline <= period in nanoseconds, reset-on-fork | EINVAL, EAGAIN at fork |

A nice value has no effect with the last three.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import field

from nri_policy.foundation.glob import Glob
from nri_policy.foundation.wording import quoted
from nri_policy.settings import readers
from nri_policy.settings.section import Section


class SchedulingPolicy(StrEnum):
    """A Linux scheduling policy."""

    NONE = "none"
    OTHER = "other"
    FIFO = "fifo"
    RR = "rr"
    BATCH = "batch"
    ISO = "iso"
    IDLE = "idle"
    DEADLINE = "deadline"


class IOClass(StrEnum):
    """An I/O priority class."""

    NONE = "none"
    RT = "rt"
    BE = "be"
    IDLE = "idle"


class SchedulingFlag(StrEnum):
    """A flag of sched_setattr(2)."""

    RESET_ON_FORK = "reset-on-fork"
    RECLAIM = "reclaim"
    DL_OVERRUN = "dl-overrun"
    KEEP_POLICY = "keep-policy"
    KEEP_PARAMS = "keep-params"
    UTIL_CLAMP_MIN = "util-clamp-min"
    UTIL_CLAMP_MAX = "util-clamp-max"


REALTIME = (SchedulingPolicy.FIFO, SchedulingPolicy.RR)
_NOT_NICE = (*REALTIME, SchedulingPolicy.IDLE, SchedulingPolicy.DEADLINE)
PRIORITIES = range(1, 100)
NICES = range(-20, 20)
LEVELS = range(8)  # of an I/O class
PERIODS = range(100_000, (1 << 22) * 1000 + 1)  # ns; sched_deadline_period_{min,max}_us
LEAST_RUNTIME = 1024  # ns; the kernel's unit
_CLAMPS = {SchedulingFlag.UTIL_CLAMP_MIN, SchedulingFlag.UTIL_CLAMP_MAX}

Nanoseconds = Annotated[int, readers.nanoseconds]


class SchedulingClass(Section, frozen=True, kw_only=True):
    """A class. Without a policy it is `other` if there is a nice or a flag, else unchanged.

    The policy `none` means no policy.
    """

    name: Annotated[str, readers.class_name]
    policy: Annotated[SchedulingPolicy, readers.choice(SchedulingPolicy)] = SchedulingPolicy.NONE
    priority: Annotated[int, readers.integer] = 0
    flags: Annotated[tuple[SchedulingFlag, ...], readers.choices(SchedulingFlag)] = ()
    nice: Annotated[int | None, readers.integer] = None
    runtime: Nanoseconds = 0
    deadline: Nanoseconds = 0
    period: Nanoseconds = 0  # 0: the deadline
    io_class: Annotated[IOClass | None, readers.choice(IOClass)] = field(
        name="ioClass", default=None
    )
    io_priority: Annotated[int | None, readers.integer] = field(name="ioPriority", default=None)
    allowed_namespaces: Annotated[tuple[Glob, ...] | None, readers.globs] = field(
        name="allowedNamespaces", default=None
    )

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield values that the kernel or runc would refuse."""
        if self.policy is SchedulingPolicy.ISO:
            yield "policy", "'iso' is not implemented by Linux: the kernel refuses it"
        if self.nice is not None and self.nice not in NICES:
            yield "nice", f"{self.nice} is not from {NICES[0]} to {NICES[-1]}"
        for flag in self.flags:
            if flag in _CLAMPS:
                yield (
                    "flags",
                    f"{flag} needs a value, which a container's specification does not have",
                )
        yield from self._priority()
        yield from self._deadline()
        yield from self._io()

    def remarks(self) -> Iterator[str]:
        """Yield values that the kernel accepts and ignores (classes.md §1)."""
        if self.nice is not None and self.policy in _NOT_NICE:
            yield f"nice has no effect with policy {self.policy}"
        if self.io_priority is not None and self.io_class is IOClass.IDLE:
            yield "ioPriority has no effect with ioClass idle"

    def _priority(self) -> Iterator[tuple[str, str]]:
        if self.policy in REALTIME:
            if self.priority not in PRIORITIES:
                required = f"policy {self.policy} requires one from {PRIORITIES[0]} to"
                yield "priority", f"{self.priority}: {required} {PRIORITIES[-1]}"
        elif self.priority:
            yield "priority", f"{self.priority}: only policies fifo and rr have a priority"

    def _deadline(self) -> Iterator[tuple[str, str]]:
        times = {"runtime": self.runtime, "deadline": self.deadline, "period": self.period}
        if self.policy is not SchedulingPolicy.DEADLINE:
            for name, value in times.items():
                if value:
                    yield name, f"{value}: only policy deadline has a {name}"
            return
        if SchedulingFlag.RESET_ON_FORK not in self.flags:
            yield (
                "flags",
                "policy deadline requires reset-on-fork: otherwise the process cannot fork",
            )
        period = self.period or self.deadline
        if period < PERIODS[0]:
            text = f"{period} ns is less than 100us: nanoseconds, not microseconds?"
            yield "period" if self.period else "deadline", text
        elif period > PERIODS[-1]:
            yield "period" if self.period else "deadline", f"{period} ns is more than 4.19s"
        if self.runtime < LEAST_RUNTIME:
            yield "runtime", f"{self.runtime} ns is less than {LEAST_RUNTIME}"
        if not self.runtime <= self.deadline <= period:
            yield "deadline", f"{self.deadline} ns is not between runtime and period"

    def _io(self) -> Iterator[tuple[str, str]]:
        if self.io_priority is None:
            return
        if self.io_class is None:
            yield "ioPriority", f"{self.io_priority}: it requires an ioClass"
        elif self.io_class is IOClass.NONE and self.io_priority:
            yield "ioPriority", f"{self.io_priority}: ioClass none has no levels"
        elif self.io_priority not in LEVELS:
            yield "ioPriority", f"{self.io_priority} is not from {LEVELS[0]} to {LEVELS[-1]}"


def find_duplicates(path: str, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield a problem for each duplicate name in a list of classes."""
    for number, name in enumerate(names):
        if name in names[:number]:
            yield f"{path}[{number}].name", f"{quoted(name)} is given twice"
