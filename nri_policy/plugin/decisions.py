"""Decisions: events to the node, and its decisions to all that the answer depends on.

Owns what is logged of a decision, and what becomes of a refusal. Whoever calls has the turn.
"""

from __future__ import annotations

import logging

from nri_policy.delivery.executor import Executor
from nri_policy.engine.event import (
    Created,
    Event,
    Prepared,
    Reconfigured,
    Resized,
    Unprepared,
)
from nri_policy.engine.grant import Decision, Outcome
from nri_policy.foundation.refusal import Refused
from nri_policy.node import Node, NodeView
from nri_policy.nri.errors import CallRefused
from nri_policy.plugin.answers import Answers
from nri_policy.plugin.exposed_resources import ExposedResources

log = logging.getLogger(__name__)


class Decisions:
    """Has one node decide."""

    def __init__(
        self,
        node: Node,
        executor: Executor,
        answers: Answers,
        resources: ExposedResources,
    ) -> None:
        self._node = node
        self._executor = executor
        self._answers = answers
        self._resources = resources

    @property
    def pins_nothing(self) -> bool:
        """Whether decisions are only recorded, for the settings pin nothing."""
        return self._node.view.layout.settings.pins_nothing

    def decide(self, event: Event) -> Decision:
        """Have *event* handled; a refusal becomes the request's error, `CallRefused`.

        Where nothing is pinned the container goes on all the same.
        """
        try:
            decision = self._node.handle(event)
        except Refused as error:
            log.warning(
                "refused", extra={"container": self._log_subject(event), "reason": str(error)}
            )
            if self.pins_nothing:
                return Decision()
            raise CallRefused(str(error)) from error
        self._follow(decision)
        return decision

    def take(self, event: Reconfigured | Prepared | Unprepared) -> None:
        """Have an event handled that no request of the runtime has brought.

        Refused: nothing has changed.
        """
        self._follow(self._node.handle(event))
        for each in self._node.view.touched.ids:  # another split of the same CPUs is no change
            self._resources.update(each)

    def _log_subject(self, event: Event) -> str:
        """Return the name of the container that *event* is about."""
        if isinstance(event, Created):
            return event.container.full_name
        if isinstance(event, Resized):
            return self._node.view.held_by(event.container_id).container.full_name
        return "-"

    def _follow(self, decision: Decision) -> None:
        """Have what was decided come into force."""
        self._executor.decide(decision.changes)
        if decision.placement is not None and self._answers.is_overdue:
            assert decision.container_id is not None, "a placement is of one container"
            self._executor.decide({decision.container_id: decision.placement})
        view = self._node.view
        settings = view.layout.settings
        # without pinning, no container is updated
        pinned = settings.pin_cpu and settings.pin_memory
        for each in decision.changes if pinned else view.placed:
            self._resources.update(each)


def log_decision(_event: Event, outcome: Outcome, _view: NodeView) -> None:
    """Log what was decided; an observer of the node, because log writers can be slow."""
    if not isinstance(outcome, Decision):  # the caller logs a refusal
        return
    asked = "-"
    if outcome.explanation is not None:
        asked = outcome.explanation.container
        if outcome.placement is not None:
            fields = {
                "container": asked,
                "cpus": outcome.placement.cpus,
                "mems": outcome.placement.mems,
                "pool": outcome.explanation.pool_name,
            }
            log.info("placed", extra=fields)
    for warning in outcome.warnings:
        log.warning("warning", extra={"container": asked, "text": warning})
    for note in outcome.notes:
        log.info("note", extra={"container": asked, "text": note})
