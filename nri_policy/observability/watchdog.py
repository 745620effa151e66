"""Watchdog: whether the loop that serves requests comes round, and its turn with it.

A beat takes the daemon's turn, so a request that never ends stops the watchdog as much as a loop
that hangs. Everything that is told or fed regularly hangs on it. A beat that comes late shows how
late everything is that the loop does, and the kernel's statistics show whether it waited for a CPU.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from nri_policy.foundation.clock import Clock

log = logging.getLogger(__name__)

INTERVAL = 5.0  # seconds between two beats, at most: each wakes up an idle process
STILL = 15.0  # seconds without a beat after which it is dead: it has hung for 10 at least
STARVED = 0.05  # the part of the time that it waits for a CPU if the node has none to spare
STARVATION = "starved: "  # what the text of `starvation` begins with
SHOWN = 60.0  # seconds for which that is said
NOTABLE = 1.0  # seconds that a beat is late by; half of what a runtime grants a request


def waited() -> float | None:
    """Return the seconds that the process's main thread, which runs the loop, waited for a CPU.

    None where the kernel does not count that.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _ignore(seconds: float) -> None:
    """Take no note."""


class Watchdog:
    """Beats until it is cancelled; *lagged* is called with the seconds that a beat is late by."""

    def __init__(
        self,
        turn: AbstractAsyncContextManager[None],
        clock: Clock,
        lagged: Callable[[float], None] = _ignore,
        waited: Callable[[], float | None] = waited,
    ) -> None:
        self._turn = turn
        self._clock = clock
        self._lagged = lagged
        self._last = clock.now()
        self._hastened = asyncio.Event()
        self._waited = waited
        self._counted = (clock.now(), waited())
        self._starved: deque[tuple[float, float, float]] = deque()  # at, seconds waited, of seconds

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
            self._note_wait(self._last)
            then()

    def _note_lag(self, seconds: float) -> None:
        self._lagged(max(0.0, seconds))
        if seconds > NOTABLE:
            log.warning("loop-late", extra={"seconds": f"{seconds:.3f}"})

    def _note_wait(self, now: float) -> None:
        """Note how long a CPU was waited for since this was last done, an interval ago or more."""
        (since, before), new = self._counted, self._waited()
        if now - since < INTERVAL and before is not None:
            return
        self._counted = now, new
        if new is not None and before is not None and new - before > STARVED * (now - since):
            self._starved.append((now, new - before, now - since))
        while self._starved and now - self._starved[0][0] > SHOWN:
            self._starved.popleft()

    def starvation(self) -> str:
        """Say that the daemon lately got a CPU too late, nothing if it did not."""
        now = self._clock.now()
        recent = [(waits, of) for at, waits, of in self._starved if now - at <= SHOWN]
        if not recent:
            return ""
        waits, of = max(recent)
        return (
            f"{STARVATION}waits {waits:.1f} s for a CPU in {of:.0f} s; answers may be late"
            " (docs/runtime.md, A node without CPU time)"
        )

    def trouble(self) -> str:
        """Return what is wrong, nothing if it beats; for any thread."""
        silence = self._clock.now() - self._last
        return f"no beat for {silence:.0f} seconds" if silence > STILL else ""
