"""Watchdog: whether the loop that serves requests comes round, and its turn with it.

A beat takes the daemon's turn, so a request that never ends stops the watchdog as much as a loop
that hangs. Everything that is told or fed regularly hangs on it. A beat that comes late shows how
late everything is that the loop does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from nri_policy.foundation.clock import Clock

log = logging.getLogger(__name__)

INTERVAL = 5.0  # seconds between two beats, at most: each wakes up an idle process
STILL = 15.0  # seconds without a beat after which it is dead: it has hung for 10 at least
NOTABLE = 1.0  # seconds that a beat is late by; half of what a runtime grants a request


def _ignore(seconds: float) -> None:
    """Take no note."""


class Watchdog:
    """Beats until it is cancelled; *lagged* is called with the seconds that a beat is late by."""

    def __init__(
        self,
        turn: AbstractAsyncContextManager[None],
        clock: Clock,
        lagged: Callable[[float], None] = _ignore,
    ) -> None:
        self._turn = turn
        self._clock = clock
        self._lagged = lagged
        self._last = clock.now()
        self._hastened = asyncio.Event()

    def hasten(self) -> None:
        """Let the next beat come now."""
        self._hastened.set()

    async def beat(self, then: Callable[[], None], rhythm: float = math.inf) -> None:
        """Beat every `INTERVAL`, or faster if *rhythm*, in seconds, is; call *then* after it."""
        interval = min(INTERVAL, rhythm)
        while True:
            seconds = self._clock.until_tick(interval)
            due = self._clock.now() + seconds
            if not await self._clock.set_within(seconds, self._hastened):
                self._note_lag(self._clock.now() - due)
            self._hastened.clear()
            async with self._turn:
                self._last = self._clock.now()
            then()

    def _note_lag(self, seconds: float) -> None:
        self._lagged(max(0.0, seconds))
        if seconds > NOTABLE:
            log.warning("loop-late", extra={"seconds": f"{seconds:.3f}"})

    def trouble(self) -> str:
        """Return what is wrong, nothing if it beats; for any thread."""
        silence = self._clock.now() - self._last
        return f"no beat for {silence:.0f} seconds" if silence > STILL else ""
