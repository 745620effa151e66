"""Section: a map in the settings with known keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

from msgspec import Struct

Fault = tuple[str, str]  # the path of the field below its section, and what is wrong


class Section(Struct, frozen=True, kw_only=True):
    """A map of the document with known keys.

    A field has a value, with its reader in the annotation; a section; or several sections, in a
    tuple or a mapping by name. `LATER` names settings that are accepted but have no effect yet;
    `INSTEAD` names the settings to use in place of some of them.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()
    INSTEAD: ClassVar[Mapping[str, str]] = {}

    def list_checks(self) -> Iterator[tuple[Collection[str], Iterator[Fault]]]:
        """Yield independent checks: the attributes that each needs, and the faults that it finds.

        A check runs if all of its attributes could be read, even if others are wrong.
        """
        yield self.__struct_fields__, self.find_faults()

    def find_faults(self) -> Iterator[Fault]:
        """Yield contradictions, for a section with only one check."""
        return iter(())
