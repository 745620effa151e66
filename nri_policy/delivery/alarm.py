"""An alarm: wakes up a loop when something is due, with one timer that moves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from nri_policy.foundation.clock import Clock


class Alarm:
    """The time at which a loop wakes up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop_timer: Callable[[], None] = lambda: None
        self.at = -math.inf  # of the clock; infinitely early while no loop runs
        self.rang = asyncio.Event()

    def set(self, at: float, now: float) -> None:
        """Ring at a time, and not before; *now* is the present."""
        self._stop_timer()
        self.at = at
        self.rang.clear()
        if at <= now:
            self.rang.set()
        elif at < math.inf:
            self._stop_timer = self._clock.call_later(at - now, self.rang.set)

    def stop(self) -> None:
        """Ring no more."""
        self._stop_timer()
        self.at = -math.inf
