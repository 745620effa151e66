"""A resource that is opened for its first user and closed some time after the last.

Used for gRPC, whose threads wake up several times a second while anything of it is open.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

from nri_policy.foundation.clock import Clock

LINGER = 10.0  # seconds from the last use to the end; some is used once a minute

_Kind = TypeVar("_Kind")


class OnDemand(Generic[_Kind]):
    """A resource that is open while it is used, and for LINGER after that."""

    def __init__(
        self, make: Callable[[], AbstractAsyncContextManager[_Kind]], clock: Clock
    ) -> None:
        """Take the function that opens it."""
        self._make = make
        self._clock = clock
        self._open = AsyncExitStack()
        self._value: list[_Kind] = []  # one while it is open
        self._users = 0
        self._turn = asyncio.Lock()  # held while it is opened or closed
        self._forget_timer: Callable[[], None] = lambda: None
        self._closing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[_Kind]:
        """Yield the resource for the duration of a `with`; raises what opening it raises."""
        self._users += 1
        try:
            async with self._turn:
                if not self._value:
                    self._value.append(await self._open.enter_async_context(self._make()))
            yield self._value[0]
        finally:
            self._users -= 1
            self._forget_timer()
            if self._value and not self._users:
                self._forget_timer = self._clock.call_later(LINGER, self._expire)

    async def close(self) -> None:
        """Close the resource; no user may be left."""
        self._forget_timer()
        async with self._turn:
            await self._end()

    def _expire(self) -> None:
        self._closing = asyncio.create_task(self._close_unused(), name="close what is unused")

    async def _close_unused(self) -> None:
        async with self._turn:
            if not self._users:
                await self._end()
                gc.collect()  # gRPC's last threads end with its objects, which are in cycles

    async def _end(self) -> None:
        self._value.clear()
        await self._open.aclose()
