"""Resizes: those that the runtime was answered, until it is known what became of them.

The CPUs that a resize frees stay booked until it has ended. Of one that the runtime refuses nothing
is heard: `enforcement` says when it should have ended, and what the cgroup has. It can come into
force all the same, by a process that outlives the runtime or is slow: the cgroup is looked at for
`DOUBT` more, and what it has then counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import NoReturn

from nri_policy.engine.event import Resized, ResizeEnded
from nri_policy.engine.grant import Decision
from nri_policy.engine.listing import has, in_force, parse_cpus
from nri_policy.engine.quota import NO_QUOTA
from nri_policy.foundation.refusal import Refused
from nri_policy.node import Node, Placed
from nri_policy.nri.errors import CallRefused
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.decisions import Decisions
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.update_queue import UpdateQueue
from nri_policy.workload.pod import Container, Resources

log = logging.getLogger(__name__)

DOUBT = 10.0  # seconds that a resize may still come into force that seems refused
LOOK = 0.5  # seconds between looks for that

Observe = Callable[[Mapping[str, str]], Awaitable[Mapping[str, Resources] | None]]


class Resizes:
    """The resizes of one runtime's containers."""

    def __init__(
        self,
        node: Node,
        decisions: Decisions,
        update_queue: UpdateQueue,
        resources: ExposedResources,
    ) -> None:
        self._node = node
        self._decisions = decisions
        self._update_queue = update_queue
        self._confirmations = update_queue.confirmations
        self._resources = resources
        self._clock = update_queue.clock
        self._overdue: dict[str, Resources] = {}  # what was asked for, and refused as it seems
        self._doubts: dict[str, float] = {}  # containers to be looked at, and until when
        self._doubtful = asyncio.Event()  # set while there are any

    @property
    def doubtful(self) -> Collection[str]:
        """The ids of containers whose refused resize may still come into force."""
        return self._doubts.keys()

    def begin(self, container_id: str, asked: Resources, pod: Resources | None = None) -> Decision:
        """Decide on a resize, which ends later if the container runs.

        *pod* is what all containers of its pod ask for by now, where that is known.
        """
        self.forget(container_id)
        running = self._confirmations.phase(container_id) in (Phase.RUNNING, Phase.UPDATING)
        decision = self._decisions.decide(
            Resized(container_id=container_id, resources=asked, certain=not running, pod=pod)
        )
        if decision.placement is not None:
            self._resources.update(container_id)
        return decision

    def foresee(self, container_id: str, asked: Resources) -> None:
        """Decide on a resize that has not begun as far as it is to be refused: `CallRefused`.

        Of a pod's one container, which asks for what the pod does.
        """
        resized = Resized(container_id=container_id, resources=asked, pod=asked)
        try:
            self._node.fork().handle(resized)
        except Refused:
            self.begin(container_id, asked, asked)

    def note_answer(self, container_id: str) -> None:
        """Take note that the answer about a resize is on its way."""
        placement = self._node.view.placement(container_id)
        if placement is not None:
            self._update_queue.note_answer(container_id, placement)
        if self._confirmations.phase(container_id) is Phase.RUNNING:
            self._confirmations.enter(container_id, Phase.UPDATING)

    def end(self, container_id: str) -> None:
        """Take note that a resize is in force, be it after it was taken back.

        One that is not known was answered before a registration, which may have listed less.
        """
        if self._confirmations.phase(container_id) is Phase.UPDATING:
            self._confirmations.enter(container_id, Phase.RUNNING)
        there = self._node.view.placement(container_id) is not None
        if there and container_id not in self._confirmations.sent:
            # it was overdue: what the runtime has set now may be older than what it has heard since
            self._confirmations.note_answer(container_id, self._update_queue.clock.now())
        overdue = self._overdue.pop(container_id, None)
        if container_id in self._node.view.resizing:
            self._decisions.decide(ResizeEnded(container_id=container_id))
        elif overdue is not None:
            self._take_in(container_id, overdue)
        else:
            self._doubt(container_id)

    async def overdue(self, container_id: str, found: Resources | None) -> None:
        """Take back a resize of which no end was heard, unless it was *found* in force."""
        async with self._node.turn:
            resizing = self._node.view.resizing.get(container_id)
            self._confirmations.enter(container_id, Phase.RUNNING)
            self._confirmations.confirm(container_id)
            if resizing is None:
                return
            placed = self._node.view.placed[container_id]
            asked = placed.container.resources
            refused = found is None or not self._shows(found, placed)
            if refused:
                self._overdue[container_id] = asked
                self._doubt(container_id)
            self._decisions.decide(ResizeEnded(container_id=container_id, refused=refused))
            self._resources.update(container_id)

    def forget(self, container_id: str) -> None:
        """Forget what was asked for: the container is gone, or asks for something else."""
        self._overdue.pop(container_id, None)
        self._doubts.pop(container_id, None)

    def restart(self, containers: Iterable[Container]) -> None:
        """Take back the resizes of which the runtime lists that they are not in force."""
        listed = {each.id: each for each in containers}
        for gone in self._overdue.keys() - listed.keys():
            self.forget(gone)
        for each in listed.values():
            resizing = self._node.view.resizing.get(each.id)
            if resizing is None:
                continue
            before, placed = resizing.before, self._node.view.placed[each.id]
            asked, milli = placed.container.resources, placed.request.milli
            qos = each.pod.qos
            same = has(each.resources, before.container.resources, before.request.milli, qos)
            if same and not has(each.resources, asked, milli, qos):
                self._overdue[each.id] = asked
                self._doubt(each.id)
                self._decisions.decide(ResizeEnded(container_id=each.id, refused=True))

    async def watch(self, observe: Observe) -> NoReturn:
        """Look at the containers in doubt; *observe* returns what the kernel says of them."""
        while True:
            await self._doubtful.wait()
            await self._clock.sleep(LOOK)
            try:
                await self._look(observe)
            except Exception:
                log.exception("resize-check-failed")

    async def _look(self, observe: Observe) -> None:
        placed = self._node.view.placed
        doubts = {each: placed[each].container.cgroup for each in self._doubts if each in placed}
        found = await observe(doubts) or {}
        async with self._node.turn:
            for each, resources in found.items():
                known = self._node.view.placed.get(each)
                if known is None or each not in self._doubts:
                    continue
                now = in_force(known.container, resources, None, known.request.milli)
                if now.resources != known.container.resources:
                    self._resized_late(each, now.resources)
        time = self._clock.now()
        self._doubts = {each: until for each, until in self._doubts.items() if time < until}
        if not self._doubts:
            self._doubtful.clear()

    def _shows(self, found: Resources, placed: Placed) -> bool:
        """Whether a cgroup was *found* to have what its container asks for by now.

        One without a quota shows that by its CPUs, as far as these are its own.
        """
        container, milli = placed.container, placed.request.milli
        told, _ = self._node.view.sent[container.id]
        return has(found, container.resources, milli, container.pod.qos) and (
            found.cpu_quota != NO_QUOTA or parse_cpus(found.cpus) == told
        )

    def _resized_late(self, container_id: str, found: Resources) -> None:
        name = self._node.view.placed[container_id].container.full_name
        log.warning("resized-after-all", extra={"container": name})
        self.forget(container_id)
        with suppress(CallRefused):  # logged: there is no room for it by now
            self._take_in(container_id, found)

    def _take_in(self, container_id: str, resources: Resources) -> None:
        """Place a container that was resized all the same."""
        decision = self._decisions.decide(Resized(container_id=container_id, resources=resources))
        if decision.placement is not None:
            self._resources.update(container_id)
            self._update_queue.note({container_id: decision.placement})

    def _doubt(self, container_id: str) -> None:
        self._doubts[container_id] = self._clock.now() + DOUBT
        self._doubtful.set()
