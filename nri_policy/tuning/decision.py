"""Decision: what the tuner does next about one item, as a pure function of what it knows.

| wished | found | then |
|---|---|---|
| yes | the wish | nothing |
| yes | the original, or an earlier value of ours | write |
| yes | another value, or changed since it was in force | contested: repair, a few times an hour |
| yes | the interrupt is gone | forget |
| no | the original, or the item is gone | forget |
| no | ours, or any value of a group that we made | write the original: remove the group |
| no | another value | somebody else owns it: leave it, and forget |
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.tuning.items import NO_GROUP, Item, Kind

REPAIRS = 3  # of a contested item, in the time below
HOUR = 3600.0
_LONGEST = 60.0  # seconds between two attempts to write


class State(StrEnum):
    """How an item is."""

    OK = "ok"
    PENDING = "pending"  # a write failed, and is tried again
    CONTESTED = "contested"  # somebody else changes it
    UNSUPPORTED = "unsupported"  # it cannot be set on this machine


class Action(StrEnum):
    """What to do about an item."""

    NOTHING = "nothing"
    WRITE = "write"
    RESTORE = "restore"  # write the original
    FORGET = "forget"  # drop the entry: the original is in force
    LEAVE = "leave"  # drop the entry: the value is somebody else's


class Entry(Struct, frozen=True, kw_only=True):
    """The journal's entry of an item that was written, or is about to be."""

    item: Item
    original: str
    ours: str
    previous: str = ""  # the value before ours, if it was ours too: the write may not have happened
    when: float  # seconds since the epoch

    @property
    def values(self) -> set[str]:
        """The values that are not somebody else's."""
        return {self.original, self.ours, *[self.previous] * bool(self.previous)}

    @property
    def made(self) -> bool:
        """Whether the item is a group of resctrl that the tuner makes, and so removes."""
        return self.original == NO_GROUP


class Lack(Struct, frozen=True):
    """Why an item could not be read."""

    why: str
    absent: bool = False  # there is no such item here


class Attempts(Struct, frozen=True, kw_only=True):
    """What the tuner remembers of its writes of an item, while it runs."""

    confirmed: bool = False  # the latest write was read back
    failures: int = 0  # in a row
    retry_at: float = 0.0  # seconds of a monotonic clock
    why: str = ""  # the latest failure
    hopeless: bool = False  # no write can succeed before a reboot
    repairs: tuple[float, ...] = ()  # when it was repaired


class Step(Struct, frozen=True):
    """What to do about an item, and how it is."""

    action: Action
    state: State = State.OK
    why: str = ""


def decide(  # noqa: PLR0911, PLR0913 - one return for each row; what is known
    wish: str | None,
    found: str | Lack,
    entry: Entry | None,
    attempts: Attempts,
    now: float,
    *,
    repair: bool,
) -> Step:
    """Return the next step about an item; None: nothing asks for it any more."""
    if wish is None:
        assert entry is not None, "an item that nothing requests is in the journal"
        return _release(found, entry, attempts, now)
    if isinstance(found, Lack):
        state = State.UNSUPPORTED if found.absent else State.PENDING
        # an interrupt of the same number that comes later is another one, with another original
        gone = found.absent and entry is not None and entry.item.kind is Kind.IRQ
        return Step(Action.FORGET if gone else Action.NOTHING, state, found.why)
    if found == wish and (entry is None or entry.ours == wish or attempts.hopeless):
        return Step(Action.NOTHING)
    if attempts.hopeless:
        return Step(Action.NOTHING, State.UNSUPPORTED, attempts.why)
    if now < attempts.retry_at:
        return Step(Action.NOTHING, State.PENDING, attempts.why)
    if found == wish or not _is_contested(wish, found, entry, attempts):
        return Step(Action.WRITE)
    repairable = repair and len(_recent(attempts.repairs, now)) < REPAIRS
    action = Action.WRITE if repairable else Action.NOTHING
    return Step(action, State.CONTESTED, f"something else has set it to {found}")


def _is_contested(wish: str, found: str, entry: Entry | None, attempts: Attempts) -> bool:
    if entry is None or (entry.made and not attempts.confirmed):  # the tuner may have been killed
        return False  # between making the group and giving it its shares
    return found not in entry.values or (attempts.confirmed and entry.ours == wish)


def _release(found: str | Lack, entry: Entry, attempts: Attempts, now: float) -> Step:
    if isinstance(found, Lack):
        if found.absent:
            return Step(Action.FORGET)
        return Step(Action.NOTHING, State.PENDING, found.why)
    if found == entry.original:
        return Step(Action.FORGET)
    if found not in entry.values and not entry.made:
        return Step(Action.LEAVE)
    if now < attempts.retry_at:
        return Step(Action.NOTHING, State.PENDING, attempts.why)
    return Step(Action.RESTORE)


def _recent(repairs: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(each for each in repairs if now - each < HOUR)


def record_entry(item: Item, wish: str, found: str, entry: Entry | None, when: float) -> Entry:
    """Return the entry to store before *wish* is written over *found*."""
    if entry is None:
        return Entry(item=item, original=found, ours=wish, when=when)
    ours = found in entry.values and found != entry.original
    return replace(entry, ours=wish, previous=found if ours else "", when=when)


def record_repair(attempts: Attempts, now: float) -> Attempts:
    """Return what is remembered when a contested item is written."""
    return replace(attempts, repairs=(*_recent(attempts.repairs, now), now))


def record_success(attempts: Attempts) -> Attempts:
    """Return what is remembered when a write was read back."""
    return Attempts(confirmed=True, repairs=attempts.repairs)


def record_failure(attempts: Attempts, why: str, now: float, *, hopeless: bool) -> Attempts:
    """Return what is remembered of a failed write; the next is due after 1, 2, 4 … 60 s."""
    wait = min(_LONGEST, 2.0 ** min(attempts.failures, 6))
    return replace(
        attempts,
        confirmed=False,
        failures=attempts.failures + 1,
        retry_at=now + wait,
        why=why,
        hopeless=hopeless,
    )
