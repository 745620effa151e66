"""Resizes: those that the runtime was answered, until it is known what became of them.

The CPUs that a resize frees stay booked until it has ended. Of one that the runtime refuses nothing
is heard: `enforcement` says when it should have ended, and what the cgroup has.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_policy.engine.event import Resized, ResizeEnded
from nri_policy.engine.grant import Decision
from nri_policy.engine.synchronization import has
from nri_policy.node import Node
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.decisions import Decisions
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.update_queue import UpdateQueue
from nri_policy.workload.pod import Container, Resources


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
        self._overdue: dict[str, Resources] = {}  # what was asked for, and refused as it seems

    def begin(self, container_id: str, asked: Resources) -> Decision:
        """Decide on a resize, which ends later if the container runs."""
        self._overdue.pop(container_id, None)
        running = self._confirmations.phase(container_id) in (Phase.RUNNING, Phase.UPDATING)
        decision = self._decisions.decide(
            Resized(container_id=container_id, resources=asked, certain=not running)
        )
        if decision.placement is not None:
            self._resources.update(container_id)
        return decision

    def answered(self, container_id: str) -> None:
        """Take note that the answer about a resize is on its way."""
        self._update_queue.answered(container_id)
        if self._confirmations.phase(container_id) is Phase.RUNNING:
            self._confirmations.enter(container_id, Phase.UPDATING)

    def end(self, container_id: str) -> None:
        """Take note that a resize is in force, be it after it was taken back."""
        if self._confirmations.phase(container_id) is Phase.UPDATING:
            self._confirmations.enter(container_id, Phase.RUNNING)
        overdue = self._overdue.pop(container_id, None)
        if container_id in self._node.view.resizing:
            self._decisions.decide(ResizeEnded(container_id=container_id))
        elif overdue is not None:
            decision = self._decisions.decide(Resized(container_id=container_id, resources=overdue))
            if decision.placement is not None:
                self._update_queue.note([decision.placement])

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
            refused = found is None or not has(found, asked, placed.request.milli)
            if refused:
                self._overdue[container_id] = asked
            self._decisions.decide(ResizeEnded(container_id=container_id, refused=refused))
            self._resources.update(container_id)

    def forget(self, container_id: str) -> None:
        """Forget a container that is gone."""
        self._overdue.pop(container_id, None)

    def restart(self, listed: Iterable[Container]) -> None:
        """Take back the resizes of which the runtime lists that they are not in force."""
        self._overdue.clear()
        for each in listed:
            resizing = self._node.view.resizing.get(each.id)
            if resizing is None:
                continue
            before, placed = resizing.before, self._node.view.placed[each.id]
            asked, milli = placed.container.resources, placed.request.milli
            same = has(each.resources, before.container.resources, before.request.milli)
            if same and not has(each.resources, asked, milli):
                self._decisions.decide(ResizeEnded(container_id=each.id, refused=True))
