"""Pauses: whether the process stood still before it read a request.

A request lies in the socket while the process is stopped, or has no CPU. When the process goes on,
it reads requests before timers fire: a timer that is overdue by then shows the pause. That matters
only until a runtime has been synchronized, so nothing wakes up an idle process later.
"""

from __future__ import annotations

from collections.abc import Callable

from nri_policy.foundation.clock import Clock

EVERY = 1.0  # seconds
STILL = 0.25  # seconds that the timer is late by if the process stood still


class Pauses:
    """Notices pauses while `watch` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awake: float | None = None  # when the timer fired last; None: there is none

    async def watch(self, over: Callable[[], bool]) -> None:
        """Set the timer again and again, until *over* returns true."""
        try:
            while not over():
                self._awake = self._clock.now()
                await self._clock.sleep(EVERY)
        finally:
            self._awake = None

    def earliest_arrival(self, read: float) -> float:
        """Return the earliest time at which a request that was *read* just now can have arrived.

        After a pause that is the time at which the timer fired last, otherwise *read* itself.
        """
        awake = self._awake
        return read if awake is None or read - awake < EVERY + STILL else awake
