"""Tuner: brings items to their wished values, and back to their originals.

Owns the order of journal and writes. `decision` chooses the next step for each item.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.wording import quoted, some
from nri_policy.tuning.decision import (
    Attempts,
    ItemAction,
    ItemState,
    ReadFailure,
    Step,
    decide,
    record_entry,
    record_failure,
    record_repair,
    record_success,
)
from nri_policy.tuning.files import Files, describe_failure, is_refusal
from nri_policy.tuning.irqbalance import join_numbers, split_numbers
from nri_policy.tuning.items import Desired, Item, Kind, Wish, check, is_looser
from nri_policy.tuning.protocol import Tunable, Writes
from nri_policy.tuning.tuner_journal import TunerJournal

LOOK = 60.0  # seconds between two looks at all items
log = logging.getLogger(__name__)


class Tuner:
    """The items of one machine. Nothing is written before wishes are known."""

    def __init__(
        self,
        files: Files,
        journal: TunerJournal,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._files = files
        self._journal = journal
        self._clock = clock
        self._requested: Desired | None = None
        self._desired: Desired | None = None  # that, and what irqbalance must leave alone
        self._repair = False
        self._looked_at = 0.0
        self._attempts: dict[Item, Attempts] = {}
        self._steps: dict[Item, tuple[Step, str | ReadFailure]] = {}
        self._refused: dict[Item, str] = {}  # since the latest settings were tried
        self._written = Counter[tuple[str, str]]()

    def try_settings(self, desired: Desired, *, repair: bool) -> str:
        """Replace all wishes, as `set`, if the kernel takes the values that are new.

        Else put all back, and return what it refuses (classes.md §0.6).
        """
        before, repaired = self._requested, self._repair
        if before is None:
            before = {item: Wish(each.ours) for item, each in self._journal.entries.items()}
        self._refused.clear()
        self.set(desired, repair=repair)
        for item, why in self._refused.items():
            wish, old = desired.get(item), before.get(item)
            if wish is not None and (old is None or old.value != wish.value):
                self.set(before, repair=repaired)
                return f"{', '.join(wish.origin)}: {item} cannot be {quoted(wish.value)}: {why}"
        return ""

    def set(self, desired: Desired, *, repair: bool) -> None:
        """Replace all wishes, and carry out what can be done now."""
        before = self._requested or {}
        for item, attempts in [*self._attempts.items()]:
            old, new = before.get(item), desired.get(item)
            if (old and old.value) != (new and new.value):  # another value may succeed at once
                self._attempts[item] = replace(attempts, failures=0, retry_at=0.0)
        self._requested, self._repair = desired, repair
        self.look()

    def look(self) -> None:
        """Read all items, and write those that must be and can be written."""
        if self._requested is None:
            return
        self._looked_at = self._clock.now()
        self._steps = {}
        self._desired = {**self._requested, **dict(self._find_bans(self._requested))}
        # irqbalance learns first which interrupts it must not move. The governor performance hides
        # the energy preference, and the kernel refuses to write it. So other governors precede the
        # preferences, and the governor performance follows them.
        orders: tuple[list[Item], ...] = ([], [], [])
        for item in sorted(self._desired.keys() | self._journal.entries):
            hides = item.attribute == "governor" and self._target(item) == "performance"
            precedes = item.attribute == "governor" or item.kind is Kind.IRQBALANCE
            orders[2 if hides else not precedes].append(item)
        first, then, last = orders
        self._bring(first)
        self._bring(then)
        self._bring(self._without_waiting(last))
        self._drop()

    def _find_bans(self, requested: Desired) -> Iterator[tuple[Item, Wish]]:
        """Yield the wishes for each irqbalance: it moves none of the interrupts that are set."""
        numbers = {
            int(item.id) for item in requested if item.kind is Kind.IRQ and item.id != "default"
        }
        for item in self._files.list_balancers() if numbers else ():
            found, entry = self._files.read(item), self._journal.entries.get(item)
            if isinstance(found, ReadFailure) and found.absent:
                continue  # it has ended
            original = found if entry is None else entry.original
            own = set() if isinstance(original, ReadFailure) else split_numbers(original)
            yield item, Wish(join_numbers(numbers | own))

    def _bring(self, items: Iterable[Item]) -> None:
        """Write the due values of some items."""
        steps = {item: self._decide(item) for item in items}
        self._steps |= steps
        ready = self._record(
            [i for i, (step, _) in steps.items() if step.action is ItemAction.WRITE]
        )
        restored = [i for i, (step, _) in steps.items() if step.action is ItemAction.RESTORE]
        repaired = [item for item in ready if steps[item][0].state is ItemState.CONTESTED]
        if repaired:  # irqbalance moves hundreds of interrupts
            found = some(f"{item} was {steps[item][1]}" for item in repaired)
            log.warning("tunables-repaired", extra={"items": found})
        for item in [*ready, *restored]:
            self._write(item)

    def _without_waiting(self, governors: Iterable[Item]) -> Iterator[Item]:
        """Yield the *governors* that may be set; others wait for the preference they would hide."""
        for item in governors:
            step, _ = self._steps.get(
                replace(item, attribute="epp"), (Step(ItemAction.NOTHING), "")
            )
            if step.state is ItemState.PENDING:
                waits = Step(ItemAction.NOTHING, ItemState.PENDING, f"its epp is first: {step.why}")
                self._steps[item] = waits, self._read(item)
            else:
                yield item

    def _read(self, item: Item) -> str | ReadFailure:
        """Return the value of an item, but not what the kernel shows in its place."""
        found = self._files.read(item)
        if item.attribute != "epp" or found == self._target(item):
            return found
        governor = self._files.read(replace(item, attribute="governor"))
        return (
            ReadFailure("the governor performance hides it") if governor == "performance" else found
        )

    @property
    def next_look(self) -> float:
        """The seconds until the next look is due; infinite before wishes are known."""
        if self._desired is None:
            return math.inf
        times = [self._looked_at + LOOK]
        for item, (step, found) in self._steps.items():
            if (
                step.state is ItemState.PENDING
                and isinstance(found, str)
                and item in self._attempts
            ):
                times.append(self._attempts[item].retry_at)
        return max(0.0, min(times) - self._clock.now())

    def list_tunables(self) -> tuple[Tunable, ...]:
        """Return how all items are, as of the latest look; before the first, as the journal has."""
        entries = self._journal.entries
        items = self._steps or {item: self._decide_nothing(item) for item in entries}
        shown = []
        for item, (step, found) in items.items():
            wish, entry = (self._desired or {}).get(item), entries.get(item)
            if wish is None and entry is None:
                continue
            shown.append(
                Tunable(
                    item=item,
                    state=step.state,
                    wished=None if wish is None else wish.value,
                    found=None if isinstance(found, ReadFailure) else found,
                    original=None if entry is None else entry.original,
                    origin=() if wish is None else wish.origin,
                    why=step.why,
                )
            )
        return tuple(shown)

    def list_writes(self) -> tuple[Writes, ...]:
        """Return how many writes there were, by kind and result."""
        return tuple(Writes(*key, count) for key, count in sorted(self._written.items()))

    def _decide_nothing(self, item: Item) -> tuple[Step, str | ReadFailure]:
        return Step(ItemAction.NOTHING), self._files.read(item)

    def _decide(self, item: Item) -> tuple[Step, str | ReadFailure]:
        assert self._desired is not None, "requests are known"
        wish, found = self._desired.get(item), self._read(item)
        entry, attempts = self._journal.entries.get(item), self._attempts.get(item, Attempts())
        value = None if wish is None else wish.value
        original, stricter = found if entry is None else entry.original, ""
        if value is not None and isinstance(original, str) and is_looser(item, value, original):
            value, stricter = None, f"the original limit, {original}, is stricter"
        if stricter and entry is None:
            return Step(ItemAction.NOTHING, why=stricter), found
        step = decide(value, found, entry, attempts, self._clock.now(), repair=self._repair)
        step = replace(step, why=step.why or stricter)
        if step.action is ItemAction.WRITE and isinstance(found, str):
            try:
                check(item, found)
            except ValueError as error:  # it could not be written back
                step = Step(ItemAction.NOTHING, ItemState.UNSUPPORTED, str(error))
        if step.action is ItemAction.NOTHING and step.state is ItemState.OK and entry is not None:
            self._attempts[item] = record_success(attempts)
        return step, found

    def _with_action(self, action: ItemAction) -> list[Item]:
        return [item for item, (step, _) in self._steps.items() if step.action is action]

    def _record(self, items: list[Item]) -> list[Item]:
        """Store the entries of *items*; return the items to write now: all, or none."""
        if not items:
            return []
        assert self._desired is not None, "requests are known"
        entries = []
        for item in items:
            found, wish = self._steps[item][1], self._desired[item].value
            assert isinstance(found, str), "an item was read before it is written"
            entry = self._journal.entries.get(item)
            entries.append(record_entry(item, wish, found, entry, self._clock.date()))
        try:
            self._journal.record(entries)
        except OSError as error:
            log.warning("journal-not-written", extra={"error": str(error)})
            for item in items:
                self._fail(item, f"the journal cannot be written: {error.strerror}")
            return []
        return items

    def _target(self, item: Item) -> str:
        """Return the value due for an item: the wish, or else its original."""
        wish = (self._desired or {}).get(item)
        return self._journal.entries[item].original if wish is None else wish.value

    def _write(self, item: Item) -> None:
        """Write the value that an item must have, and read it back."""
        step, _ = self._steps[item]
        restores = step.action is ItemAction.RESTORE
        value = self._journal.entries[item].original if restores else self._target(item)
        if step.state is ItemState.CONTESTED:
            attempts = self._attempts.get(item, Attempts())
            self._attempts[item] = record_repair(attempts, self._clock.now())
        try:
            self._files.write(item, value)
        except OSError as error:
            why, hopeless = describe_failure(item, error)
            if is_refusal(item, error):
                self._refused[item] = why
            self._fail(item, why, hopeless=hopeless)
            return
        found = self._files.read(item)
        if found != value:
            read = found.why if isinstance(found, ReadFailure) else found
            self._fail(item, f"it reads {read} after {value} was written")
            return
        self._written[item.kind, "ok"] += 1
        self._attempts[item] = record_success(self._attempts.get(item, Attempts()))
        after = ItemAction.FORGET if restores else ItemAction.NOTHING
        self._steps[item] = Step(after, why=step.why if restores else ""), found

    def _fail(self, item: Item, why: str, *, hopeless: bool = False) -> None:
        attempts = self._attempts.get(item, Attempts())
        self._attempts[item] = record_failure(attempts, why, self._clock.now(), hopeless=hopeless)
        self._written[item.kind, "failed"] += 1
        state = ItemState.UNSUPPORTED if hopeless else ItemState.PENDING
        self._steps[item] = Step(ItemAction.NOTHING, state, why), self._steps[item][1]

    def _drop(self) -> None:
        """Drop the entries of items that have their original value, or another owner."""
        left = self._with_action(ItemAction.LEAVE)
        if left:
            entries = self._journal.entries
            found = (f"{i} is {self._steps[i][1]}, was {entries[i].original}" for i in left)
            log.warning("tunables-left", extra={"items": some(found)})
        dropped = [*left, *self._with_action(ItemAction.FORGET)]
        if not dropped:
            return
        try:
            self._journal.drop(dropped)
        except OSError as error:  # the next look tries again
            log.warning("journal-not-written", extra={"error": str(error)})
            return
        for item in dropped:
            self._attempts.pop(item, None)
