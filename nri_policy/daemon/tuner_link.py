"""Tuner link: has the tuner set what settings, machine and grants need (spec classes.md §0).

The daemon itself can write no tunable. It sends the tuner all values each time; the tuner keeps
them, and the originals, while no daemon runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

from nri_policy.engine.event import Event
from nri_policy.foundation.clock import Clock
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.power import Power, power_of
from nri_policy.node import Node, NodeView, Outcome, assign_cpus
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Audit, Settings
from nri_policy.tuning.cpu_classes import find_faults, find_wishes
from nri_policy.tuning.decision import State
from nri_policy.tuning.items import Desired, Item
from nri_policy.tuning.protocol import Reply, Tunable, TunerError

PERIOD = 60.0  # seconds between two questions to the tuner while nothing changes


class Ask(Protocol):
    """Sends the tuner all desired values; None only asks. Raises TunerError."""

    def __call__(self, desired: Desired | None = None, *, repair: bool = False) -> Reply:
        """Return the tuner's reply."""
        ...


def no_tuner(desired: Desired | None = None, *, repair: bool = False) -> Reply:
    """Answer for a tuner where there is none: TunerError."""
    del desired, repair
    raise TunerError("there is no tuner")


def check_hardware(settings: Settings, root: Path, machine: Machine) -> tuple[str, ...]:
    """Return notices on what settings ask for that the machine below *root* does not have.

    Raises CapacityError where the settings cannot be in force without it.
    """
    if not settings.cpu_classes:
        return ()
    faults = [*find_faults(settings.cpu_classes, power_of(root, machine))]
    for each in faults:
        if each.fatal:
            raise CapacityError(f"{each.path}: {each.text}")
    return tuple(f"{each.path}: {each.text}" for each in faults)


class TunerLink:
    """What the tuner was asked for, and its latest answer."""

    def __init__(
        self, node: Node, root: Path, ask: Ask, *, synchronized: asyncio.Event, clock: Clock
    ) -> None:
        """*root* has the host's /sys."""
        self._node = node
        self._root = root
        self._ask = ask
        self._synchronized = synchronized
        self._clock = clock
        self._changed = asyncio.Event()
        self._seen: tuple[Machine, Power] | None = None
        self._trouble = ""
        self._asked = False  # whether the tuner was asked for any value
        self.unmet: Mapping[str, tuple[str, ...]] = {}  # by what asked for it
        self.tunables: Mapping[Item, Tunable] = {}

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Have the tuner informed soon; an observer of the node."""
        del event, outcome, view
        self._changed.set()

    async def run(self) -> NoReturn:
        """Inform the tuner as long as the daemon runs, once the containers are known."""
        await self._synchronized.wait()
        while True:
            self._changed.clear()
            await asyncio.to_thread(self.inform)
            await self._clock.set_within(PERIOD, self._changed)

    def inform(self) -> None:
        """Tell the tuner what must be set now, and learn how that is; for any thread."""
        view = self._node.view
        wishes = find_wishes(
            assign_cpus(view),
            self._power(view),
            [each.cpus for each in view.layout.machine.packages],
        )
        self.unmet = wishes.unmet
        self._send(wishes.items, repair=view.layout.settings.audit is Audit.REPAIR)

    def release(self) -> None:
        """Have the tuner restore all original values."""
        self._send({}, repair=False)

    def _send(self, desired: Desired, *, repair: bool) -> None:
        self._trouble = ""
        try:
            reply = self._ask(desired, repair=repair)
        except TunerError as error:
            self.tunables = {}
            if desired or self._asked:
                self._trouble = str(error)
            return
        self._asked = bool(desired)
        self.tunables = {each.item: each for each in reply.tunables}

    def _power(self, view: NodeView) -> Power:
        """Return what can be set; it is read again when the machine has changed."""
        if not view.layout.settings.cpu_classes:
            return Power()
        machine = view.layout.machine
        if self._seen is None or self._seen[0] is not machine:
            self._seen = machine, power_of(self._root, machine)
        return self._seen[1]

    def of_origin(self, origin: str) -> tuple[tuple[Tunable, ...], tuple[str, ...]]:
        """Return what is set for a container, and what it does without, and why."""
        tunables = (each for each in self.tunables.values() if origin in each.origin)
        return tuple(tunables), self.unmet.get(origin, ())

    def problems(self) -> Iterator[str]:
        """Yield what is not as it must be, for `status`."""
        if self._trouble:
            yield f"CPU classes are not in force: {self._trouble}"
        states = Counter(each.state for each in self.tunables.values())
        for state in (State.PENDING, State.CONTESTED, State.UNSUPPORTED):
            if count := states[state]:
                yield f"tunables that are {state}: {count} (see nri-policy tunables)"
