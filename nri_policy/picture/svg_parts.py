"""Pieces of SVG drawings, and how they stand below each other."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from nri_policy.picture.floor_plan import DrawingSizes
from nri_policy.picture.markup import Element

WIDTH = 1180  # pixels that a strip has at most, unless its containers' names need more
LETTER = 7.3  # breadth, in a fixed-width font of 12 pixels
LINE = 18
METRICS = DrawingSizes(
    cell=24,
    line=25,
    abreast=1,
    cell_gap=2,
    part_gap=12,
    row_gap=6,
    box_gap=12,
    box_row_gap=12,
    side=12,
    top=26,
    bottom=26,
    letter=LETTER,
    writing=460,
)


class Drawn(Struct, frozen=True):
    """Elements that stand below each other."""

    elements: tuple[Element, ...]
    width: float
    height: float


def stack(parts: Iterable[Drawn]) -> Drawn:
    """Return *parts* one below the other."""
    elements: list[Element] = []
    width = y = 0.0
    for part in parts:
        elements.append(group(0, y, *part.elements))
        width = max(width, part.width)
        y += part.height
    return Drawn(tuple(elements), width, y)


def group(x: float, y: float, *content: Element, **attributes: str | int | None) -> Element:
    """Return a group that is moved to a place."""
    place = f"translate({x:g},{y:g})" if x or y else None
    return Element("g", *content, transform=place, **attributes)


def line(text: str, class_: str) -> Drawn:
    """Return a line of text, as long as there is room for."""
    shown = cut(text, round(WIDTH / LETTER))
    element = Element("text", shown, class_=class_, x=0, y=13)
    letter = 1.2 * LETTER if class_ == "heading" else LETTER  # which is larger
    return Drawn((element,), len(shown) * letter, LINE + 4)


def cut(text: str, longest: int) -> str:
    """Return *text* in so many characters, with a mark where some are missing."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def swatch(letter: str) -> tuple[Element, Element]:
    """Return a container's mark as its CPUs have it, for a group with the classes of a CPU."""
    return (
        Element("rect", width=18, height=16),
        Element("text", letter, x=9, y=12),
    )


def number_label(letter: str, cpu: int) -> tuple[Element, ...]:
    """Return the mark of a CPU with its number: a phone and a print have no pointer."""
    return (
        Element("rect", width=METRICS.cell, height=METRICS.line),
        Element("text", letter, x=METRICS.cell / 2, y=11),
        Element("text", str(cpu), class_="number", x=METRICS.cell / 2, y=21.5),
    )
