"""Node: the engine, its turn, and whoever follows what it decides.

Owns the only lock around the engine. What must not be interrupted, a request of the runtime from
its event to its answer, happens in a turn: `async with node.turn`. Turns come in the order in
which they were asked for. Reading needs none: `view` is replaced after each event and each change
of the pods, as a whole.

An answer waits for the engine and for `commit`, and for nothing else: observers are called in one
pass for all that was decided, once the task that handles a request gives way, which is when its
answer is on the wire. Who reads what an observer has noted lets that pass run first: `catch_up`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Event, kind
from nri_policy.engine.grant import Decision, Outcome, Placement
from nri_policy.foundation.refusal import Refused
from nri_policy.node.view import NodeView, Sandbox, view_of
from nri_policy.workload.pod import Container

log = logging.getLogger(__name__)

Observer = Callable[[Event, Outcome, NodeView], None]  # the view is the one after the event


class Node:
    """The containers of one node, and what decides about them; `view` is how it is now."""

    def __init__(
        self,
        engine: Engine,
        *,
        commit: Observer = lambda *_: None,
        took: Callable[[Event, float], None] = lambda *_: None,
    ) -> None:
        """Take the engine, what must be done with each event before its answer, and observers.

        *took* hears of each event how many seconds the engine took for it.
        """
        self._engine = engine
        self._commit = commit
        self._took = took
        self._pending: deque[tuple[Event, Outcome, NodeView, float]] = deque()
        self._turn = asyncio.Lock()
        self._observers: list[Observer] = []
        self.view = view_of(engine)

    @property
    def turn(self) -> AbstractAsyncContextManager[None]:
        """What to enter for events to be handled, alone until it is left; again and again."""
        return self._turn

    def observe(self, *observers: Observer) -> None:
        """Have *observers* called with each new event and what came of it, soon after `handle`.

        In the order of the events, and for each in the order in which they were given here.
        """
        self.catch_up()
        self._observers += observers

    def catch_up(self) -> None:
        """Have observers hear now of all that was decided; what one of them fails in is logged."""
        while self._pending:
            event, outcome, view, seconds = self._pending.popleft()
            self._took(event, seconds)
            for observer in self._observers:
                try:
                    observer(event, outcome, view)
                except Exception:  # a bug there is no reason for others not to hear
                    log.exception("observer-failed", extra={"kind": kind(event)})

    def handle(self, event: Event) -> Decision:
        """Decide on *event*; to be called in a turn.

        Refused as the engine raises it: nothing changed.
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
        asyncio.get_running_loop().call_soon(self.catch_up)  # the first one finds all of them
        if isinstance(outcome, Decision):
            return outcome
        raise outcome

    def replace_pods(self, pods: Mapping[str, Sandbox]) -> None:
        """Have *pods*, by id, be those that exist; to be called in a turn."""
        assert self._turn.locked(), "pods change in a turn"
        self.view = replace(self.view, pods=pods)

    def of_pod(self, pod_id: str) -> Sequence[str]:
        """Return the ids of a pod's containers in `view`, without looking at all others."""
        return [*self._engine.state.of_pod(pod_id)]

    def interim_placement(self, container: Container) -> Placement:
        """Return where a container can wait that is admitted before it is decided on."""
        return self._engine.interim_placement(container)

    def fork(self) -> Engine:
        """Return an independent engine in the same state, to try events on."""
        return self._engine.fork()
