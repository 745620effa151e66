"""Pauses of garbage collection."""

from __future__ import annotations

import gc

import pytest

from nri_policy.foundation.garbage import collection_paused


def test_collection_goes_on_after_a_pause_whatever_happens_in_it() -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="wrong"), collection_paused():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_a_pause_within_a_pause_does_not_end_it() -> None:
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_made_in_a_pause_is_not_looked_through_later() -> None:
    with collection_paused():
        made: list[object] = [{}]
    assert not any(each is made for each in gc.get_objects())
