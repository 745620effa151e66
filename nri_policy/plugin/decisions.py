"""Decisions: events to the engine, and its decisions to all that follow from them.

Owns what is logged of a decision, and what becomes of a refusal. Whoever calls has the turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Reconfigured, Resized
from nri_policy.engine.grant import Decision
from nri_policy.engine.placement import RefusalError
from nri_policy.nri.errors import Refused
from nri_policy.nri.plugin import overdue
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.updates import Telling
from nri_policy.pools.capacity import CapacityError
from nri_policy.workload.annotations import AnnotationError

log = logging.getLogger(__name__)

Outcome = Decision | RefusalError | AnnotationError | CapacityError


class Decisions:
    """Has one engine decide."""

    def __init__(
        self,
        engine: Engine,
        telling: Telling,
        resources: ExposedResources,
        decided: Callable[[Event, Outcome, float], None],
    ) -> None:
        """*decided* is called with each event, what became of it and the engine's seconds."""
        self._engine = engine
        self._telling = telling
        self._resources = resources
        self._decided = decided

    @property
    def on_paper(self) -> bool:
        """Whether decisions are taken down only, as nothing is pinned."""
        settings = self._engine.layout.settings
        return not (settings.pin_cpu or settings.pin_memory)

    def decide(self, event: Event) -> Decision:
        """Hand *event* to the engine; a refusal becomes the request's error, `Refused`.

        Where all stays on paper nobody is kept from it.
        """
        began = time.perf_counter()
        try:
            decision = self._engine.handle(event)
        except (RefusalError, AnnotationError) as error:
            seconds = time.perf_counter() - began
            log.warning("event=refused container=%s reason=%r", self._asked(event), str(error))
            self._decided(event, error, seconds)
            if self.on_paper:
                return Decision()
            raise Refused(str(error)) from error
        self._note(event, decision, time.perf_counter() - began)
        return decision

    def reconfigure(self, event: Reconfigured) -> None:
        """Change what the decisions rest on.

        RefusalError or CapacityError: nothing has changed.
        """
        began = time.perf_counter()
        try:
            decision = self._engine.handle(event)
        except (RefusalError, CapacityError) as error:
            self._decided(event, error, time.perf_counter() - began)
            raise
        self._note(event, decision, time.perf_counter() - began)

    def _asked(self, event: Event) -> str:
        """Return the name of the container that *event* is about."""
        if isinstance(event, Created):
            return event.container.full_name
        if isinstance(event, Resized):
            return self._engine.state.placed[event.container_id].container.full_name
        return "-"

    def _note(self, event: Event, decision: Decision, seconds: float) -> None:
        """Keep what is to be told, and log one line."""
        self._decided(event, decision, seconds)
        if decision.explanation is not None and decision.placement is not None:
            # once the answer has left: whoever takes the log in may be slow
            asyncio.get_running_loop().call_soon(
                log.info,
                "event=placed container=%s cpus=%s mems=%s pool=%r",
                decision.explanation.container,
                decision.placement.cpus,
                decision.placement.mems,
                decision.explanation.pool_name,
            )
        self._telling.note(decision.changes)
        if decision.placement is not None and overdue():
            self._telling.note([decision.placement])
        for change in decision.changes:
            self._resources.update(change.container_id)
        asked = decision.explanation.container if decision.explanation else "-"
        for warning in decision.warnings:
            log.warning("event=warning container=%s text=%r", asked, warning)
