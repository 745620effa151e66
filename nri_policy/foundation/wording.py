"""Quotes outside text in messages: short, on one line, with a near miss named."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_QUOTED_LENGTH = 60
_WORD_LENGTH = 100  # comparing words is quadratic in their length


def quoted(value: object) -> str:
    """Return *value* as a message shows it: text in quotes, escaped, at most 60 characters."""
    if isinstance(value, str):
        cut = value[:_QUOTED_LENGTH]
        return repr(cut) if len(cut) == len(value) else f"{cut!r}… ({len(value)} characters)"
    if isinstance(value, dict | list):
        entries = "1 entry" if len(value) == 1 else f"{len(value)} entries"
        return f"a {'map' if isinstance(value, dict) else 'list'} ({entries})"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number that is too large"  # str() of an int refuses 4300 digits
    return str(value)


def printable(text: str, *, instead: str | None = None) -> str:
    """Return *text* with characters that could control a terminal escaped, or *instead*.

    Line ends stay: the caller handles them.
    """
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each == "\n"
        else instead or each.encode("unicode_escape").decode()
        for each in text
    )


def one_line(text: str) -> str:
    """Return *text* as `printable` does, without an end of line in it."""
    return printable(text).replace("\n", r"\n")


def problem_of(error: Exception) -> str:
    """Return what went wrong, of the system's errors with the file, but without their numbers."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the known word closest to *word*, or nothing.

    Names with the same part after the last slash are closest.
    """
    if len(word) > _WORD_LENGTH:
        return ""
    by_lower = {name.lower(): name for name in known}
    own = word.lower().rpartition("/")[2]
    alike = [each for each in by_lower if each.rpartition("/")[2] == own]
    close = get_close_matches(word.lower(), alike or by_lower, n=1, cutoff=0.0 if alike else 0.7)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def some(names: Iterable[str], most: int = 3) -> str:
    """Return the first *most* of *names* by the alphabet, and how many there are beside."""
    every = sorted(names)
    more = len(every) - most
    return ", ".join(every[:most]) + (f" and {more} more" if more > 0 else "")


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them: `node #2` before `node #10`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def counted(number: int, noun: str) -> str:
    """Return `1 core`, `2 cores`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
