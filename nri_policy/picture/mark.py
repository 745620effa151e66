"""Marks: the letter and the colour by which pictures tell containers apart.

A letter is handed out in the order in which containers come and stays through a series of pictures;
a colour follows from the name, so that a container has the same one in every picture where no other
of them took it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from zlib import crc32

from msgspec import Struct

# Lower-case letters stand for CPUs that are nobody's own.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
NO_LETTER = "#"
# Of the terminals' 256 colours, such that black letters are legible on them, and the same on pages.
# The first eight are as far from each other as can be; each of the others is near one of these.
COLOURS = {
    39: "#00afff",
    208: "#ff8700",
    76: "#5fd700",
    213: "#ff87ff",
    80: "#5fd7d7",
    203: "#ff5f5f",
    220: "#ffd700",
    156: "#afff87",
    173: "#d7875f",
    141: "#af87ff",
    117: "#87d7ff",
    219: "#ffafff",
    215: "#ffaf5f",
    178: "#d7af00",
    111: "#87afff",
    45: "#00d7ff",
}
_FAR, _NEAR = tuple(COLOURS)[:8], tuple(COLOURS)[8:]  # from each other


class Mark(Struct, frozen=True):
    """How a container is told from others."""

    letter: str
    colour: int  # a key of COLOURS


_NONE: Mapping[str, Mark] = MappingProxyType({})


def assign_marks(names: Iterable[str], known: Mapping[str, Mark] = _NONE) -> dict[str, Mark]:
    """Return *known* with marks for those of *names* that have none.

    A letter is used again only when there is no other left, so that throughout a series of pictures
    it means the same container.
    """
    now = list(names)
    marks = dict(known)
    if len(marks.keys() | now) > len(LETTERS):
        marks = {name: mark for name, mark in marks.items() if name in now}
    taken = {mark.letter for mark in marks.values()}
    free = iter([letter for letter in LETTERS if letter not in taken])
    for name in now:
        if name not in marks:
            marks[name] = Mark(next(free, NO_LETTER), _colour(name, marks.values()))
    return marks


def _colour(name: str, others: Iterable[Mark]) -> int:
    """Return the colour of a name; the next one that is free, where another has it already."""
    taken = {mark.colour for mark in others}
    first = crc32(name.encode()) % len(_FAR)
    wheel = [*_FAR[first:], *_FAR[:first], *_NEAR]
    return next((colour for colour in wheel if colour not in taken), wheel[0])
