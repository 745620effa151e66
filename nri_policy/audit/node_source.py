"""Source: the node as the auditor sees it, and the repairs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from nri_policy.audit.deviations import Target
from nri_policy.audit.orphans import KnownContainers
from nri_policy.audit.targets import list_known, list_targets
from nri_policy.node import Company, list_company
from nri_policy.nri.session import Session
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.daemon_events import DaemonEvents
from nri_policy.plugin.findings import Findings
from nri_policy.settings import Audit
from nri_policy.workload.pod import ContainerState

log = logging.getLogger(__name__)


class NodeSource:
    """The containers of one node; the `Source` of an auditor."""

    def __init__(
        self,
        components: PluginComponents,
        events: DaemonEvents,
        session: Session,
        findings: Findings,
        unsent: Collection[str],
    ) -> None:
        """*unsent* are ids of containers whose latest decision the runtime lacks."""
        self._node = components.node
        self._components = components
        self._events = events
        self._session = session
        self._findings = findings
        self._unsent = unsent

    @property
    def audit(self) -> Audit:
        """The setting: what to do about drift."""
        return self._node.view.layout.settings.audit

    async def targets(self) -> Sequence[Target]:
        """Return where every running container should be."""
        return list_targets(self._node.view, self._unsent)

    async def company(self) -> Sequence[Company]:
        """Return the exclusive CPUs of running containers, and the others that may run there."""
        return [*list_company(self._node.view)]

    async def resend(self, container_ids: Collection[str]) -> None:
        """Send the runtime the updates of these containers again, even if they seem in force."""
        await self._events.resend(container_ids)

    async def known_containers(self) -> KnownContainers:
        """Return the containers that the daemon knows."""
        runtime = self._components.runtime
        return list_known(
            self._node.view,
            self._components.pids,
            may_be_given_up=self._events.may_be_given_up,
            pods_have_processes=runtime is None or not runtime.forgets_creations,
        )

    async def release(self, container_ids: Collection[str]) -> None:
        """Release containers that have ended without a report from the runtime."""
        for each in await self._events.release(container_ids, ContainerState.RUNNING):
            self._findings.report_end(each)

    async def release_unstarted(self, container_ids: Collection[str]) -> None:
        """Release containers whose creation the runtime gave up without a report."""
        for each in await self._events.release(container_ids, ContainerState.CREATED):
            self._findings.report_given_up(each)

    async def release_rooms(self, pod_ids: Collection[str]) -> None:
        """Release the rooms of pods that ended without a report from the runtime."""
        await self._events.clear_rooms(pod_ids)

    async def register_again(self, cgroups: Collection[str]) -> None:
        """Have the runtime list its containers, because some in *cgroups* are unknown."""
        log.info("registering-again", extra={"cgroups": len(cgroups)})
        self._findings.unknown(cgroups)
        if self._session.can_register:
            self._session.reconnect()
