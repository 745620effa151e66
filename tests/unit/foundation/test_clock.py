from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path

import nri_policy
from nri_policy.foundation.clock import Clock

ROOT = Path(nri_policy.__file__).parent


async def test_timers_of_one_period_are_due_at_the_same_moment() -> None:
    due = {
        reading + Clock(now=lambda reading=reading: reading).until_tick(5.0)  # type: ignore[misc]
        for reading in (100.0, 101.25, 104.75)
    }
    assert due == {105.0}


async def test_an_event_is_waited_for_as_long_as_it_may_take_and_nobody_waits_on_afterwards() -> (
    None
):
    event, clock, before = asyncio.Event(), Clock(), asyncio.all_tasks()
    assert not await clock.set_within(0.0, event)
    waiting = asyncio.create_task(clock.set_within(math.inf, event))
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    assert await waiting
    assert await clock.set_within(0.0, event)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_wait_ends_early_when_its_event_is_set_and_leaves_nothing_behind() -> None:
    event, slept, before = asyncio.Event(), list[float](), asyncio.all_tasks()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.Event().wait()

    sleeping = asyncio.create_task(Clock(sleep=sleep).set_within(60.0, event))
    await asyncio.sleep(0)
    assert not sleeping.done()
    event.set()
    assert await sleeping
    assert slept == [60.0]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_wait_ends_by_the_sleep_of_its_clock_where_no_event_is_set() -> None:
    async def sleep(_: float) -> None:
        pass

    before = asyncio.all_tasks()
    assert not await Clock(sleep=sleep).set_within(60.0, asyncio.Event())
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_code_takes_time_as_a_clock_alone() -> None:
    """Except for what `top` shows: times in the user's zone."""
    takes = re.compile(r"[(, ](clock|now|sleep|date): Callable")
    assert {
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if takes.search(path.read_text())
    } == {"cli/node/live.py", "foundation/clock.py"}
