"""The smallest number that fits, by few tries: doubling, then halving."""

from __future__ import annotations

from collections.abc import Callable


def smallest_fitting(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the smallest number above *low*, which does not fit, and up to *high*, which does.

    If larger numbers need not fit where a smaller one does, the number returned fits all the same.
    """
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def smallest_fitting_up_to(most: int, fits: Callable[[int], bool]) -> int | None:
    """Return the smallest number up to *most* that fits, as `smallest_fitting` does; None if none.

    Small numbers are tried first: they take the least time.
    """
    low, high = 0, min(1, most)
    while not fits(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    return smallest_fitting(low, high, fits)
