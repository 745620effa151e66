from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_policy.hardware.discovery import discover
from nri_policy.hardware.hotplug import (
    AGAIN,
    MOST_QUIETS,
    PERIOD,
    PERIOD_UNHEARD,
    QUIET,
    Hotplug,
    Notify,
    uevents,
)
from nri_policy.hardware.machine import Machine
from tests.support.clock import SleepingClock

from .conftest import Change, Link, Plant, change

FOUR = "package:2 numa:2 core:2"  # node k has CPUs 2k and 2k+1
NODE_1 = "sys/devices/system/node/node1"
NIC: dict[str, Change] = {
    "sys/devices/pci0000:c0/0000:c0:01.0/numa_node": "3",
    "sys/bus/pci/devices/0000:c0:01.0": Link("../../../devices/pci0000:c0/0000:c0:01.0"),
}
PULLED: dict[str, Change] = {"sys/bus/pci/devices/0000:c0:01.0": None}


class Time:
    """Time that stands still; `ring` ends one sleep of so many seconds."""

    def __init__(self) -> None:
        self._sleepers: dict[float, asyncio.Queue[asyncio.Future[None]]] = {}
        self._begun: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self._begun.put_nowait(seconds)
        over = asyncio.get_running_loop().create_future()
        self._sleepers.setdefault(seconds, asyncio.Queue()).put_nowait(over)
        await over

    async def ring(self, seconds: float) -> None:
        sleepers = self._sleepers.setdefault(seconds, asyncio.Queue())
        while (over := await sleepers.get()).cancelled():
            pass
        over.set_result(None)

    async def beginning(self, *seconds: float) -> None:
        """Wait until a sleep of one of these lengths begins."""
        while await self._begun.get() not in seconds:
            pass


class Watched:
    """A folder under watch."""

    def __init__(self, root: Path, *, heard: bool = True) -> None:
        self.root = root
        self.heard = heard
        self.time = Time()
        self.reads = 0
        self.known = discover(root)
        self.taken = True
        self.machines: asyncio.Queue[Machine] = asyncio.Queue()
        self.while_read: dict[str, Change] = {}

    @contextmanager
    def listen(self, notify: Notify) -> Iterator[bool]:
        self.notify = notify
        yield self.heard

    def read(self) -> Machine:
        self.reads += 1
        machine = discover(self.root)
        change(self.root, self.while_read)
        return machine

    async def changed(self, before: Machine, machine: Machine) -> None:
        assert before is self.known
        if self.taken:
            self.known = machine
        await self.machines.put(machine)

    async def news(self, changes: dict[str, Change]) -> None:
        """Change the tree, let the kernel tell of it, and wait until it was looked at."""
        change(self.root, changes)
        self.notify()
        await self.time.ring(QUIET)
        await self.time.beginning(QUIET)
        await self.time.beginning(PERIOD, AGAIN)


@asynccontextmanager
async def watched(root: Path, *, heard: bool = True) -> AsyncIterator[Watched]:
    it = Watched(root, heard=heard)
    hotplug = Hotplug(root, it.read, listen=it.listen, clock=SleepingClock(sleep=it.time.sleep))
    task = asyncio.create_task(hotplug.run(lambda: it.known, it.changed))
    await asyncio.sleep(0)
    try:
        yield it
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_machine_that_changed_is_told(plant: Plant) -> None:
    async with watched(plant(FOUR)) as it:
        await it.news({"sys/devices/system/cpu/online": "0-4,6-7"})
        machine = await it.machines.get()
        assert (str(machine.online), str(machine.offline)) == ("0-4,6-7", "5")
        await it.news(NIC)
        machine = await it.machines.get()
        assert [(each.address, str(each.numa_nodes)) for each in machine.devices] == [
            ("0000:c0:01.0", "3")
        ]
        await it.news({**PULLED, "sys/devices/system/cpu/online": "0-7"})
        assert await it.machines.get() == discover(it.root)


async def test_news_without_a_change_are_looked_at_and_not_passed_on(plant: Plant) -> None:
    async with watched(plant(FOUR)) as it:
        await it.news({})
        await it.news(NIC)
        assert len((await it.machines.get()).devices) == 1
        assert it.machines.empty()
        assert it.reads == 2


@pytest.mark.parametrize(
    ("heard", "period"), [(True, PERIOD), (False, PERIOD_UNHEARD)], ids=["heard", "unheard"]
)
@pytest.mark.parametrize(
    "changes",
    [
        {"sys/devices/system/cpu/online": "0-6"},
        {"sys/devices/system/node/online": "0,2-3", NODE_1: None},
        {f"{NODE_1}/meminfo": "Node 1 MemTotal: 1024 kB\n"},
        {"sys/devices/system/node": None, "proc/meminfo": "MemTotal: 2048 kB\n"},
        {f"{NODE_1}/hugepages/hugepages-2048kB/nr_hugepages": "7"},
        NIC,
    ],
    ids=["cpu", "node", "memory", "no numa", "hugepages", "device"],
)
async def test_what_the_kernel_does_not_tell_is_seen_in_the_files(
    plant: Plant, changes: dict[str, Change], heard: bool, period: float
) -> None:
    async with watched(plant(FOUR), heard=heard) as it:
        await it.time.ring(period)  # the first look is at everything
        await it.time.ring(period)
        change(it.root, changes)
        await it.time.ring(period)
        assert await it.machines.get() == discover(it.root)
        assert it.reads == 2, "it was read though nothing had changed"


