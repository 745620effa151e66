"""A gate in the embedded runtime: what happens while a container is on its way."""

from __future__ import annotations

import asyncio

from nri_policy.simulation.containers import SimulatedContainer
from nri_policy.simulation.embedded import EmbeddedRuntime


class Gate:
    """Keeps one container where it is in its life, until it is opened."""

    def __init__(self, runtime: EmbeddedRuntime, where: str, name: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._at = where, name
        runtime.between = self

    async def __call__(self, where: str, container: SimulatedContainer) -> None:
        if (where, container.pod.manifest.metadata.name) == self._at:
            self.reached.set()
            await self.open.wait()
