"""The service that reloads the daemon's settings on demand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from nri_policy.control.administration import Administration
from nri_policy.proto import control_pb2 as pb
from nri_policy.settings import ReloadResult
from tests.support.patience import HANGS


def test_a_reload_goes_on_to_its_end_when_its_caller_leaves() -> None:
    async def run() -> None:
        began, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def reload() -> ReloadResult:
            began.set()
            await go_on.wait()
            done.set()
            return ReloadResult(accepted=True, origin="a file", reason="", time=0.0)

        asked = Administration(reload).reload(pb.ReloadRequest(), cast("Any", None))
        calling = asyncio.create_task(asked)
        await began.wait()
        calling.cancel()
        await asyncio.wait({calling})
        assert calling.cancelled()
        go_on.set()
        await asyncio.wait_for(done.wait(), HANGS)

    asyncio.run(run())
