"""Which cpusets are looked at, and when."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from nri_policy.delivery import overlaps
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.inputs import Action, ActionBegan, ActionEnded, CpusetsTouched
from nri_policy.delivery.overlap_times import BREATH
from nri_policy.delivery.overlaps import PERIOD, RARELY, Overlaps
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.inotify import Inotify
from nri_policy.kube.events import ClusterEvent
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import Served, pod, served
from tests.support.deliveries import land
from tests.support.patience import HANGS


class Counting:
    """Counts how often anybody was looked at; cpusets are files if there is a *folder* for them."""

    def __init__(self, cpus: dict[str, str], folder: Path | None = None) -> None:
        self.looks = 0
        self.folder = folder
        self.looked, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self.cpus = cpus

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        self.looks += 1
        self._loop.call_soon_threadsafe(self.looked.set)
        return {each: CPUSet.parse(self.cpus[each]) for each in cgroups if each in self.cpus}

    def cpuset_files(
        self, cgroups: Iterable[str], partitions: Iterable[str]
    ) -> Collection[str] | None:
        if self.folder is None:
            return None
        files = [*map(self.file, cgroups), *map(self.partition_file, partitions)]
        return {*map(str, files)}

    def file(self, cgroup: str) -> Path:
        assert self.folder is not None
        return self.folder / cgroup.replace("/", "-")

    def partition_file(self, cgroup: str) -> Path:
        return self.file(f"{cgroup}-partition")


def overlaps_of(it: Served, cpusets: Counting) -> Overlaps:
    return Overlaps(it.daemon.node, it.daemon.executor, cast("HostCgroups", cpusets))


async def test_nobody_is_looked_at_while_nobody_has_cpus_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        counting = Counting({})
        overlaps = overlaps_of(it, counting)
        await it.start(pod("guest"))
        await overlaps.look()
        assert counting.looks == 0
        await it.start(pod("own", "1"))
        await overlaps.look()
        assert counting.looks  # the executor may have looked by itself meanwhile


async def test_who_was_put_on_the_cpus_of_another_gets_all_of_its_own_again(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        await it.start(pod("guest"), pod("own", "1"))
        guest, own = it.runtime.containers
        decided = guest.cpus
        await it.daemon.executor.settle()
        land(it.daemon.executor)
        assert guest.in_force is not None
        guest.in_force.cpu.cpus = str(own.cpus | decided.first(1))  # as a runtime's late write
        await it.daemon.executor.look(guest.id)
        assert guest.cpus == decided.first(1)
        await it.daemon.executor.settle()
        assert guest.cpus == decided


async def test_what_is_seen_while_others_write_is_looked_at_again_before_it_counts(
    tmp_path: Path,
) -> None:
    events: list[ClusterEvent] = []
    async with served(tmp_path, cgroups=SimulatedCgroups, record=events.append) as it:
        await it.start(pod("guest"), pod("own", "1"))
        guest, _ = it.runtime.containers
        decided = guest.cpus
        await it.daemon.executor.settle()
        land(it.daemon.executor)
        before = len(guest.updated_by)
        stale = Counting({guest.message.linux.cgroups_path: "0-15"})
        overlaps = overlaps_of(it, stale)
        async with it.daemon.executor.lock:  # a batch is being written
            looking = asyncio.create_task(overlaps.look())
            await stale.looked.wait()
        await looking
        assert (events, guest.cpus, len(guest.updated_by)) == ([], decided, before)
        # and what is still there then is put right and reported
        assert guest.in_force is not None
        guest.in_force.cpu.cpus = "0-15"
        await overlaps.look()
        assert [each.reason for each in events] == ["ExclusiveCPUsShared"]
        assert guest.cpus == decided


class Looks:
    """When all cpusets are looked at, by the plan alone; a look takes no time."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.state = DeliveryState(NoDecisions(), has_files=True)
        self.state.apply(CpusetsTouched(), now)

    def touch(self, after: float = 0.0) -> None:
        self.now += after
        self.state.apply(CpusetsTouched(), self.now)

    def next(self, period: float, *, touched: bool = False) -> float:
        """Return in how many seconds the next look is, and have it ask for the next *period*."""
        pause = self.state.plan(self.now)[Action.OVERLAPS] - self.now
        self.now += pause
        self.state.apply(ActionBegan(Action.OVERLAPS), self.now)
        if touched:
            self.state.apply(CpusetsTouched(), self.now)
        self.state.apply(ActionEnded(action=Action.OVERLAPS, pause=period), self.now)
        return round(pause, 3)


class NoDecisions(Desired):
    """There are no containers."""

    def __init__(self) -> None:
        """Take no node."""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def placement(self, container_id: str) -> None:
        """Know of none."""

    def partition(self, container_id: str) -> None:
        """Return nothing: no container is to be a partition."""


