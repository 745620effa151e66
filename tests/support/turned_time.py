"""Time that stands still until a test has seen who sleeps, and for how long."""

from __future__ import annotations

import asyncio

from tests.support.clock import SleepingClock
from tests.support.patience import HANGS


class Time:
    """A clock that a test turns: each sleep waits for the test, which sees for how long it is."""

    def __init__(self) -> None:
        self.reading = 100.0
        self.clock = SleepingClock(now=lambda: self.reading, sleep=self._sleep)
        self._asked: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()

    async def _sleep(self, seconds: float) -> None:
        slept = asyncio.Event()
        self._asked.put_nowait((seconds, slept))
        await slept.wait()

    async def next_sleep(self, *, over: bool = True) -> float:
        """Return how long the next sleep is, which is *over* then, or goes on."""
        async with asyncio.timeout(HANGS):
            seconds, slept = await self._asked.get()
        if over:
            self.reading += seconds
            slept.set()
        return round(seconds, 3)
