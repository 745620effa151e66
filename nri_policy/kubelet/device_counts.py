"""Counts the devices of each resource on each NUMA node, all and free.

The kubelet is queried for all devices regularly, because device plugins start and stop; the answers
about pods show which devices are in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.pod_resources import Assignments, Device

AGAIN = 60.0  # seconds between queries to the kubelet

FreeDevices = Mapping[
    int, Mapping[str, tuple[int, int]]
]  # node -> resource -> all and free devices


class DeviceCounts:
    """Counts the devices of one node."""

    def __init__(
        self,
        assignments: Assignments,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._assignments = assignments
        self._clock = clock
        self._devices: Mapping[Device, CPUSet] | None = None  # None: not known

    def count(self) -> FreeDevices:
        """Return the counts by NUMA node; a device on several nodes counts on each."""
        in_use = self._assignments.in_use
        counts: dict[int, dict[str, tuple[int, int]]] = {}
        for device, nodes in (self._devices or {}).items():
            resource, _ = device
            for node in nodes:
                every, free = counts.setdefault(node, {}).get(resource, (0, 0))
                counts[node][resource] = every + 1, free + (device not in in_use)
        return counts

    def count_free(self) -> dict[str, int] | None:
        """Return the number of free devices of each resource; None if unknown."""
        if self._devices is None:
            return None
        in_use = self._assignments.in_use
        counts = dict.fromkeys((resource for resource, _ in self._devices), 0)
        for device in self._devices.keys() - in_use:
            counts[device[0]] += 1
        return counts

    @asynccontextmanager
    async def running(
        self, changed: Callable[[], None], *, wanted: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[None]:
        """Keep the counts up to date; *changed* is called when they may have changed.

        While no counts are *wanted*, the kubelet is not queried, and the counts are empty.
        """
        self._assignments.answered = changed
        task = asyncio.create_task(self._run(changed, wanted), name="devices")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self, changed: Callable[[], None], wanted: Callable[[], bool]) -> NoReturn:
        while True:
            asked = wanted()
            devices = await self._assignments.allocatable() if asked else None
            if devices is not None or not asked:
                before, self._devices = self._devices, devices
                if (devices or {}) != (before or {}):
                    changed()
            await self._clock.sleep(AGAIN)
