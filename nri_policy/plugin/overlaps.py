"""Overlaps: finds containers on CPUs that are somebody else's own, however they came there.

What was seen in force can be undone: by a runtime that writes an older cpuset, by anybody who may
write cgroups. So all cpusets are looked at every PERIOD, as long as anybody has CPUs of its own.
That needs no lock, and no writing waits for it: what is found beside a batch that is being written,
or a decision, is only a suspicion. `enforcement` looks again, alone and by the decisions of that
moment, and puts an end to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import NoReturn, Protocol

from msgspec import Struct

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node
from nri_policy.plugin.enforcement import Enforcement

log = logging.getLogger(__name__)

PERIOD = 1.5  # seconds: an overlap ends within two


class Cpusets(Protocol):
    """The containers' cpusets: `audit.cgroup.Cgroups`."""

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of those cgroups that are here, by the runtime's names."""
        ...


class _ContainerCPUs(Struct, frozen=True, kw_only=True):
    """Where a container is to be."""

    container_id: str
    cgroup: str
    allowed: CPUSet


class Overlaps:
    """Looks at the cpusets of one engine's containers."""

    def __init__(
        self, node: Node, enforcement: Enforcement, cpusets: Cpusets, clock: Clock
    ) -> None:
        self._node = node
        self._enforcement = enforcement
        self._cpusets = cpusets
        self._clock = clock

    async def run(self) -> NoReturn:
        """Look every `PERIOD`."""
        while True:
            await self._clock.tick(PERIOD)
            try:
                await self.look()
            except Exception:
                log.exception("overlap-check-failed")

    async def look(self) -> None:
        """Have whoever is on CPUs of somebody else's own leave them."""
        view = self._node.view
        taken = view.taken
        if not taken:
            self._enforcement.keep_overlaps(())
            return
        places = [
            _ContainerCPUs(
                container_id=each, cgroup=placed.container.cgroup, allowed=view.sent[each][0]
            )
            for each, placed in view.placed.items()
            if view.sent[each][0]
        ]
        found = await asyncio.to_thread(_astray, self._cpusets, places, taken)
        self._enforcement.keep_overlaps(found)
        if found:
            await self._enforcement.look(*found)


def _astray(cpusets: Cpusets, places: Iterable[_ContainerCPUs], taken: CPUSet) -> list[str]:
    """Return the ids of containers that use CPUs which are taken, and not theirs."""
    found = cpusets.cpusets(each.cgroup for each in places)
    return [
        each.container_id
        for each in places
        if (found.get(each.cgroup, EMPTY) - each.allowed) & taken
    ]
