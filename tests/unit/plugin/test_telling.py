"""When a quiet runtime is told of the containers that were written (nri.md §3.7a rule 9d)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.session import Session
from nri_policy.plugin import telling, update_queue, writing
from nri_policy.plugin.telling import Telling
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import Served, pod, served

CALLABLE, HANGS = "2.4.0", "2.1.9"  # versions of containerd
ONE_POOL = "package:1 numa:1 core:4 pu:1"


class EndError(Exception):
    """The pause that a test was waiting for has come."""


async def pause_of(it: Served, session: Any = None) -> float:
    """Return how long `Telling` pauses after its first look."""
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise EndError

    queue = it.daemon._update_queue
    telling_ = Telling(it.daemon.node, queue)
    telling_._clock = Clock(now=lambda: queue.confirmations.latest + 1e3, sleep=sleep)
    with suppress(EndError):
        await telling_.run(session or it.daemon._session)
    return pauses[0]


async def untold(it: Served) -> str:
    """Have a container that was written, and return its id."""
    queue = it.daemon._update_queue
    await it.start(pod("shared"))
    while queue.confirmations.sent:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)
    await it.start(pod("own", "1"))
    shared = it.runtime.container("shared/main")
    assert [*queue.ledger.untold] == [shared.id]
    return shared.id


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no answer tell of anybody, nor the daemon's own `Telling`."""
    monkeypatch.setattr(update_queue, "PAUSE", 1e9)
    monkeypatch.setattr(telling, "SILENCE", 50.0)
    monkeypatch.setattr(writing, "MAX_BATCH", 20.0)


async def test_after_a_call_there_is_a_short_pause(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        shared = await untold(it)
        assert await pause_of(it) == telling.PAUSE
        assert shared not in it.daemon._update_queue.ledger.untold


async def test_what_is_under_way_for_a_container_is_waited_for_as_long_as_for_silence(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        shared = await untold(it)
        queue = it.daemon._update_queue
        queue.confirmations.mark_sent([shared], queue.clock.now())
        assert await pause_of(it) == telling.SILENCE


async def test_a_runtime_that_a_call_could_hang_is_not_called(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=HANGS) as it:
        shared = await untold(it)
        assert await pause_of(it) == telling.RETRY
        assert shared in it.daemon._update_queue.ledger.untold


class Failing:
    """A session whose calls fail."""

    def __init__(self, session: Session, error: Exception) -> None:
        self._session = session
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def update_containers(self, updates: object) -> None:
        del updates
        raise self._error


@pytest.mark.parametrize("error", [CallRefused("no"), TimeoutError(), ConnectionError()])
async def test_after_a_call_that_failed_nobody_knows_what_the_runtime_knows(
    error: Exception, tmp_path: Path
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        shared = await untold(it)
        assert await pause_of(it, Failing(it.daemon._session, error)) == telling.RETRY
        assert it.daemon._update_queue.ledger.known(shared) is None


async def test_an_error_of_ours_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        await untold(it)
        assert await pause_of(it, Failing(it.daemon._session, ValueError())) == telling.RETRY
        assert "telling-failed" in caplog.text
