"""Pictures of a cluster: a block for each rack, a cell for each host, deeper where it is fuller.

A host in which something is placed has its number of pods, and an edge. Thousands of hosts fit on
a page; who is there is in the title that a pointer brings up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from nri_policy.picture.markup import Element, Verbatim
from nri_policy.picture.page import page, render_list, section
from nri_policy.picture.svg_parts import LETTER, cut, group

_CELL = 22  # pixels, with the gap
_ACROSS = 16  # hosts in a row of a block
_TOP = 22
_GAP = 14
_WIDTH, _NARROW = 1560, 358  # pixels; for a screen, and for a phone
_SHADES = 10
_HIGH = 100  # pixels of a curve


class Cell(Struct, frozen=True):
    """A host: the share of it that is used, from 0 to 1, and the pods that are placed there now."""

    name: str
    share: float
    detail: str
    pods: int = 0


class Block(Struct, frozen=True):
    """A rack."""

    title: str
    cells: Sequence[Cell]


def document(blocks: Sequence[Block]) -> str:
    """Return an SVG file, which needs nothing beside it."""
    return f"{_svg(blocks, Verbatim('style', 'picture.css'), Verbatim('style', 'racks.css'))}\n"


def page_of(
    title: str,
    blocks: Sequence[Block],
    notes: Sequence[str],
    course: Sequence[tuple[float, float, int]] = (),
) -> str:
    """Return a page with the picture and *notes* below it.

    A *course* of time is moments in seconds, the share that was used then, and how many waited.
    """
    style = Verbatim("style", "racks.css")
    broad = _svg(blocks, style, class_="broad")
    narrow = _svg(blocks, width=_NARROW, class_="narrow")
    picture = Element("div", broad, narrow, class_="wide")
    parts = [section("Hosts", picture)]
    if course and course[-1][0]:
        parts.insert(0, section("Course of time", *(_timeline(course))))
    if notes:
        parts.append(section("Notes", render_list(notes)))
    return page(title, *parts)


def _timeline(course: Sequence[tuple[float, float, int]]) -> Iterator[Element]:
    """Yield a curve of what was used, from nothing to all, and one of how many waited."""
    end = course[-1][0]
    most = max(1, *(waiting for *_, waiting in course))
    for text, values, top in (
        ("in use, of what is used most", [used for _, used, _ in course], "100 %"),
        ("groups that waited", [waiting / most for *_, waiting in course], str(most)),
    ):
        points = " ".join(
            f"{_NARROW * at / end:.1f},{_HIGH * (1 - min(1.0, value)) + _TOP:.1f}"
            for (at, *_), value in zip(course, values, strict=True)
        )
        area = f"0,{_HIGH + _TOP} {points} {_NARROW},{_HIGH + _TOP}"
        yield Element(
            "svg",
            Element("polygon", points=area, class_="course"),
            Element("text", f"{text}; top: {top}, {end / 3600:.1f} h", x=0, y=14),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_NARROW} {_HIGH + _TOP}",
            width=_NARROW,
            height=_HIGH + _TOP,
            role="img",
        )


def _svg(
    blocks: Sequence[Block], *styles: Element, width: int = _WIDTH, class_: str | None = None
) -> Element:
    content: list[Element] = []
    x = y = _GAP
    right = high = 0
    y = _draw_key(content, y, width)
    across = min(_ACROSS, (width - _GAP) // _CELL)
    for block in blocks:
        columns = min(across, max(1, len(block.cells)))
        block_width = max(columns, 8) * _CELL
        height = _TOP + -(-len(block.cells) // columns) * _CELL
        if x > _GAP and x + block_width > width:
            x, y, high = _GAP, y + high + _GAP, 0
        content.append(group(x, y, *_draw(block, columns, block_width), class_="rack"))
        x += block_width + _GAP
        right, high = max(right, x), max(high, height)
    width, height = max(right, min(width, 40 * _CELL)), y + high + _GAP
    return Element(
        "svg",
        *styles,
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        class_=class_,
    )


def _draw_key(content: list[Element], y: int, width: int) -> int:
    """Draw what the shades mean, in so many pixels; return where the blocks begin."""
    shades = [
        group(shade * _CELL, 0, _square(shade), class_="host") for shade in range(_SHADES + 1)
    ]
    meaning = "free to full (the fuller of CPU and memory)"
    beside = 12 * _CELL + len(meaning) * LETTER <= width - _GAP
    at = {"x": 12 * _CELL, "y": 15} if beside else {"x": 0, "y": 15 + _CELL}
    content.append(group(_GAP, y, *shades, Element("text", meaning, **at), class_="key"))
    return y + (1 if beside else 2) * _CELL + _GAP


def _draw(block: Block, columns: int, width: int) -> list[Element]:
    drawn = [Element("text", cut(block.title, int(width / LETTER)), class_="title", x=0, y=14)]
    for number, cell in enumerate(block.cells):
        row, column = divmod(number, columns)
        shade = round(_SHADES * min(1.0, max(0.0, cell.share)))
        placed = f"; {cell.pods} placed" if cell.pods else ""
        parts = [Element("title", f"{cell.name}: {cell.detail}{placed}"), _square(shade)]
        if cell.pods:
            size = _CELL - 3
            parts.append(Element("rect", class_="edge", x=0.5, y=0.5, width=size, height=size))
            parts.append(Element("text", cut(str(cell.pods), 3), x=(_CELL - 2) / 2, y=14))
        drawn.append(group(column * _CELL, _TOP + row * _CELL, *parts, class_="host"))
    return drawn


def _square(shade: int) -> Element:
    return Element("rect", width=_CELL - 2, height=_CELL - 2, class_=f"full{shade}")
