"""The SVG renderer: scenes as strips below each other, with the containers of each.

Nothing outside the file is needed; light and dark follow the reader's preference. The same scenes
give the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from nri_policy.picture.markup import Element, Verbatim
from nri_policy.picture.occupant import Occupant
from nri_policy.picture.scene import Scene, headline
from nri_policy.picture.svg_parts import (
    LETTER,
    LINE,
    WIDTH,
    Drawn,
    cut,
    group,
    line,
    stack,
    swatch,
)
from nri_policy.picture.svg_plan import floor_plan

_MARGIN = 16
_LARGEST = 1.5  # how much larger a page with room shows a picture
_MOST_ROWS = 40
_LONGEST = 44  # characters of a cell


class Strip(Struct, frozen=True, kw_only=True):
    """A scene with what is written above it."""

    heading: str
    problems: tuple[str, ...] = ()
    scene: Scene | None  # None before the first placement


def document(strips: Sequence[Strip]) -> str:
    """Return an SVG file with the strips one below the other."""
    several = len(strips) > 1
    drawn = (
        _draw(strip, f"s{number}-" if several else "")
        for number, strip in enumerate(strips, start=1)
    )
    return draw(drawn, "; ".join(filter(None, map(_label, strips))))


def _label(strip: Strip) -> str:
    """Return a strip as a text, for screen readers."""
    machine = headline(strip.scene.machine) if strip.scene is not None else ""
    return strip.heading or machine


def draw(parts: Iterable[Drawn], label: str) -> str:
    """Return an SVG file with *parts* one below the other; *label* says what it shows."""
    content: list[Element] = []
    y, right = 0.0, 0.0
    for drawn in parts:
        content.append(group(_MARGIN, y + _MARGIN, *drawn.elements, class_="strip"))
        right = max(right, drawn.width)
        y += drawn.height + 2 * _MARGIN
    width, height = round(right) + 2 * _MARGIN, round(y)
    style = Verbatim("style", "picture.css")
    return f"{_svg(width, height, style, *content, aria_label=label)}\n"


def figure(scene: Scene, prefix: str, width: int = WIDTH, class_: str | None = None) -> Element:
    """Return the floor plan and its key for a page that has the style; ids begin with *prefix*."""
    drawn = floor_plan(scene, prefix, width)
    size = round(drawn.width) + 2, round(drawn.height) + 2
    style = f"max-width: {round(_LARGEST * size[0])}px"
    label = headline(scene.machine)
    content = group(1, 1, *drawn.elements)
    return _svg(*size, content, class_=class_, style=style, aria_label=label)


def _svg(width: int, height: int, *content: Element, **attributes: str | None) -> Element:
    return Element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        **attributes,
    )


def _draw(strip: Strip, prefix: str) -> Drawn:
    parts = [line(strip.heading, "heading")] if strip.heading else []
    parts += [line(problem, "problem") for problem in strip.problems]
    if scene := strip.scene:
        parts += [line(headline(scene.machine), "headline"), floor_plan(scene, prefix)]
        if scene.occupants:
            parts.append(_table(scene))
    return stack(parts)


def _table(scene: Scene) -> Drawn:
    shown = _most_telling(scene)
    heads = [*HEADINGS]
    heads += ["changed"] if scene.changes else []
    rows = [[cut(text, _LONGEST) for text in cells(each)][: len(heads)] for each in shown]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    starts = [28 + sum(widths[:at]) * LETTER + 18 * at for at in range(len(widths) + 1)]
    elements = [*_row(heads, starts, "head", 0)]
    for number, (each, row) in enumerate(zip(shown, rows, strict=True), start=1):
        y = number * LINE
        if each.owner:
            mark = scene.marks[each.owner]
            elements.append(group(0, y, *swatch(mark.letter), class_=f"cpu own k{mark.colour}"))
        elements += _row(row, starts, "changed" if each.change else "row", y)
    height = (len(rows) + 1) * LINE
    if more := len(scene.occupants) - len(shown):
        elements += _row([f"and {more} more: see -o html"], starts, "caption", height)
        height += LINE
    return Drawn(tuple(elements), starts[-1], height)


HEADINGS = ("container", "class", "amount", "exclusive", "cpuset", "mems", "pool")


def cells(each: Occupant) -> list[str]:
    """Return the cells below HEADINGS, and what changed."""
    return [
        each.short,
        each.qos,
        each.amount,
        str(each.exclusive) or "-",
        str(each.cpus) or "-",
        str(each.mems) or "-",
        each.place,
        each.change,
    ]


def _most_telling(scene: Scene) -> list[Occupant]:
    """Return the occupants that fit; if not all do, the marked ones first."""
    if len(scene.occupants) <= _MOST_ROWS:
        return list(scene.occupants)
    return sorted(scene.occupants, key=lambda each: not each.exclusive)[:_MOST_ROWS]


def _row(texts: Sequence[str], starts: Sequence[float], class_: str, y: float) -> Iterator[Element]:
    for text, x in zip(texts, starts, strict=False):
        yield Element("text", text, class_=class_, x=f"{x:g}", y=f"{y + 12:g}")
