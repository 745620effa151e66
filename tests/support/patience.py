"""How long tests wait for what has to come, on however slow a machine: no verdict depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HANGS = 300.0  # seconds; only a test that hangs takes so long


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody run until *condition* holds; the test's own time limit ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - what it waits for announces itself by no event
        await asyncio.sleep(0.001)
