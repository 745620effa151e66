from __future__ import annotations

import asyncio

from nri_policy.nri.pauses import EVERY, Pauses
from tests.unit.nri.peer import FakeTime


async def test_what_is_read_after_a_pause_may_have_come_when_the_timer_fired_last() -> None:
    time = FakeTime()
    pauses = Pauses(time.clock)
    assert pauses.earliest_arrival(5.0) == 5.0  # nothing is watched yet
    over = False
    watching = asyncio.create_task(pauses.watch(lambda: over))
    await time.asleep.wait()
    began = time.reading
    assert pauses.earliest_arrival(began + 1.2 * EVERY) == began + 1.2 * EVERY
    assert pauses.earliest_arrival(began + 2.5) == began
    time.asleep.clear()
    time.advance(2.5)
    await time.asleep.wait()
    assert pauses.earliest_arrival(began + 3.0) == began + 3.0
    over = True
    time.advance(EVERY)
    await watching
    assert pauses.earliest_arrival(began + 9.0) == began + 9.0
