from __future__ import annotations

import asyncio

import pytest

from nri_policy.observability.loop_lag import EVERY, LoopLag
from tests.unit.nri.peer import FakeTime


async def test_a_beat_knows_how_late_the_loop_is(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    observed: list[float] = []
    beat = LoopLag(time.clock, observe=observed.append)
    beating = asyncio.create_task(beat.run())
    for late, most in ((0.0, 0.0), (0.5, 0.5), (0.0, 0.5), (2.0, 2.0), (0.25, 2.0)):
        await time.asleep.wait()
        time.asleep.clear()
        time.advance(time.clock.until_tick(EVERY) + late)
        await time.asleep.wait()
        assert (beat.latest, beat.most) == (late, most)
    assert caplog.text.count("event=loop-late seconds=2.000") == 1
    assert observed == [0.0, 0.5, 0.0, 2.0, 0.25]
    beating.cancel()


async def test_what_is_read_after_the_loop_stood_still_may_have_come_at_the_last_beat() -> None:
    time = FakeTime()
    beat = LoopLag(time.clock)
    assert beat.came(5.0) == 5.0  # it does not beat yet
    beating = asyncio.create_task(beat.run())
    await time.asleep.wait()
    began = time.reading
    assert beat.came(began + 1.2 * EVERY) == began + 1.2 * EVERY
    assert beat.came(began + 2.5) == began
    beating.cancel()
    await asyncio.wait({beating})
    assert beat.came(began + 2.5) == began + 2.5
