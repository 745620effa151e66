"""A clock for tests that knows only its sleep, and time that moves when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nri_policy.foundation.clock import Clock


class SleepingClock(Clock, frozen=True, kw_only=True):
    """A clock that knows no time but that of its `sleep`."""

    now: Callable[[], float] = float  # it stands still at 0.0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        began = self.now()

        async def call() -> None:
            await self.sleep(seconds - (self.now() - began))
            callback()

        timer = asyncio.ensure_future(call())

        def cancel() -> None:
            timer.cancel()

        return cancel

    async def done_within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        timer = asyncio.ensure_future(self.sleep(seconds))
        try:
            await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return future.done()


class Steps:
    """A clock in seconds, from 0, that can wait until all its sleepers are asleep."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []  # how long each sleep was to be
        self._asleep: list[tuple[float, asyncio.Future[None]]] = []
        self._more = asyncio.Event()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Return when the time has come."""
        woken = asyncio.get_running_loop().create_future()
        self._asleep.append((self.time + seconds, woken))
        self.slept.append(seconds)
        self._more.set()
        await woken

    async def settled(self) -> float:
        """Wait until somebody sleeps and nobody is about to do more; return until when."""
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            waiting = [at for at, woken in self._asleep if not woken.done()]
            if waiting:
                return min(waiting)
            self._more.clear()
            await self._more.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking sleepers in order, and wait until all is quiet again."""
        end = self.time + seconds
        while (at := await self.settled()) <= end:
            self.time = max(self.time, at)
            due = [woken for when, woken in self._asleep if when <= at and not woken.done()]
            self._asleep = [each for each in self._asleep if each[1] not in due]
            for woken in due:
                woken.set_result(None)
        self.time = end
