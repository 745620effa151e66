"""Scheduling attributes, I/O priority and RDT group of a container's first process, in the kernel.

They are read once, soon after its start, because the workload may change them later.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from nri_policy.classes import Scheduling
from nri_policy.settings import REALTIME, IOClass, SchedulingPolicy

# Fields of /proc/PID/stat behind the name; proc(5) counts from 1, and the name is the second.
_NICE, _PRIORITY, _POLICY = 19 - 3, 40 - 3, 41 - 3
_POLICIES = {
    0: SchedulingPolicy.OTHER,
    1: SchedulingPolicy.FIFO,
    2: SchedulingPolicy.RR,
    3: SchedulingPolicy.BATCH,
    5: SchedulingPolicy.IDLE,
    6: SchedulingPolicy.DEADLINE,
}
_IO_CLASSES = (IOClass.NONE, IOClass.RT, IOClass.BE, IOClass.IDLE)
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31, "riscv64": 31, "ppc64le": 274, "s390x": 283}
_RDT_GROUP = re.compile(r"^res:/(.*)$", re.MULTILINE)
_PROCESS, _CLASS_SHIFT = 1, 13  # IOPRIO_WHO_PROCESS, IOPRIO_CLASS_SHIFT


class FirstProcess(Struct, frozen=True, kw_only=True):
    """The scheduling attributes and I/O priority of a process."""

    policy: SchedulingPolicy | None  # None: unknown to this module
    nice: int
    priority: int  # of a real-time policy
    io_class: IOClass | None  # None: not readable here
    io_level: int = 0
    rdt_group: str | None = None  # empty: the root group; None: not readable here

    @property
    def scheduler(self) -> str:
        """The policy and the nice value or priority, as classes show them."""
        if self.policy is None:
            return "unknown"
        if self.policy in REALTIME:
            return f"{self.policy}, priority {self.priority}"
        if self.policy in (SchedulingPolicy.IDLE, SchedulingPolicy.DEADLINE):
            return self.policy.value
        return f"{self.policy}, nice {self.nice}"

    @property
    def io_priority(self) -> str:
        """The class and level, as classes show them."""
        if self.io_class is None:
            return "unknown"
        levels = self.io_class in (IOClass.BE, IOClass.RT)
        return f"{self.io_class} {self.io_level}" if levels else self.io_class.value

    def differences(self, scheduling: Scheduling) -> Iterator[tuple[str, str]]:
        """Yield the wanted and the found value of each attribute that differs."""
        wanted = scheduling.scheduler
        if wanted is not None:
            expected = FirstProcess(
                policy=wanted.policy, nice=wanted.nice, priority=wanted.priority, io_class=None
            )
            if expected.scheduler != self.scheduler:
                yield str(wanted), self.scheduler
        io = scheduling.io_priority
        # for a process without a class the kernel names one that follows its nice value
        readable = self.io_class is not None and io is not None and io.io_class is not IOClass.NONE
        if readable and str(io) != self.io_priority:
            yield f"I/O {io}", f"I/O {self.io_priority}"


def process_of(
    stat: str, io_priority: int | None, resctrl_groups: str | None = None
) -> FirstProcess | None:
    """Parse /proc/PID/stat, the result of ioprio_get(2), and /proc/PID/cpu_resctrl_groups.

    None if *stat* is malformed.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        nice, priority, policy = (int(fields[each]) for each in (_NICE, _PRIORITY, _POLICY))
    except (IndexError, ValueError):
        return None
    io_class, level = None, 0
    if io_priority is not None and io_priority >> _CLASS_SHIFT < len(_IO_CLASSES):
        io_class = _IO_CLASSES[io_priority >> _CLASS_SHIFT]
        level = io_priority & 7
    group = _RDT_GROUP.search(resctrl_groups or "")
    return FirstProcess(
        rdt_group=None if group is None else group[1],
        policy=_POLICIES.get(policy),
        nice=nice,
        priority=priority,
        io_class=io_class,
        io_level=level,
    )


def io_priority_of(pid: int) -> int | None:
    """Return the I/O priority of a process by ioprio_get(2), None if it fails."""
    number = _IOPRIO_GET.get(platform.machine())
    if number is None:
        return None
    found = ctypes.CDLL(None, use_errno=True).syscall(number, _PROCESS, pid)
    return None if found < 0 else int(found)


def has_same_pids(root: Path) -> bool:
    """Return whether the processes below *root* have the numbers that system calls take.

    /proc shows this process one number, unless it is in a nested PID namespace.
    """
    try:
        status = (root / "proc/self/status").read_text()
    except OSError:
        return False
    numbers = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
    return numbers.split()[1:] == [str(os.getpid())]
