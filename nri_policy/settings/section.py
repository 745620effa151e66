"""Section: a map of the settings with known keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from msgspec import Struct

Fault = tuple[str, str]  # the path of the field below its section, and what is wrong


class Section(Struct, frozen=True, kw_only=True):
    """A map of the document with known keys.

    A field holds a value, whose reader is in its annotation; a section; or several sections: a
    tuple of them, or a mapping by name. `LATER` names what is accepted but has no effect yet.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    def checks(self) -> Iterator[tuple[Collection[str], Iterator[Fault]]]:
        """Yield the checks that stand alone: which attributes each reads, and what it finds.

        Those whose attributes could all be read are made, whatever is wrong with others.
        """
        yield self.__struct_fields__, self.faults()

    def faults(self) -> Iterator[Fault]:
        """Yield what does not go together, where one check is enough."""
        return iter(())
