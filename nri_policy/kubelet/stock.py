"""Stock: how many devices of each sort every NUMA node has, and has left.

All that there are is asked of the kubelet now and then, for device plugins come and go; which of
them are in use is known from the pods' own answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.pod_resources import Assignments, Device

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
        self._devices: Mapping[Device, CPUSet] | None = None  # None: not known

    def left(self) -> Left:
        """Return what is known by now; a device on several nodes counts on each."""
        in_use = self._assignments.in_use
        counts: dict[int, dict[str, tuple[int, int]]] = {}
        for device, nodes in (self._devices or {}).items():
            resource, _ = device
            for node in nodes:
                every, left = counts.setdefault(node, {}).get(resource, (0, 0))
                counts[node][resource] = every + 1, left + (device not in in_use)
        return counts

    def unused(self) -> dict[str, int] | None:
        """Return how many devices of each resource nobody uses, None where that is not known."""
        if self._devices is None:
            return None
        in_use = self._assignments.in_use
        counts = dict.fromkeys((resource for resource, _ in self._devices), 0)
        for device in self._devices.keys() - in_use:
            counts[device[0]] += 1
        return counts

    @asynccontextmanager
    async def kept(
        self, changed: Callable[[], None], *, wanted: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[None]:
        """Keep what is known up to date; *changed* is called when it may be something else.

        While it is not *wanted*, nobody is asked, and nothing is known.
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
            asked = wanted()
            devices = await self._assignments.allocatable() if asked else None
            if devices is not None or not asked:
                before, self._devices = self._devices, devices
                if (devices or {}) != (before or {}):
                    changed()
            await self._sleep(AGAIN)
