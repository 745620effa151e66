"""What a process runs with, read from the kernel, against what its class says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_policy.audit.cgroup import Cgroups
from nri_policy.audit.first_process import FirstProcess, has_same_pids, io_priority_of, process_of
from nri_policy.classes import IOPriority, Origin, Scheduler, Scheduling
from nri_policy.settings import IOClass, SchedulingFlag, SchedulingPolicy

STAT = "7 (a) b (c) S " + " ".join(str(n) for n in range(4, 53))


def test_the_fields_of_stat_are_those_of_proc5() -> None:
    fields = STAT.rpartition(")")[2].split()
    fields[19 - 3], fields[40 - 3], fields[41 - 3] = "5", "0", "3"
    found = process_of("7 (a) b (c) " + " ".join(fields), (2 << 13) | 7)
    assert found is not None
    assert (found.scheduler, found.io_priority) == ("batch, nice 5", "be 7")
    assert process_of("7 (short) S 1 2", None) is None
    assert process_of("", None) is None


def scheduling(scheduler: Scheduler | None, io: IOPriority | None = None) -> Scheduling:
    return Scheduling(name="a", origin=Origin.ANNOTATION, scheduler=scheduler, io_priority=io)


FLAGGED = (SchedulingFlag.RESET_ON_FORK,)


@pytest.mark.parametrize(
    ("wanted", "policy", "nice", "priority", "same"),
    [
        (Scheduler(policy=SchedulingPolicy.BATCH, nice=5), SchedulingPolicy.BATCH, 5, 0, True),
        (
            Scheduler(policy=SchedulingPolicy.BATCH, nice=5, flags=FLAGGED),
            SchedulingPolicy.BATCH,
            5,
            0,
            True,
        ),
        (Scheduler(policy=SchedulingPolicy.BATCH, nice=5), SchedulingPolicy.BATCH, 6, 0, False),
        (Scheduler(policy=SchedulingPolicy.BATCH, nice=5), SchedulingPolicy.OTHER, 5, 0, False),
        (Scheduler(policy=SchedulingPolicy.IDLE, nice=5), SchedulingPolicy.IDLE, 0, 0, True),
        (Scheduler(policy=SchedulingPolicy.FIFO, priority=9), SchedulingPolicy.FIFO, 0, 9, True),
        (Scheduler(policy=SchedulingPolicy.FIFO, priority=9), SchedulingPolicy.FIFO, 0, 8, False),
        (
            Scheduler(policy=SchedulingPolicy.DEADLINE, runtime=1, deadline=2, period=2),
            SchedulingPolicy.DEADLINE,
            0,
            0,
            True,
        ),
        (Scheduler(policy=SchedulingPolicy.BATCH), None, 0, 0, False),
    ],
)
def test_scheduling_that_differs_from_its_class_is_reported(
    wanted: Scheduler, policy: SchedulingPolicy | None, nice: int, priority: int, same: bool
) -> None:
    process = FirstProcess(policy=policy, nice=nice, priority=priority, io_class=None)
    assert (not [*process.differences(scheduling(wanted))]) is same


def test_a_priority_of_io_is_compared_where_it_can_be_read() -> None:
    wanted = scheduling(None, IOPriority(io_class=IOClass.BE, level=7))
    process = FirstProcess(
        policy=SchedulingPolicy.OTHER, nice=0, priority=0, io_class=IOClass.BE, io_level=4
    )
    assert [*process.differences(wanted)] == [("I/O be 7", "I/O be 4")]
    unknown = FirstProcess(policy=SchedulingPolicy.OTHER, nice=0, priority=0, io_class=None)
    assert not [*unknown.differences(wanted)]
    none = scheduling(None, IOPriority(io_class=IOClass.NONE))
    assert not [*process.differences(none)]


def test_what_cannot_be_read_is_shown_as_unknown() -> None:
    process = FirstProcess(policy=None, nice=0, priority=0, io_class=None)
    assert (process.scheduler, process.io_priority) == ("unknown", "unknown")


CHANGE = """
import ctypes, os, sys
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.setpriority(os.PRIO_PROCESS, 0, 17)
assert ctypes.CDLL(None).syscall({number}, 1, 0, (3 << 13)) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of ioprio_set(2) differs")
def test_a_real_process_reads_as_it_was_set(tmp_path: Path) -> None:
    """Policies batch and idle I/O take no privilege."""
    command = [sys.executable, "-c", CHANGE.format(number=251)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        folder = tmp_path / "sys/fs/cgroup/pod/one"
        folder.mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset\n")
        (folder / "cgroup.threads").write_text(f"{child.pid}\n")
        (folder / "io.max").write_text("8:0 rbps=1 wbps=max riops=max wiops=max\n")
        (tmp_path / "proc").mkdir()
        (tmp_path / f"proc/{child.pid}").mkdir()
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        (tmp_path / f"proc/{child.pid}/stat").write_text(stat)
        found = Cgroups(tmp_path).first_process("/pod/one")
        assert found == process_of(stat, None), "that root is not this host's: no system calls"
        real = process_of(stat, io_priority_of(child.pid))
        child.communicate()
        limits = Cgroups(tmp_path).limits("/pod/one", ["io.max", "io.weight"])
    assert real is not None
    assert (real.scheduler, real.io_priority) == ("batch, nice 17", "idle")
    assert limits == {"io.max": "8:0 rbps=1 wbps=max riops=max wiops=max"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tx\nNSpid:\t{}\n", True),
        ("NSpid:\t500\t{}\n", False),  # a container with a PID namespace of its own
        ("NSpid:\t1{}\n", False),
        ("", False),
    ],
)
def test_processes_are_visible_by_numbers_that_are_ours(
    status: str, expected: bool, tmp_path: Path
) -> None:
    """Whichever mount of proc it is: a DaemonSet with `hostPID` has the host's below /host."""
    assert has_same_pids(Path("/"))
    assert not has_same_pids(tmp_path)
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True)
    (folder / "status").write_text(status.format(os.getpid()))
    assert has_same_pids(tmp_path) is expected


def test_of_a_cgroup_that_is_not_there_nothing_is_read(tmp_path: Path) -> None:
    assert Cgroups(tmp_path).first_process("/pod/none") is None
    assert Cgroups(tmp_path).first_process("../x") is None
    assert Cgroups(tmp_path).limits("../x", ["io.max"]) == {}


@pytest.mark.parametrize(
    ("text", "group"),
    [("res:/gold\nmon:\n", "gold"), ("res:/\nmon:x\n", ""), ("res:\nmon:\n", None), (None, None)],
)
def test_the_rdt_group_is_read_where_the_kernel_tells_it(
    text: str | None, group: str | None
) -> None:
    found = process_of(STAT, None, text)
    assert found is not None
    assert found.rdt_group == group
