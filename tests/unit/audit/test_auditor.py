from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
from msgspec.structs import replace

from nri_policy.audit.auditor import (
    FIRST_PROCESS_DELAY,
    GRACE,
    MAX_CHECKS,
    MAX_REPAIRS,
    PERIOD,
    Auditor,
)
from nri_policy.audit.cgroup import ContainerCgroups
from nri_policy.audit.deviations import CpusetState, KernelState, Target
from nri_policy.audit.first_process import FirstProcess
from nri_policy.audit.orphans import KnownContainers
from nri_policy.classes import Origin, Scheduler, Scheduling
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Company
from nri_policy.settings import Audit, SchedulingPolicy
from tests.support.clock import SleepingClock
from tests.support.patience import HANGS


def decided(number: int, cpus: str = "2-3") -> Target:
    return Target(
        container_id=f"id{number}",
        name=f"default/pod{number}/main",
        cgroup=f"/pod/{number}",
        cpus=CPUSet.parse(cpus),
        mems=CPUSet.parse("0"),
    )


def observed(cpus: str, **threads: str) -> KernelState:
    found, node = CPUSet.parse(cpus), CPUSet([0])
    return KernelState(
        cpus=CpusetState(written=found, effective=found),
        mems=CpusetState(written=node, effective=node),
        threads={int(name[1:]): CPUSet.parse(text) for name, text in threads.items()},
    )


