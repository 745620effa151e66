"""What is written before the runtime hears of it, and when the runtime does (nri.md §3.7a)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.delivery import (
    executor,
    messages,
    next_actions,
    observations,
    overlap_times,
    record_table,
    survey,
)
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.record import Cpuset, Phase
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_cpu
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import SimulatedContainer
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.support.deliveries import change, put_in_flight
from tests.support.gate import Gate
from tests.support.patience import HANGS

ONE_POOL = "package:1 numa:1 core:8 pu:1"


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let answers wait for files however slow this machine is, and gains for next to no time."""
    monkeypatch.setattr(executor, "MAX_BATCH", 2 * HANGS)
    monkeypatch.setattr(executor, "MAX_START", 2 * HANGS)
    monkeypatch.setattr(survey, "MAX_SURVEY", 2 * HANGS)
    monkeypatch.setattr(next_actions, "SETTLE", 0.001)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no response come after a pause."""
    monkeypatch.setattr(next_actions, "PAUSE", 1e9)


class Held(SimulatedCgroups):
    """Cgroups that can be written only while `open` is set, and which of them fail."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self.open = threading.Event()
        self.open.set()
        self.failing: set[str] = set()
        self.batches: list[list[str]] = []

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        self.open.wait()
        self.batches.append([*wanted])
        failed = self.failing & wanted.keys()
        rest = {each: cpus for each, cpus in wanted.items() if each not in failed}
        done = {**super().confine(rest, change)}
        now = self.cpusets(failed)
        return done | {each: Confined(cpus=now[each], error="Device busy") for each in failed}


def host(
    folder: Path, cgroups: type[SimulatedCgroups] = SimulatedCgroups, version: str = "2.1.9"
) -> AbstractAsyncContextManager[Served]:
    return served(
        folder, ONE_POOL, cgroups=cgroups, version=version, reservedResources={"cpu": "cpuset:0"}
    )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for announces itself by no event
        await asyncio.sleep(0.001)


async def confirmed(it: Served) -> None:
    """Wait until every sent change is confirmed and every file is written."""
    state = it.daemon.executor.state
    await until(lambda: not (state.in_flight or state.pending))


def told(container: SimulatedContainer) -> CPUSet:
    """Return the CPUs that the runtime believes a container to have."""
    return CPUSet.parse(container.message.linux.resources.cpu.cpus)


async def sharers(it: Served, number: int) -> list[SimulatedContainer]:
    await it.start(*(pod(f"shared{each}") for each in range(number)))
    await confirmed(it)
    return it.runtime.containers[:number]


@pytest.mark.usefixtures("busy")
async def test_who_loses_cpus_has_left_them_before_the_first_answer_and_the_runtime_is_not_told(
    tmp_path: Path,
) -> None:
    async with host(tmp_path) as it:
        shared = await sharers(it, 3)
        at_creation = []

        async def look(where: str, container: SimulatedContainer) -> None:
            if where == "creating" and container.name == "main":
                at_creation.append([each.cpus for each in shared])

        it.runtime.between = look
        await it.start(pod("own", "2"))
        own = it.runtime.container("own/main")
        assert at_creation == [[CPUSet.parse("1-7") - own.cpus] * 3]
        assert [told(each) for each in shared] == [CPUSet.parse("1-7")] * 3
        assert it.daemon.executor.state.unrecorded.keys() == {each.id for each in shared}


@asynccontextmanager
async def proven(
    folder: Path, number: int
) -> AsyncIterator[tuple[Served, list[SimulatedContainer], Held]]:
    """Run a daemon that has written cgroups, beside containers that run on CPUs 1-7."""
    async with host(folder, Held) as it:
        shared = await sharers(it, number)
        await it.start(pod("before", "2"))
        await it.runtime.delete_pod(it.runtime.pod("before"))
        await confirmed(it)
        cgroups = it.daemon._cgroups
        assert isinstance(cgroups, Held)
        try:
            yield it, shared, cgroups
        finally:
            cgroups.open.set()


