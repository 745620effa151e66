"""Section: a map of the settings with known keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct


class Section(Struct, frozen=True, kw_only=True):
    """A map of the document with known keys.

    A field holds a value, whose reader is in its annotation; a section; or several sections: a
    tuple of them, or a mapping by name. `LATER` names what is accepted but has no effect yet.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield what does not go together: the path of the field below this one, and why."""
        return iter(())
