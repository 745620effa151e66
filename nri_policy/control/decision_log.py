"""Decision log: what the engine's state does not keep of recent decisions.

Owns the latest refusals, the latest cause of each container's change, and the watchers of
decisions. Each has a maximum size, and no decision waits for a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import (
    Created,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    Synchronized,
    kind,
)
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import AGAIN, Decision, Grant, Placement
from nri_policy.node import NodeView, Outcome
from nri_policy.proto import control_pb2
from nri_policy.report import explanation_report
from nri_policy.workload.pod import Container

MAX_REFUSALS = 256
MAX_WAITING = 1024  # unread decisions of a watcher


class LaggingError(Exception):
    """A watcher did not keep up with the decisions."""


class Refusal(Struct, frozen=True, kw_only=True):
    """The latest refusal of a container's creation or resize."""

    explanation: Explanation
    container: Container
    pod_exists: bool = True

    @property
    def reason(self) -> str:
        """The text that the container's owner was shown."""
        return self.explanation.notes[-1]


_Entry = tuple[control_pb2.Decision, Explanation | None, Grant | None]


class Watcher:
    """A queue of decisions for one reader."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[_Entry] = asyncio.Queue(MAX_WAITING)
        self._lagged = False

    def put(self, entry: _Entry) -> None:
        """Queue a decision; drop it if the queue is full."""
        if self._waiting.full():
            self._lagged = True
        else:
            self._waiting.put_nowait(entry)

    async def next(self) -> control_pb2.Decision:
        """Return the next decision; raises LaggingError after one was dropped."""
        if self._lagged:
            raise LaggingError(f"more than {MAX_WAITING} decisions waited to be read")
        message, explanation, grant = await self._waiting.get()
        if explanation is not None and not message.summary:  # made only if it is read
            message.summary = explanation_report(explanation, grant).summary
        return message


class DecisionLog:
    """Records the decisions of one node."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self.refusals: dict[str, Refusal] = {}  # by namespace/pod/name, the latest last
        self.latest: Explanation | None = None  # of a decision about a container
        self.causes: dict[str, str] = {}  # latest cause of each container's change, by name

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """Yield a watcher of the decisions from now on."""
        watcher = Watcher()
        self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Record the outcome of *event*, as an observer of the node."""
        explanation = grant = None
        if isinstance(outcome, Decision):
            self._update(event, outcome, view)
            explanation, grant = outcome.explanation, outcome.grant
        elif isinstance(event, Created | Resized):
            explanation = self._explain_refusal(event, outcome, view)
        self.latest = explanation or self.latest
        if not self._watchers:
            return
        message = control_pb2.Decision(event=kind(event))
        if explanation is not None:
            message.container = explanation.container
            message.outcome = explanation.kind.value
            message.pool = explanation.pool_name or ""
        if isinstance(outcome, Decision):
            _fill(message, outcome, view)
        elif explanation is None:
            message.outcome, message.summary = DecisionKind.REFUSED.value, str(outcome)
        for watcher in self._watchers:
            watcher.put((message, explanation, grant))

    def _update(self, event: Event, decision: Decision, view: NodeView) -> None:
        for name in decision.released:
            self.causes.pop(name, None)
            self.refusals.pop(name, None)  # of a resize: the container still had its place
        if decision.explanation is not None:
            self.refusals.pop(decision.explanation.container, None)
        for tenant in _tenants(event.container_id, view) if isinstance(event, Resized) else ():
            self.refusals.pop(tenant.full_name, None)
        for each, change in decision.changes.items():
            if change.cause != AGAIN:
                self.causes[view.placed[each].container.full_name] = change.cause
        if isinstance(event, Synchronized | Reconfigured):
            there = view.by_name()
            self.causes = {name: self.causes[name] for name in self.causes if name in there}
        if isinstance(event, PodStopped | Synchronized):
            gone = event.pod_id if isinstance(event, PodStopped) else None
            for name, refusal in self.refusals.items():
                if gone in (None, refusal.container.pod.id):
                    self.refusals[name] = replace(refusal, pod_exists=False)

    def _explain_refusal(
        self, event: Created | Resized, error: Exception, view: NodeView
    ) -> Explanation:
        container = _container_of(event, view)
        explanation = error.explanation if isinstance(error, PlacementError) else None
        explanation = explanation or Explanation(
            container=container.full_name,
            kind=DecisionKind.REFUSED,
            request=None,
            tree=view.layout.tree,
            pool=None,
            scores=None,
            notes=(str(error),),
        )
        subjects = [container]
        if container.stands_for_pod:  # the refusal concerns its tenants, which stay unchanged
            subjects = _tenants(container.id, view)
        for each in subjects:
            name = each.full_name
            self.refusals.pop(name, None)  # so that the latest is the last
            why = replace(explanation, container=name)
            self.refusals[name] = Refusal(explanation=why, container=each)
        while len(self.refusals) > MAX_REFUSALS:
            del self.refusals[next(iter(self.refusals))]
        return explanation


def _tenants(pod_id: str, view: NodeView) -> list[Container]:
    """Return the containers in a pod's room; none if it has no room."""
    placed = view.placed.values() if pod_id in view.rooms else ()
    found = (each.container for each in placed if each.grant.tenant)
    return [each for each in found if each.pod.id == pod_id]


def _container_of(event: Created | Resized, view: NodeView) -> Container:
    """Return the container of a refused *event*."""
    if isinstance(event, Created):
        return event.container
    return view.held_by(event.container_id).container


def _fill(message: control_pb2.Decision, decision: Decision, view: NodeView) -> None:
    if decision.placement is not None:
        message.cpus = str(decision.placement.cpus)
        message.mems = str(decision.placement.mems)
    elif decision.container_id is not None and decision.container_id in view.placed:  # it started
        message.container = view.placed[decision.container_id].container.full_name
    message.changes.extend(
        _change(view.placed[each].container.full_name, change)
        for each, change in decision.changes.items()
    )
    message.released.extend(decision.released)
    message.warnings.extend(decision.warnings)


def _change(full_name: str, change: Placement) -> control_pb2.Change:
    return control_pb2.Change(
        container=full_name,
        cpus=str(change.cpus),
        mems=str(change.mems),
        cause=change.cause,
    )