def test_a_look_follows_each_write_and_is_at_a_multiple_of_the_period_else() -> None:
    looks = Looks(100.0)
    assert looks.next(RARELY) == 0.1, "a change is many writes"
    assert looks.next(RARELY) == 19.9, "to a multiple of the period"
    assert looks.next(RARELY) == 30.0
    looks.touch(after=10.0)
    assert looks.next(RARELY) == 0.1
    looks.touch(after=1.0)
    assert looks.next(RARELY) == 0.5, "looks are at least one period apart"


def test_while_the_kernel_does_not_tell_all_are_looked_at_every_period() -> None:
    looks = Looks(100.0)
    looks.next(PERIOD)
    assert looks.next(PERIOD) == 0.4, "to a multiple of the period"
    assert [looks.next(PERIOD) for _ in range(3)] == [1.5, 1.5, 1.5]


def test_without_news_of_writes_the_next_look_is_in_time_whenever_one_ends() -> None:
    """An overlap ends within two seconds, also beside looks that take long or follow a write."""
    for tenths in range(15):
        looks = Looks(100.0 + tenths / 10)
        looks.next(PERIOD)
        assert BREATH <= looks.next(PERIOD) <= PERIOD + BREATH


def test_what_is_written_during_a_look_is_looked_at_after_it() -> None:
    looks = Looks(100.0)
    looks.next(RARELY, touched=True)
    assert looks.next(RARELY) == 1.5
    assert looks.next(RARELY) > PERIOD


@asynccontextmanager
async def looking(
    folder: Path, cpusets: Counting, **spec: Any
) -> AsyncIterator[tuple[Served, Overlaps]]:
    """Watch a container beside another with a CPU of its own."""
    async with served(folder, cgroups=SimulatedCgroups, **spec) as it:
        await it.start(pod("guest"), pod("own", "1"))
        overlaps = overlaps_of(it, cpusets)
        with overlaps.watching():
            yield it, overlaps


async def test_the_kernel_tells_of_writes_to_containers_that_were_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, touched = Counting({}, tmp_path), asyncio.Event()
    monkeypatch.setattr(Overlaps, "touch", lambda _: touched.set())
    async with looking(tmp_path, counting) as (it, overlaps):
        for pods in ((), (pod("new"),)):
            await it.start(*pods)
            for each in it.runtime.containers:
                counting.file(each.message.linux.cgroups_path).touch()
            assert await overlaps.look() == RARELY
            for each in it.runtime.containers:
                touched.clear()
                counting.file(each.message.linux.cgroups_path).write_text("0")
                async with asyncio.timeout(HANGS):
                    await touched.wait()


async def test_the_kernel_says_when_the_partition_of_an_owner_becomes_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, touched = Counting({}, tmp_path), asyncio.Event()
    monkeypatch.setattr(Overlaps, "touch", lambda _: touched.set())
    async with looking(tmp_path, counting, exclusivePartitions="root") as (it, overlaps):
        guest, own = (
            counting.partition_file(each.message.linux.cgroups_path)
            for each in it.runtime.containers
        )
        for each in (guest, own):
            each.write_text("root")
        await overlaps.look()
        touched.clear()
        own.write_text("root invalid (No cpu available due to hotplug)")
        async with asyncio.timeout(HANGS):
            await touched.wait()
        assert overlaps._inotify is not None
        assert str(guest) not in overlaps._inotify._watches, "a sharer is none"


async def test_after_a_decision_all_are_looked_at_soon(tmp_path: Path) -> None:
    async with looking(tmp_path, Counting({}, tmp_path)) as (it, _):
        executor = it.daemon.executor
        executor.state.apply(ActionEnded(action=Action.OVERLAPS, pause=RARELY), 1e9)
        await it.start(pod("new"))
        now = executor.clock.now()
        assert executor.state.plan(now)[Action.OVERLAPS] < 2e9


async def test_where_the_kernel_cannot_tell_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    counting = Counting({}, tmp_path / ("x" * 200) / ("x" * 5000))
    async with looking(tmp_path, counting) as (_, overlaps):
        assert [await overlaps.look() for _ in range(3)] == [PERIOD] * 3
    assert caplog.text.count("event=cpusets-not-watched") == 1
    assert "File name too long" in caplog.text


async def test_who_cannot_be_made_to_leave_is_looked_at_every_period(tmp_path: Path) -> None:
    counting = Counting({}, tmp_path)
    async with looking(tmp_path, counting) as (it, overlaps):
        guest, _ = it.runtime.containers
        counting.cpus[guest.message.linux.cgroups_path] = "0-15"
        assert [await overlaps.look() for _ in range(3)] == [PERIOD] * 3
        counting.cpus.clear()
        assert await overlaps.look() == RARELY


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EMFILE, "max_user_instances"), (errno.ENOSPC, "max_user_watches")],
)
async def test_status_says_that_inotify_is_exhausted_and_what_helps(
    number: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> Inotify:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(overlaps, "Inotify", exhausted)
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        await asyncio.sleep(0)
        (said,) = [each for each in it.daemon.status.doubts() if "cpusets are checked" in each]
    assert os.strerror(number) in said
    assert said.endswith(f"; raise fs.inotify.{remedy}")
