"""Pieces: text for a cell of a table that breaks between its pieces only, not at blanks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from nri_policy.cpuset import CPUSet
from nri_policy.report import format_cpus


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text in pieces, at least one; a line has as many as fit."""

    pieces: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines(options.max_width):
            yield Text(line, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, self.pieces))
        return Measurement(longest, sum(map(len, self.pieces))).with_maximum(options.max_width)

    def _lines(self, width: int) -> Iterator[str]:
        line = ""
        for piece in self.pieces:
            if line and len(line) + len(piece) > width:
                yield line
                line = ""
            line += piece
        yield line


def cpu_list(cpus: CPUSet) -> Pieces:
    """Return a set as people read it; an empty one is a dash."""
    return _split(format_cpus(cpus) or "-", ",")


def path(name: str) -> Pieces:
    """Return the name of a container or a pool, which may break after its slashes."""
    return _split(name, "/")


def _split(text: str, after: str) -> Pieces:
    *parts, last = text.split(after)
    return Pieces((*(part + after for part in parts), last))