@pytest.mark.usefixtures("busy")
async def test_the_files_are_written_beside_the_creation_and_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who starts on CPUs that others are still to leave waits for them."""
    monkeypatch.setattr(executor, "MAX_WAIT", 2 * HANGS)
    async with proven(tmp_path, 3) as (it, shared, cgroups):
        # what was answered about it shows in no cgroup before it starts
        await it.runtime.create_container(await it.runtime.run_pod(pod("never")), "main")
        cgroups.open.clear()
        async with asyncio.timeout(HANGS):
            new = await it.runtime.run_pod(pod("own", "2"))
            own = await it.runtime.create_container(new, "main")
            await it.start(pod("third"))
        await until(it.daemon.executor.lock.locked)
        assert [each.cpus for each in shared] == [CPUSet.parse("1-7")] * 3
        gate = Gate(it.runtime, "started", "own")
        starting = asyncio.create_task(it.runtime.start_container(own))
        await until(lambda: it.daemon.executor.state.phase(own.id) is Phase.STARTING)
        assert not gate.reached.is_set()
        cgroups.open.set()
        await gate.reached.wait()
        assert [each.cpus for each in shared] == [CPUSet.parse("1-7") - own.cpus] * 3
        gate.open.set()
        await starting
        assert [told(each) for each in shared] == [CPUSet.parse("1-7")] * 3


async def test_a_start_waits_for_a_batch_that_is_about_to_give_its_cpus_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MAX_WAIT", 2 * HANGS)
    async with proven(tmp_path, 3) as (it, shared, cgroups):
        await it.start(pod("ends", "2"))
        await confirmed(it)
        cgroups.open.clear()
        await it.runtime.delete_pod(it.runtime.pod("ends"))
        await until(it.daemon.executor.lock.locked)  # the others are about to get its CPUs
        own = await it.runtime.create_container(await it.runtime.run_pod(pod("own", "2")), "main")
        gate = Gate(it.runtime, "started", "own")
        starting = asyncio.create_task(it.runtime.start_container(own))
        phase = it.daemon.executor.state.phase
        await until(lambda: phase(own.id) is Phase.STARTING)
        await asyncio.sleep(0.2)  # it could be answered
        assert not gate.reached.is_set()
        cgroups.open.set()
        await gate.reached.wait()
        assert [each.cpus for each in shared] == [CPUSet.parse("1-7") - own.cpus] * 3
        gate.open.set()
        await starting


async def test_who_could_not_be_written_beside_a_creation_is_told_soon_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_actions, "PATIENCE_TO_REGISTER", 1e6)
    monkeypatch.setattr(next_actions, "PATIENCE", 0.0)
    async with proven(tmp_path, 2) as (it, (stuck, other), cgroups):
        cgroups.failing.add(stuck.message.linux.cgroups_path)
        before = it.runtime.synchronizations
        await it.start(pod("own", "2"))
        await it.runtime.synchronized(after=before)
        rest = CPUSet.parse("1-7") - it.runtime.container("own/main").cpus
        await until(lambda: stuck.cpus == other.cpus == rest)
        assert told(stuck) == rest
        await confirmed(it)
        await it.start(pod("next", "1"))  # its answer waits: not every cgroup can be written
        rest -= it.runtime.container("next/main").cpus
        assert [told(stuck), other.cpus] == [rest, rest]


async def test_a_start_waits_for_files_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "MAX_START", 0.0)
    monkeypatch.setattr(executor, "MAX_WAIT", 0.0)
    async with proven(tmp_path, 3) as (it, shared, cgroups):
        cgroups.open.clear()
        await it.start(pod("own", "2"))
        cgroups.open.set()
        assert "cgroups-slow" in caplog.text
        rest = CPUSet.parse("1-7") - it.runtime.container("own/main").cpus
        await until(lambda: all(each.cpus == rest for each in shared))


@pytest.mark.usefixtures("busy")
async def test_who_gets_more_gets_it_after_the_event_and_who_returns_is_told_nothing(
    tmp_path: Path,
) -> None:
    async with host(tmp_path, Held) as it:
        shared = await sharers(it, 3)
        await it.start(pod("own", "2"))
        cgroups = it.daemon._cgroups
        assert isinstance(cgroups, Held)
        cgroups.open.clear()
        await it.runtime.delete_pod(it.runtime.pod("own"))  # waits for no file
        cgroups.open.set()
        await until(lambda: all(each.cpus == CPUSet.parse("1-7") for each in shared))
        assert not it.daemon.executor.state.unrecorded
        assert all(each.cpus == told(each) for each in shared)


@pytest.mark.usefixtures("busy")
async def test_what_is_freed_without_a_stop_is_told_in_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host(tmp_path) as it:
        shared = await sharers(it, 3)
        # nobody gets more, from before anybody leaves: no batch of that can be under way later
        monkeypatch.setattr(next_actions, "SETTLE", 1e6)
        never = [
            await it.runtime.create_container(await it.runtime.run_pod(pod(name, "2")), "main")
            for name in ("first", "second")
        ]
        await until(lambda: not it.daemon.executor.state.pending)
        before = [[*each.updated_by] for each in shared]
        for each in never:
            await it.runtime.delete_pod(each.pod)
        assert [each.updated_by for each in shared] == before
        await it.daemon.executor.settle()
        assert [each.cpus for each in shared] == [CPUSet.parse("1-7")] * 3


@pytest.mark.parametrize("unwritable", [0, 1])
async def test_a_creation_that_moves_nobody_waits_for_no_batch_that_is_under_way(
    unwritable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # while the daemon registers again, containers come without it
    monkeypatch.setattr(next_actions, "PATIENCE_TO_REGISTER", 1e6)
    monkeypatch.setattr(observations, "GRACE", 1e6)
    async with host(tmp_path, Held) as it:
        shared = await sharers(it, 3)
        cgroups = it.daemon._cgroups
        assert isinstance(cgroups, Held)
        cgroups.failing |= {each.message.linux.cgroups_path for each in shared[:unwritable]}
        await it.start(pod("own", "2"))
        await confirmed(it)
        assert len(it.daemon.executor.state.unwritable) == unwritable
        cgroups.open.clear()
        try:
            await it.runtime.delete_pod(it.runtime.pod("own"))
            await until(it.daemon.executor.lock.locked)
            await it.start(pod("third"))  # if it waited, it would hang
        finally:
            cgroups.open.set()
        await until(lambda: all(each.cpus == CPUSet.parse("1-7") for each in shared[unwritable:]))


async def test_a_response_takes_few_along_the_oldest_first_and_none_soon_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host(tmp_path) as it:
        shared = await sharers(it, 6)
        monkeypatch.setattr(next_actions, "PAUSE", 1e9)
        await it.start(pod("own", "2"))
        unrecorded = it.daemon.executor.state.unrecorded
        oldest = [*unrecorded]
        assert len(oldest) == len(shared)
        monkeypatch.setattr(next_actions, "PAUSE", 0.0)
        await it.start(pod("next"))
        assert [*unrecorded] == oldest[1:]
        await confirmed(it)
        await it.runtime.stop_container(it.runtime.container("next/main"))
        assert [*unrecorded] == oldest[3:]
        monkeypatch.setattr(next_actions, "PAUSE", 1e9)
        await it.start(pod("soon"))
        assert [*unrecorded] == oldest[3:]


@pytest.mark.usefixtures("busy")
async def test_a_registration_tells_ten_at_most_and_moves_nobody(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        shared = await sharers(it, 30)
        await it.start(pod("own", "2"))
        cpus = [each.cpus for each in shared]
        before = it.runtime.synchronizations
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=before)
        assert [each.cpus for each in shared] == cpus
        assert sum(len(each.updated_by) == 2 for each in shared) == 10
        assert len(it.daemon.executor.state.unrecorded) == 20


async def test_what_changes_memory_or_shares_is_left_to_the_runtime(tmp_path: Path) -> None:
    async with host(tmp_path, Held) as it:
        (shared,) = await sharers(it, 1)
        cgroups, executor_ = it.daemon._cgroups, it.daemon.executor
        assert isinstance(cgroups, Held)
        cgroups.batches.clear()
        placement = it.daemon.node.view.placement(shared.id)
        assert placement is not None
        change(executor_, shared.id, observed=Cpuset(cpus=shared.cpus, mems=CPUSet([1])))
        executor_.decide({shared.id: placement})
        await executor_.settle()
        assert not executor_.state.by_file
        assert cgroups.batches == []


@pytest.mark.usefixtures("busy")
async def test_who_cannot_be_written_is_told_in_the_answer_and_keeps_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_times, "SETTLE", 1e6)  # it has an overlap, which a look reports
    async with host(tmp_path, Held) as it:
        stuck, other = await sharers(it, 2)
        cgroups = it.daemon._cgroups
        assert isinstance(cgroups, Held)
        cgroups.failing.add(stuck.message.linux.cgroups_path)
        await it.start(pod("own", "2"))
        own = it.runtime.container("own/main")
        assert told(stuck) == stuck.cpus == CPUSet.parse("1-7") - own.cpus
        assert other.cpus == stuck.cpus
        assert told(other) == CPUSet.parse("1-7")
        doubt = "containers whose cgroups cannot be written (docs/runtime.md): 1"
        assert doubt in it.daemon.status.doubts()  # beside the overlap, where it has been seen


async def test_what_is_not_written_in_time_is_told_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MAX_BATCH", 0.0)
    async with host(tmp_path, Held) as it:
        (shared,) = await sharers(it, 1)
        cgroups = it.daemon._cgroups
        assert isinstance(cgroups, Held)
        cgroups.open.clear()
        await it.start(pod("own", "2"))
        cgroups.open.set()
        own = it.runtime.container("own/main")
        assert told(shared) == shared.cpus == CPUSet.parse("1-7") - own.cpus
        await confirmed(it)


class Slow(Held):
    """Cgroups of which only the first slice of a batch is written, until `open` is set."""

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        if self.batches:
            return super().confine(wanted, change)
        self.batches.append([*wanted])
        return SimulatedCgroups.confine(self, wanted, change)


@pytest.mark.usefixtures("busy")
async def test_only_what_a_batch_has_not_written_in_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SLICE", 2)
    async with host(tmp_path, Slow) as it:
        shared = await sharers(it, 5)
        cgroups, state = it.daemon._cgroups, it.daemon.executor.state
        assert isinstance(cgroups, Slow)
        cgroups.batches.clear()

        class Impatient(Clock, frozen=True):
            async def done_within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
                await until(lambda: len(state.unrecorded) == 2)
                return await super().done_within(0.0 * seconds, future)

        it.daemon.executor.clock = Impatient()
        cgroups.open.clear()
        try:
            await it.start(pod("own", "2"))
        finally:
            it.daemon.executor.clock = Clock()
            cgroups.open.set()
        own = it.runtime.container("own/main")
        rest = CPUSet.parse("1-7") - own.cpus
        assert sorted(len(told(each)) for each in shared) == [5, 5, 5, 7, 7]
        await until(lambda: all(each.cpus == rest for each in shared))


@pytest.mark.usefixtures("busy")
async def test_cgroups_that_were_read_too_late_for_the_list_are_written_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host(tmp_path) as it:
        (shared,) = await sharers(it, 1)
        state = it.daemon.executor.state
        monkeypatch.setattr(survey, "MAX_SURVEY", 0.0)
        before = it.runtime.synchronizations
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=before)
        await until(lambda: state.records[shared.id].observed is not None)
        await confirmed(it)
        await it.start(pod("own", "2"))
        assert shared.cpus == CPUSet.parse("1-7") - it.runtime.container("own/main").cpus
        assert told(shared) == CPUSet.parse("1-7")


async def test_nobody_gets_what_somebody_has_still_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "GRACE", 0.2)
    async with host(tmp_path, Held) as it:
        await it.start(pod("own", "4"), pod("shared"))
        await confirmed(it)
        own, shared = it.runtime.containers
        cgroups, executor_ = it.daemon._cgroups, it.daemon.executor
        assert isinstance(cgroups, Held)
        amounts = Amounts(cpu=parse_cpu("2"))
        before = own.cpus
        cgroups.failing.add(own.message.linux.cgroups_path)

        async def undone(where: str, container: SimulatedContainer) -> None:
            """Have the resize not reach the cgroup, as when the runtime's update gets lost."""
            if where == "updating" and container is own:
                put_in_flight(executor_, own.id)

        it.runtime.between = undone
        await it.runtime.resize(own.pod, "main", ResourceChange(requests=amounts, limits=amounts))
        assert own.in_force is not None
        own.in_force.cpu.cpus = str(before)
        change(executor_, own.id, observed=Cpuset(cpus=before, mems=own.mems), visible=True)
        put_in_flight(executor_, own.id)
        await it.daemon.executor.settle()
        assert shared.cpus.isdisjoint(before)
        cgroups.failing.clear()
        await until(lambda: len(own.cpus) == 2 and shared.cpus == CPUSet.parse("1-7") - own.cpus)


