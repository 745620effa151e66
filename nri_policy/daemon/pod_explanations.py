"""Explanations in pods: the first lines of `explain` as an annotation of the pod (`kube.why`).

So pod authors can read them who may neither log in to the node nor execute a command in the
daemon's pod. Rule 1: nothing of the daemon waits for it, and without rights or a cluster all else
goes on. Rule 2: writes are bounded as events are: BURST at once, then one every INTERVAL seconds,
those of pods that something happened to first. Changes by others wait until a pod was not written
for PAUSE seconds. Rule 3: a text names no container of another namespace. Rule 4: an annotation is
written only if its text has changed, and to the pod of that uid only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http.client import CONFLICT, FORBIDDEN, NOT_FOUND, UNPROCESSABLE_ENTITY
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.control.decision_log import DecisionLog, Refusal
from nri_policy.engine.event import (
    Created,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    Synchronized,
)
from nri_policy.engine.grant import Decision
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.wording import printable
from nri_policy.kube.client import PODS, Client
from nri_policy.kube.errors import APIError
from nri_policy.kube.why import WHY
from nri_policy.node import Node, NodeView, Outcome
from nri_policy.report import (
    ExplanationReport,
    answer_report,
    describe_outcome,
    explanation_report,
    held_hints,
    opening_lines,
)
from nri_policy.workload.pod import Pod

log = logging.getLogger(__name__)

SETTLE = 5.0  # seconds until a pod's text is made: its containers start one after the other
PAUSE = 600.0  # seconds between two writes of a pod, if only others have changed it
BURST = 25  # writes at once
INTERVAL = 10.0  # seconds for each one more
MAX_TEXT = 4096  # characters
_GONE = {NOT_FOUND, CONFLICT, UNPROCESSABLE_ENTITY}  # the last for another uid
_BACKOFF = partial(backoff, least=1.0, most=60.0)


class _Pending(Struct, frozen=True):
    """A pod whose text may have changed."""

    pod: Pod
    due: float
    own: bool  # whether something happened to the pod itself


class _Written(Struct, frozen=True):
    """The latest write to a pod."""

    pod: Pod
    text: int  # hash of it
    at: float


class PodExplanations:
    """Keeps the annotations of one node's pods."""

    def __init__(
        self,
        client: Client | None,
        node: Node,
        decision_log: DecisionLog,
        *,
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = _BACKOFF,
    ) -> None:
        """*delay* is the seconds after so many failures in a row."""
        self._client = client
        self._node = node
        self._decision_log = decision_log
        self._clock = clock
        self._delay = delay
        self._pending: dict[str, _Pending] = {}  # by uid of the pod, as the next table
        self._written: dict[str, _Written] = {}
        self._changed = asyncio.Event()
        self._paid_until = self._clock.now()  # when as many writes would be through, by INTERVAL
        self._not_before = float("-inf")
        self._failures = 0
        self._error = ""

    @property
    def _wanted(self) -> bool:
        return self._node.view.layout.settings.pod_explanations

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Mark the pods whose texts *event* may have changed; an observer of the node."""
        if isinstance(event, PodStopped):
            self._pending.pop(event.pod_id, None)
            self._written.pop(event.pod_id, None)
        if self._client is None:
            return
        if not view.layout.settings.pod_explanations:
            if isinstance(event, Reconfigured):  # it may have been on: the annotations go
                for written in self._written.values():
                    self._mark(written.pod, own=True)
            return
        for pod in _own_pods(event, view):
            self._mark(pod, own=True)
        changed: Iterable[str] = outcome.changes if isinstance(outcome, Decision) else ()
        if isinstance(event, Synchronized | Reconfigured):
            changed = view.placed
        for container_id in changed:
            if container_id in view.placed:
                self._mark(view.placed[container_id].container.pod, own=False)

    def _mark(self, pod: Pod, *, own: bool) -> None:
        due = self._clock.now() + SETTLE
        if not own and pod.id in self._written:
            due = max(due, self._written[pod.id].at + PAUSE)
        before = self._pending.get(pod.id)
        if before is None or (own and not before.own):
            self._pending[pod.id] = _Pending(pod, due, own)
            self._changed.set()

    def problems(self) -> Iterator[str]:
        """Yield why `podExplanations` is not in force, if it is not."""
        if self._wanted and self._client is None:
            yield "podExplanations: no cluster is known: neither in a pod nor --kubeconfig"
        elif self._wanted and self._error:
            yield f"podExplanations: {self._error}"

    async def run(self) -> NoReturn:
        """Write what is due, as long as the daemon runs."""
        while True:
            self._changed.clear()
            await self._clock.set_within(await self.step(), self._changed)

    async def step(self) -> float:
        """Write one pod's annotation if one is due; return the seconds until the next may be."""
        if self._client is None or not self._pending:
            return float("inf")
        now = self._clock.now()
        allowed = max(self._paid_until - (BURST - 1) * INTERVAL, self._not_before)
        ready = [each for each in self._pending.values() if each.due <= now]
        if now < allowed or not ready:
            return max(allowed, min(each.due for each in self._pending.values())) - now
        pending = min(ready, key=lambda each: (not each.own, each.due))
        pod = pending.pod
        text = self._text(pod) if self._wanted else ""
        known = self._written.get(pod.id)
        if known is not None and known.text == hash(text):
            self._pending.pop(pod.id, None)
            return 0.0
        try:
            await self._write(self._client, pod, text)
        except APIError as error:
            if error.code not in _GONE:
                self._fail(pod, error)
                return 0.0
            self._written.pop(pod.id, None)
        else:
            self._written[pod.id] = _Written(pod, hash(text), now)
            if not text:
                del self._written[pod.id]
        self._failures, self._error = 0, ""
        self._paid_until = max(self._paid_until, now) + INTERVAL
        if self._pending.get(pod.id) is pending:  # nothing has happened to it meanwhile
            del self._pending[pod.id]
        return 0.0

    async def _write(self, client: Client, pod: Pod, text: str) -> None:
        # with the uid the server refuses a namesake
        patch = {"metadata": {"uid": pod.uid, "annotations": {WHY: text or None}}}
        await client.merge(PODS, pod.name, patch, namespace=pod.namespace)

    def _fail(self, pod: Pod, error: APIError) -> None:
        self._failures += 1
        self._not_before = self._clock.now() + max(error.wait, self._delay(self._failures))
        rights = "; configs/kustomize/explanations has the rights"
        text = f"{error}{rights if error.code == FORBIDDEN else ''}"
        if text != self._error:
            extra = {"pod": f"{pod.namespace}/{pod.name}", "reason": text}
            log.warning("explanation-not-written", extra=extra)
        self._error = text

    def _text(self, pod: Pod) -> str:
        """Return the lines on each container of a pod; empty if none is known."""
        parts = []
        for report in _explain(self._node.view, self._decision_log.refusals, pod):
            name = report.container.rpartition("/")[2]
            lines = [f"  {label}: {line}" for label, line in opening_lines(report)]
            parts.append("\n".join([f"{name}: {describe_outcome(report)}", *lines]))
        text = printable("\n".join(parts))
        return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _own_pods(event: Event, view: NodeView) -> Iterator[Pod]:
    """Yield the pod that something happened to."""
    if isinstance(event, Created):
        yield event.container.pod
    elif isinstance(event, Resized) and event.container_id in view.placed:
        yield view.placed[event.container_id].container.pod


def _explain(
    view: NodeView, refusals: Mapping[str, Refusal], pod: Pod
) -> Iterator[ExplanationReport]:
    """Yield an explanation of each container of a pod that is placed, or was refused."""
    names = set()
    for placed in view.placed.values():
        if placed.container.pod.id != pod.id:
            continue
        names.add(placed.container.full_name)
        devices = held_hints(view.holding(placed), view.layout.topology_hints)
        answer = answer_report(view, placed, devices, reader=pod.namespace)
        report = explanation_report(placed.explanation, placed.grant)
        yield replace(report, answer=answer, devices=devices)
    for name, refusal in refusals.items():
        if refusal.container.pod.id == pod.id and refusal.pod_exists and name not in names:
            yield explanation_report(refusal.explanation, None)
