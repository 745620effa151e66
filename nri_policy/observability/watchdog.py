"""Watchdog: checks that the event loop runs and that the node's turn is not held for ever.

A beat takes the node's turn, so a request that never ends stops the beats as much as a hanging
loop. All regular work depends on beats. A late beat shows how late the loop runs, and the kernel's
statistics show whether the process waited for a CPU.
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
MAX_SILENCE = 15.0  # seconds without a beat after which it counts as dead: it hung for at least 10
STARVED = 0.05  # part of the time waiting for a CPU that means the node has none to spare
STARVATION = "starved: "  # the prefix of the text of `starvation`
SHOWN = 60.0  # seconds for which starvation is reported
NOTABLE = 1.0  # seconds of lag that are logged: half of a runtime's timeout of a request


def waited() -> float | None:
    """Return the seconds that the process's main thread, which runs the loop, waited for a CPU.

    None where the kernel was built without scheduler statistics.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _ignore(seconds: float) -> None:
    """Do nothing."""


class Watchdog:
    """Beats until it is cancelled; *lagged* is called with the seconds by which a beat is late."""

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
        self._beat_requested = asyncio.Event()
        self._waited = waited
        self._counted = (clock.now(), waited())
        self._starved: deque[tuple[float, float, float]] = deque()  # time, wait, measured period

    def beat_now(self) -> None:
        """Make the next beat now."""
        self._beat_requested.set()

    async def beat(self, then: Callable[[], None], max_interval: float = math.inf) -> None:
        """Beat every `INTERVAL`, at most *max_interval* seconds apart; call *then* after each."""
        interval = min(INTERVAL, max_interval)
        while True:
            seconds = self._clock.until_tick(interval)
            due = self._clock.now() + seconds
            if not await self._clock.set_within(seconds, self._beat_requested):
                self._record_lag(self._clock.now() - due)
            self._beat_requested.clear()
            async with self._turn:
                self._last = self._clock.now()
            self._record_wait(self._last)
            then()

    def _record_lag(self, seconds: float) -> None:
        self._lagged(max(0.0, seconds))
        if seconds > NOTABLE:
            log.warning("loop-late", extra={"seconds": f"{seconds:.3f}"})

    def _record_wait(self, now: float) -> None:
        """Measure the time waited for a CPU, at most once in INTERVAL."""
        (since, before), new = self._counted, self._waited()
        if now - since < INTERVAL and before is not None:
            return
        self._counted = now, new
        if new is not None and before is not None and new - before > STARVED * (now - since):
            self._starved.append((now, new - before, now - since))
        while self._starved and now - self._starved[0][0] > SHOWN:
            self._starved.popleft()

    def starvation(self) -> str:
        """Return a text if the daemon lately waited too long for a CPU, else ""."""
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
        """Return a text if there was no beat for too long, else ""; for any thread."""
        silence = self._clock.now() - self._last
        return f"no beat for {silence:.0f} seconds" if silence > MAX_SILENCE else ""