@dataclass
class Node:
    """Decisions, a kernel and a clock; `moments` happen one at each sleep."""

    audit: Audit = Audit.REPORT
    containers: dict[str, Target] = field(default_factory=dict)
    kernel: dict[str, KernelState] = field(default_factory=dict)
    moments: list[tuple[str, str]] = field(default_factory=list)  # id and what it then runs on
    resent: list[list[str]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    firsts: dict[str, FirstProcess] = field(default_factory=dict)  # by cgroup
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # by cgroup
    read: int = 0
    time: float = 1000.0

    def __post_init__(self) -> None:
        self.auditor = self.audited(SleepingClock(date=lambda: self.time, sleep=self.sleep))

    def audited(self, clock: Clock) -> Auditor:
        return Auditor(self, cast("ContainerCgroups", self), clock=clock)

    def limits(self, cgroup: str, names: Iterable[str]) -> dict[str, str]:
        there = self.files.get(cgroup, {})
        return {name: there[name] for name in names if name in there}

    def first_process(self, cgroup: str) -> FirstProcess | None:
        return self.firsts.get(cgroup)

    def put(self, number: int, cpus: str = "2-3") -> None:
        self.containers[f"id{number}"] = decided(number)
        self.kernel[f"id{number}"] = observed(cpus)

    async def targets(self) -> list[Target]:
        return [*self.containers.values()]

    async def company(self) -> list[Company]:
        return []

    async def resend(self, container_ids: Collection[str]) -> None:
        self.resent.append([*container_ids])

    async def known_containers(self) -> KnownContainers:
        return KnownContainers(running=(), created=(), known=(), folders=(), rooms={})

    async def release(self, container_ids: Collection[str]) -> None:
        raise AssertionError(container_ids)

    async def release_unstarted(self, container_ids: Collection[str]) -> None:
        raise AssertionError(container_ids)

    async def release_rooms(self, pod_ids: Collection[str]) -> None:
        raise AssertionError(pod_ids)

    async def register_again(self, cgroups: Collection[str]) -> None:
        raise AssertionError(cgroups)

    def processes(self, cgroup: str) -> Collection[int]:
        raise AssertionError(cgroup)

    def has_process(self, pid: int) -> bool:
        raise AssertionError(pid)

    def find_populated(self, folder: str) -> Mapping[str, Collection[int]]:
        raise AssertionError(folder)

    def outside(self, folders: Iterable[str]) -> Mapping[str, CPUSet]:
        raise AssertionError(folders)

    def observe(
        self, container_id: str, cgroup: str, *, turn: int, watched: Iterable[int] = ()
    ) -> KernelState | None:
        del turn, watched
        assert cgroup == self.containers[container_id].cgroup
        self.read += 1
        return self.kernel.get(container_id)

    def keep_only(self, container_ids: Iterable[str]) -> None:
        assert {*container_ids} == self.containers.keys()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        if self.moments:
            container_id, cpus = self.moments.pop(0)
            self.kernel[container_id] = observed(cpus)

    def drifts(self) -> list[tuple[str, str]]:
        report = self.auditor.report
        return [(drift.name, str(drift.deviation.found)) for drift in report.drifts]


async def test_nothing_amiss_takes_one_look() -> None:
    node = Node()
    node.put(1)
    node.put(2)
    await node.auditor.round()
    assert (node.read, node.slept, node.drifts()) == (2, [], [])
    assert node.auditor.report.audited == 2


async def test_only_containers_that_run_here_are_observed() -> None:
    node = Node()
    node.put(1)
    node.put(2)
    del node.kernel["id2"]
    seen = await node.auditor.observe(node.containers.values())
    assert seen == {"id1": observed("2-3")}


async def test_what_was_found_of_a_container_is_forgotten_with_it() -> None:
    node = Node()
    node.put(1)
    node.containers["id1"] = replace(node.containers["id1"], limits=(("io.max", ""),))
    node.files["/pod/1"] = {"io.max": "8:0 rbps=1"}
    await node.auditor.round()
    assert node.auditor.limits_found == {"id1": {"io.max": "8:0 rbps=1"}}
    node.containers.clear()
    await node.auditor.round()
    assert node.auditor.limits_found == {}


async def test_what_a_second_look_still_finds_is_drift() -> None:
    node = Node()
    node.put(1)
    node.put(2, "0-7")
    await node.auditor.round()
    assert node.drifts() == [("default/pod2/main", "0-7")]
    assert (node.slept, node.read) == ([GRACE], 3)
    assert (node.auditor.report.drifted, node.auditor.found) == (1, 1)
    await node.auditor.round()
    assert node.slept == [GRACE], "what is known needs no second look"
    assert node.auditor.found == 1


async def test_a_container_that_the_runtime_is_just_moving_is_no_drift() -> None:
    node = Node(moments=[("id2", "2-3")])
    node.put(2, "0-7")
    await node.auditor.round()
    assert node.drifts() == []


async def test_a_runtime_that_moves_many_gets_the_time_it_needs() -> None:
    node = Node(moments=[("id1", "2-3"), ("id2", "2-3"), ("id3", "2-3")])
    for number in (1, 2, 3, 4):
        node.put(number, "0-7")
    await node.auditor.round()
    assert node.drifts() == [("default/pod4/main", "0-7")]
    assert len(node.slept) == 4


async def test_what_does_not_come_to_rest_is_left_for_the_next_round() -> None:
    node = Node(moments=[(f"id{number}", "2-3") for number in range(20)])
    for number in range(30):
        node.put(number, "0-7")
    await node.auditor.round()
    assert len(node.slept) == MAX_CHECKS - 1
    assert node.drifts() == []


async def test_what_was_decided_anew_meanwhile_is_no_drift() -> None:
    node = Node()
    node.put(1, "0-7")

    async def sleep(seconds: float) -> None:
        del seconds
        node.containers["id1"] = replace(node.containers["id1"], cpus=CPUSet([5]))

    node.auditor = node.audited(SleepingClock(sleep=sleep))
    await node.auditor.round()
    assert node.drifts() == []
    assert node.auditor.report.changing == ("default/pod1/main",)


async def test_what_the_runtime_has_not_heard_is_no_drift() -> None:
    node = Node()
    node.put(1, "0-7")
    node.put(2)
    node.containers["id1"] = replace(node.containers["id1"], sent=False)
    await node.auditor.round()
    assert (node.read, node.drifts()) == (1, [])


async def test_every_container_is_checked_or_named() -> None:
    node = Node(moments=[(f"id{number}", "2-3") for number in range(20)])
    for number in range(30):
        node.put(number, "0-7")
    node.put(30)
    node.put(31)
    node.containers["id31"] = replace(node.containers["id31"], sent=False)
    node.put(32)
    del node.kernel["id32"]
    await node.auditor.round()
    report = node.auditor.report
    assert len(report.unseen) == 1
    assert report.audited + len(report.changing) + len(report.unseen) == 33
    assert "default/pod31/main" in report.changing


async def test_a_container_that_is_not_there_is_no_drift() -> None:
    node = Node()
    node.put(1)
    del node.kernel["id1"]
    await node.auditor.round()
    assert node.auditor.report.unseen == ("default/pod1/main",)
    assert node.auditor.report.audited == 0


async def test_new_drift_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = Node()
    node.put(1, "0-7")
    for _ in range(3):
        await node.auditor.round()
    node.put(1)
    for _ in range(2):
        await node.auditor.round()
    assert [record.message for record in caplog.records] == ["drift", "drift-gone"]
    assert "decided=2-3 found=0-7" in caplog.text.splitlines()[0]


async def test_drift_has_the_time_when_it_began() -> None:
    node = Node()
    node.put(1, "0-7")
    await node.auditor.round()
    began = node.time
    node.time += 100
    node.kernel["id1"] = observed("0-6")
    await node.auditor.round()
    (drift,) = node.auditor.report.drifts
    assert (drift.since, str(drift.deviation.found)) == (began, "0-6")


async def test_repair_tells_the_runtime_again_and_sees_that_it_helped() -> None:
    node = Node(audit=Audit.REPAIR)
    node.put(1)
    node.put(2, "0-7")
    await node.auditor.round()
    assert node.resent == [["id2"]]
    node.put(2)
    await node.auditor.round()
    assert (node.drifts(), node.resent) == ([], [["id2"]])
    assert node.auditor.repairs == 1


async def test_repair_that_does_not_help_ends_after_some_tries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(audit=Audit.REPAIR)
    node.put(1, "0-7")
    for _ in range(MAX_REPAIRS + 5):
        await node.auditor.round()
    assert len(node.resent) == MAX_REPAIRS
    (drift,) = node.auditor.report.drifts
    assert (drift.tries, drift.curable) == (MAX_REPAIRS, False)
    assert caplog.text.count("event=drift-not-repaired") == 1
    node.put(1)
    await node.auditor.round()
    node.put(1, "0-7")
    await node.auditor.round()
    assert len(node.resent) == MAX_REPAIRS + 1, "a new drift is tried anew"


async def test_the_tries_are_not_forgotten_while_the_runtime_has_yet_to_hear() -> None:
    node = Node(audit=Audit.REPAIR)
    node.put(1, "0-7")
    await node.auditor.round()
    node.containers["id1"] = replace(node.containers["id1"], sent=False)
    await node.auditor.round()
    assert [drift.tries for drift in node.auditor.report.drifts] == [1]
    assert len(node.resent) == 1


async def test_what_telling_cannot_cure_is_not_told() -> None:
    node = Node(audit=Audit.REPAIR)
    node.put(1)
    node.kernel["id1"] = observed("2-3", t7="9")
    await node.auditor.round()
    assert (node.drifts(), node.resent) == ([("default/pod1/main", "9")], [])


async def test_report_tells_nobody() -> None:
    node = Node(audit=Audit.REPORT)
    node.put(1, "0-7")
    await node.auditor.round()
    assert node.resent == []


async def test_off_reads_nothing_but_when_asked() -> None:
    node = Node(audit=Audit.OFF)
    node.put(1, "0-7")
    await node.auditor.round()
    assert (node.read, node.drifts()) == (0, [])
    assert len((await node.auditor.check()).drifts) == 1
    await node.auditor.round()
    assert node.drifts() == [], "what was found is not kept"


async def test_who_asks_only_looks_and_what_is_new_hastens_a_round() -> None:
    node = Node(audit=Audit.REPAIR)
    node.put(1, "0-7")
    report = await node.auditor.check()
    assert (len(report.drifts), node.resent) == (1, [])
    assert node.auditor._due.is_set()
    node.auditor._due.clear()
    await node.auditor.check()
    assert not node.auditor._due.is_set(), "asking often is not trying often"


async def test_a_container_that_ended_takes_its_drift_along() -> None:
    node = Node()
    node.put(1, "0-7")
    await node.auditor.round()
    del node.containers["id1"]
    await node.auditor.round()
    assert node.drifts() == []


async def test_rounds_come_with_time_and_when_hastened() -> None:
    node = Node()
    node.put(1)
    periods: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        assert seconds == PERIOD
        over = asyncio.Event()
        periods.put_nowait(over)
        await over.wait()

    node.auditor = node.audited(SleepingClock(sleep=sleep))
    running = asyncio.create_task(node.auditor.run())
    (await periods.get()).set()
    await periods.get()
    assert node.read == 1
    node.auditor.start_now()
    await periods.get()
    assert node.read == 2
    running.cancel()


async def test_a_round_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()

    class Broken(Node):
        async def targets(self) -> list[Target]:
            asked.put_nowait(None)
            raise OSError("no")

    node = Broken()
    node.auditor = node.audited(SleepingClock(sleep=lambda _: asyncio.sleep(0)))
    running = asyncio.create_task(node.auditor.run())
    await asked.get()
    await asked.get()
    running.cancel()
    assert "event=audit-failed" in caplog.text


def test_a_first_process_that_cannot_be_read_yet_is_looked_at_after_the_next_round() -> None:
    node = Node()
    node.put(1)
    scheduler = Scheduler(policy=SchedulingPolicy.IDLE)
    idle = Scheduling(name="idle", origin=Origin.ANNOTATION, scheduler=scheduler)
    node.containers["id1"] = replace(decided(1), scheduling=idle)
    process = FirstProcess(policy=SchedulingPolicy.IDLE, nice=0, priority=0, io_class=None)

    async def play() -> None:
        tasks = [
            asyncio.create_task(each) for each in (node.auditor.watch_starts(), node.auditor.run())
        ]
        node.auditor.record_start("id1")
        while FIRST_PROCESS_DELAY not in node.slept:  # noqa: ASYNC110 - as below
            await asyncio.sleep(0)
        node.firsts[node.containers["id1"].cgroup] = process
        async with asyncio.timeout(HANGS):
            while "id1" not in node.auditor.first_processes:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        for each in tasks:
            each.cancel()

    asyncio.run(play())
    assert PERIOD in node.slept
    assert node.slept.count(FIRST_PROCESS_DELAY) <= 2, "a look for each time that it is due"
    assert node.auditor.in_kernel("id1") == {"scheduler": "idle"}
