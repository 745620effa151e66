"""Bisection: the smallest number that fits, by few tries."""

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
