"""Decisions as events of their pods, one line each, for `kubectl describe pod`.

There are no events while nothing is pinned.
"""

from __future__ import annotations

from collections.abc import Callable

from nri_policy.engine.event import Created, Event, Resized
from nri_policy.engine.grant import Decision
from nri_policy.kube.events import ClusterEvent, Subject
from nri_policy.node import NodeView, Outcome
from nri_policy.report import explanation_report
from nri_policy.settings import PodEvents
from nri_policy.workload.pod import Container

_REASONS = {Created: ("Placed", "FailedPlacement"), Resized: ("Resized", "FailedResize")}


class DecisionEvents:
    """Records decisions about containers as events, as far as the settings want it."""

    def __init__(self, record: Callable[[ClusterEvent], None]) -> None:
        self._record = record

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Record the outcome of *event*, as an observer of the node."""
        settings = view.layout.settings
        if settings.events is PodEvents.OFF or settings.pins_nothing:
            return
        if isinstance(outcome, Decision) and settings.events is PodEvents.REFUSALS:
            return
        if isinstance(event, Created | Resized) and (container := _container_of(event, view)):
            self._record_event(type(event), container, outcome)

    def _record_event(
        self, kind: type[Created | Resized], container: Container, outcome: Outcome
    ) -> None:
        text = _text(outcome)
        if not text:
            return
        pod = container.pod
        refused = isinstance(outcome, Exception)
        self._record(
            ClusterEvent(
                about=Subject.pod(pod.namespace, pod.name, pod.uid),
                reason=_REASONS[kind][refused],
                text=f"container {container.name}: {text}",
                warning=refused,
            )
        )


def _container_of(event: Created | Resized, view: NodeView) -> Container | None:
    """Return the container of *event*, None if it is unknown."""
    if isinstance(event, Created):
        return event.container
    placed = view.placed.get(event.container_id)
    return None if placed is None else placed.container


def _text(outcome: Outcome) -> str:
    """Return the decision and its reason in one line; empty if nothing was placed."""
    if isinstance(outcome, Exception):
        return str(outcome)
    if outcome.explanation is None or outcome.placement is None:
        return ""
    parts = [explanation_report(outcome.explanation, outcome.grant).summary]
    if outcome.placement.cpus:
        parts.append(f"CPUs {outcome.placement.cpus}")
    if outcome.placement.mems:
        parts.append(f"memory nodes {outcome.placement.mems}")
    return "; ".join(parts)