async def test_who_was_never_started_keeps_nobody_from_getting_more(tmp_path: Path) -> None:
    """Also where it was told something, and has no cgroup that would show it."""
    async with host(tmp_path) as it:
        (shared,) = await sharers(it, 1)
        await it.runtime.create_container(await it.runtime.run_pod(pod("never")), "main")
        before = it.runtime.synchronizations
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=before)
        await it.start(pod("own", "2"))
        never, state = it.runtime.container("never/main"), it.daemon.executor.state
        assert never.id in state.in_flight
        assert state.records[never.id].observed is None
        await it.runtime.delete_pod(it.runtime.pod("own"))
        await it.daemon.executor.settle()
        assert shared.cpus == CPUSet.parse("1-7")


@pytest.mark.parametrize("runtime", [("containerd", "2.1.9"), ("cri-o", "1.36.3")])
async def test_who_was_never_started_keeps_nobody_from_its_former_cpus(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    name, version = runtime
    async with served(
        tmp_path, ONE_POOL, cgroups=SimulatedCgroups, name=name, version=version
    ) as it:
        await it.start(pod("system", namespace="kube-system"))
        await confirmed(it)
        await it.runtime.create_container(await it.runtime.run_pod(pod("never")), "main")
        settings = nodes.settings(reservedResources={"cpu": "cpuset:0-1"})
        await it.daemon.events.reconfigure(settings=settings)
        it.daemon.components.answers.take()  # as if a response had told it in vain
        await it.daemon.executor.settle()
        assert it.runtime.container("kube-system/system/main").cpus == CPUSet.parse("0-1")


async def test_a_quiet_runtime_that_no_call_can_hang_is_told_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_actions, "PAUSE", 1e9)
    async with host(tmp_path, SimulatedCgroups, version="2.4.0") as it:
        shared = await sharers(it, 3)
        await it.start(pod("own", "2"))
        assert len(it.daemon.executor.state.unrecorded) == 3
        monkeypatch.setattr(messages, "SILENCE", 0.0)
        await until(lambda: all(told(each) == each.cpus for each in shared))
        assert it.runtime.synchronizations == 1


