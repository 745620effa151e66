"""What the reader of the live view has chosen: which rows the table has, in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.picture.occupant import Occupant

_PAGE = 10  # rows
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -_PAGE, "page-down": _PAGE}
_ORDERS = {"p": "placed", "n": "name", "c": "CPU", "u": "CPU in use"}
_ESCAPE, _BACKSPACE = "\x1b", "\x7f"
_SWITCHES: dict[str, dict[str, Any]] = {
    "?": {"helping": True},
    "/": {"typing": True},
    _ESCAPE: {"wanted": "", "first": 0},
}
KEYS = "q quit · ? keys · / filter · order: p n c u · scroll: j k"
HELP = (
    ("q", "quit"),
    ("/", "show only containers with a text in their names; Enter keeps it, Esc ends it"),
    ("p n c u", "order by time of placement, name, CPU, CPU in use"),
    ("j k", "scroll a row; the arrows and page keys do, too"),
    ("?", "these keys; any key goes back"),
)


class ViewOptions(Struct, frozen=True):
    """The reader's choices; `pressed` returns changed ones."""

    order: str = "placed"
    first: int = 0  # row
    wanted: str = ""  # substring of the names shown
    typing: bool = False  # whether keys are letters of it
    helping: bool = False

    def pressed(self, key: str, rows: int) -> ViewOptions:
        """Return what is chosen after a key; there are so many *rows*."""
        if self.typing and key:
            return self._typed(key)
        if self.helping and key:
            return replace(self, helping=False)
        if key in _ORDERS:
            return replace(self, order=_ORDERS[key], first=0)
        if key in _SWITCHES:
            return replace(self, **_SWITCHES[key])
        first = self.first + _MOVES.get(key, 0)
        return replace(self, first=max(0, min(first, rows - 1)))

    def _typed(self, key: str) -> ViewOptions:
        """Return what is chosen after a key that belongs to the filter."""
        if key in {"\n", "\r"}:
            return replace(self, typing=False)
        if key == _ESCAPE:
            return replace(self, typing=False, wanted="", first=0)
        wanted = self.wanted[:-1] if key == _BACKSPACE else self.wanted
        if len(key) == 1 and key.isprintable():
            wanted += key
        return replace(self, wanted=wanted, first=0)

    @property
    def line(self) -> str:
        """The last line of the screen."""
        if self.typing:
            return f"filter: {self.wanted}_  (Enter keeps it, Esc ends it)"
        return KEYS

    def sorted(
        self, occupants: tuple[Occupant, ...], used: Mapping[str, float]
    ) -> tuple[Occupant, ...]:
        """Return those chosen of *occupants*, in order; *used* are CPUs in use, by name."""
        occupants = tuple(each for each in occupants if self.wanted in each.name)
        keys: dict[str, Callable[[Occupant], Any]] = {
            "name": lambda each: each.name,
            "CPU": lambda each: (-1000 * len(each.exclusive) - each.shared, each.name),
            "CPU in use": lambda each: (-used.get(each.name, 0.0), each.name),
        }
        if self.order == "placed":
            return occupants
        return tuple(sorted(occupants, key=keys[self.order]))
