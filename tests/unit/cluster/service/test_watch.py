"""Which kinds are followed, and since when one is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http.client import FORBIDDEN, NOT_FOUND
from typing import cast

import pytest
from msgspec.structs import replace

from nri_policy.cluster.service.watch import OPTIONAL_SECONDS, Watch, WatchedKind
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import NODES, PODS, Client, Page
from nri_policy.kube.errors import APIError
from tests.support.clock import Steps


def test_a_kind_that_is_not_there_after_an_outage_is_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or groups would wait for ever for a kind that the cluster never had."""
    steps, down = Steps(), False

    async def ask(*_: object, **__: object) -> AsyncIterator[object]:
        raise APIError("it is down") if down else APIError("no such kind", code=NOT_FOUND)
        yield

    monkeypatch.setattr("nri_policy.cluster.service.watch.list_and_watch", ask)

    async def play() -> None:
        nonlocal down
        source = WatchedKind(
            kind=PODS,
            take=lambda _: None,
            remove=lambda _: None,
            known=lambda: (),
            optional=True,
        )
        clock = Clock(now=steps.now, sleep=steps.sleep)
        watch = Watch(cast("Client", None), [source], clock)
        task = asyncio.create_task(watch.run())
        await steps.advance(1)
        assert not watch.problem(PODS)
        down = True
        await steps.advance(2 * OPTIONAL_SECONDS)
        assert "it is down" in watch.problem(PODS)
        down = False
        await steps.advance(2 * OPTIONAL_SECONDS)
        assert not watch.problem(PODS)
        assert not watch.lost_seconds()
        task.cancel()

    asyncio.run(play())


def test_a_kind_that_may_not_be_read_stops_nothing_else_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, granted, told = Steps(), False, list[str]()

    async def ask(*_: object, **__: object) -> AsyncIterator[object]:
        if not granted:
            raise APIError("it is forbidden", code=FORBIDDEN)
        yield Page(items=[], revision="7")
        await steps.sleep(1e9)

    monkeypatch.setattr("nri_policy.cluster.service.watch.list_and_watch", ask)

    async def play() -> None:
        nonlocal granted
        source = WatchedKind(
            kind=PODS,
            take=lambda _: None,
            remove=lambda _: None,
            known=lambda: (),
            unreadable=told.append,
        )
        needed = replace(source, kind=NODES, unreadable=None)
        watch = Watch(
            cast("Client", None), [source, needed], Clock(now=steps.now, sleep=steps.sleep)
        )
        task = asyncio.create_task(watch.run())
        await steps.advance(60)
        assert not watch.problem(PODS)
        assert "nodes are not listed yet" in watch.problem(NODES)
        assert watch.lost_seconds()["pods"] > 30
        assert {*told} == {"it is forbidden"}
        granted = True
        await steps.advance(60)
        assert told[-1] == ""
        assert not watch.lost_seconds()
        task.cancel()

    asyncio.run(play())
