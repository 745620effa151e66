"""Lasting: has systemd keep the CPUs that were written to the scopes of containers.

Where the runtime's cgroup driver is systemd, a cpuset that is only written is undone by the next
`daemon-reload` (nri.md §3.7a rule 7). So what was written counts for the moment, and becomes a
property of the scope after the answer: one at a time, in the order of the writing, so that those
come first who gave something up; never of a container that is about to start. Where systemd cannot
be asked, the runtime is told of these containers before all others: it sets the property as well.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import NoReturn, Protocol

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.update_queue import UpdateQueue

log = logging.getLogger(__name__)

RETRY = 10.0  # seconds before systemd is asked again that has not done it


class Scopes(Protocol):
    """systemd's scopes: `systemd.scopes.Scopes`."""

    async def allow(self, cgroup: str, cpus: CPUSet) -> str:
        """Have systemd keep a scope's CPUs; return why it does not, or nothing."""
        ...


class Kept(Protocol):
    """The containers' cgroups: `audit.cgroup.Cgroups`."""

    def kept_by_systemd(self, cgroup: str) -> bool:
        """Return whether systemd writes the cpuset of a cgroup again."""
        ...


class Lasting:
    """Makes what was written to the cgroups of one runtime last."""

    def __init__(
        self,
        node: Node,
        update_queue: UpdateQueue,
        *,
        cgroups: Kept | None,
        scopes: Scopes | None,
        turn: asyncio.Lock,
    ) -> None:
        """*turn* is held by whoever writes cgroups: systemd must not write an older cpuset."""
        self._node = node
        self._ledger = update_queue.ledger
        self._confirmations = update_queue.confirmations
        self._cgroups = cgroups
        self._scopes = scopes
        self._turn = turn
        self._clock = update_queue.clock
        self.trouble = ""  # why systemd does not keep what is written, empty if it does

    async def run(self) -> NoReturn:
        """Ask systemd whenever something was written, and again about what does not last yet."""
        while True:
            patience = RETRY if self._ledger.fleeting else math.inf
            await self._clock.set_within(patience, self._ledger.fresh)
            self._ledger.fresh.clear()
            try:
                await self.keep()
            except Exception:
                log.exception("lasting-failed")

    async def keep(self) -> None:
        """Have all that was written kept, as far as systemd does that."""
        trouble = ""
        for each in [*self._ledger.fleeting]:
            async with self._turn:
                trouble = await self._keep(each) or trouble
        if trouble and trouble != self.trouble:
            log.warning("not-lasting", extra={"reason": trouble})
        self.trouble = trouble

    async def _keep(self, container_id: str) -> str:
        """Have one kept; return why it is not, or nothing."""
        placed, has = self._node.view.placed.get(container_id), self._ledger.in_force(container_id)
        if placed is None or has is None or container_id not in self._ledger.fleeting:
            self._ledger.lasts(container_id)
            return ""
        if self._confirmations.phase(container_id) is not Phase.RUNNING:
            # runc attaches its device program to the scope of a container that it starts, and
            # fails if systemd exchanges that meanwhile, as with any property
            return ""
        cgroup = placed.container.cgroup
        if self._cgroups is not None and self._cgroups.kept_by_systemd(cgroup):
            if self._scopes is None:
                return "systemd cannot be asked"
            if trouble := await self._scopes.allow(cgroup, has.cpus):
                return trouble
        self._ledger.lasts(container_id)
        return ""
