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


def test_code_takes_time_as_a_clock_alone() -> None:
    """Except for what `top` shows: times in the user's zone."""
    takes = re.compile(r"[(, ](clock|now|sleep|date): Callable")
    assert {
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if takes.search(path.read_text())
    } == {"cli/node/live.py", "foundation/clock.py"}
