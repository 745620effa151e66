"""Tuner link: has the tuner set what settings, machine and grants need (classes.md §0).

The daemon itself can write no tunable. It sends the tuner all values each time; the tuner keeps
them, and the originals, while no daemon runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

from msgspec import Struct

from nri_policy.engine.event import Event, Reconfigured
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.wording import some
from nri_policy.hardware.hotplug import Listen, uevents_of
from nri_policy.hardware.interrupts import read_interrupts
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.power import Power, power_of
from nri_policy.hardware.resctrl import resctrl_of
from nri_policy.node import (
    Node,
    NodeView,
    Outcome,
    Placed,
    assign_cpus,
    list_devices,
    uses_cpu_classes,
    uses_interrupts,
    wish_interrupts,
)
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import TunableChange
from nri_policy.settings import RDT, Audit, IsolateInterrupts, Settings
from nri_policy.tuning.cpu_classes import Wishes, find_faults, find_wishes
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.interrupts import InterruptWishes
from nri_policy.tuning.items import Desired, Item, Kind, Wish
from nri_policy.tuning.protocol import Reply, Tunable, TunerError
from nri_policy.tuning.rdt import resolve

PERIOD = 60.0  # seconds between two questions to the tuner while nothing changes
UNANSWERED = "the tuner does not answer: see nri-policy status"
PAUSE = 0.05  # seconds after a decision, for those that come with it, unless a start waits
MAX_WAIT = 0.2  # seconds that a container's start waits for the values of its CPUs
# Drivers take interrupts for a device before the kernel reports that they are bound to it.
_DRIVERS = uevents_of(("pci", "virtio"), ("bind", "unbind"))


class Ask(Protocol):
    """Sends the tuner all desired values; None only asks. Raises TunerError."""

    def __call__(
        self, desired: Desired | None = None, *, repair: bool = False, whole: bool = False
    ) -> Reply:
        """Return the tuner's reply; *whole*: all stays as it was if a value is refused."""
        ...


def no_tuner(desired: Desired | None = None, *, repair: bool = False, whole: bool = False) -> Reply:
    """Answer for a tuner where there is none: TunerError."""
    del desired, repair, whole
    raise TunerError("there is no tuner")


def check_hardware(settings: Settings, root: Path, machine: Machine) -> tuple[str, ...]:
    """Return notices on what settings ask for that the machine below *root* does not have.

    Raises CapacityError where the settings cannot be in force without it.
    """
    faults = [*resolve(settings.control.rdt, resctrl_of(root))[1]]
    if settings.cpu_classes:
        faults += find_faults(settings.cpu_classes, power_of(root, machine))
    for each in faults:
        if each.fatal:
            raise CapacityError(f"{each.path}: {each.text}")
    return tuple(f"{each.path}: {each.text}" for each in faults)


class TunablesPreview(Struct, frozen=True, kw_only=True):
    """What pods or settings would change."""

    changes: Mapping[str, TunableChange]  # by item
    unmet: Mapping[str, tuple[str, ...]]  # by container: which values it would not get, and why


