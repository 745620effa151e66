"""Preemption: the groups to evict so that a group of higher priority fits.

Groups leave as a whole, never a part of one. They are taken out in order of priority, lowest first,
the youngest first among equals, until the waiting group fits; then all that it can do without are
put back, the last one that was taken out first. So every victim is necessary (spec cluster.md §9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations, islice
from typing import Generic, TypeVar

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.requests.group import PlacementGroup

MAX_TRIES = 100  # trials of smaller sets of victims

_T = TypeVar("_T")


def find_victims(engine: Engine, group: PlacementGroup) -> list[PlacementGroup] | None:
    """Return the groups that would have to leave so that *group* fits, in order; [] if it fits.

    None if it does not fit even without all groups of lower priority. Nothing changes. Raises
    DocumentError for a request that breaks a rule.
    """
    trial = engine.fork()

    def fits(gone: Sequence[Key]) -> bool:
        trial.state.take_out(gone)
        return trial.place(group, explain=False).state == "Placed"

    groups = engine.state.groups
    found = _Search(fits).find(find_lower_groups(groups.values(), group.priority))
    return None if found is None else [groups[key] for key in found]


def find_lower_groups(groups: Iterable[PlacementGroup], priority: int) -> list[Key]:
    """Return placed groups of less than *priority*, in the order in which they would leave."""
    placed = [each for each in groups if each.priority < priority and each.status.assignments]
    placed.sort(key=lambda each: each.key)
    placed.sort(key=lambda each: each.created, reverse=True)
    placed.sort(key=lambda each: each.priority)
    return [each.key for each in placed]


def find_fewest(order: Sequence[_T], fits: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """Return the fewest of *order* that have to leave, the first ones among equals.

    The list is empty if the group *fits* at once, or not even without all of *order*. Where there
    are very many choices, fewer than the search above finds are looked for in some of them only.
    """
    found = _Search(fits).find(order) or []
    smaller = chain.from_iterable(combinations(order, size) for size in range(1, len(found)))
    return next(([*some] for some in islice(smaller, MAX_TRIES) if fits(some)), found)


class _Search(Generic[_T]):
    """Takes out what may leave, and puts back what need not; *fits* says whether that is enough."""

    def __init__(self, fits: Callable[[Sequence[_T]], bool]) -> None:
        self._fits = fits

    def find(self, order: Sequence[_T]) -> list[_T] | None:
        if self._fits(()):
            return []
        enough = 1
        while not self._fits(order[:enough]):
            if enough >= len(order):
                return None
            enough *= 2
        order = order[:enough]
        needed: list[_T] = []
        while most := self._fewest(order, needed):
            # The last victim is needed: the earlier victims alone free too little.
            needed.insert(0, order[most - 1])
            order = order[: most - 1]
        return needed

    def _fewest(self, order: Sequence[_T], needed: list[_T]) -> int:
        """Return how many of *order*, from its start, have to leave beside *needed*.

        All are enough. Fewer are tried in steps that double, the last step is halved.
        """
        high, step = len(order), 1
        while high and self._fits([*order[: max(0, high - step)], *needed]):
            high, step = max(0, high - step), 2 * step
        low = max(0, high - step) + 1  # one less is not enough
        while low < high:
            middle = (low + high) // 2
            if self._fits([*order[:middle], *needed]):
                high = middle
            else:
                low = middle + 1
        return high
