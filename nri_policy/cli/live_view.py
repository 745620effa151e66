"""What the reader of the live view has chosen: the order of the table, and where it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.picture.occupant import Occupant

_PAGE = 10  # rows
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -_PAGE, "page-down": _PAGE}
_ORDERS = {"p": "placed", "n": "name", "c": "CPU", "u": "CPU in use"}
HELP = "q ends · order: p placed, n name, c CPU, u used · j k scroll"


class View(Struct, frozen=True):
    """A choice; `pressed` makes another one of it."""

    order: str = "placed"
    first: int = 0  # row

    def pressed(self, key: str, rows: int) -> View:
        """Return what is chosen after a key; there are so many *rows*."""
        if key in _ORDERS:
            return View(order=_ORDERS[key])
        first = self.first + _MOVES.get(key, 0)
        return replace(self, first=max(0, min(first, rows - 1)))

    def sorted(
        self, occupants: tuple[Occupant, ...], used: Mapping[str, float]
    ) -> tuple[Occupant, ...]:
        """Return *occupants* in the order chosen; *used* are CPUs in use, by name."""
        keys: dict[str, Callable[[Occupant], Any]] = {
            "name": lambda each: each.name,
            "CPU": lambda each: (-1000 * len(each.exclusive) - each.shared, each.name),
            "CPU in use": lambda each: (-used.get(each.name, 0.0), each.name),
        }
        if self.order == "placed":
            return occupants
        return tuple(sorted(occupants, key=keys[self.order]))
