"""The terminal's renderer: a column a core, letters for what CPUs are for.

In colour a cell is a core, its upper and lower half two threads, or a letter where both are alike;
without colour each thread has a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from nri_policy.picture.floor_plan import Box, DrawingSizes, FloorPlan, plan
from nri_policy.picture.mark import Mark
from nri_policy.picture.scene import LETTERS, MEANINGS, Purpose, Scene, headline

_HALVES = "▀"
METRICS = DrawingSizes(
    cell=1,
    line=1,
    abreast=1,
    cell_gap=0,
    part_gap=1,
    row_gap=0,
    box_gap=1,
    box_row_gap=0,
    side=2,
    top=1,
    bottom=1,
    letter=1,
    writing=40,
)
_IN_COLOUR = replace(METRICS, abreast=2)


class Look(Struct, frozen=True):
    """What a CPU looks like: a letter with its colours, and its colour where it is half a cell."""

    letter: str
    style: str
    half: str


_COLOURS = {  # of a letter, and of half a cell
    Purpose.SHARED: ("color(232) on color(250)", "color(250)"),
    Purpose.IDLE: ("color(244)", "color(238)"),
    Purpose.RESERVED: ("color(255) on color(60)", "color(60)"),
    Purpose.ISOLATED: ("color(232) on color(144)", "color(144)"),
    Purpose.OFFLINE: ("color(160)", "color(52)"),
    Purpose.UNAVAILABLE: ("color(244)", "color(234)"),
}
_LOOKS = {use: Look(LETTERS[use], *colours) for use, colours in _COLOURS.items()}
_BLANK = Look(" ", "", "")
_MOVED = " underline"


class Drawing(Struct, frozen=True):
    """A scene, printed by rich: the machine's size, the floor plan, and what its letters mean."""

    scene: Scene
    cpu_ids: bool = False  # instead of letters

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scene = self.scene
        colour = _in_colour(console)
        yield Text(headline(scene.machine), "bold")
        if not scene.has_outer_box:
            yield Text(f"{scene.top.title} · {scene.top.caption}")
        if self.cpu_ids:
            broad = len(str(max(scene.places)))
            layout = plan(scene, options.max_width, replace(METRICS, cell=broad, cell_gap=1))
            yield _Canvas(scene, layout, colour=colour, cpu_ids=broad).drawn()
            return
        layout = plan(scene, options.max_width, _IN_COLOUR if colour else METRICS)
        yield _Canvas(scene, layout, colour=colour).drawn()
        yield _key(scene, colour=colour)


class Rows(Struct, frozen=True):
    """A scene in as few lines as there can be: no boxes, but their names before their cores."""

    scene: Scene

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = _in_colour(console)
        layout = plan(self.scene, options.max_width, _IN_COLOUR if colour else METRICS)
        canvas = _Canvas(self.scene, layout, colour=colour)
        areas = list(_areas(layout.boxes, 0, 0))
        names = [box.title.partition(":")[0] for box, _, _ in areas]
        for name, (box, x, y) in zip(names, areas, strict=True):
            for line in range(y + METRICS.top, y + box.height - METRICS.bottom):
                label = name if line == y + METRICS.top else ""
                cells = canvas.part(x + METRICS.side, line, box.width - 2 * METRICS.side)
                text = Text.assemble(f"{label:{max(map(len, names))}} ", cells)
                text.no_wrap, text.overflow = True, "ellipsis"
                yield text


def _areas(boxes: Iterable[Box], x: int, y: int) -> Iterator[tuple[Box, int, int]]:
    """Yield the boxes of cores, and where they are on the canvas."""
    for box in boxes:
        if box.cells:
            yield box, x + box.x, y + box.y
        yield from _areas(box.boxes, x + box.x, y + box.y)


def _in_colour(console: Console) -> bool:
    """Whether to draw in colour, which takes half blocks too."""
    plain = console.color_system is None or console.no_color
    return not plain and console.encoding.startswith("utf")


def letter(marks: Mapping[str, Mark], name: str) -> Text:
    """Return the mark of a container; nothing if it has none."""
    if name not in marks:
        return Text()
    look = _own(marks[name])
    return Text(look.letter, look.style)


def _own(mark: Mark) -> Look:
    colour = f"color({mark.colour})"
    return Look(mark.letter, f"color(232) on {colour}", colour)


