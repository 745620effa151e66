"""Confirmation: which changes were sent to the runtime, and not seen in force yet.

Rule 1: a change is *decided* by the engine, *told* once it was sent, and *confirmed* only when it
was seen in force. Rule 2: what is sent while the runtime is busy with a container is lost for its
cgroup; the table is in docs/runtime.md:

| phase    | from                     | until          | an update of it                           |
|----------|--------------------------|----------------|-------------------------------------------|
| CREATING | the answer of its CREATE | POST_CREATE    | is skipped                                |
| CREATED  | POST_CREATE              | START          | its spec changes, maybe after it was read |
| STARTING | START                    | POST_START     | its spec changes, which was read already  |
| RUNNING  | POST_START, POST_UPDATE  | UPDATE, STOP   | takes effect                              |
| UPDATING | the answer of its UPDATE | POST_UPDATE    | takes effect, maybe before what was asked |

Knows no files and no clock of its own; `enforcement` looks and acts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class Phase(StrEnum):
    """What the runtime is doing with a container."""

    CREATING = "creating"
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    UPDATING = "updating"


# What a cgroup holds in these stays, unless somebody writes it: the runtime has read the spec.
SETTLED = (Phase.STARTING, Phase.RUNNING)
# In these there is a cgroup to look at, whenever one looks.
LIVING = (Phase.STARTING, Phase.RUNNING, Phase.UPDATING)


class Sent(Struct, frozen=True, kw_only=True):
    """The latest change of a container that was sent and not seen in force."""

    since: float  # seconds of a monotonic clock
    event: int  # the number of the runtime's requests when it was sent
    lost: bool  # the runtime may never write it to the cgroup


class Confirmations:
    """What is not confirmed, of the containers of one runtime."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}  # by container id
        self._phases: dict[str, Phase] = {}
        self._events = 0
        self.latest = -math.inf  # when the latest request came, in seconds of a monotonic clock

    def phase(self, container_id: str) -> Phase:
        """Return what the runtime is doing with a container; one not heard of runs."""
        return self._phases.get(container_id, Phase.RUNNING)

    def enter(self, container_id: str, phase: Phase) -> None:
        """Take note of the phase that a container is in now."""
        if phase is Phase.RUNNING:
            self._phases.pop(container_id, None)
        else:
            self._phases[container_id] = phase

    @property
    def any_on_the_way(self) -> bool:
        """Whether the runtime is about to create, start or update any container."""
        return any(phase is not Phase.CREATED for phase in self._phases.values())

    def note_request(self, now: float) -> None:
        """Take note of a request *now*: the runtime has handled all answers before it."""
        self._events += 1
        self.latest = now

    def note_answer(self, container_id: str, now: float) -> None:
        """Take note of what went to a container with the answer about itself."""
        self.sent[container_id] = Sent(since=now, event=self._events, lost=False)

    def mark_sent(self, container_ids: Iterable[str], now: float) -> None:
        """Take note of updates that were sent beside what the runtime asked about."""
        for each in container_ids:
            lost = self.phase(each) is not Phase.RUNNING
            self.sent[each] = Sent(since=now, event=self._events, lost=lost)

    def has_handled(self, container_id: str) -> bool:
        """Return whether the runtime has certainly handled what a container was sent."""
        return self.sent[container_id].event < self._events

    def may_be_lost(self, container_id: str) -> bool:
        """Return whether a container may never get what it was sent."""
        sent = self.sent.get(container_id)
        return sent is not None and sent.lost

    def confirm(self, container_id: str) -> None:
        """Take note that the latest change of a container was seen in force."""
        self.sent.pop(container_id, None)

    def forget(self, container_id: str) -> None:
        """Forget a container that is gone."""
        self.sent.pop(container_id, None)
        self._phases.pop(container_id, None)

    def restart(self, phases: Iterable[tuple[str, Phase]]) -> None:
        """Forget everything but the *phases* that the runtime has just listed containers in."""
        self.sent.clear()
        self._phases.clear()
        for container_id, phase in phases:
            self.enter(container_id, phase)
