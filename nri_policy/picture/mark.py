"""Marks: the letter and the colour of each container in pictures.

Letters are assigned in the order of containers and stay through a series of pictures. A colour is
derived from the name, so a container has the same one in all pictures, unless another container
took it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from zlib import crc32

from msgspec import Struct

# Lower-case letters mark shared CPUs.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
NO_LETTER = "#"
# From the terminals' 256 colours, the same on pages; black letters are legible on them. The first
# eight differ as much as possible; each later colour resembles one of the first eight.
COLOURS = {
    39: "#00afff",
    208: "#ff8700",
    76: "#5fd700",
    213: "#ff87ff",
    80: "#5fd7d7",
    203: "#ff5f5f",
    220: "#ffd700",
    141: "#af87ff",
    156: "#afff87",
    173: "#d7875f",
    117: "#87d7ff",
    219: "#ffafff",
    215: "#ffaf5f",
    178: "#d7af00",
    111: "#87afff",
    45: "#00d7ff",
}
_FAR, _NEAR = tuple(COLOURS)[:8], tuple(COLOURS)[8:]  # from each other


class Mark(Struct, frozen=True):
    """The letter and the colour of a container."""

    letter: str
    colour: int  # a key of COLOURS


_NONE: Mapping[str, Mark] = MappingProxyType({})


def assign_marks(names: Iterable[str], known: Mapping[str, Mark] = _NONE) -> dict[str, Mark]:
    """Return *known* with marks for all *names*.

    A letter is reused only if no other is left, so that throughout a series of pictures it means
    the same container.
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
