from __future__ import annotations

import pytest

from nri_policy.pools.memory_flow import Flow
from tests.support.memory_maps import ids


def flow(*capacity: int) -> Flow:
    return Flow.empty(dict(enumerate(capacity)))


def test_crossing_zones_give_way_to_each_other_along_a_chain() -> None:
    at = flow(10, 10, 10)
    assert at.lay(ids("0-1"), 10) == 0
    assert at.lay(ids("1-2"), 10) == 0
    assert at.lay(ids("0"), 10) == 0  # the first goes to node 1, the second to node 2
    assert at.free == {0: 0, 1: 0, 2: 0}
    assert at.full(ids("0")) == ids("0")


def test_what_does_not_fit_is_told_and_the_rest_is_laid() -> None:
    at = flow(10, 10)
    assert at.lay(ids("0"), 25) == 15
    assert at.lay(ids("0-1"), 25) == 15
    assert at.room(ids("0-1")) == 0


def test_the_full_set_is_all_whose_bookings_are_in_the_way() -> None:
    at = flow(10, 10, 10, 10)
    at.lay(ids("0-1"), 18)
    at.lay(ids("1-2"), 5)
    at.lay(ids("2"), 6)
    assert at.lay(ids("0"), 1) == 0
    assert at.lay(ids("0"), 1) == 1
    assert at.full(ids("0")) == ids("0-2")
    assert at.room(ids("3")) == 10


def test_a_trial_changes_nothing() -> None:
    at = flow(10, 10)
    at.lay(ids("0-1"), 10)
    before = at.copy()
    assert at.holds(ids("0"), 10)
    assert not at.holds(ids("0"), 11)
    assert at == before


def test_taking_all_leaves_nothing() -> None:
    at = flow(10, 10)
    at.lay(ids("0-1"), 15)
    at.lay(ids("1"), 5)
    at.take(ids("0-1"), 15)
    at.take(ids("1"), 5)
    assert at == flow(10, 10)


def test_taking_more_than_is_laid_is_an_error() -> None:
    at = flow(10)
    at.lay(ids("0"), 4)
    with pytest.raises(ValueError, match="zone 0 has 1 bytes less"):
        at.take(ids("0"), 5)
