"""Source: the node as its auditor sees it, and what is done about what was found."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from nri_policy.audit.comparison import Target
from nri_policy.audit.decisions import books, decisions
from nri_policy.audit.presence import Population
from nri_policy.node import Company, list_company
from nri_policy.nri.session import Session
from nri_policy.plugin.daemon_events import DaemonEvents
from nri_policy.plugin.findings import Findings
from nri_policy.plugin.parts import Parts
from nri_policy.settings import Audit
from nri_policy.workload.pod import ContainerState

log = logging.getLogger(__name__)


class NodeSource:
    """The containers of one node; a `Source` of an auditor."""

    def __init__(
        self,
        parts: Parts,
        events: DaemonEvents,
        session: Session,
        findings: Findings,
        unsent: Collection[str],
    ) -> None:
        """*unsent* are the ids of containers that the runtime has not heard the latest of."""
        self._node = parts.node
        self._parts = parts
        self._events = events
        self._session = session
        self._findings = findings
        self._unsent = unsent

    @property
    def audit(self) -> Audit:
        """What the settings want done about drift."""
        return self._node.view.layout.settings.audit

    async def targets(self) -> Sequence[Target]:
        """Return where every running container is to be."""
        return decisions(self._node.view, self._unsent)

    async def company(self) -> Sequence[Company]:
        """Return the exclusive CPUs of running containers, and who else may run there."""
        return [*list_company(self._node.view)]

    async def resend(self, container_ids: Collection[str]) -> None:
        """Tell the runtime again where these containers are to be, whatever it believes."""
        await self._events.resend(container_ids)

    async def books(self) -> Population:
        """Return who runs, and whom there is, by the books."""
        runtime = self._parts.runtime
        return books(
            self._node.view,
            self._parts.pids,
            may_be_given_up=self._events.may_be_given_up,
            pods_have_processes=runtime is None or not runtime.forgets_creations,
        )

    async def release(self, container_ids: Collection[str]) -> None:
        """Release containers that have ended, though the runtime has not said so."""
        for each in await self._events.release(container_ids, ContainerState.RUNNING):
            self._findings.report_end(each)

    async def give_up(self, container_ids: Collection[str]) -> None:
        """Release containers whose creation the runtime has given up without saying so."""
        for each in await self._events.release(container_ids, ContainerState.CREATED):
            self._findings.report_given_up(each)

    async def clear(self, pod_ids: Collection[str]) -> None:
        """Release the rooms of pods whose end the runtime has not said."""
        await self._events.clear_rooms(pod_ids)

    async def admit(self, cgroups: Collection[str]) -> None:
        """Have the runtime list its containers: some in *cgroups* are not known."""
        log.info("registering-again", extra={"cgroups": len(cgroups)})
        self._findings.unknown(cgroups)
        if self._session.can_register:
            self._session.reconnect()
