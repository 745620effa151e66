"""Watchdog: whether the loop that serves requests comes round, and its turn with it.

A beat takes the daemon's turn, so a request that never ends stops the watchdog as much as a loop
that hangs. Everything that is told or fed regularly hangs on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from nri_policy.foundation.clock import Clock

INTERVAL = 1.0  # seconds between two beats, at most
STILL = 10.0  # seconds without a beat after which it is dead


class Watchdog:
    """Beats until it is cancelled."""

    def __init__(self, turn: AbstractAsyncContextManager[None], clock: Clock) -> None:
        self._turn = turn
        self._clock = clock
        self._last = clock.now()

    async def beat(self, then: Callable[[], None], rhythm: float = math.inf) -> None:
        """Beat every second, or faster if *rhythm*, in seconds, is; call *then* after each beat."""
        interval = min(INTERVAL, rhythm)
        while True:
            await self._clock.tick(interval)
            async with self._turn:
                self._last = self._clock.now()
            then()

    def trouble(self) -> str:
        """Return what is wrong, nothing if it beats; for any thread."""
        silence = self._clock.now() - self._last
        return f"no beat for {silence:.0f} seconds" if silence > STILL else ""