@pytest.mark.usefixtures("busy")
async def test_an_older_runtime_is_never_called_nor_registered_with_only_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SILENCE", 0.001)
    async with host(tmp_path) as it:
        await sharers(it, 3)
        await it.start(pod("own", "2"))
        await asyncio.sleep(0.05)  # for a call to come, if there were one
        assert len(it.daemon.executor.state.unrecorded) == 3
        assert it.runtime.synchronizations == 1


@pytest.mark.usefixtures("busy")
async def test_a_resize_makes_others_leave_before_its_answer(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.start(pod("own", "2"), pod("shared"))
        await confirmed(it)
        own, shared = it.runtime.containers
        known, amounts = told(shared), Amounts(cpu=parse_cpu("4"))
        await it.runtime.resize(own.pod, "main", ResourceChange(requests=amounts, limits=amounts))
        assert len(own.cpus) == 4
        assert shared.cpus == CPUSet.parse("1-7") - own.cpus
        assert told(shared) == known


@pytest.mark.parametrize("version", ["2.1.9", "2.4.0"])
async def test_who_leaves_that_widens_writes_first_and_tells_all_the_same(
    version: str, tmp_path: Path
) -> None:
    """Nobody is there later to put right what the runtime would write of its own."""
    async with served(tmp_path, ONE_POOL, cgroups=Held, version=version, onExit="widen") as it:
        (shared,) = await sharers(it, 1)
        await it.start(pod("own", "2"))
        await confirmed(it)
        own = it.runtime.container("own/main")
        cgroups = it.daemon._cgroups
        assert isinstance(cgroups, Held)
        cgroups.batches.clear()
        await it.daemon.leave()
        await it.runtime.settled()
        paths = {each.message.linux.cgroups_path for each in (shared, own)}
        assert {*cgroups.batches[0]} == paths
        for each in (shared, own):
            assert (str(each.cpus), str(told(each))) == ("0-7", "0-7")


async def test_where_nothing_can_be_written_that_is_known_from_the_start_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ReadOnly(Held):
        def __init__(self, runtime: EmbeddedRuntime) -> None:
            super().__init__(runtime)
            self.failing = {each.message.linux.cgroups_path for each in runtime.containers}

    async with served(tmp_path, ONE_POOL, cgroups=ReadOnly, before=[pod("shared")]) as it:
        (doubt,) = it.daemon.status.doubts()
        assert "changes wait for the runtime: Device busy; doctor" in doubt
        cgroups, shared = it.daemon._cgroups, it.runtime.container("shared/main")
        assert isinstance(cgroups, ReadOnly)
        await it.start(pod("own", "2"))
        own = it.runtime.container("own/main")
        assert told(shared) == CPUSet.parse("1-7") - own.cpus
        await confirmed(it)
        cgroups.failing.clear()
        await it.daemon.executor.settle()
        assert it.daemon.executor.state.trouble, "it is tried each minute"
        for module in (observations, record_table):
            monkeypatch.setattr(module, "RETRY_WRITE", 0.0)
        await it.daemon.executor.settle()
        assert not it.daemon.executor.state.trouble
        # a container that was tried meanwhile, as it overlapped, is tried again soon
        await until(lambda: not [*it.daemon.status.doubts()])


async def test_a_container_that_has_just_ended_does_not_show_that_cgroups_can_be_written(
    tmp_path: Path,
) -> None:
    class ReadOnly(SimulatedCgroups):
        """A first container that is gone, and others that cannot be written."""

        tried = 0

        def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
            del change
            self.tried += 1
            gone = Confined(cpus=None)
            failed = Confined(cpus=CPUSet.parse("1-7"), error="Read-only file system")
            return dict.fromkeys(wanted, gone if self.tried == 1 else failed)

    pods = [pod("first"), pod("second")]
    async with served(tmp_path, ONE_POOL, cgroups=ReadOnly, before=pods) as it:
        assert it.daemon.executor.state.trouble == "Read-only file system"
