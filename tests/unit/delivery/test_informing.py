"""When a quiet runtime is told of the containers that were written (nri.md §3.7a rule 9d)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nri_policy.delivery import executor, messages, next_actions
from nri_policy.delivery.inputs import Action, ActionEnded
from nri_policy.foundation.clock import Clock
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.session import Session
from nri_policy.plugin.runtime_link import RuntimeLink
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import Served, pod, served
from tests.support.deliveries import put_in_flight

CALLABLE, HANGS = "2.4.0", "2.1.9"  # versions of containerd
ONE_POOL = "package:1 numa:1 core:4 pu:1"


async def pause_of(it: Served, session: Any = None) -> float:
    """Return how long a runtime is left alone after it could be informed, long after an event."""
    ours = it.daemon.executor.messages
    usual, latest = ours._clock, it.daemon.executor.state.latest
    ours._clock = Clock(now=lambda: latest + 1e3)
    try:
        return await ours.inform(RuntimeLink(session or it.daemon._session))
    finally:
        ours._clock = usual


async def unrecorded(it: Served) -> str:
    """Have a container that was written, and return its id."""
    state = it.daemon.executor.state
    await it.start(pod("shared"))
    while state.in_flight:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)
    await it.start(pod("own", "1"))
    shared = it.runtime.container("shared/main")
    assert [*state.unrecorded] == [shared.id]
    return shared.id


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no answer inform the runtime, nor the daemon's own executor."""
    monkeypatch.setattr(next_actions, "PAUSE", 1e9)
    monkeypatch.setattr(messages, "SILENCE", 50.0)
    monkeypatch.setattr(executor, "MAX_BATCH", 20.0)


async def test_after_a_call_there_is_a_short_pause(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        shared = await unrecorded(it)
        assert await pause_of(it) == messages.INFORM_PAUSE
        assert shared not in it.daemon.executor.state.unrecorded


async def test_what_is_under_way_for_a_container_is_waited_for_as_long_as_for_silence(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        shared = await unrecorded(it)
        put_in_flight(it.daemon.executor, shared)
        assert await pause_of(it) == messages.SILENCE


async def test_a_runtime_that_a_call_could_hang_is_not_called(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=HANGS) as it:
        shared = await unrecorded(it)
        assert await pause_of(it) == messages.RETRY_INFORM
        assert shared in it.daemon.executor.state.unrecorded


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
        shared = await unrecorded(it)
        assert await pause_of(it, Failing(it.daemon._session, error)) == messages.RETRY_INFORM
        assert it.daemon.executor.state.records[shared].recorded is None


async def test_an_error_of_ours_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, version=CALLABLE) as it:
        await unrecorded(it)
        failed = asyncio.Event()

        async def fail(_: object) -> float:
            failed.set()
            raise ValueError

        monkeypatch.setattr(it.daemon.executor.messages, "inform", fail)
        it.daemon.executor.apply(ActionEnded(action=Action.INFORM, pause=0.0))
        await failed.wait()
        monkeypatch.undo()
        await it.start(pod("next"))
        assert "delivery-failed" in caplog.text
