"""CPUList: a set of CPUs in the kernel's list format that breaks after commas, not in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from nri_policy.cpuset import CPUSet


@dataclass(frozen=True, slots=True)
class CPUList:
    """A set as people read it in a table; an empty one is a dash."""

    cpus: CPUSet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in broken(self.cpus, options.max_width):
            yield Text(line, no_wrap=True, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, _parts(self.cpus)))
        return Measurement(longest, max(longest, len(str(self.cpus)))).with_maximum(
            options.max_width
        )


def broken(cpus: CPUSet, width: int) -> Iterator[str]:
    """Yield *cpus* in lines of at most *width* characters, or of one range if that is longer."""
    line = ""
    for part in _parts(cpus):
        if line and len(line) + len(part) > width:
            yield line
            line = ""
        line += part
    yield line


def _parts(cpus: CPUSet) -> list[str]:
    *parts, last = (str(cpus) or "–").split(",")
    return [*(f"{part}," for part in parts), last]
