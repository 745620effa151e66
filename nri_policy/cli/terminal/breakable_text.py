"""Breakable text: a cell of a table that breaks after commas or slashes only, not at blanks."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.report import format_cpus


class BreakableText(Struct, frozen=True):
    """A text in parts, at least one; a line has as many as fit."""

    parts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines(options.max_width):
            yield Text(line, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, self.parts))
        return Measurement(longest, sum(map(len, self.parts))).with_maximum(options.max_width)

    def _lines(self, width: int) -> Iterator[str]:
        line = ""
        for part in self.parts:
            if line and len(line) + len(part) > width:
                yield line
                line = ""
            line += part
        yield line


def cpu_list(cpus: CPUSet) -> BreakableText:
    """Return a set as people read it; an empty one is a dash."""
    return _split(format_cpus(cpus) or "-", ",")


def path(name: str) -> BreakableText:
    """Return the name of a container or a pool, which may break after its slashes."""
    return _split(name, "/")


def _split(text: str, after: str) -> BreakableText:
    *parts, last = text.split(after)
    return BreakableText((*(part + after for part in parts), last))
