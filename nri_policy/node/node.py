"""Node: the engine with its lock, and the observers of its decisions.

Owns the only lock around the engine. A request of the runtime, from its event to its answer, must
not be interrupted, so it takes a turn: `async with node.turn`. Turns are first in, first out.
Readers need no turn: `view` is replaced as a whole after each event and each change of the pods.

An answer waits only for the engine and for `commit`. Observers are called later, in one pass for
all pending decisions: after the step of a request that has sent its answer or waits for something,
otherwise in the next turn of the loop. A reader of data that an observer collects calls `catch_up`
first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Event, kind
from nri_policy.engine.grant import Decision, Outcome, Placement
from nri_policy.foundation.refusal import Refused
from nri_policy.node.view import NodeView, Sandbox, view_of
from nri_policy.workload.pod import Container

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Observer = Callable[[Event, Outcome, NodeView], None]  # the view is the one after the event


class Node:
    """The engine of one node; `view` is the present state."""

    def __init__(
        self,
        engine: Engine,
        *,
        commit: Observer = lambda *_: None,
        time_decision: Callable[[Event, float], None] = lambda *_: None,
    ) -> None:
        """Take the engine, the function that must run before each answer, and a timer.

        *time_decision* is called with each event and the seconds that the engine took for it.
        """
        self._engine = engine
        self._commit = commit
        self._took = time_decision
        self._pending: deque[tuple[Event, Outcome, NodeView, float]] = deque()
        self._turn = asyncio.Lock()
        self._stepping = False  # observers are called at the end of a step
        self._observers: list[Observer] = []
        self.view = view_of(engine)

    @property
    def turn(self) -> AbstractAsyncContextManager[None]:
        """The lock to hold while events are handled."""
        return self._turn

    def add_observers(self, *observers: Observer) -> None:
        """Have *observers* called with each new event and its outcome, soon after `handle`.

        In the order of the events, and for each event in the order given here.
        """
        self.catch_up()
        self._observers += observers

    def step(self, work: Callable[[], _T]) -> _T:
        """Do a step of a request, and call observers for what it has decided.

        The step ends with the answer, or where the request waits, so that the runtime need not.
        """
        self._stepping = True
        try:
            return work()
        finally:
            self._stepping = False
            self.catch_up()

    def catch_up(self) -> None:
        """Call observers for pending decisions now; log their exceptions."""
        while self._pending:
            event, outcome, view, seconds = self._pending.popleft()
            self._took(event, seconds)
            for observer in self._observers:
                try:
                    observer(event, outcome, view)
                except Exception:  # a bug of one observer must not keep the others from the event
                    log.exception("observer-failed", extra={"kind": kind(event)})

    def handle(self, event: Event) -> Decision:
        """Decide on *event*; must be called in a turn.

        Raises the engine's Refused; then nothing has changed.
        """
        assert self._turn.locked(), "events are handled in a turn"
        began = time.perf_counter()
        try:
            outcome: Outcome = self._engine.handle(event)
            self.view = view_of(self._engine, self.view.pods)
        except Refused as error:
            outcome = error
        seconds = time.perf_counter() - began
        self._commit(event, outcome, self.view)
        self._pending.append((event, outcome, self.view, seconds))
        if not self._stepping:
            asyncio.get_running_loop().call_soon(self.catch_up)  # the first call handles all
        if isinstance(outcome, Decision):
            return outcome
        raise outcome

    def replace_pods(self, pods: Mapping[str, Sandbox]) -> None:
        """Replace the table of existing pods, by id; must be called in a turn."""
        assert self._turn.locked(), "pods change in a turn"
        self.view = replace(self.view, pods=pods)

    def of_pod(self, pod_id: str) -> Sequence[str]:
        """Return the ids of a pod's containers in `view`, without a search over all."""
        return [*self._engine.state.of_pod(pod_id)]

    def predecessors(self, new: Container) -> Sequence[str]:
        """Return the ids of the pod's other containers of that name in `view`."""
        pod = new.pod
        before = (each for each in self._engine.state.of_pod(pod.id) if each != new.id)
        placed = self.view.placed
        return [each for each in before if placed[each].container.name == new.name]

    def interim_placement(self, container: Container) -> Placement:
        """Return the place of a container that is admitted before its decision."""
        return self._engine.interim_placement(container)

    def fork(self) -> Engine:
        """Return an independent engine in the same state, to try events on."""
        return self._engine.fork()
