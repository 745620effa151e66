"""Preemption: which groups would have to leave so that one of higher priority fits.

Groups leave as a whole, never a part of one. They are taken out in order of priority, lowest first,
the youngest first among equals, until the waiting group fits; then all that it can do without are
put back, the last one that was taken out first. So each of those that have to leave is needed (spec
cluster.md §9).
"""

from __future__ import annotations

from collections.abc import Sequence

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.group import PlacementGroup
from nri_policy.cluster.objects.metadata import Key


def victims(engine: Engine, group: PlacementGroup) -> list[PlacementGroup] | None:
    """Return the groups that would have to leave so that *group* fits, in order; [] if it fits.

    None if it does not fit even without all groups of lower priority. Nothing changes. Raises
    DocumentError for a request that breaks a rule.
    """
    found = _Search(engine, group).find(_order(engine, group.priority))
    return None if found is None else [engine.groups[key] for key in found]


def _order(engine: Engine, priority: int) -> list[Key]:
    """Return the groups that have places and less than *priority*; who leaves first is first."""
    placed = [
        each
        for each in engine.groups.values()
        if each.priority < priority and each.status.assignments
    ]
    placed.sort(key=lambda each: (each.namespace, each.name))
    placed.sort(key=lambda each: each.created, reverse=True)
    placed.sort(key=lambda each: each.priority)
    return [(each.namespace, each.name) for each in placed]


class _Search:
    """Takes groups out of a fork; a step touches only groups that it takes or puts back."""

    def __init__(self, engine: Engine, group: PlacementGroup) -> None:
        self._trial = engine.fork()
        self._group = group

    def find(self, order: Sequence[Key]) -> list[Key] | None:
        if self._fits_without():
            return []
        enough = 1
        while not self._fits_without(*order[:enough]):
            if enough >= len(order):
                return None
            enough *= 2
        order = order[:enough]
        needed: list[Key] = []
        while most := self._fewest(order, needed):
            # The last of them is needed: it did not fit without those before it.
            needed.insert(0, order[most - 1])
            order = order[: most - 1]
        return needed

    def _fewest(self, order: Sequence[Key], needed: list[Key]) -> int:
        """Return how many of *order*, from its start, have to leave beside *needed*.

        All are enough. Fewer are tried in steps that double, the last step is halved.
        """
        high, step = len(order), 1
        while high and self._fits_without(*order[: max(0, high - step)], *needed):
            high, step = max(0, high - step), 2 * step
        low = max(0, high - step) + 1  # one less is not enough
        while low < high:
            middle = (low + high) // 2
            if self._fits_without(*order[:middle], *needed):
                high = middle
            else:
                low = middle + 1
        return high

    def _fits_without(self, *groups: Key) -> bool:
        self._trial.take_out(groups)
        return self._trial.place(self._group, explain=False).state == "Placed"
