"""Counters and histograms with cheap updates: plain numbers, read at a scrape.

Owns the limit of series: a label has a fixed set of values, and `other` for the rest. For the
loop's thread only; there are no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, product
from typing import TYPE_CHECKING

from nri_policy.observability import families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OTHER = "other"

_PREPARED = 16  # a metric with at most so many series has all of them from the start, as 0


class _Series:
    """The label values of one metric."""

    def __init__(self, name: str, text: str, labels: dict[str, Iterable[str]]) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self.known = tuple(frozenset(values) for values in labels.values())

    def bounded(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return *values*, with `other` for unknown ones."""
        return tuple(
            value if value in known else OTHER
            for value, known in zip(values, self.known, strict=True)
        )

    def first(self) -> list[tuple[str, ...]]:
        """Return the series that exist before anything is counted, so that no increase is lost."""
        every = [*product(*(sorted(known) for known in self.known))]
        return every if len(every) <= _PREPARED else []


class Counter:
    """Counts by a few labels; *labels* has the values of each."""

    def __init__(self, name: str, text: str, **labels: Iterable[str]) -> None:
        self._series = _Series(name, text, labels)
        self._counts = dict.fromkeys(self._series.first(), 0)

    def add(self, *values: str, amount: int = 1) -> None:
        """Add *amount* for the label *values*, in the order of the labels."""
        try:
            self._counts[values] += amount
        except KeyError:
            values = self._series.bounded(values)
            self._counts[values] = self._counts.get(values, 0) + amount

    def total(self, *values: str) -> int:
        """Return the sum of all series whose labels begin with *values*."""
        return sum(n for key, n in self._counts.items() if key[: len(values)] == values)

    def copy(self) -> Callable[[], Metric]:
        """Copy the counts; return a function that makes a metric of them, for any thread."""
        return partial(self._family, self._counts.copy())

    def _family(self, counts: dict[tuple[str, ...], int]) -> Metric:
        series = self._series
        family = families.counter(series.name, series.text, labels=series.labels)
        for values, count in counts.items():
            family.add_metric(values, count)
        return family


class _Cell:
    """One series of a histogram."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets  # of each bucket alone, not cumulative
        self.sum = 0.0


class Durations:
    """A histogram of seconds by a few labels."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], **labels: Iterable[str]
    ) -> None:
        self._series = _Series(name, text, labels)
        self._bounds = bounds
        self._names = [*map(str, bounds), "+Inf"]
        self._cells = {values: _Cell(len(self._names)) for values in self._series.first()}

    def add(self, *values: str, seconds: float) -> None:
        """Count one duration."""
        cell = self._cells.get(values)
        if cell is None:
            values = self._series.bounded(values)
            cell = self._cells.setdefault(values, _Cell(len(self._names)))
        cell.counts[bisect_left(self._bounds, seconds)] += 1
        cell.sum += seconds

    def copy(self) -> Callable[[], Metric]:
        """Copy the counts; return a function that makes a metric of them, for any thread."""
        cells = {values: (cell.counts.copy(), cell.sum) for values, cell in self._cells.items()}
        return partial(self._family, cells)

    def _family(self, cells: dict[tuple[str, ...], tuple[list[int], float]]) -> Metric:
        series = self._series
        family = families.histogram(series.name, series.text, labels=series.labels)
        for values, (counts, total) in cells.items():
            buckets = [*zip(self._names, accumulate(counts), strict=True)]
            family.add_metric(values, buckets, sum_value=total)
        return family
