from __future__ import annotations

import asyncio

import pytest

from nri_policy.observability.loop_lag import EVERY, Beat
from tests.unit.nri.peer import FakeTime


async def test_a_beat_knows_how_late_the_loop_is(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    observed: list[float] = []
    beat = Beat(time.clock, observe=observed.append)
    beating = asyncio.create_task(beat.run())
    for late, most in ((0.0, 0.0), (0.5, 0.5), (0.0, 0.5), (2.0, 2.0), (0.25, 2.0)):
        await time.asleep.wait()
        time.asleep.clear()
        time.advance(EVERY + late)
        await time.asleep.wait()
        assert (beat.latest, beat.most) == (late, most)
    assert caplog.text.count("event=loop-late seconds=2.000") == 1
    assert observed == [0.0, 0.5, 0.0, 2.0, 0.25]
    beating.cancel()
