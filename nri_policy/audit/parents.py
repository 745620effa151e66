"""Finds cgroups above containers with fewer CPUs than the daemon places containers on.

For example, an administrator has set AllowedCPUs= of kubepods.slice. On cgroup v1 a container that
is placed on the missing CPUs does not start. On version 2 it runs without these CPUs, or on all
CPUs of the cgroup above if it is placed on no others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import NoReturn

from nri_policy.audit.above_pods import find_narrow, is_above
from nri_policy.audit.cgroup import ContainerCgroups
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node, Placed

log = logging.getLogger(__name__)

PERIOD = 60.0  # seconds between two looks


class ParentCgroups:
    """The cgroups above the containers of one node; `narrow` are those that lack CPUs."""

    def __init__(
        self, node: Node, reader: ContainerCgroups, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._node = node
        self._reader = reader
        self._clock = clock
        self.narrow: Mapping[str, CPUSet] = {}  # what they have, by their paths

    async def run(self) -> NoReturn:
        """Look regularly, until cancelled."""
        while True:
            await self._clock.tick(PERIOD)
            await self.look()

    async def look(self) -> None:
        """Look at all, and log changes."""
        view, before = self._node.view, self.narrow
        cgroups = [each.container.cgroup for each in view.placed.values()]
        found = await asyncio.to_thread(self._reader.cpus_above, cgroups)
        used = view.layout.capacity.available
        self.narrow = find_narrow(found, used) if view.layout.settings.pin_cpu else {}
        for path, cpus in self.narrow.items() - before.items():
            log.warning("cgroup-narrowed", extra={"cgroup": path or "/", "cpus": cpus})
        for path in before.keys() - self.narrow.keys():
            log.info("cgroup-widened", extra={"cgroup": path or "/"})

    def problems(self) -> Iterator[str]:
        """Yield which cgroups lack CPUs, for `status`."""
        used = self._node.view.layout.capacity.available
        for path, cpus in self.narrow.items():
            yield (
                f"{path or '/'} has only CPUs {cpus} (cpuset.cpus): containers that are placed on"
                f" {used - cpus} do not start, or run elsewhere; give that cgroup all CPUs"
                f" (AllowedCPUs= of its unit), or set availableResources.cpu: cpuset:{used & cpus}"
            )

    def notes(self, placed: Placed) -> Iterator[str]:
        """Yield which cgroups lack CPUs of a container, for `explain`."""
        cpus, _ = self._node.view.sent[placed.container.id]
        for path, there in self.narrow.items():
            if is_above(path, placed.container.cgroup) and (lost := cpus - there):
                yield f"does not run on {lost}: {path or '/'} has only CPUs {there} (see status)"
