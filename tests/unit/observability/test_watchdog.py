from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.observability.watchdog import Watchdog, waited
from tests.unit.nri.peer import FakeTime


class Stage:
    """A watchdog, on a clock that a test turns."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.turn = asyncio.Lock()
        self.beats = asyncio.Queue[float]()  # when they were
        self.lags: list[float] = []
        self.waited: float | None = 7.0  # seconds, so far
        self.watchdog = Watchdog(self.turn, self.time.clock, self.lags.append, lambda: self.waited)

    @asynccontextmanager
    async def beating(self, max_interval: float = math.inf) -> AsyncIterator[None]:
        task = asyncio.create_task(
            self.watchdog.beat(lambda: self.beats.put_nowait(self.time.reading), max_interval)
        )
        yield
        task.cancel()
        await asyncio.wait({task})

    async def pass_(self, seconds: float) -> None:
        """Let so much time pass once the watchdog sleeps."""
        await self.time.asleep.wait()
        self.time.asleep.clear()
        self.time.advance(seconds)


async def test_it_beats_at_multiples_of_five_seconds_so_that_one_wake_up_serves_other_timers() -> (
    None
):
    stage = Stage()
    async with stage.beating():
        for seconds, beat in ((5.0, 105.0), (6.25, 111.25), (3.75, 115.0), (5.0, 120.0)):
            await stage.pass_(seconds)
            assert await stage.beats.get() == beat


async def test_a_rhythm_that_is_faster_is_followed() -> None:
    stage = Stage()
    async with stage.beating(max_interval=0.25):
        await stage.pass_(0.25)
        assert await stage.beats.get() == 100.25


async def test_a_beat_that_is_hastened_comes_at_once_and_the_next_in_its_time() -> None:
    stage = Stage()
    async with stage.beating():
        await stage.time.asleep.wait()
        stage.time.asleep.clear()
        stage.watchdog.beat_now()
        assert await stage.beats.get() == 100.0
        await stage.pass_(5.0)
        assert await stage.beats.get() == 105.0
    assert stage.lags == [0.0], "the first was not late, for it was not due"


async def test_a_beat_knows_how_late_the_loop_is(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    async with stage.beating():
        for late in (0.0, 0.5, 0.0, 2.0, 0.25):
            await stage.pass_(stage.time.clock.until_tick(5.0) + late)
            await stage.beats.get()
    assert stage.lags == [0.0, 0.5, 0.0, 2.0, 0.25]
    assert caplog.text.count("event=loop-late seconds=2.000") == 1


async def test_a_request_that_never_ends_stops_the_heart() -> None:
    stage = Stage()
    async with stage.beating():
        await stage.turn.acquire()
        await stage.pass_(5.0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert stage.watchdog.trouble() == ""
        stage.time.advance(11.0)
        assert stage.watchdog.trouble() == "no beat for 16 seconds"
        assert stage.beats.empty(), "nothing that hangs on the watchdog is fed"
        stage.turn.release()
        await stage.beats.get()
        assert stage.watchdog.trouble() == ""


async def test_who_waits_for_a_cpu_says_so_for_a_minute() -> None:
    stage = Stage()
    async with stage.beating():
        for waits, said in ((0.2, ""), (0.8, "waits 0.8 s for a CPU in 5 s"), (0.0, "waits 0.8 s")):
            assert stage.waited is not None
            stage.waited += waits
            await stage.pass_(5.0)
            await stage.beats.get()
            assert said in stage.watchdog.starvation()
            assert bool(said) is bool(stage.watchdog.starvation())
        for _ in range(12):
            await stage.pass_(5.0)
            await stage.beats.get()
        assert stage.watchdog.starvation() == ""


async def test_beats_that_come_soon_after_each_other_are_counted_together() -> None:
    stage = Stage()
    async with stage.beating(max_interval=1.0):
        for _ in range(5):
            assert stage.waited is not None
            stage.waited += 0.16
            await stage.pass_(1.0)
            await stage.beats.get()
        assert "waits 0.8 s for a CPU in 5 s" in stage.watchdog.starvation()


async def test_a_kernel_that_counts_no_waiting_says_nothing() -> None:
    stage = Stage()
    stage.waited = None
    async with stage.beating():
        for _ in range(3):
            await stage.pass_(5.0)
            await stage.beats.get()
        assert stage.watchdog.starvation() == ""


def test_the_kernel_counts_the_waiting_of_the_main_thread() -> None:
    assert (waited() is None) is not Path("/proc/self/schedstat").exists()
