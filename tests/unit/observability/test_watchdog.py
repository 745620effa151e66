from __future__ import annotations

import asyncio
import math

from nri_policy.foundation.clock import Clock
from nri_policy.observability.watchdog import Watchdog


class Time:
    """A clock that a test turns: each sleep waits until it is told how long it really took."""

    def __init__(self) -> None:
        self.reading = 100.0
        self.asked: asyncio.Queue[float] = asyncio.Queue()
        self._woken: asyncio.Queue[float] = asyncio.Queue()
        self.clock = Clock(now=lambda: self.reading, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.asked.put_nowait(seconds)
        slept = await self._woken.get()
        self.reading += slept

    async def pass_(self, seconds: float) -> float:
        """Let the next sleep take *seconds*; return what it asked for."""
        asked = await self.asked.get()
        self._woken.put_nowait(seconds)
        return asked


async def test_a_heart_beats_every_second() -> None:
    time, beats = Time(), asyncio.Queue[None]()
    task = asyncio.create_task(
        Watchdog(asyncio.Lock(), time.clock).beat(lambda: beats.put_nowait(None))
    )
    assert await time.pass_(1.0) == 1.0
    await beats.get()
    task.cancel()


async def test_beats_come_at_whole_seconds_as_other_timers_do_so_that_one_wake_up_serves_all() -> (
    None
):
    time = Time()
    task = asyncio.create_task(Watchdog(asyncio.Lock(), time.clock).beat(lambda: None))
    assert await time.pass_(1.25) == 1.0
    assert await time.pass_(0.75) == 0.75
    assert await time.pass_(1.0) == 1.0
    task.cancel()


async def test_a_rhythm_that_is_faster_is_followed() -> None:
    time = Time()
    watchdog = Watchdog(asyncio.Lock(), time.clock)
    task = asyncio.create_task(watchdog.beat(lambda: None, 0.25))
    assert await time.pass_(0.25) == 0.25
    task.cancel()
    task = asyncio.create_task(watchdog.beat(lambda: None, math.inf))
    await time.asked.get()
    task.cancel()


async def test_a_request_that_never_ends_stops_the_heart() -> None:
    time, turn, beats = Time(), asyncio.Lock(), asyncio.Queue[None]()
    watchdog = Watchdog(turn, time.clock)
    task = asyncio.create_task(watchdog.beat(lambda: beats.put_nowait(None)))
    await turn.acquire()
    await time.pass_(1.0)
    assert watchdog.trouble() == ""
    time.reading += 20
    for _ in range(10):
        await asyncio.sleep(0)
    assert watchdog.trouble() == "no beat for 21 seconds"
    assert beats.empty(), "nothing that hangs on the watchdog is fed"
    turn.release()
    await beats.get()
    assert watchdog.trouble() == ""
    task.cancel()
