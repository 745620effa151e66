"""Seeds of plays that are too long for hypothesis to make up and shrink step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st


def seeds(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test with *number* seeds: the same in every run, or new ones in `make fuzz`."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        seeded = given(seed=st.integers(0, 2**32 - 1))(test)
        return settings(max_examples=number, phases=[Phase.explicit, Phase.generate])(seeded)

    return decorate
