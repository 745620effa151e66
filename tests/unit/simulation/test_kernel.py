"""The fake kernel is as strict as the real one: a row of its table, a test."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.audit.first_process import FirstProcess
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.proto import nri_pb2 as nri
from nri_policy.settings import IOClass, SchedulingPolicy
from nri_policy.simulation.kernel import KernelError, check_limits, first_process, read_back

ALL = CPUSet(range(4))
RESET = nri.SCHED_FLAG_RESET_ON_FORK
DEADLINE: dict[str, Any] = {
    "policy": nri.SCHED_DEADLINE,
    "flags": [RESET],
    "runtime": 1_000_000,
    "deadline": 5_000_000,
    "period": 5_000_000,
}


def started(
    io: tuple[int, int] | None = None,
    cpus: CPUSet = ALL,
    *,
    realtime: bool = True,
    promised: float = 0,
    **scheduler: Any,
) -> FirstProcess:
    linux = nri.LinuxContainer()
    if scheduler:
        linux.scheduler.CopyFrom(nri.LinuxScheduler(**scheduler))
    if io is not None:
        linux.io_priority.CopyFrom(nri.LinuxIOPriority(priority=io[1], **{"class": io[0]}))
    return first_process(linux, cpus, online=ALL, realtime=realtime, promised=promised)


@pytest.mark.parametrize(
    ("scheduler", "text"),
    [
        ({"policy": nri.SCHED_OTHER, "nice": 20}, "nice"),
        ({"policy": nri.SCHED_BATCH, "nice": -21}, "nice"),
        ({"policy": nri.SCHED_BATCH, "priority": 1}, "scheduler.priority is for"),
        ({"policy": nri.SCHED_OTHER, "runtime": 1}, "SCHED_DEADLINE only"),
        ({"policy": nri.SCHED_ISO}, "invalid argument"),
        ({"policy": nri.SCHED_FIFO}, "invalid argument"),
        ({"policy": nri.SCHED_RR, "priority": 100}, "invalid argument"),
        ({"policy": nri.SCHED_OTHER, "flags": [nri.SCHED_FLAG_UTIL_CLAMP_MIN]}, "invalid"),
        ({"policy": nri.SCHED_OTHER, "flags": [nri.SCHED_FLAG_UTIL_CLAMP_MAX]}, "invalid"),
        (DEADLINE | {"runtime": 1023}, "invalid argument"),
        (DEADLINE | {"runtime": 6_000_000}, "invalid argument"),
        (DEADLINE | {"deadline": 6_000_000}, "invalid argument"),
        (DEADLINE | {"runtime": 1024, "deadline": 50_000, "period": 50_000}, "invalid argument"),
        (DEADLINE | {"period": 4_194_304_001}, "invalid argument"),
        (DEADLINE | {"flags": []}, "cannot fork"),
    ],
)
def test_scheduling_attributes_are_refused(scheduler: dict[str, Any], text: str) -> None:
    with pytest.raises(KernelError, match=text):
        started(**scheduler)


def test_realtime_takes_a_budget_of_the_cgroup() -> None:
    fifo: dict[str, Any] = {"policy": nri.SCHED_FIFO, "priority": 5}
    assert started(**fifo).scheduler == "fifo, priority 5"
    with pytest.raises(KernelError, match="not permitted"):
        started(realtime=False, **fifo)


def test_a_deadline_takes_all_cpus() -> None:
    assert started(**DEADLINE).scheduler == "deadline"
    assert started(cpus=CPUSet(), **DEADLINE).policy is SchedulingPolicy.DEADLINE
    with pytest.raises(KernelError, match="not permitted"):
        started(cpus=CPUSet([0, 1]), **DEADLINE)


def test_deadlines_have_less_than_all_cpu_time_together() -> None:
    assert started(promised=3.5, **DEADLINE).policy is SchedulingPolicy.DEADLINE
    with pytest.raises(KernelError, match="resource busy"):
        started(promised=3.7, **DEADLINE)
    assert started(promised=4, policy=nri.SCHED_BATCH).policy is SchedulingPolicy.BATCH


def test_what_is_taken_reads_back_as_the_kernel_has_it() -> None:
    assert started().scheduler == "other, nice 0"
    assert started(policy=nri.SCHED_NONE, nice=5).scheduler == "other, nice 0"
    assert started(policy=nri.SCHED_BATCH, nice=19).scheduler == "batch, nice 19"
    assert started(policy=nri.SCHED_IDLE, nice=5).nice == 0
    assert started(policy=nri.SCHED_RR, priority=5, nice=7).nice == 0
    assert started(io=(nri.IOPRIO_CLASS_BE, 7)).io_priority == "be 7"
    assert started(io=(nri.IOPRIO_CLASS_IDLE, 0)).io_class is IOClass.IDLE


@pytest.mark.parametrize(
    "io", [(nri.IOPRIO_CLASS_NONE, 1), (nri.IOPRIO_CLASS_BE, 8), (nri.IOPRIO_CLASS_RT, -1)]
)
def test_levels_of_io_are_refused(io: tuple[int, int]) -> None:
    with pytest.raises(KernelError, match="invalid argument"):
        started(io=io)


@pytest.mark.parametrize(
    ("name", "line", "text"),
    [
        ("io.max", "sda rbps=1", "invalid argument"),
        ("io.max", "8:0", "invalid argument"),
        ("io.max", "8:0 bps=1", "invalid argument"),
        ("io.max", "8:0 rbps", "invalid argument"),
        ("io.max", "8:0 rbps=many", "invalid argument"),
        ("io.max", "8:1 rbps=1", "no such device"),
        ("io.max", "8:0 rbps=0", "out of range"),
        ("io.weight", "default 0", "out of range"),
        ("io.weight", "8:0 10001", "out of range"),
        ("io.bfq.weight", "default 1001", "out of range"),
        ("io.weight", "8:1 5", "no such device"),
        ("io.weight", "default x", "invalid argument"),
    ],
)
def test_lines_of_files_about_io_are_refused(name: str, line: str, text: str) -> None:
    with pytest.raises(KernelError, match=text):
        check_limits({name: line}, ["8:0"], cgroup_v2=True, several=True)


def test_good_lines_are_taken_where_there_are_such_files() -> None:
    files = {
        "io.max": "8:0 rbps=1 wbps=max riops=max wiops=5",
        "io.weight": "default 10000\n8:0 default",
    }
    check_limits(files, ["8:0"], cgroup_v2=True, several=True)
    with pytest.raises(KernelError, match="cgroup v2"):
        check_limits(files, ["8:0"], cgroup_v2=False, several=True)
    with pytest.raises(KernelError, match="one line of 2"):
        check_limits(files, ["8:0"], cgroup_v2=True, several=False)
    check_limits({}, [], cgroup_v2=False, several=False)


def test_a_file_about_io_has_a_line_for_each_disk_that_is_limited() -> None:
    one, other = "8:0 rbps=1 wbps=max riops=max wiops=max", "8:16 rbps=max wbps=2 riops=3 wiops=max"
    assert read_back("io.max", one, other) == f"{one}\n{other}"
    assert read_back("io.max", one, one.replace("rbps=1", "rbps=5")) == one.replace("1", "5", 1)
    unlimited = "8:0 rbps=max wbps=max riops=max wiops=max"
    assert read_back("io.max", f"{one}\n{other}", unlimited) == other
    assert read_back("io.weight", "default 100\n8:0 5", "8:0 default") == "default 100"
    assert read_back("memory.high", "5", "max") == "max"
