"""What runs beside the daemon neither takes it down nor stops unseen."""

from __future__ import annotations

import asyncio

import pytest

from nri_policy.process import AGAIN, keep_up


def test_a_part_that_fails_is_logged_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []
    slept: list[float] = []

    async def part() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise ValueError("a bug of ours")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    asyncio.run(keep_up("audit", part, sleep))
    assert runs == [0, 1, 2]
    assert slept == [AGAIN, AGAIN]
    assert [record.getMessage() for record in caplog.records] == [
        "event=failed part=audit again-in=5s"
    ] * 2
