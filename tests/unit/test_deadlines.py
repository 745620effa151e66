"""Deadlines are met, and the clock is not polled while there are none."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.engine.event import Created, Elapsed, Started, Synchronized
from nri_policy.foundation.clock import Clock
from nri_policy.workload.pod import ContainerState
from tests.support import nodes
from tests.support.patience import HANGS

HOURS = 5 * 3600.0
COLD = {"cold-start.resource-policy.nri.io/pod": "duration: 60s"}


async def test_a_cold_start_ends_on_time_and_the_clock_is_polled_no_longer(tmp_path: Path) -> None:
    tiered = nodes.machine("package:2(pmem=8GiB) numa:2 core:2")
    machine = replace(tiered, nodes=tuple(replace(node, normal=True) for node in tiered.nodes))
    time = 1000.0
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal time
        slept.append(seconds)
        time += seconds
        await asyncio.sleep(0)

    host = Environment(
        state_dir=tmp_path, root=tmp_path, clock=Clock(date=lambda: time, sleep=sleep)
    )
    daemon = Daemon(machine, nodes.settings(), host)
    meeting = asyncio.create_task(daemon.meet_deadlines())
    for _ in range(3):
        await asyncio.sleep(0)
    assert slept == []
    container = nodes.container(500, annotations=COLD)
    async with daemon.node.turn:
        daemon.node.handle(Synchronized(containers=()))
        daemon.node.handle(Created(container=container))
        daemon.node.handle(Started(container_id=container.id, now=time))
    on_pmem = daemon.node.view.placed[container.id].grant.mems
    met = asyncio.Event()
    daemon.node.add_observers(lambda _event, _outcome, view: None if view.cold else met.set())
    await asyncio.wait_for(met.wait(), HANGS)
    assert daemon.node.view.placed[container.id].grant.mems > on_pmem
    assert 59.0 <= time - 1000.0 <= 61.0
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slept) <= 61
    meeting.cancel()
    await asyncio.wait({meeting})
    await daemon.close()


async def test_a_clock_that_is_set_back_lengthens_no_cold_start_by_more_than_itself(
    tmp_path: Path,
) -> None:
    """While the daemon runs, and while none does."""
    tiered = nodes.machine("package:2(pmem=8GiB) numa:2 core:2")
    machine = replace(tiered, nodes=tuple(replace(node, normal=True) for node in tiered.nodes))
    time = 2 * HOURS
    sleeps, slept = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal time
        sleeps.set()
        await slept.wait()
        slept.clear()
        time += seconds

    host = Environment(
        state_dir=tmp_path, root=tmp_path, clock=Clock(date=lambda: time, sleep=sleep)
    )
    daemon = Daemon(machine, nodes.settings(), host)
    meeting = asyncio.create_task(daemon.meet_deadlines())
    container = nodes.container(500, annotations=COLD)
    async with daemon.node.turn:
        daemon.node.handle(Synchronized(containers=()))
        daemon.node.handle(Created(container=container))
        daemon.node.handle(Started(container_id=container.id, now=time))
    assert daemon.node.view.next_deadline == 2 * HOURS + 60
    bounded = asyncio.Event()
    daemon.node.add_observers(
        lambda event, *_: bounded.set() if isinstance(event, Elapsed) else None
    )
    await asyncio.wait_for(sleeps.wait(), HANGS)
    time = HOURS
    slept.set()
    await asyncio.wait_for(bounded.wait(), HANGS)
    assert daemon.node.view.next_deadline == HOURS + 61
    meeting.cancel()
    await asyncio.wait({meeting})
    await daemon.close()
    time = 0.0
    again = Daemon(machine, nodes.settings(), host)
    async with again.node.turn:
        held = again._store.held.grants
        running = replace(container, state=ContainerState.RUNNING)
        again.node.handle(Synchronized(containers=(running,), held=held, now=time))
    assert again.node.view.next_deadline == 60
    await again.close()
