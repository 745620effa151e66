"""The delay before a failed request is repeated."""

from __future__ import annotations

import random
from collections.abc import Callable


def backoff(
    failures: int, *, least: float, most: float, chance: Callable[[], float] = random.random
) -> float:
    """Return seconds, anywhere from *least* to a bound that doubles with each failure in a row."""
    bound = min(most, least * 2.0 ** min(failures, 10))
    return least + chance() * (bound - least)
