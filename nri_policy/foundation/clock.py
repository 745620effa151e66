"""The clock: the only source of time for all that waits or looks at it. Tests replace it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct


class Clock(Struct, frozen=True, kw_only=True):
    """A monotonic reading, a sleep of the same time, and the date, in seconds."""

    now: Callable[[], float] = time.monotonic
    date: Callable[[], float] = time.time  # since the epoch; it may be set back
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def until_tick(self, period: float) -> float:
        """Return the seconds to the next multiple of *period*, more than none."""
        return period - self.now() % period

    async def tick(self, period: float) -> None:
        """Sleep until then: whatever ticks at one period wakes the process only once for all."""
        await self.sleep(self.until_tick(period))

    async def done_within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        """Return whether *future* is done before *seconds* are over; leaves it running if not."""
        await asyncio.wait({future}, timeout=seconds)
        return future.done()

    async def set_within(self, seconds: float, event: asyncio.Event) -> bool:
        """Return whether *event* is set before *seconds* are over; infinite: once it is.

        Only for tasks, as `asyncio.timeout`: a method of the plugin may run in none.
        """
        if event.is_set() or seconds == math.inf:
            return await event.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                stop_timer = self.call_later(seconds, partial(limit.reschedule, 0.0))
                try:
                    await event.wait()
                finally:
                    stop_timer()
        return event.is_set()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Have *callback* called after *seconds*; return what takes that back."""
        return asyncio.get_running_loop().call_later(seconds, callback).cancel


SYSTEM_CLOCK = Clock()
