"""What is done about an item: all cases of a small table, one by one."""

from __future__ import annotations

from itertools import product

import pytest

from nri_policy.tuning.decision import (
    Attempts,
    Entry,
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
from nri_policy.tuning.items import NO_GROUP, Item, Kind
from tests.support.tunables import irq

ITEM = irq(1)
ORIGINAL, OURS, NEXT, FOREIGN = "0-3", "1", "2", "3"
NEW = Attempts()
GONE, UNREADABLE = ReadFailure("No such file or directory", absent=True), ReadFailure("EIO")


def entry(ours: str = OURS, previous: str = "") -> Entry:
    return Entry(item=ITEM, original=ORIGINAL, ours=ours, previous=previous, when=1.0)


POLICY, GROUP = (
    Entry(item=Item(kind, "0", attribute), original=original, ours=OURS, when=1.0)
    for kind, attribute, original in (
        (Kind.CPUFREQ, "governor", ORIGINAL),
        (Kind.RESCTRL, "schemata", NO_GROUP),
    )
)


def step(
    wish: str | None,
    found: str | ReadFailure,
    known: Entry | None = None,
    attempts: Attempts = NEW,
    *,
    repair: bool = False,
) -> Step:
    return decide(wish, found, known, attempts, 0.0, repair=repair)


CASES = [
    (OURS, OURS, None, ItemAction.NOTHING, ItemState.OK),
    (OURS, ORIGINAL, None, ItemAction.WRITE, ItemState.OK),
    (OURS, OURS, entry(), ItemAction.NOTHING, ItemState.OK),
    (OURS, ORIGINAL, entry(), ItemAction.WRITE, ItemState.OK),  # it was not written before a crash
    (NEXT, OURS, entry(), ItemAction.WRITE, ItemState.OK),
    (NEXT, OURS, entry(NEXT, previous=OURS), ItemAction.WRITE, ItemState.OK),
    (NEXT, NEXT, entry(), ItemAction.WRITE, ItemState.OK),  # so that the journal has it
    (OURS, FOREIGN, entry(), ItemAction.NOTHING, ItemState.CONTESTED),
    (OURS, GONE, entry(), ItemAction.FORGET, ItemState.UNSUPPORTED),  # its number can be used again
    (OURS, GONE, POLICY, ItemAction.NOTHING, ItemState.UNSUPPORTED),  # the kernel keeps what it has
    (NEXT, OURS, GROUP, ItemAction.WRITE, ItemState.OK),
    (OURS, FOREIGN, GROUP, ItemAction.WRITE, ItemState.OK),  # made, and not given its shares
    (None, FOREIGN, GROUP, ItemAction.RESTORE, ItemState.OK),
    (OURS, UNREADABLE, entry(), ItemAction.NOTHING, ItemState.PENDING),
    (None, ORIGINAL, entry(), ItemAction.FORGET, ItemState.OK),
    (None, GONE, entry(), ItemAction.FORGET, ItemState.OK),
    (None, UNREADABLE, entry(), ItemAction.NOTHING, ItemState.PENDING),
    (None, OURS, entry(), ItemAction.RESTORE, ItemState.OK),
    (None, OURS, entry(NEXT, previous=OURS), ItemAction.RESTORE, ItemState.OK),
    (None, FOREIGN, entry(), ItemAction.LEAVE, ItemState.OK),
]


@pytest.mark.parametrize(("wish", "found", "known", "action", "state"), CASES)
def test_each_row_of_the_table(
    wish: str | None,
    found: str | ReadFailure,
    known: Entry | None,
    action: ItemAction,
    state: ItemState,
) -> None:
    got = step(wish, found, known)
    assert (got.action, got.state) == (action, state)


def test_a_foreign_value_is_never_written_over_unless_it_is_repaired() -> None:
    values = (ORIGINAL, OURS, NEXT, FOREIGN)
    notes = (Attempts(), Attempts(confirmed=True), Attempts(failures=3, retry_at=-1.0))
    known = (entry(), entry(NEXT), entry(NEXT, previous=OURS))
    for wish, found, has, note in product((None, *values), values, known, notes):
        got = step(wish, found, has, note)
        if found not in has.values and found != wish:
            assert got.action not in {ItemAction.WRITE, ItemAction.RESTORE}, (
                wish,
                found,
                has,
                note,
            )
        if wish is None:
            assert got.action is not ItemAction.WRITE


def test_a_value_that_was_in_force_and_changed_is_contested_even_if_it_is_the_original() -> None:
    assert step(OURS, ORIGINAL, entry(), Attempts(confirmed=True)).state is ItemState.CONTESTED
    assert step(NEXT, OURS, entry(), Attempts(confirmed=True)) == Step(ItemAction.WRITE)


def test_a_group_of_ours_that_something_else_changes_is_contested_and_removed_in_the_end() -> None:
    changed = step(OURS, FOREIGN, GROUP, Attempts(confirmed=True))
    assert (changed.action, changed.state) == (ItemAction.NOTHING, ItemState.CONTESTED)
    assert step(None, FOREIGN, GROUP, Attempts(confirmed=True)).action is ItemAction.RESTORE


def test_an_interrupt_that_cannot_be_moved_is_in_order_where_it_is_due() -> None:
    fixed = Attempts(hopeless=True, why="not movable: EPERM")
    assert step(OURS, OURS, entry(NEXT), fixed) == Step(ItemAction.NOTHING)
    assert step(NEXT, OURS, entry(NEXT), fixed).state is ItemState.UNSUPPORTED


def test_a_contested_item_is_repaired_three_times_an_hour() -> None:
    attempts = Attempts(confirmed=True)
    for now in (0, 1, 2):
        got = decide(OURS, FOREIGN, entry(), attempts, float(now), repair=True)
        assert (got.action, got.state) == (ItemAction.WRITE, ItemState.CONTESTED)
        attempts = record_success(record_repair(attempts, float(now)))
    for later in (10.0, 3599.5):
        got = decide(OURS, FOREIGN, entry(), attempts, later, repair=True)
        assert (got.action, got.state) == (ItemAction.NOTHING, ItemState.CONTESTED)
    got = decide(OURS, FOREIGN, entry(), attempts, 3600.5, repair=True)
    assert got.action is ItemAction.WRITE


def test_a_failed_write_is_tried_again_after_1_2_4_to_60_seconds() -> None:
    attempts, waits = Attempts(), []
    for _ in range(9):
        attempts = record_failure(attempts, "EBUSY", 100.0, hopeless=False)
        waits.append(attempts.retry_at - 100.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    got = decide(OURS, ORIGINAL, entry(), attempts, 159.0, repair=False)
    assert got == Step(ItemAction.NOTHING, ItemState.PENDING, "EBUSY")
    assert decide(OURS, ORIGINAL, entry(), attempts, 160.0, repair=False).action is ItemAction.WRITE


def test_what_cannot_be_written_before_a_reboot_is_not_tried_again() -> None:
    attempts = record_failure(Attempts(), "not movable: EPERM", 0.0, hopeless=True)
    got = decide(OURS, ORIGINAL, entry(), attempts, 1e9, repair=True)
    assert got == Step(ItemAction.NOTHING, ItemState.UNSUPPORTED, "not movable: EPERM")


def test_an_entry_keeps_the_original_and_the_value_that_may_still_be_in_force() -> None:
    first = record_entry(ITEM, OURS, ORIGINAL, None, 1.0)
    assert first == entry()
    second = record_entry(ITEM, NEXT, OURS, first, 2.0)
    assert (second.original, second.ours, second.previous) == (ORIGINAL, NEXT, OURS)
    # that write failed, and another follows: the value in force is still known as ours
    third = record_entry(ITEM, "0", OURS, second, 3.0)
    assert third.values == {ORIGINAL, "0", OURS}
    # a foreign value that is repaired is not ours
    assert FOREIGN not in record_entry(ITEM, NEXT, FOREIGN, second, 3.0).values
