"""Waiting for what is on its way from the tests' API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.patience import HANGS


async def until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(HANGS):
        while not condition():  # noqa: ASYNC110 - of whatever is asked, not of an event
            await asyncio.sleep(0.005)
