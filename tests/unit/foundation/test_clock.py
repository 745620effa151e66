from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import field

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


class Timers(Clock, frozen=True, kw_only=True):
    """A clock whose timers a test lets end."""

    running: dict[float, Callable[[], None]] = field(default_factory=dict)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        self.running[seconds] = callback

        def cancel() -> None:
            del self.running[seconds]

        return cancel


async def test_a_wait_takes_one_timer_and_no_task_and_its_event_stops_the_timer() -> None:
    event, clock, before = asyncio.Event(), Timers(), asyncio.all_tasks()
    waiting = asyncio.create_task(clock.set_within(60.0, event))
    await asyncio.sleep(0)
    assert [*clock.running] == [60.0]
    assert asyncio.all_tasks() == before | {waiting}
    event.set()
    assert await waiting
    assert not clock.running


async def test_a_wait_ends_with_its_timer_where_no_event_is_set() -> None:
    clock = Timers()
    waiting = asyncio.create_task(clock.set_within(60.0, asyncio.Event()))
    await asyncio.sleep(0)
    clock.running[60.0]()
    assert not await waiting
    assert not clock.running


async def test_an_event_that_is_set_as_the_timer_ends_is_seen() -> None:
    event, clock = asyncio.Event(), Timers()
    waiting = asyncio.create_task(clock.set_within(60.0, event))
    await asyncio.sleep(0)
    clock.running[60.0]()
    event.set()
    assert await waiting


async def test_a_wait_that_is_cancelled_stops_its_timer() -> None:
    clock = Timers()
    waiting = asyncio.create_task(clock.set_within(60.0, asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not clock.running


def test_code_takes_time_as_a_clock_alone() -> None:
    """Except for what `top` shows: times in the user's zone."""
    takes = re.compile(r"[(, ](clock|now|sleep|date): Callable")
    assert {
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if takes.search(path.read_text())
    } == {"cli/node/live.py", "foundation/clock.py"}