async def test_a_change_before_the_watch_began_is_found(plant: Plant) -> None:
    root = plant(FOUR)
    it = Watched(root)
    change(root, NIC)
    hotplug = Hotplug(root, it.read, listen=it.listen, clock=SleepingClock(sleep=it.time.sleep))
    task = asyncio.create_task(hotplug.run(lambda: it.known, it.changed))
    await it.time.ring(PERIOD)
    assert len((await it.machines.get()).devices) == 1
    task.cancel()


async def test_many_news_are_one_change(plant: Plant) -> None:
    async with watched(plant(FOUR)) as it:
        change(it.root, NIC)
        it.notify()
        for _ in range(3):
            await it.time.beginning(QUIET)
            it.notify()
            await it.time.ring(QUIET)
        await it.time.ring(QUIET)
        assert len((await it.machines.get()).devices) == 1
        assert it.reads == 1


async def test_news_without_end_are_looked_at_all_the_same(plant: Plant) -> None:
    async with watched(plant(FOUR)) as it:
        change(it.root, NIC)
        it.notify()
        for _ in range(MOST_QUIETS):
            await it.time.beginning(QUIET)
            it.notify()
            await it.time.ring(QUIET)
        assert len((await it.machines.get()).devices) == 1


async def test_a_machine_that_cannot_be_read_leaves_the_old_one(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    root = plant(FOUR)
    async with watched(root) as it:
        await it.news({"sys/devices/system/cpu": None, "proc": None})
        await it.time.ring(AGAIN)
        await it.time.beginning(AGAIN)
        root.rename(root.with_name("away"))
        await it.time.ring(AGAIN)
        await it.time.beginning(AGAIN)
        plant("package:1 core:3")
        await it.time.ring(AGAIN)
        assert str((await it.machines.get()).online) == "0-2"
    assert it.machines.empty()
    text = caplog.text
    assert text.count("event=hardware-unreadable") == 2, "the same trouble is told once"
    assert "no CPU" in text
    assert "cannot be opened" in text


async def test_a_machine_that_changes_while_it_is_read_is_read_again(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(plant(FOUR)) as it:
        it.while_read = {"sys/devices/system/cpu/online": "0-3"}
        await it.news({"sys/devices/system/cpu/online": "0-6"})
        await it.time.ring(AGAIN)
        assert str((await it.machines.get()).online) == "0-3"
        assert it.machines.empty()
    assert "it changed while it was read" in caplog.text


async def test_a_machine_that_others_put_in_force_is_compared_at_the_next_look(
    plant: Plant,
) -> None:
    async with watched(plant(FOUR)) as it:
        stale = it.known
        await it.news(NIC)
        await it.machines.get()
        it.known = stale  # as settings do that had the machine read before the change
        await it.time.ring(PERIOD)
        assert len((await it.machines.get()).devices) == 1
        await it.time.ring(PERIOD)
        await it.time.ring(PERIOD)
        assert it.reads == 2, "it was read though nobody had replaced it"
        assert it.machines.empty()


async def test_a_machine_is_compared_again_while_its_change_is_not_taken(plant: Plant) -> None:
    async with watched(plant(FOUR)) as it:
        it.taken = False
        await it.news(NIC)
        await it.machines.get()
        await it.time.ring(PERIOD)
        await it.machines.get()


async def test_devices_that_come_and_go_are_in_the_log_but_not_all_of_many(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(plant(FOUR, NIC)) as it:
        many = {f"sys/bus/pci/devices/0000:01:{i:02x}.0/class": "0x020000" for i in range(20)}
        await it.news({**PULLED, **many})
        await it.machines.get()
    assert "gone=0000:c0:01.0 new='0000:01:00.0,0000:01:01.0," in caplog.text
    assert "0000:01:07.0,and 12 more" in caplog.text


async def test_without_libudev_the_files_have_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(sys.modules, "pyudev", None)
    with uevents(partial(pytest.fail, "nobody can tell")) as heard:
        assert not heard
    assert "event=no-kernel-events" in caplog.text


CPU_0 = Path("/sys/devices/system/cpu/cpu0/uevent")


def kernel_tells(action: str) -> None:
    """Make the kernel send an event with this action for CPU 0, and do nothing else."""
    CPU_0.write_text(action)


class Overflowing:
    """A monitor of the kernel's events that has lost some."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.write(self._write, b"x")

    def filter_by(self, _subsystem: str) -> None: ...

    def start(self) -> None: ...

    def fileno(self) -> int:
        return self._read

    def poll(self, _seconds: float) -> None:
        os.read(self._read, 1)
        raise OSError(errno.ENOBUFS, "No buffer space available")


async def test_events_that_were_lost_may_have_been_of_interest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Overflowing()
    monitor = SimpleNamespace(from_netlink=lambda _context, source: made)  # noqa: ARG005
    monkeypatch.setitem(
        sys.modules, "pyudev", SimpleNamespace(Monitor=monitor, Context=lambda: None)
    )
    told = asyncio.Event()
    with uevents(told.set) as heard:
        assert heard
        await told.wait()
    for end in (made._read, made._write):
        os.close(end)


@pytest.mark.skipif(not os.access(CPU_0, os.W_OK), reason="only root can have the kernel tell")
async def test_the_kernels_own_events_are_heard() -> None:
    events: asyncio.Queue[None] = asyncio.Queue()
    with uevents(lambda: events.put_nowait(None)) as heard:
        if not heard:
            pytest.skip("no libudev")
        kernel_tells("change")
        kernel_tells("online")
        await events.get()
    kernel_tells("online")
    assert events.empty(), "a change of no interest was told"
