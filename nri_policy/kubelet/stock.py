"""Stock: how many devices of each sort every NUMA node has, and has left.

All that there are is asked of the kubelet now and then, for device plugins come and go; which of
them are in use is known from the pods' own answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

from nri_policy.cpuset import CPUSet
from nri_policy.kubelet.podresources import Assignments, Device

AGAIN = 60.0  # seconds until the kubelet is asked again

Left = Mapping[int, Mapping[str, tuple[int, int]]]  # node -> resource -> devices, those left


class Stock:
    """The devices of one node that have a known place."""

    def __init__(
        self,
        assignments: Assignments,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._assignments = assignments
        self._sleep = sleep
        self._devices: Mapping[Device, CPUSet] = {}

    def left(self) -> Left:
        """Return what is known by now; a device on several nodes counts on each."""
        in_use = self._assignments.in_use
        counts: dict[int, dict[str, tuple[int, int]]] = {}
        for device, nodes in self._devices.items():
            resource, _ = device
            for node in nodes:
                every, left = counts.setdefault(node, {}).get(resource, (0, 0))
                counts[node][resource] = every + 1, left + (device not in in_use)
        return counts

    @asynccontextmanager
    async def kept(
        self, changed: Callable[[], None], *, wanted: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[None]:
        """Keep what is known up to date; *changed* is called when it may be something else.

        While it is not *wanted*, nobody is asked, and there is nothing.
        """
        self._assignments.answered = changed
        task = asyncio.create_task(self._keep(changed, wanted), name="devices")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep(self, changed: Callable[[], None], wanted: Callable[[], bool]) -> NoReturn:
        while True:
            devices = await self._assignments.allocatable() if wanted() else {}
            if devices is not None and devices != self._devices:
                self._devices = devices
                changed()
            await self._sleep(AGAIN)
