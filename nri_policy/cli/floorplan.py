"""Floor plan: the cores of a machine as boxes in boxes, as the pool tree nests them.

Owns where things are drawn, and how large; what a CPU looks like, and what is written on a box, it
is told. One column a core: in colour a cell is a core, its upper and lower half two threads, or a
letter where both are alike; without colour each thread has a line of its own. L3 domains are no
boxes but stand apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from rich.text import Text

from nri_policy.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.tree import Pool, PoolTree
from nri_policy.settings import Level

_HALVES = "▀"
_BROADEST_WRITING = 40  # a box is as broad as its cells, and for its writing at most so
_GAP = 1


@dataclass(frozen=True, slots=True)
class Look:
    """What a CPU looks like: a letter with its colours, and its colour where it is half a cell."""

    letter: str
    style: str
    half: str


_Writing = Callable[[Pool], tuple[str, str]]  # what stands in a pool's upper and lower border
_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class _Box:
    title: str
    caption: str
    lines: list[Text]
    of_cores: bool

    @property
    def width(self) -> int:
        writing = min(max(len(self.title), len(self.caption)) + 4, _BROADEST_WRITING)
        return max(writing, *(line.cell_len + 4 for line in self.lines))

    def drawn(self, width: int, height: int) -> list[Text]:
        """Return the lines of the box, *width* columns broad, with *height* lines in it."""
        above, below = ("╭╮", "╰╯") if self.of_cores else ("┌┐", "└┘")
        lines = self.lines + [Text()] * (height - len(self.lines))
        return [
            _border(above, Text(self.title, "bold"), width),
            *(
                Text.assemble(("│ ", "dim"), line, " " * (width - 3 - line.cell_len), ("│", "dim"))
                for line in lines
            ),
            _border(below, Text(self.caption), width),
        ]


def _border(corners: str, writing: Text, width: int) -> Text:
    left, right = tuple(corners)
    if not writing:
        return Text(left + "─" * (width - 2) + right, "dim")
    writing.truncate(width - 4, overflow="ellipsis")
    rest = "─" * (width - 4 - writing.cell_len)
    return Text.assemble((f"{left} ", "dim"), writing, (f" {rest}{right}", "dim"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """A machine's floor plan. CPUs in no pool, also offline ones, have their own box."""

    machine: Machine
    tree: PoolTree
    looks: Mapping[int, Look]  # of every online and offline CPU
    writing: _Writing

    @property
    def has_outer_box(self) -> bool:
        """Whether the top pool has a box: not if it is but the sum of several packages."""
        top = self.tree.top
        return Level.PACKAGE in top.levels or not top.children

    def drawn(self, width: int, *, colour: bool) -> Text:
        """Return the plan, *width* columns broad at most, unless a box needs more."""
        brush = _Brush(self.looks, colour)
        boxes = self._inside(self.tree.top, width, brush)
        outside = (self.machine.online | self.machine.offline) - self.tree.top.cpus
        if outside:
            cells = [brush.core(CPUSet([cpu]), outside) for cpu in outside]
            boxes.append(
                _Box(f"in no pool: {outside}", "", _packed([cells], width - 4), of_cores=True)
            )
        return Text("\n").join(_arranged(boxes, width))

    def _inside(self, pool: Pool, width: int, brush: _Brush) -> list[_Box]:
        """Return the boxes for *pool*: its own, or its children's if it is a root over sockets."""
        inner = [self.tree.pools[child] for child in pool.children]
        if all(child.levels == (Level.L3CACHE,) for child in inner):
            lines = _packed(self._groups(pool, inner, brush), width - 4)
            return [_Box(*self.writing(pool), lines, of_cores=True)]
        is_root = pool.parent is None and not self.has_outer_box
        room = width if is_root else width - 4
        boxes = [box for child in inner for box in self._inside(child, room, brush)]
        rest = pool.cpus - CPUSet.union(child.cpus for child in inner)
        if rest:
            lines = _packed([self._cells(rest, brush)], room - 4)
            boxes.append(_Box(f"rest of {pool.name}: {rest}", "", lines, of_cores=True))
        if is_root:
            return boxes
        return [_Box(*self.writing(pool), _arranged(boxes, room), of_cores=False)]

    def _groups(self, pool: Pool, domains: Iterable[Pool], brush: _Brush) -> list[list[list[Text]]]:
        """Return the cells of each L3 domain, and of what is outside of them."""
        sets = [domain.cpus for domain in domains]
        rest = pool.cpus - CPUSet.union(sets)
        return [self._cells(cpus, brush) for cpus in [*sets, rest] if cpus]

    def _cells(self, cpus: CPUSet, brush: _Brush) -> list[list[Text]]:
        cores = [core.cpus for core in self.machine.cores if not core.cpus.isdisjoint(cpus)]
        return [brush.core(core, cpus) for core in sorted(cores, key=lambda core: core.lowest)]


@dataclass(frozen=True, slots=True)
class _Brush:
    looks: Mapping[int, Look]
    colour: bool

    def core(self, threads: CPUSet, shown: CPUSet) -> list[Text]:
        """Return the column of cells for a core, one character each; blank for who is not shown."""
        looks = [self.looks[cpu] if cpu in shown else None for cpu in threads]
        if not self.colour:
            return [Text(look.letter if look else " ") for look in looks]
        return [_cell(*pair) for pair in zip_longest(looks[::2], looks[1::2])]


def _cell(upper: Look | None, lower: Look | None) -> Text:
    if upper and lower and upper != lower:
        return Text(_HALVES, f"{upper.half} on {lower.half}")
    look = upper or lower
    return Text(look.letter, look.style) if look else Text(" ")


def _packed(groups: list[list[list[Text]]], width: int) -> list[Text]:
    """Return the columns of *groups* in lines, the groups apart and spread evenly."""
    longest = max(8, width - width % 8)
    parts = [
        group[start : start + longest]
        for group in groups
        for start in range(0, len(group), longest)
    ]
    broadest = max(map(len, parts))
    lines = []
    for row in _rows(parts, (width + 1) // (broadest + 1)):
        height = max(len(column) for part in row for column in part)
        for at in range(height):
            line = Text()
            for index, part in enumerate(row):
                line.append(" " if index else "")
                for column in part:
                    line.append_text(column[at] if at < len(column) else Text(" "))
            lines.append(line)
    return lines


def _arranged(boxes: list[_Box], width: int) -> list[Text]:
    """Return *boxes* side by side in rows, all equally broad."""
    broadest = min(max(box.width for box in boxes), width)
    lines = []
    for row in _rows(boxes, (width + _GAP) // (broadest + _GAP)):
        height = max(len(box.lines) for box in row)
        drawn = [box.drawn(broadest, height) for box in row]
        lines += [Text(" " * _GAP).join(parts) for parts in zip(*drawn, strict=True)]
    return lines


def _rows(things: list[_Thing], most: int) -> Iterable[list[_Thing]]:
    """Yield *things* in as few rows of at most *most* as possible, of even lengths."""
    rows = -(-len(things) // max(most, 1))
    length = -(-len(things) // rows)
    for start in range(0, len(things), length):
        yield things[start : start + length]
