"""Which cpusets are looked at, and when."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.delivery import overlaps
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.inotify import Inotify
from nri_policy.kube.events import ClusterEvent
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import Served, pod, served
from tests.support.deliveries import land
from tests.support.turned_time import Time


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

    def cpuset_files(self, cgroups: Iterable[str]) -> Collection[str] | None:
        return None if self.folder is None else {str(self.file(each)) for each in cgroups}

    def file(self, cgroup: str) -> Path:
        assert self.folder is not None
        return self.folder / cgroup.replace("/", "-")


async def test_nobody_is_looked_at_while_nobody_has_cpus_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        counting = Counting({})
        overlaps = Overlaps(it.daemon.node, it.daemon.executor, counting, Clock())
        await it.start(pod("guest"))
        await overlaps.look()
        assert counting.looks == 0
        await it.start(pod("own", "1"))
        await overlaps.look()
        assert counting.looks == 1


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
        overlaps = Overlaps(it.daemon.node, it.daemon.executor, stale, Clock())
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


@asynccontextmanager
async def looking(folder: Path, cpusets: Counting) -> AsyncIterator[tuple[Served, Time]]:
    """Look again and again at a container beside another with a CPU of its own."""
    time = Time()
    async with served(folder, cgroups=SimulatedCgroups) as it:
        await it.start(pod("guest"), pod("own", "1"))
        overlaps = Overlaps(it.daemon.node, it.daemon.executor, cpusets, time.clock)
        task = asyncio.create_task(overlaps.run())
        yield it, time
        task.cancel()
        await asyncio.wait({task})


async def test_while_the_kernel_tells_of_writes_a_look_follows_each_and_is_rare_else(
    tmp_path: Path,
) -> None:
    counting = Counting({}, tmp_path)
    async with looking(tmp_path, counting) as (it, time):
        files = [counting.file(each.message.linux.cgroups_path) for each in it.runtime.containers]
        for each in files:
            each.touch()
        assert await time.next_sleep() == 0.5, "to a multiple of the period"
        assert [await time.next_sleep(), counting.looks] == [1.4, 1]
        assert [await time.next_sleep(), counting.looks] == [18.1, 1]
        assert [await time.next_sleep(), counting.looks] == [1.4, 2]
        await time.next_sleep(over=False)
        for looks, each in enumerate(files, 3):
            each.write_text("0")
            assert await time.next_sleep() == 0.1, "a change is many writes"
            assert [await time.next_sleep(), counting.looks] == [1.4, looks]
            assert await time.next_sleep(over=False) > 25


async def test_after_a_decision_new_containers_are_looked_at_and_watched(tmp_path: Path) -> None:
    counting = Counting({}, tmp_path)
    async with looking(tmp_path, counting) as (it, time):
        for _ in range(2):
            await time.next_sleep()
        await time.next_sleep(over=False)
        await it.start(pod("new"))
        new = counting.file(it.runtime.containers[-1].message.linux.cgroups_path)
        new.touch()
        assert await time.next_sleep() == 0.1
        assert [await time.next_sleep(), counting.looks] == [1.4, 2]
        await time.next_sleep(over=False)
        new.write_text("0")
        assert await time.next_sleep() == 0.1


async def test_while_it_does_not_all_are_looked_at_every_period(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    counting = Counting({}, tmp_path / ("x" * 200) / ("x" * 5000))
    async with looking(tmp_path, counting) as (_, time):
        assert await time.next_sleep() == 0.5
        for looks in range(1, 4):
            assert [await time.next_sleep(), counting.looks] == [1.4, looks]
            assert await time.next_sleep() == 0.1, "the rest of the period"
    assert caplog.text.count("event=cpusets-not-watched") == 1
    assert "File name too long" in caplog.text


async def test_who_cannot_be_made_to_leave_is_looked_at_every_period(tmp_path: Path) -> None:
    counting = Counting({}, tmp_path)
    async with looking(tmp_path, counting) as (it, time):
        guest, _ = it.runtime.containers
        counting.cpus[guest.message.linux.cgroups_path] = "0-15"
        for _ in range(3):
            await time.next_sleep()
            assert await time.next_sleep() == 1.4
        counting.cpus.clear()
        for _ in range(2):
            await time.next_sleep()
        assert await time.next_sleep() > 1.5


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