class TunerLink:
    """What the tuner was asked for, and its latest answer."""

    def __init__(  # noqa: PLR0913 - keywords: what it hears of, and tells
        self,
        node: Node,
        root: Path,
        ask: Ask,
        *,
        synchronized: asyncio.Event,
        groups_changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        """*root* has the host's /sys; *groups_changed* hears of new groups of resctrl."""
        self._node = node
        self._root = root
        self._ask = ask
        self._synchronized = synchronized
        self._groups_changed = groups_changed
        self._clock = clock
        self._changed = asyncio.Event()
        # Whether any decision may change what must be set: something was asked for, or is since.
        self._concerned = True
        self._awaited = asyncio.Event()  # a container's start waits for the next question
        # done once the tuner knows the decisions before the current question; None before `run`
        self._informed: asyncio.Future[None] | None = None
        # the same for the decisions since that question began; made by `run`
        self._informed_next: asyncio.Future[None]
        self._turn = threading.Lock()  # held while the tuner is asked for values
        self._seen: tuple[Machine, Power] | None = None
        self._trouble = ""
        self._foreign: list[str] = []
        # the latest request, if the kernel has all of its values
        self._in_force: tuple[Desired, bool] | None = None
        self._due = 0.0  # when that request is sent again
        self._desired: Desired = {}  # the values of the latest request
        self._asked = False  # whether the tuner was asked for any value
        self.unmet: Mapping[str, tuple[str, ...]] = {}  # of CPU classes, by container or setting
        self.unmet_interrupts: Mapping[str, tuple[str, ...]] = {}  # by container
        self.tunables: Mapping[Item, Tunable] = {}
        self.writes: Mapping[tuple[str, str], int] = {}  # by kind and result

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Have the tuner informed soon, unless nothing was set nor is to be; an observer."""
        del outcome
        if not self._concerned:
            self._concerned = isinstance(event, Reconfigured) or _concerns(view)
        if self._concerned:
            self._changed.set()

    async def run(self, listen: Listen = _DRIVERS) -> NoReturn:
        """Inform the tuner as long as the daemon runs, once the containers are known.

        *listen* calls its argument when the kernel has bound a driver to a device.
        """
        await self._synchronized.wait()
        loop = asyncio.get_running_loop()
        self._informed_next = loop.create_future()
        with listen(self._changed.set):
            while True:
                self._changed.clear()
                self._awaited.clear()
                informed = self._informed = self._informed_next
                self._informed_next = loop.create_future()
                before = self._list_groups()
                await asyncio.to_thread(self.inform)
                asks = self._desired or self.unmet_interrupts or self._trouble
                self._concerned = self._changed.is_set() or bool(asks)
                informed.set_result(None)
                if self._list_groups() != before:
                    self._groups_changed()
                if await self._clock.set_within(PERIOD, self._changed):
                    await self._clock.set_within(PAUSE, self._awaited)

    async def wait_for(self, placed: Placed) -> None:
        """Wait for a bounded time until the tuner has set what a container needs at its start.

        While the tuner does not answer, the container starts at once.
        """
        settings = self._node.view.layout.settings
        needed = placed.grant.own and (
            _uses_cpus(settings) or self._node.view.interrupts_of(placed) is not None
        )
        if needed and self._informed is not None and not self.unanswered:
            informed = self._informed
            if self._changed.is_set():
                self._awaited.set()
                informed = self._informed_next
            await self._clock.done_within(MAX_WAIT, informed)

    def inform(self) -> None:
        """Tell the tuner what must be set now, and learn how that is; for any thread."""
        with self._turn:
            try:
                desired, repair = self._compute(self._node.view)
            except TunerError as error:
                self._trouble, self._in_force = str(error), None
                return
            if (desired, repair) != self._in_force or self._clock.now() >= self._due:
                self._send(desired, repair=repair)

    def try_settings(self, view: NodeView) -> None:
        """Have the tuner set what *view*, with new settings, needs; for any thread.

        Raises CapacityError if the kernel refuses a value: all is as it was then (classes.md §0.6).
        Without a tuner nothing is set, and nothing refused.
        """
        with self._turn:
            self._in_force = None
            try:
                desired, repair = self._compute(view)
                if not desired:
                    return
                reply = self._ask(desired, repair=repair, whole=True)
            except TunerError:
                return
        if reply.not_taken:
            raise CapacityError(reply.not_taken)

    def _compute(self, view: NodeView) -> tuple[Desired, bool]:
        """Return what must be set now, and whether contested values are set again.

        Raises TunerError if that depends on what the tuner has set, and it cannot be asked.
        """
        cpus = self._wish_cpus(view)
        interrupts = self._wish_interrupts(view, self.tunables.values())
        self.unmet, self.unmet_interrupts = cpus.unmet, interrupts.unmet
        self._desired = {**cpus.items, **interrupts.items}  # shown while no tuner answers
        if uses_interrupts(view) and not self.tunables:  # another daemon may have changed some
            interrupts = self._wish_interrupts(view, self._list_known())
            self.unmet_interrupts = interrupts.unmet
        settings = view.layout.settings
        groups = self._groups(settings.control.rdt)
        self._desired = {**cpus.items, **interrupts.items, **groups}
        return self._desired, settings.audit is Audit.REPAIR

    def _wish_cpus(self, view: NodeView) -> Wishes:
        packages = [each.cpus for each in view.layout.machine.packages]
        return find_wishes(assign_cpus(view), self._power(view), packages)

    def _wish_interrupts(self, view: NodeView, known: Iterable[Tunable]) -> InterruptWishes:
        """Return the wishes for interrupts, whose original values *known* has."""
        if not uses_interrupts(view):
            return InterruptWishes(items={}, unmet={})
        originals = {each.item: each.original for each in known if each.original is not None}
        found = read_interrupts(self._root, list_devices(view))
        return wish_interrupts(view, found, originals)

    def preview(self, before: NodeView, after: NodeView) -> TunablesPreview:
        """Return which tunables of CPUs and interrupts differ between two views; for any thread."""
        known = tuple(self.tunables.values())
        old, new = (
            (self._wish_cpus(view), self._wish_interrupts(view, known)) for view in (before, after)
        )
        was, would = ({**cpus.items, **irqs.items} for cpus, irqs in (old, new))
        changes = {}
        for item in sorted(was.keys() | would.keys()):
            old_wish, new_wish = was.get(item), would.get(item)
            change = TunableChange(
                before=old_wish.value if old_wish else None,
                after=new_wish.value if new_wish else None,
                origin=new_wish.origin if new_wish else (),
            )
            if change.before != change.after:
                changes[str(item)] = change
        unmet = {
            name: (*new[0].unmet.get(name, ()), *new[1].unmet.get(name, ()))
            for name in new[0].unmet.keys() | new[1].unmet.keys()
        }
        return TunablesPreview(changes=changes, unmet=unmet)

    def _groups(self, given: RDT) -> dict[Item, Wish]:
        """Return the wishes for the groups of `control.rdt`, without groups that others made."""
        resctrl = resctrl_of(self._root) if given.enable and given.partitions else None
        classes, _ = resolve(given, resctrl)
        kept = set[str]()
        if classes and resctrl is not None and not given.force:
            there = {each.name for each in classes} & {*resctrl.existing}
            kept = there - self._list_own_groups() if there else there
        self._foreign = sorted(kept)
        return {
            Item(Kind.RESCTRL, each.name, "schemata"): Wish(each.schemata, ("control.rdt",))
            for each in classes
            if each.name not in kept
        }

    def _list_own_groups(self) -> set[str]:
        """Return the groups that the tuner has made; TunerError."""
        return {
            each.item.id
            for each in self._list_known()
            if each.item.kind is Kind.RESCTRL and each.original is not None
        }

    def _list_known(self) -> tuple[Tunable, ...]:
        """Return how items are: another daemon may have had some set. TunerError."""
        return tuple(self.tunables.values()) or self._ask().tunables

    def _list_groups(self) -> set[str]:
        """Return the resctrl groups that were requested from the tuner and exist."""
        every = self.tunables.values()
        return {each.item.id for each in every if each.item.kind is Kind.RESCTRL and each.found}

    def release(self) -> None:
        """Have the tuner restore all original values."""
        with self._turn:
            self._send({}, repair=False)

    def _send(self, desired: Desired, *, repair: bool) -> None:
        self._in_force = None
        try:
            reply = self._ask(desired, repair=repair)
        except TunerError as error:
            self.tunables = {}
            self._trouble = str(error) if desired or self._asked else ""
            if not self._trouble:  # without a tuner, nothing is set that nothing asks for
                self._in_force, self._due = ({}, repair), self._clock.now() + PERIOD
            return
        self._trouble, self._asked = "", bool(desired)
        if all(each.state is ItemState.OK for each in reply.tunables):
            self._in_force, self._due = (desired, repair), self._clock.now() + PERIOD
        self.tunables = {each.item: each for each in reply.tunables}
        self.writes = {(each.kind, each.result): each.count for each in reply.writes}

    def _power(self, view: NodeView) -> Power:
        """Return what can be set; it is read again when the machine has changed."""
        if not uses_cpu_classes(view.layout.settings):
            return Power()
        machine = view.layout.machine
        if self._seen is None or self._seen[0] is not machine:
            self._seen = machine, power_of(self._root, machine)
        return self._seen[1]

    def of_origin(
        self, origin: str, *, interrupts: bool = False
    ) -> tuple[tuple[Tunable, ...], tuple[str, ...]]:
        """Return what is set for a container, and what it does without, and why.

        With *interrupts*, for its choice of interrupts; else for its CPU class.
        """
        tunables = (
            each
            for each in self._list_tunables()
            if origin in each.origin and (each.item.kind is Kind.IRQ) is interrupts
        )
        unmet = self.unmet_interrupts if interrupts else self.unmet
        return tuple(tunables), unmet.get(origin, ())

    @property
    def unanswered(self) -> bool:
        """Whether values must be set, and the tuner does not answer."""
        return bool(self._trouble)

    def _list_tunables(self) -> Iterable[Tunable]:
        """Return how all items are; where the tuner does not answer, what it would be asked."""
        if not self.unanswered:
            return self.tunables.values()
        return [
            Tunable(
                item=item,
                state=ItemState.PENDING,
                wished=wish.value,
                origin=wish.origin,
                why=UNANSWERED,
            )
            for item, wish in self._desired.items()
        ]

    def count_tunables(self) -> Mapping[tuple[str, str], int]:
        """Return how many tunables there are, by kind and state."""
        return Counter((each.item.kind.value, each.state.value) for each in self._list_tunables())

    def count_by_state(self) -> Mapping[str, int]:
        """Return how many tunables there are, by state, in the order of the states."""
        counts = Counter(each.state for each in self._list_tunables())
        return {state.value: counts[state] for state in ItemState if counts[state]}

    def problems(self) -> Iterator[str]:
        """Yield the problems of tunables, for `status`."""
        if self._trouble:
            yield f"CPU classes, interrupts and RDT partitions are not set: {self._trouble}"
        if self._foreign:
            yield (
                f"groups of resctrl that exist already, and are not changed: {some(self._foreign)};"
                " control.rdt.force takes them over"
            )
        states = Counter(each.state for each in self.tunables.values())
        for state in (ItemState.PENDING, ItemState.CONTESTED, ItemState.UNSUPPORTED):
            if count := states[state]:
                yield f"tunables that are {state}: {count} (see nri-policy tunables)"


def _uses_cpus(settings: Settings) -> bool:
    """Return whether an exclusive CPU gets values different from other CPUs."""
    isolates = settings.isolate_interrupts is not IsolateInterrupts.OFF
    return isolates or uses_cpu_classes(settings)


def _concerns(view: NodeView) -> bool:
    """Return whether the latest decision may have something set, where nothing was."""
    changed = (view.placed.get(each) for each in view.touched.ids)
    return _uses_cpus(view.layout.settings) or any(
        each is not None and view.interrupts_of(each) is not None for each in changed
    )
