"""Decision: the tuner's next action for one item, as a pure function.

| wished | found | then |
|---|---|---|
| yes | the wish | nothing |
| yes | the original, or an earlier value of ours | write |
| yes | another value, or changed since it was in force | contested: repair, a few times an hour |
| yes | the interrupt is gone | forget |
| no | the original, or the item is gone | forget |
| no | ours, or any value of a group that we made | write the original: remove the group |
| no | another value | another program owns it: leave it, and forget |
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.tuning.items import NO_GROUP, Item, Kind

REPAIRS = 3  # of a contested item, in the time below
HOUR = 3600.0
_LONGEST = 60.0  # seconds between two attempts to write


class ItemState(StrEnum):
    """The state of an item."""

    OK = "ok"
    PENDING = "pending"  # a write failed, and is tried again
    CONTESTED = "contested"  # another program changes it
    UNSUPPORTED = "unsupported"  # it cannot be set on this machine


class ItemAction(StrEnum):
    """The next action for an item."""

    NOTHING = "nothing"
    WRITE = "write"
    RESTORE = "restore"  # write the original
    FORGET = "forget"  # drop the entry: the original is in force
    LEAVE = "leave"  # drop the entry: another program has set the value


class Entry(Struct, frozen=True, kw_only=True):
    """The journal's entry of an item; it is stored before the item is written."""

    item: Item
    original: str
    ours: str
    previous: str = ""  # our value before this one: the new write may not have happened
    when: float  # seconds since the epoch

    @property
    def values(self) -> set[str]:
        """The values that the kernel or the tuner has set."""
        return {self.original, self.ours, *[self.previous] * bool(self.previous)}

    @property
    def made(self) -> bool:
        """Whether the item is a group of resctrl that the tuner makes, and so removes."""
        return self.item.kind is Kind.RESCTRL and self.original == NO_GROUP


class ReadFailure(Struct, frozen=True):
    """The reason why an item could not be read."""

    why: str
    absent: bool = False  # there is no such item here


class Attempts(Struct, frozen=True, kw_only=True):
    """The recent writes of an item; the tuner keeps them only in memory."""

    confirmed: bool = False  # the latest write was read back
    failures: int = 0  # in a row
    retry_at: float = 0.0  # seconds of a monotonic clock
    why: str = ""  # the latest failure
    hopeless: bool = False  # no write can succeed before a reboot
    repairs: tuple[float, ...] = ()  # when it was repaired


class Step(Struct, frozen=True):
    """The next action for an item, with its present state."""

    action: ItemAction
    state: ItemState = ItemState.OK
    why: str = ""


def decide(  # noqa: PLR0911, PLR0913 - one return for each row; what is known
    wish: str | None,
    found: str | ReadFailure,
    entry: Entry | None,
    attempts: Attempts,
    now: float,
    *,
    repair: bool,
) -> Step:
    """Return the next step for an item; a *wish* of None means that nothing needs the item now."""
    if wish is None:
        assert entry is not None, "an item that nothing requests is in the journal"
        return _release(found, entry, attempts, now)
    if isinstance(found, ReadFailure):
        state = ItemState.UNSUPPORTED if found.absent else ItemState.PENDING
        # a later device can get the interrupt's number, and has another original
        gone = found.absent and entry is not None and entry.item.kind is Kind.IRQ
        return Step(ItemAction.FORGET if gone else ItemAction.NOTHING, state, found.why)
    if found == wish and (entry is None or entry.ours == wish or attempts.hopeless):
        return Step(ItemAction.NOTHING)
    if attempts.hopeless:
        return Step(ItemAction.NOTHING, ItemState.UNSUPPORTED, attempts.why)
    if now < attempts.retry_at:
        return Step(ItemAction.NOTHING, ItemState.PENDING, attempts.why)
    if found == wish or not _is_contested(wish, found, entry, attempts):
        return Step(ItemAction.WRITE)
    repairable = repair and len(_recent(attempts.repairs, now)) < REPAIRS
    action = ItemAction.WRITE if repairable else ItemAction.NOTHING
    return Step(action, ItemState.CONTESTED, f"something else has set it to {found}")


def _is_contested(wish: str, found: str, entry: Entry | None, attempts: Attempts) -> bool:
    if entry is None or (entry.made and not attempts.confirmed):  # the tuner may have been killed
        return False  # between making the group and giving it its shares
    return found not in entry.values or (attempts.confirmed and entry.ours == wish)


def _release(found: str | ReadFailure, entry: Entry, attempts: Attempts, now: float) -> Step:
    if isinstance(found, ReadFailure):
        if found.absent:
            return Step(ItemAction.FORGET)
        return Step(ItemAction.NOTHING, ItemState.PENDING, found.why)
    if found == entry.original:
        return Step(ItemAction.FORGET)
    if found not in entry.values and not entry.made:
        return Step(ItemAction.LEAVE)
    if now < attempts.retry_at:
        return Step(ItemAction.NOTHING, ItemState.PENDING, attempts.why)
    return Step(ItemAction.RESTORE)


def _recent(repairs: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(each for each in repairs if now - each < HOUR)


def record_entry(item: Item, wish: str, found: str, entry: Entry | None, when: float) -> Entry:
    """Return the entry to store before *wish* is written over *found*."""
    if entry is None:
        return Entry(item=item, original=found, ours=wish, when=when)
    ours = found in entry.values and found != entry.original
    return replace(entry, ours=wish, previous=found if ours else "", when=when)


def record_repair(attempts: Attempts, now: float) -> Attempts:
    """Return the attempts with one more repair of a contested item."""
    return replace(attempts, repairs=(*_recent(attempts.repairs, now), now))


def record_success(attempts: Attempts) -> Attempts:
    """Return the attempts after a write was read back."""
    return Attempts(confirmed=True, repairs=attempts.repairs)


def record_failure(attempts: Attempts, why: str, now: float, *, hopeless: bool) -> Attempts:
    """Return the attempts after a failed write; the next write is due after 1, 2, 4 … 60 s."""
    wait = min(_LONGEST, 2.0 ** min(attempts.failures, 6))
    return replace(
        attempts,
        confirmed=False,
        failures=attempts.failures + 1,
        retry_at=now + wait,
        why=why,
        hopeless=hopeless,
    )
