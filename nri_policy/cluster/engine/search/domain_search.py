"""Where pod sets go that no order places: a bounded search over the domains of their levels.

A unit is packed into one domain of its level after the other, best fit first, and the units after
it into what that leaves (spec cluster.md §5). The search is deterministic and has a fixed length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.placement import PackedUnit, make_assignments, pack_as_wanted
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.requests.request import PlacementPlan, Unit
from nri_policy.native._counts import Counts
from nri_policy.native._packing import Refusal

MAX_STEPS = 2000  # one for each unit that is packed into a domain, and one more for each
_PLACES = 3  # places that it takes there
_LEAVES = 64  # leaves that are counted anew
_DOMAINS = 16  # domains that are compared

Assignments = Mapping[str, Assignment]


class UnitCounts(Struct, frozen=True):
    """How many of a unit fit where, beside those that are taken."""

    tree: Tree
    wanted: PlacementPlan
    counts: Counts
    within: int  # the domain for all pods; -1: any domain
    fresh: bool  # whether the counts are valid only beside these assignments


class DomainSearch:
    """A search for places of all units of a group."""

    def __init__(
        self,
        room_for: Callable[[Unit, Assignments], UnitCounts],
        take: Callable[[Assignments, Unit, int], None],
    ) -> None:
        """`room_for` counts beside assignments, `take` counts them as used so many times."""
        self._room_for = room_for
        self._take = take
        self._steps = 0
        self._rooms: dict[tuple[str, ...], UnitCounts] = {}

    def find(self, units: Sequence[Unit]) -> dict[str, Assignment] | None:
        """Return places of all *units*, searched in this order; None without a result."""
        return self._find(units, {})

    def _find(
        self, left: Sequence[Unit], taken: dict[str, Assignment]
    ) -> dict[str, Assignment] | None:
        unit, *rest = left
        room, *others = (self._count(each, taken) for each in left)
        domains, plans = self._domains(unit, room, others), _fillings(room.wanted)
        for domain, wanted in ((domain, each) for domain in domains for each in plans):
            self._steps += 1
            if self._steps > MAX_STEPS:
                return None
            try:
                places, leader = pack_as_wanted(room.counts, wanted, unit.workers.count, domain)
            except Refusal:
                continue
            found = make_assignments(room.tree, unit, PackedUnit(places, leader, room.wanted.level))
            if not rest:
                return taken | found
            self._steps += sum(len(each.domains) for each in found.values()) // _PLACES
            self._take(found, unit, 1)
            whole = self._find(rest, taken | found)
            self._take(found, unit, -1)
            if whole is not None:
                return whole
        return None

    def _count(self, unit: Unit, taken: Assignments) -> UnitCounts:
        room = self._rooms.get(unit.names)
        if room is None or room.fresh:
            room = self._rooms[unit.names] = self._room_for(unit, taken)
        if room.fresh:
            self._steps += room.tree.shape.domains.leaves // _LEAVES
        return room

    def _domains(self, unit: Unit, room: UnitCounts, others: Sequence[UnitCounts]) -> Iterator[int]:
        """Yield domains to try, -1 for any; domains with equal counts for every unit count once."""
        wanted = room.wanted
        if not wanted.unconstrained:
            found = room.counts.holders(wanted.level, unit.workers.count // wanted.size)
            if room.within >= 0:
                inside = room.tree.shape.below(room.within, wanted.level)
                found = [each for each in found if each in inside]
            self._steps += len(found) // _DOMAINS
            seen = set[object]()
            one_tree = all(each.tree.shape is room.tree.shape for each in others)
            for domain in found:
                if one_tree:
                    kind = tuple(each.counts.of(domain) for each in (room, *others))
                    if kind in seen:
                        continue
                    seen.add(kind)
                yield domain
        if not wanted.required:
            yield room.within


def _fillings(wanted: PlacementPlan) -> tuple[PlacementPlan, PlacementPlan]:
    """Return a plan, and one that takes the largest domains first where it takes the smallest."""
    return wanted, replace(wanted, ascending=not wanted.ascending)
