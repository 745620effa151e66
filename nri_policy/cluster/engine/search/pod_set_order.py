"""In which orders the pod sets of a group are tried if one of them finds no room; cluster.md §5.

Pod sets go one after the other, and each may take what only another one could use. If a pod set is
refused, other orders are tried: first those in which it goes first, then the strictest first, then
all of few pod sets. An order is skipped if a refused order begins in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from msgspec.structs import replace

from nri_policy.cluster.requests.request import Unit

MAX_PERMUTED = 4  # units of which all orders are tried

_IN_ORDER = "placed in the order "
_BY_SEARCH = "placed by a search in the order "


class Orders:
    """The orders of a group's units, each tried once."""

    def __init__(self, units: Sequence[Unit], strictest_first: Sequence[Unit]) -> None:
        """Begin with *units* as they are; the others are the same, *strictest_first*."""
        self._order = [*units]
        self._moved: list[Unit] = []  # refused units that were already tried in first place
        self._refused = set[tuple[int, ...]]()  # beginnings of orders, by kind
        kinds = [_without_names(each) for each in units]
        self._kind = {
            each.names: kinds.index(kind) for each, kind in zip(units, kinds, strict=True)
        }
        self._strictest_first = strictest_first
        self._others = _others(strictest_first)

    def refuse(self, unit: Unit) -> list[Unit]:
        """Return the next order, as *unit* found no room in the last one; empty if none is left."""
        at = self._order.index(unit)
        self._refused.add(self._kinds(self._order[: at + 1]))
        if not at:  # refused in first place: no order helps
            return []
        if unit not in self._moved:
            self._moved.append(unit)
            first = [unit, *(each for each in self._order if each is not unit)]
            if self._is_new(first):
                self._order = first
                return first
        self._order = next((each for each in self._others if self._is_new(each)), [])
        return self._order

    def may_fit(self) -> bool:
        """Whether each unit found room by itself, as far as it was tried."""
        return all(len(each) > 1 for each in self._refused)

    def to_search(self) -> Iterator[list[Unit]]:
        """Yield the orders to search in, the strictest first; those of equal units count once."""
        seen = set[tuple[int, ...]]()
        for order in _others(self._strictest_first):
            if (kinds := self._kinds(order)) not in seen:
                seen.add(kinds)
                yield order

    def _is_new(self, order: Sequence[Unit]) -> bool:
        kinds = self._kinds(order)
        return not any(kinds[:end] in self._refused for end in range(1, len(kinds) + 1))

    def _kinds(self, units: Sequence[Unit]) -> tuple[int, ...]:
        return tuple(self._kind[each.names] for each in units)


def describe_order(units: Sequence[Unit], *, searched: bool = False) -> str:
    """Return the status message of a group whose pod sets were placed in another order."""
    names = ", ".join(name for each in units for name in each.names)
    return f"{_BY_SEARCH if searched else _IN_ORDER}{names}"


def find_order(message: str) -> str:
    """Return the message of a status if `describe_order` wrote it, else nothing."""
    return message if message.startswith((_IN_ORDER, _BY_SEARCH)) else ""


def _others(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    if len(units) > MAX_PERMUTED:
        yield [*units]
        return
    yield from ([*each] for each in permutations(units))


def _without_names(unit: Unit) -> Unit:
    leader = unit.leader and replace(unit.leader, name="")
    return Unit(workers=replace(unit.workers, name=""), leader=leader)
