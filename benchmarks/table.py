"""What was measured, as sections of one report: for the terminal and for the documentation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUNDS = 200
BATCHES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table with a few words before it, in the appendix of the page."""

    title: str
    text: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, tuple("---" if at == 0 else "---:" for at in range(len(self.head)))]
        table = "\n".join(f"| {' | '.join(row)} |" for row in (*lines, *self.rows))
        return f"## {self.title}\n\n{self.text}\n\n{table}\n"

    def plain(self) -> str:
        table = [self.head, *self.rows]
        widths = [max(len(row[at]) for row in table) for at in range(len(self.head))]
        lines = [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        ]
        return "\n".join((f"== {self.title}", *lines, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long something took, in microseconds."""

    p50: float
    p99: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        return Timing(p50=1e6 * cuts[49], p99=1e6 * cuts[98])


def best(measure: Callable[[], Timing]) -> Timing:
    """Return the quickest of some batches: what others do on the machine only ever adds time."""
    return min((measure() for _ in range(BATCHES)), key=lambda timing: timing.p50)


def number(value: float) -> str:
    """Return *value* with three digits that count, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def additions() -> float:
    """Return the seconds of ten million additions: a yardstick for machines."""
    began, total = time.perf_counter(), 0
    for each in range(10_000_000):
        total += each
    return time.perf_counter() - began
