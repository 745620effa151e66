"""Loop lag: how late the event loop is, as a timer sees it that should fire on time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from nri_policy.foundation.clock import Clock

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds
STILL = 0.25  # seconds that a beat is late by if the loop stood still
NOTABLE = 1.0  # seconds; half of what a runtime grants a request


def _ignore(seconds: float) -> None:
    """Take no note."""


class LoopLag:
    """Measures as long as `run` runs."""

    def __init__(
        self, clock: Clock | None = None, *, observe: Callable[[float], None] = _ignore
    ) -> None:
        """*observe* is called with the seconds that each beat is late by."""
        self._clock = clock or Clock()
        self._observe = observe
        self.latest = 0.0  # seconds that the last beat was late by
        self.most = 0.0  # seconds, of all beats
        self._last: float | None = None  # when it beat; None: it does not

    async def run(self) -> NoReturn:
        """Beat until cancelled."""
        try:
            self._expect(self._clock.now())
            await asyncio.Future[NoReturn]()
        finally:
            self._cancel()
            self._last = None

    def _expect(self, now: float) -> None:
        """Have the next beat come on time; a mere timer, for an idle node has nothing else."""
        self._last, seconds = now, self._clock.until_tick(EVERY)
        self._cancel = self._clock.call_later(seconds, partial(self._beat, now + seconds))

    def _beat(self, due: float) -> None:
        now = self._clock.now()
        self.latest = max(0.0, now - due)
        self.most = max(self.most, self.latest)
        self._observe(self.latest)
        if self.latest > NOTABLE:
            log.warning("loop-late", extra={"seconds": f"{self.latest:.3f}"})
        self._expect(now)

    def came(self, read: float) -> float:
        """Return since when something may have been here that was *read* just now, in seconds.

        That is earlier if the loop has stood still: it may have come right after the last beat.
        """
        return read if self._last is None or read - self._last < EVERY + STILL else self._last
