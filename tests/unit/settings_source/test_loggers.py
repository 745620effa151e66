from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from nri_policy.settings_source.loggers import set_levels


@pytest.fixture(autouse=True)
def _levels_are_restored() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    set_levels([])
    logging.getLogger().setLevel(before)


def said() -> list[bool]:
    loggers = (logging.getLogger(name) for name in (None, "one.part", "other"))
    return [logger.isEnabledFor(logging.DEBUG) for logger in loggers]


def test_the_loggers_that_are_named_say_more_and_no_others() -> None:
    set_levels(["one"])
    assert said() == [False, True, False]
    set_levels(["other"])
    assert said() == [False, False, True]
    set_levels(["*", "other"])
    assert said() == [True, True, True]
    set_levels([])
    assert said() == [False, False, False]
