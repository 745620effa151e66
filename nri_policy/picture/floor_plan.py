"""Layout: the cores of a machine as boxes in boxes, nested like the pool tree.

Owns the places and sizes of boxes, in the renderer's unit; the renderer draws the CPUs. A core is a
cell; L3 domains have no boxes but gaps between them. CPUs in no pool, also offline ones, have a box
of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.picture.area import Area
from nri_policy.picture.scene import Scene

_FEWEST = 8  # cells in a line, however narrow it is

_Thing = TypeVar("_Thing")
_Core = tuple[int | None, ...]


class DrawingSizes(Struct, frozen=True, kw_only=True):
    """The sizes of things in a renderer's unit."""

    cell: int  # breadth of a core
    line: int  # height of the threads that stand beside each other in a core: `abreast` many
    abreast: int
    cell_gap: int
    part_gap: int  # between L3 domains
    row_gap: int  # between rows of cells
    box_gap: int  # between boxes side by side
    box_row_gap: int
    side: int  # from a box's edge to what is in it; the same above and below
    top: int
    bottom: int
    letter: float  # breadth
    writing: int  # maximum width of a box for its caption; its cells may need more


class Cell(Struct, frozen=True):
    """A core in a box; None stands for a thread that is drawn elsewhere, or nowhere."""

    x: int
    y: int
    threads: _Core


class Box(Struct, frozen=True, kw_only=True):
    """A pool, or CPUs in no pool. Places are relative to the box around."""

    x: int = 0
    y: int = 0
    width: int
    height: int
    title: str
    caption: str
    details: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    cells: tuple[Cell, ...] = ()


class FloorPlan(Struct, frozen=True, kw_only=True):
    """Where everything is drawn."""

    width: int
    height: int
    boxes: tuple[Box, ...]


def plan(scene: Scene, width: int, metrics: DrawingSizes) -> FloorPlan:
    """Return the plan, *width* broad at most, unless a line of cells needs more."""
    return _Planner(scene, metrics).plan(width)


class _Block(Struct, frozen=True):
    """Things beside and below each other."""

    width: int
    height: int
    boxes: tuple[Box, ...] = ()
    cells: tuple[Cell, ...] = ()


class _Planner:
    def __init__(self, scene: Scene, metrics: DrawingSizes) -> None:
        self._scene = scene
        self._metrics = metrics
        self._cores = scene.cores

    def plan(self, width: int) -> FloorPlan:
        boxes = self._inside(self._scene.top, width)
        outside = CPUSet(self._scene.places) - self._scene.top.cpus
        if outside:
            cells = self._pack([[(cpu,) for cpu in outside]], self._room(width))
            boxes.append(self._box(f"in no pool: {outside}", "", cells, width))
        block = self._arrange(boxes, width)
        return FloorPlan(width=block.width, height=block.height, boxes=block.boxes)

    def _room(self, width: int) -> int:
        return width - 2 * self._metrics.side

    def _inside(self, area: Area, width: int) -> list[Box]:
        """Return the boxes for *area*: its own, or its children's if it is a root over sockets."""
        inner = [self._scene.areas[child] for child in area.children]
        if all(child.levels == ("l3cache",) for child in inner):
            cells = self._pack(self._groups(area, inner), self._room(width))
            return [self._pool(area, cells, width)]
        is_root = area.parent is None and not self._scene.has_outer_box
        room = width if is_root else self._room(width)
        boxes = [box for child in inner for box in self._inside(child, room)]
        rest = area.cpus - CPUSet.union(child.cpus for child in inner)
        if rest:
            cells = self._pack([self._cells(rest)], self._room(room))
            boxes.append(self._box(f"rest of {area.name}: {rest}", "", cells, room))
        if is_root:
            return boxes
        return [self._pool(area, self._arrange(boxes, room), width)]

    def _groups(self, area: Area, domains: Iterable[Area]) -> list[list[_Core]]:
        """Return the cells of each L3 domain, and of the cores outside of them."""
        sets = [domain.cpus for domain in domains]
        rest = area.cpus - CPUSet.union(sets)
        return [self._cells(cpus) for cpus in [*sets, rest] if cpus]

    def _cells(self, cpus: CPUSet) -> list[_Core]:
        cores = [core for core in self._cores if not core.isdisjoint(cpus)]
        return [tuple(cpu if cpu in cpus else None for cpu in core) for core in cores]

    def _pool(self, area: Area, block: _Block, width: int) -> Box:
        return replace(self._box(area.title, area.caption, block, width), details=area.details)

    def _box(self, title: str, caption: str, block: _Block, width: int) -> Box:
        m = self._metrics
        letters = max(len(title), len(caption)) * m.letter
        writing = min(ceil(letters) + 2 * m.side, m.writing, width)
        return Box(
            width=max(writing, block.width + 2 * m.side),
            height=m.top + block.height + m.bottom,
            title=title,
            caption=caption,
            boxes=tuple(replace(box, x=box.x + m.side, y=box.y + m.top) for box in block.boxes),
            cells=tuple(replace(cell, x=cell.x + m.side, y=cell.y + m.top) for cell in block.cells),
        )

    def _pack(self, groups: Sequence[Sequence[_Core]], width: int) -> _Block:
        """Return the cells of *groups* in lines, the groups apart and spread evenly."""
        m = self._metrics
        step = m.cell + m.cell_gap
        fit = (width + m.cell_gap) // step
        longest = max(_FEWEST, fit - fit % _FEWEST)
        parts = [
            group[start : start + longest]
            for group in groups
            for start in range(0, len(group), longest)
        ]
        broadest = max(map(len, parts)) * step - m.cell_gap
        cells: list[Cell] = []
        right = y = 0
        for row in _rows(parts, (width + m.part_gap) // (broadest + m.part_gap)):
            x = 0
            for part in row:
                cells += (Cell(x + at * step, y, core) for at, core in enumerate(part))
                x += len(part) * step - m.cell_gap + m.part_gap
            right = max(right, x - m.part_gap)
            tallest = max(len(core) for part in row for core in part)
            y += -(-tallest // m.abreast) * m.line + m.row_gap
        return _Block(right, y - m.row_gap, cells=tuple(cells))

    def _arrange(self, boxes: Sequence[Box], width: int) -> _Block:
        """Return *boxes* side by side in rows, all equally broad."""
        m = self._metrics
        broadest = max(box.width for box in boxes)
        placed: list[Box] = []
        right = y = 0
        for row in _rows(boxes, (width + m.box_gap) // (broadest + m.box_gap)):
            height = max(box.height for box in row)
            for at, box in enumerate(row):
                x = at * (broadest + m.box_gap)
                placed.append(replace(box, x=x, y=y, width=broadest, height=height))
                right = max(right, x + broadest)
            y += height + m.box_row_gap
        return _Block(right, y - m.box_row_gap, boxes=tuple(placed))


def _rows(things: Sequence[_Thing], most: int) -> Iterable[Sequence[_Thing]]:
    """Yield *things* in as few rows of at most *most* as possible, of even lengths."""
    rows = -(-len(things) // max(most, 1))
    length = -(-len(things) // rows)
    for start in range(0, len(things), length):
        yield things[start : start + length]
