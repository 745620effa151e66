"""Resizes: from our answer until the new amounts are in force, or the old ones again.

The CPUs that a resize frees stay booked until it has ended. A refused resize
causes no event: `delivery` says when one is overdue, and what the cgroup has. It can come into
force all the same, by a process that outlives the runtime or is slow: the cgroup is looked at for
some seconds more (`RESIZE_DOUBT`), and what it has then counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import (
    Action,
    PhaseChanged,
    ResizeConfirmed,
    ResizeDoubted,
    ResizeSettled,
    ResizeTakenBack,
)
from nri_policy.delivery.record import Phase
from nri_policy.engine.event import Resized, ResizeEnded
from nri_policy.engine.grant import Decision
from nri_policy.engine.restart.listed_container import has, in_force
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.refusal import Refused
from nri_policy.node import Node, Placed
from nri_policy.nri.errors import CallRefused
from nri_policy.plugin.answers import Answers
from nri_policy.plugin.decisions import Decisions
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.workload.pod import Container, Resources, parse_cpus

log = logging.getLogger(__name__)


class Resizes:
    """The resizes of one runtime's containers."""

    def __init__(
        self,
        node: Node,
        decisions: Decisions,
        executor: Executor,
        answers: Answers,
        resources: ExposedResources,
    ) -> None:
        self._node = node
        self._decisions = decisions
        self._executor = executor
        self._state = executor.state
        self._answers = answers
        self._resources = resources
        executor.looks[Action.RESIZES] = self.look
        executor.take_back = self.overdue

    def begin(self, container_id: str, asked: Resources, pod: Resources | None = None) -> Decision:
        """Decide on a resize, which ends later if the container runs.

        *pod* has the pod's total resources, if known.
        """
        self._settle(container_id)
        running = self._state.phase(container_id) in {Phase.RUNNING, Phase.UPDATING}
        decision = self._decisions.decide(
            Resized(container_id=container_id, resources=asked, certain=not running, pod=pod)
        )
        if decision.placement is not None:
            self._resources.update(container_id)
        return decision

    def refuse_early(self, container_id: str, asked: Resources) -> None:
        """Raise `CallRefused` for a resize that will be refused, before it begins.

        For the only container of a pod: both ask for the same resources.
        """
        resized = Resized(container_id=container_id, resources=asked, pod=asked)
        try:
            self._node.fork().handle(resized)
        except Refused:
            self.begin(container_id, asked, asked)

    def note_answer(self, container_id: str) -> None:
        """Record that the answer to a resize is on its way."""
        placement = self._node.view.placement(container_id)
        if placement is not None:
            self._answers.note(container_id, placement)
        if self._state.phase(container_id) is Phase.RUNNING:
            event = PhaseChanged(container_id=container_id, phase=Phase.UPDATING)
            self._executor.apply(event)

    def end(self, container_id: str) -> None:
        """Record that a resize is in force, even a reverted one.

        An unknown container's resize was answered before a registration whose list was shorter.
        """
        known = self._state.records.get(container_id)
        overdue = known.refused_resize if known is not None else None
        self._executor.apply(ResizeConfirmed(container_id))
        if container_id in self._node.view.resizing:
            self._decisions.decide(ResizeEnded(container_id=container_id))
        elif overdue is not None:
            self._take_in(container_id, overdue)
        else:
            self._doubt(container_id)
            if known is None or not known.visible:  # no look shows what the runtime has set now
                self._send_again(container_id)

    async def overdue(self, container_id: str, found: Resources | None) -> None:
        """Take back a resize that should have ended, unless it was *found* in force."""
        async with self._node.turn:
            resizing = self._node.view.resizing.get(container_id)
            mems = None if found is None else parse_cpus(found.mems)
            self._executor.apply(ResizeTakenBack(container_id=container_id, mems=mems))
            if resizing is not None:  # else it was decided anew meanwhile, as by new settings
                placed = self._node.view.placed[container_id]
                refused = found is None or not self._shows(found, placed)
                if refused:
                    self._doubt(container_id, placed.container.resources)
                self._decisions.decide(ResizeEnded(container_id=container_id, refused=refused))
                self._resources.update(container_id)
            self._send_again(container_id)  # only its amounts may be in force

    def _send_again(self, container_id: str) -> None:
        """Have a placement come into force that a resize should have brought."""
        placement = self._node.view.placement(container_id)
        if placement is not None:
            self._executor.decide({container_id: placement})

    def restart(self, containers: Iterable[Container]) -> None:
        """Take back the resizes that are not in force according to the runtime's list."""
        for each in containers:
            resizing = self._node.view.resizing.get(each.id)
            if resizing is None:
                continue
            before, placed = resizing.before, self._node.view.placed[each.id]
            asked, milli = placed.container.resources, placed.request.milli
            qos = each.pod.qos
            same = has(each.resources, before.container.resources, before.request.milli, qos)
            if same and not has(each.resources, asked, milli, qos):
                self._doubt(each.id, asked)
                self._decisions.decide(ResizeEnded(container_id=each.id, refused=True))

    async def look(self) -> None:
        """Look at containers whose resize may come into force late."""
        placed, ids = self._node.view.placed, self._state.resizes
        paths = {each: placed[each].container.cgroup for each in ids if each in placed}
        await self.see(await self._executor.survey.observe(paths) or {})

    async def see(self, found: Mapping[str, Resources]) -> None:
        """Take in what cgroups have whose resize may come into force late."""
        async with self._node.turn:
            for each, resources in found.items():
                known = self._node.view.placed.get(each)
                if known is None or each not in self._state.resizes:
                    continue
                now = in_force(known.container, resources, None, known.request.milli)
                if now.resources != known.container.resources:
                    self._resized_late(each, now.resources)

    def _shows(self, found: Resources, placed: Placed) -> bool:
        """Whether the cgroup *found* has the amounts of the resize.

        Without a quota, exclusive CPUs show it.
        """
        container, milli = placed.container, placed.request.milli
        desired, _ = self._node.view.sent[container.id]
        return has(found, container.resources, milli, container.pod.qos) and (
            found.cpu_quota != NO_QUOTA or parse_cpus(found.cpus) == desired
        )

    def _resized_late(self, container_id: str, found: Resources) -> None:
        name = self._node.view.placed[container_id].container.full_name
        log.warning("resized-after-all", extra={"container": name})
        self._settle(container_id)
        with suppress(CallRefused):  # logged: the CPUs are taken meanwhile
            self._take_in(container_id, found)

    def _take_in(self, container_id: str, resources: Resources) -> None:
        """Place a container that was resized all the same."""
        decision = self._decisions.decide(Resized(container_id=container_id, resources=resources))
        if decision.placement is not None:
            self._resources.update(container_id)
            self._executor.decide({container_id: decision.placement})

    def _doubt(self, container_id: str, refused: Resources | None = None) -> None:
        self._executor.apply(ResizeDoubted(container_id=container_id, refused=refused))

    def _settle(self, container_id: str) -> None:
        self._executor.apply(ResizeSettled(container_id))
