"""What could not be stored is stored once it can be, though nothing is decided."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.engine.event import Created, Synchronized
from nri_policy.foundation.clock import Clock
from tests.support import nodes, stores
from tests.support.patience import HANGS

MINUTE = 60.0


class Minutes:
    """A clock that `pass_one` moves by a minute."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ended = asyncio.Condition()
        self._waiting = 0

    async def sleep(self, seconds: float) -> None:
        assert seconds <= MINUTE
        async with self._ended:
            self._waiting += 1
            self._ended.notify_all()
            until = self.now + seconds
            await self._ended.wait_for(lambda: self.now >= until)

    async def pass_one(self) -> None:
        """Return once all that this minute brings is done."""
        async with asyncio.timeout(HANGS), self._ended:
            await self._ended.wait_for(lambda: self._waiting)
            self.now, self._waiting = self.now + MINUTE, 0
            self._ended.notify_all()
            await self._ended.wait_for(lambda: self._waiting)


@asynccontextmanager
async def stored_daemon(state: Path) -> AsyncIterator[tuple[Daemon, Minutes]]:
    minutes = Minutes()
    clock = Clock(now=lambda: minutes.now, date=lambda: minutes.now, sleep=minutes.sleep)
    host = Environment(state_dir=state, root=state.parent, clock=clock)
    daemon = Daemon(nodes.machine(), nodes.settings(), host)
    storing = asyncio.create_task(daemon.keep_stored())
    async with daemon.node.turn:
        daemon.node.handle(Synchronized(containers=()))
        daemon.node.handle(Created(container=nodes.container(1000)))
    try:
        yield daemon, minutes
    finally:
        storing.cancel()
        await asyncio.wait({storing})
        await daemon.close()


def not_stored(daemon: Daemon) -> list[str]:
    return [each for each in daemon.status.doubts() if "not stored" in each]


async def test_a_store_that_cannot_be_made_again_is_made_within_a_minute_of_when_it_can(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    async with stored_daemon(state) as (daemon, minutes):
        shutil.rmtree(state)
        state.touch()
        assert "were removed" in not_stored(daemon)[0]
        await minutes.pass_one()
        assert "File exists" in not_stored(daemon)[0]
        state.unlink()
        await minutes.pass_one()
        assert not_stored(daemon) == []
        path = state / "store" / "state.db"
        grant = {each: daemon.node.view.to_store(each) for each in daemon.node.view.holders}
        assert stores.on_disk(path) == grant != {}
        records = len(stores.records(path))
        await minutes.pass_one()
        assert len(stores.records(path)) == records
