"""Pauses: whether the process stood still before it read a request.

A request lies in the socket while the process is stopped, or has no CPU. It is read with what came
meanwhile, before any timer: a timer that should have fired by then shows the pause. That matters
only until a runtime has been synchronized, so nothing wakes up an idle process later.
"""

from __future__ import annotations

from collections.abc import Callable

from nri_policy.foundation.clock import Clock

EVERY = 1.0  # seconds
STILL = 0.25  # seconds that the timer is late by if the process stood still


class Pauses:
    """Notices pauses as long as `watch` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awake: float | None = None  # when the timer fired last; None: there is none

    async def watch(self, over: Callable[[], bool]) -> None:
        """Set the timer again and again, until what it is for is *over*."""
        try:
            while not over():
                self._awake = self._clock.now()
                await self._clock.sleep(EVERY)
        finally:
            self._awake = None

    def came(self, read: float) -> float:
        """Return since when something may have been here that was *read* just now, in seconds.

        That is earlier after a pause: it may have come right after the timer fired last.
        """
        awake = self._awake
        return read if awake is None or read - awake < EVERY + STILL else awake
