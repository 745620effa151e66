"""The real engine, asked once for each event in each state: what it answered is remembered.

So a node of the model costs a table's look-up, and its state is one number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Event, StoredGrant
from nri_policy.engine.grant import Decision
from nri_policy.foundation.refusal import Refused
from nri_policy.hardware.machine import Machine
from nri_policy.node import Node, NodeView, Sandbox, view_of
from nri_policy.settings import Settings

EMPTY_ENGINE = 0  # the state of an engine that holds nothing


class Engines:
    """All states of the engine that were met."""

    def __init__(self, machine: Machine, settings: Settings) -> None:
        self.engines: list[Engine] = []
        self._views: list[NodeView] = []
        self._numbers: dict[str, int] = {}  # by what tells states apart
        self._steps: dict[tuple[int, str], tuple[int, Decision | Refused]] = {}
        self._pods: list[Mapping[str, Sandbox]] = [{}]
        self._seen: dict[tuple[int, int], NodeView] = {}
        assert self._enter(Engine(machine, settings)) == EMPTY_ENGINE

    def step(self, number: int, event: Event) -> tuple[int, Decision | Refused]:
        """Return the state after an event, and what the engine decided."""
        key = number, repr(event)
        if key not in self._steps:
            engine = self.engines[number].fork()
            try:
                outcome: Decision | Refused = engine.handle(event)
            except Refused as error:
                outcome = error
            self._steps[key] = self._enter(engine), outcome
        return self._steps[key]

    def pods(self, pods: Mapping[str, Sandbox]) -> int:
        """Return the number of a table of pods."""
        for number, each in enumerate(self._pods):
            if each == pods:
                return number
        self._pods.append(pods)
        return len(self._pods) - 1

    def view(self, number: int, pods: int = 0) -> NodeView:
        """Return what is to be seen of a state, with a table of pods."""
        key = number, pods
        if key not in self._seen:
            self._seen[key] = replace(self._views[number], pods=self._pods[pods])
        return self._seen[key]

    def stored(self, number: int | None) -> Mapping[str, StoredGrant]:
        """Return what the store has of a state."""
        if number is None:
            return {}
        view = self._views[number]
        return {each: view.to_store(each) for each in view.placed}

    def _enter(self, engine: Engine) -> int:
        view = view_of(engine)
        placed = [
            (each, held.container.resources, held.container.state, held.request, held.grant)
            for each, held in view.placed.items()
        ]
        layout = view.layout.settings, view.layout.machine.online
        key = repr((placed, view.sent, view.quotas, view.resizing, layout))
        if key not in self._numbers:
            self._numbers[key] = len(self.engines)
            self.engines.append(engine)
            self._views.append(view)
        return self._numbers[key]


class ModelNode(Node):
    """A node whose engine is one of `Engines`; its state can be set."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(engines.engines[EMPTY_ENGINE])
        self._engines = engines
        self.number = EMPTY_ENGINE
        self.pods = 0

    def enter(self, number: int, pods: int) -> None:
        """Go to a state."""
        self.number, self.pods = number, pods
        self._engine = self._engines.engines[number]
        self.view = self._engines.view(number, pods)

    @property
    def turn(self) -> asyncio.Lock:
        """The one turn."""
        return self._turn

    def handle(self, event: Event) -> Decision:
        """Decide as the engine does."""
        number, outcome = self._engines.step(self.number, event)
        self.enter(number, self.pods)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def replace_pods(self, pods: Mapping[str, Sandbox]) -> None:
        """Have other pods."""
        self.enter(self.number, self._engines.pods(pods))
