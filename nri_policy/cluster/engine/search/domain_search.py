"""Where pod sets go that no order places: a bounded search over the domains of their levels.

A unit is packed into one domain of its level after the other, best fit first, and the units after
it into what that leaves (spec cluster.md §5). The search is deterministic and has a fixed length.

It undoes its latest choice as soon as a unit that is still to be packed has no room by itself.
Where all units are on one tree, it also remembers what was left at the leaves that it had taken
when it found nothing: other ways to leave the same are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.placement import PackedUnit, make_assignments, pack_as_wanted
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.requests.request import PlacementPlan, Unit
from nri_policy.native._counts import Counts, describe_domain
from nri_policy.native._packing import Refusal, describe_left, take

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


class _Taken(Struct, frozen=True):
    """A unit that is packed, where the search is."""

    unit: Unit
    room: UnitCounts
    packed: PackedUnit

    @property
    def assignments(self) -> dict[str, Assignment]:
        return make_assignments(self.room.tree, self.unit, self.packed)


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
        self._on_one_tree = False  # and no counts depend on assignments
        self._kinds: list[tuple[Counts, int, int]] = []  # what units count, then
        self._names: list[tuple[str, ...]] = []  # of units, in their order
        self._refused = set[object]()  # what was left where nothing was found

    def find(self, units: Sequence[Unit]) -> dict[str, Assignment] | None:
        """Return places of all *units*, searched in this order; None without a result.

        Further orders of the same units go on with the steps that are left.
        """
        self._names, self._refused = [each.names for each in units], set()
        rooms = self._count_all(units, [])
        tree = rooms[0].tree
        self._on_one_tree = not tree.shape.zoned and all(
            each.tree is tree and not each.fresh for each in rooms
        )
        self._kinds = [_kind(*each) for each in zip(units, rooms, strict=True)]
        found = self._find(units, [])
        return None if found is None else _assignments_of(found)

    def _find(self, left: Sequence[Unit], taken: list[_Taken]) -> list[_Taken] | None:
        unit, *rest = left
        room, *others = rooms = self._count_all(left, taken)
        if not all(_may_fit(*each) for each in zip(left, rooms, strict=True)):
            return None
        state: object = None
        if self._on_one_tree:
            used = [(each.packed.places, each.packed.leader) for each in taken]
            state = len(left), describe_left(self._kinds[-len(left) :], used)
            if state in self._refused:
                return None
        for domain, wanted in self._tries(unit, room, others):
            self._steps += 1
            if self._steps > MAX_STEPS:
                return None
            try:
                places, leader = pack_as_wanted(room.counts, wanted, unit.workers.count, domain)
            except Refusal:
                continue
            found = _Taken(unit, room, PackedUnit(places, leader, room.wanted.level))
            if not rest:
                return [*taken, found]
            self._steps += (len(places) + (leader >= 0)) // _PLACES
            self._use(found, 1)
            whole = self._find(rest, [*taken, found])
            self._use(found, -1)
            if whole is not None:
                return whole
        if state is not None:
            self._refused.add(state)
        return None

    def _use(self, found: _Taken, times: int) -> None:
        """Count a unit as used, *times* times."""
        if self._on_one_tree:
            take(found.room.counts, found.packed.places, found.packed.leader, times)
        else:
            self._take(found.assignments, found.unit, times)

    def _count_all(self, left: Sequence[Unit], taken: Sequence[_Taken]) -> list[UnitCounts]:
        if not self._on_one_tree:
            return [self._count(each, taken) for each in left]
        return [self._rooms[each] for each in self._names[-len(left) :]]

    def _count(self, unit: Unit, taken: Sequence[_Taken]) -> UnitCounts:
        room = self._rooms.get(unit.names)
        if room is None or room.fresh:
            room = self._rooms[unit.names] = self._room_for(unit, _assignments_of(taken))
        if room.fresh:
            self._steps += room.tree.shape.domains.leaves // _LEAVES
        return room

    def _tries(
        self, unit: Unit, room: UnitCounts, others: Sequence[UnitCounts]
    ) -> Iterator[tuple[int, PlacementPlan]]:
        """Yield domains to try, each with the plans to pack by."""
        plans = _fillings(room.wanted)
        domains = room.tree.shape.domains
        for domain in self._domains(unit, room, others):
            alone = domain >= 0 and not domains.children(domain)
            yield from ((domain, each) for each in (plans[:1] if alone else plans))

    def _domains(self, unit: Unit, room: UnitCounts, others: Sequence[UnitCounts]) -> Iterator[int]:
        """Yield domains to try, -1 for any; domains with equal counts for every unit count once."""
        wanted = room.wanted
        if not wanted.unconstrained:
            found = room.counts.holders(
                wanted.level, unit.workers.count // wanted.size, room.within
            )
            self._steps += len(found) // _DOMAINS
            seen = set[bytes]()
            one_tree = all(each.tree.shape is room.tree.shape for each in others)
            every = [each.counts for each in (room, *others)]
            for domain in found:
                if one_tree:
                    kind = describe_domain(every, domain)
                    if kind in seen:
                        continue
                    seen.add(kind)
                yield domain
        if not wanted.required:
            yield room.within


def _assignments_of(taken: Sequence[_Taken]) -> dict[str, Assignment]:
    return {name: each for one in taken for name, each in one.assignments.items()}


def _kind(unit: Unit, room: UnitCounts) -> tuple[Counts, int, int]:
    """Return counts, and the slices that go into one domain of a level, 0 if they need not."""
    wanted = room.wanted
    whole = unit.workers.count // wanted.size if wanted.required else 0
    return room.counts, wanted.level, whole


def _may_fit(unit: Unit, room: UnitCounts) -> bool:
    """Whether a unit has room by itself, as far as counts tell at once."""
    wanted = room.wanted
    slices = unit.workers.count // wanted.size
    return room.counts.may_hold(wanted.level, slices, wanted.required, room.within)


def _fillings(wanted: PlacementPlan) -> tuple[PlacementPlan, PlacementPlan]:
    """Return a plan, and one that takes the largest domains first where it takes the smallest."""
    return wanted, replace(wanted, ascending=not wanted.ascending)