def _key(scene: Scene, *, colour: bool) -> Columns:
    present = {place.use for place in scene.places.values()}
    entries = [
        Text.assemble((_LOOKS[use].letter, _LOOKS[use].style), f" {MEANINGS[use]}")
        for use in Purpose
        if use in present & _LOOKS.keys()
    ]
    if Purpose.OWN in present:
        entries.insert(0, Text(f"A… {MEANINGS[Purpose.OWN]}"))
    if scene.moved and colour:
        entries.append(Text.assemble(("_", _MOVED), " changed hands"))
    if any(len(core) > 1 for core in scene.cores):
        plain = "one column per core, one row per thread"
        entries.append(Text("▀ threads differ" if colour else plain))
    return Columns(entries, padding=(0, 3))


class _Canvas:
    """Characters with styles, drawn in any order."""

    def __init__(self, scene: Scene, layout: FloorPlan, *, colour: bool, cpu_ids: int = 0) -> None:
        """Draw *layout*; each CPU as its id, in so many characters, or as a letter if that is 0."""
        self._scene = scene
        self._colour = colour
        self._cpu_ids = cpu_ids
        self._lines = [[(" ", "")] * layout.width for _ in range(layout.height)]
        self._draw(layout.boxes, 0, 0)

    def drawn(self) -> Text:
        """Return what was drawn."""
        lines = (self.part(0, y, len(line)) for y, line in enumerate(self._lines))
        return Text("\n").join(lines)

    def part(self, x: int, y: int, width: int) -> Text:
        """Return a part of a line."""
        runs = groupby(self._lines[y][x : x + width], key=lambda cell: cell[1])
        return Text.assemble(
            *(("".join(character for character, _ in run), style) for style, run in runs)
        )

    def _write(self, x: int, y: int, text: str, style: str) -> None:
        self._lines[y][x : x + len(text)] = [(character, style) for character in text]

    def _draw(self, boxes: tuple[Box, ...], x: int, y: int) -> None:
        for box in boxes:
            left, top = x + box.x, y + box.y
            self._border(box, left, top)
            self._draw(box.boxes, left, top)
            for cell in box.cells:
                for down, (text, style) in enumerate(self._core(cell.threads)):
                    self._write(left + cell.x, top + cell.y + down, text, style)

    def _border(self, box: Box, x: int, y: int) -> None:
        (above, below) = ("╭╮", "╰╯") if box.cells else ("┌┐", "└┘")
        bottom, right = y + box.height - 1, x + box.width - 1
        for line in range(y + 1, bottom):
            self._write(x, line, "│", "dim")
            self._write(right, line, "│", "dim")
        for line, corners, writing, style in (
            (y, above, box.title, "bold"),
            (bottom, below, box.caption, ""),
        ):
            self._write(x, line, corners[0] + "─" * (box.width - 2) + corners[1], "dim")
            if writing:
                room = box.width - 4
                shown = writing if len(writing) <= room else f"{writing[: room - 1]}…"
                self._write(x + 1, line, " ", "")
                self._write(x + 2, line, shown, style)
                self._write(x + 2 + len(shown), line, " ", "")

    def _core(self, threads: tuple[int | None, ...]) -> list[tuple[str, str]]:
        """Return the column of cells for a core; blank for threads that are not shown."""
        if self._cpu_ids:
            styles = ["" if cpu is None else self._look(cpu).style for cpu in threads]
            texts = ["" if cpu is None else str(cpu) for cpu in threads]
            return [
                (f"{text:>{self._cpu_ids}}", style if self._colour else "")
                for text, style in zip(texts, styles, strict=True)
            ]
        looks = [_BLANK if cpu is None else self._look(cpu) for cpu in threads]
        if not self._colour:
            return [(look.letter, "") for look in looks]
        if len(looks) % 2:
            looks.append(_BLANK)
        return [_cell(*pair) for pair in zip(looks[::2], looks[1::2], strict=True)]

    def _look(self, cpu: int) -> Look:
        place = self._scene.places[cpu]
        own = place.use is Purpose.OWN
        look = _own(self._scene.marks[place.owner]) if own else _LOOKS[place.use]
        return replace(look, style=look.style + _MOVED) if cpu in self._scene.moved else look


def _cell(upper: Look, lower: Look) -> tuple[str, str]:
    if upper is _BLANK or lower is _BLANK or upper == lower:
        look = upper if lower is _BLANK else lower
        return look.letter, look.style
    moved = _MOVED if _MOVED in upper.style + lower.style else ""
    return _HALVES, f"{upper.half} on {lower.half}{moved}"
