"""What is open for as long as it is used, and a while longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nri_policy.foundation.on_demand import LINGER, OnDemand
from tests.unit.nri.peer import FakeTime


class Server:
    """Counts how often it is opened and closed; the first *failures* openings fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.opened, self.closed = 0, 0
        self.time = FakeTime()
        self.demand = OnDemand(self.open, self.time.clock)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        if self.failures:
            self.failures -= 1
            raise OSError("no room")
        self.opened += 1
        await asyncio.sleep(0)  # others come meanwhile
        yield self.opened
        self.closed += 1

    async def use(self) -> int:
        async with self.demand.use() as number:
            await asyncio.sleep(0)
            return number

    async def pass_time(self, seconds: float) -> None:
        for advance in (0, seconds):  # first who has just come falls asleep
            self.time.advance(advance)
            for _ in range(9):
                await asyncio.sleep(0)


async def test_all_who_come_at_once_use_one() -> None:
    server = Server()
    assert server.opened == 0
    assert await asyncio.gather(*(server.use() for _ in range(3))) == [1, 1, 1]


async def test_it_is_closed_some_time_after_the_last_use_and_opened_for_the_next() -> None:
    server = Server()
    await server.use()
    await server.pass_time(LINGER - 1)
    await server.use()
    await server.pass_time(LINGER - 1)
    assert server.closed == 0, "it was used meanwhile"
    await server.pass_time(1)
    assert server.closed == 1
    assert await server.use() == 2


async def test_it_is_not_closed_while_it_is_used() -> None:
    server = Server()
    await server.use()
    async with server.demand.use():
        await server.pass_time(2 * LINGER)
        assert server.closed == 0
        await server.use()
        await server.pass_time(2 * LINGER)
        assert server.closed == 0
    await server.demand.close()
    assert (server.opened, server.closed) == (1, 1)


async def test_what_cannot_be_opened_is_tried_again_for_the_next_user() -> None:
    server = Server(failures=1)
    with pytest.raises(OSError, match="no room"):
        await server.use()
    await server.pass_time(2 * LINGER)
    assert await server.use() == 1


async def test_an_unused_resource_is_not_closed() -> None:
    server = Server()
    await server.demand.close()
    assert (server.opened, server.closed) == (0, 0)
