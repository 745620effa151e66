"""Where pod sets go that no order places: a bounded search over the domains of their levels.

A unit is packed into one domain of its level after the other, best fit first, and the units after
it into what that leaves (spec cluster.md §5). The search is deterministic and has a fixed length.

A further search puts the few pods of a small unit on leaves in every way, not only best fit.

It undoes its latest choice as soon as the counts show no room for one of the remaining units.
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
from nri_policy.native._counts import Counts
from nri_policy.native._packing import Places, Refusal, make_places
from nri_policy.native._unit_slices import (
    UnitSlices,
    all_may_fit,
    describe_domain,
    describe_left,
    take,
)

MAX_STEPS = 2000  # one for each unit that is packed into a domain, and one more for each
_PLACES = 3  # places that it takes there
_LEAVES = 64  # leaves that are counted anew
_DOMAINS = 16  # domains that are compared
MAX_DISTRIBUTED = 4  # pods of a unit that go to leaves in every way

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


class _Left(Struct, frozen=True):
    """Units that are still to be packed, the next one first."""

    units: Sequence[Unit]
    rooms: list[UnitCounts]
    slices: list[UnitSlices]

    def is_on_one_tree(self) -> bool:
        """Whether all are on one tree, and no counts depend on assignments."""
        tree = self.rooms[0].tree
        return not tree.shape.zoned and all(
            each.tree is tree and not each.fresh for each in self.rooms
        )


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
        self._distributed = False  # whether small units go to leaves in every way
        self._rooms: dict[tuple[str, ...], UnitCounts] = {}
        self._on_one_tree: list[_Left] = []  # by the number of packed units; else empty
        self._refused = set[object]()  # what was left where nothing was found

    def find(
        self, units: Sequence[Unit], *, distributed: bool = False
    ) -> dict[str, Assignment] | None:
        """Return places of all *units*, searched in this order; None without a result.

        *distributed* puts pods of small units on leaves in every way. Further searches for the same
        units go on with the steps that are left.
        """
        self._refused = set()
        left = self._count(units, [])
        self._on_one_tree = []
        if left.is_on_one_tree():
            self._on_one_tree = [
                _Left(units[at:], left.rooms[at:], left.slices[at:]) for at in range(len(units))
            ]
            if distributed and not any(map(_is_small, units, left.rooms)):
                return None
        elif distributed:
            return None
        self._distributed = distributed
        found = self._find(units, [])
        return None if found is None else _assignments_of(found)

    def _find(self, units: Sequence[Unit], taken: list[_Taken]) -> list[_Taken] | None:
        left = self._on_one_tree[len(taken)] if self._on_one_tree else self._count(units, taken)
        if not all_may_fit(left.slices):
            return None
        state: object = None
        if self._on_one_tree:
            used = [(each.packed.places, each.packed.leader) for each in taken]
            state = len(taken), describe_left(left.slices, used)
            if state in self._refused:
                return None
        unit, room = left.units[0], left.rooms[0]
        for places, leader in self._tries(left):
            found = _Taken(unit, room, PackedUnit(places, leader, room.wanted.level))
            if len(left.units) == 1:
                return [*taken, found]
            self._steps += (len(places) + (leader >= 0)) // _PLACES
            self._use(found, 1)
            whole = self._find(left.units[1:], [*taken, found])
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

    def _count(self, units: Sequence[Unit], taken: Sequence[_Taken]) -> _Left:
        """Count where units fit beside those that are taken."""
        rooms = [self._room(each, taken) for each in units]
        return _Left(units, rooms, [*map(_slices_of, units, rooms)])

    def _room(self, unit: Unit, taken: Sequence[_Taken]) -> UnitCounts:
        room = self._rooms.get(unit.names)
        if room is None or room.fresh:
            room = self._rooms[unit.names] = self._room_for(unit, _assignments_of(taken))
        if room.fresh:
            self._steps += room.tree.shape.domains.leaves // _LEAVES
        return room

    def _tries(self, left: _Left) -> Iterator[tuple[Places, int]]:
        """Yield where the next unit may go, as long as there are steps.

        A leaf is packed by one plan. Others have a second one that fills the domains below in the
        opposite order of size, those below the slice level, too.
        """
        unit, room = left.units[0], left.rooms[0]
        wanted, domains = room.wanted, room.tree.shape.domains
        other = replace(wanted, ascending=not wanted.ascending, compact=not wanted.compact)
        for domain in self._domains(left):
            if self._distributed and _is_small(unit, room):
                self._steps += len(_leaves_below(room.tree, domain)) // _DOMAINS
                for places in _distributions(left, domain):
                    if not self._step():
                        return
                    yield make_places(places), -1
                continue
            above_leaves = domain < 0 or domains.children(domain)
            for plan in (wanted, other) if above_leaves else (wanted,):
                if not self._step():
                    return
                try:
                    found = pack_as_wanted(room.counts, plan, unit.workers.count, domain)
                except Refusal:
                    continue
                yield found

    def _step(self) -> bool:
        """Take a step; return whether there was one left."""
        self._steps += 1
        return self._steps <= MAX_STEPS

    def _domains(self, left: _Left) -> Iterator[int]:
        """Yield domains to try, -1 for any; domains with equal counts for every unit count once."""
        room = left.rooms[0]
        if not room.wanted.unconstrained:
            found = left.slices[0].holders()
            self._steps += len(found) // _DOMAINS
            seen = set[bytes]()
            one_tree = all(each.tree.shape is room.tree.shape for each in left.rooms)
            for domain in found:
                if one_tree:
                    kind = describe_domain(left.slices, domain)
                    if kind in seen:
                        continue
                    seen.add(kind)
                yield domain
        if not room.wanted.required:
            yield room.within


def _assignments_of(taken: Sequence[_Taken]) -> dict[str, Assignment]:
    return {name: each for one in taken for name, each in one.assignments.items()}


def _slices_of(unit: Unit, room: UnitCounts) -> UnitSlices:
    wanted = room.wanted
    return UnitSlices(
        room.counts,
        wanted.level,
        unit.workers.count // wanted.size,
        whole=wanted.required,
        within=room.within,
    )


def _is_small(unit: Unit, room: UnitCounts) -> bool:
    """Whether the pods of a unit are few enough to go to leaves in every way, and may differ."""
    wanted, last = room.wanted, room.tree.shape.domains.levels - 1
    alone = unit.leader is None and not wanted.inner and wanted.apart < 0
    in_leaves = wanted.size == 1 or wanted.slice_level == last
    in_one_leaf = wanted.required and wanted.level == last
    return alone and in_leaves and not in_one_leaf and unit.workers.count <= MAX_DISTRIBUTED


def _leaves_below(tree: Tree, domain: int) -> range:
    domains = tree.shape.domains
    return range(domains.leaves) if domain < 0 else domains.leaves_below(domain)


def _distributions(left: _Left, domain: int) -> Iterator[list[tuple[int, int]]]:
    """Yield all ways to put the pods of the next unit on leaves of *domain*: leaves and pods.

    Sibling leaves with equal room for every unit are interchangeable.
    """
    room, pods = left.rooms[0], left.units[0].workers.count
    tree, size = room.tree, room.wanted.size
    last = tree.shape.domains.levels - 1
    first = tree.shape.domains.of_level(last).start
    alike: dict[object, list[int]] = {}
    for leaf in _leaves_below(tree, domain):
        if room.counts.of(first + leaf)[0] >= size:
            above = tree.shape.domains.above(leaf, last - 1) if last else 0
            free = (*tree.rows.room(leaf).values(),)
            kind = above, free, describe_domain(left.slices, first + leaf)
            alike.setdefault(kind, []).append(leaf)
    kinds = [own[: pods // size] for own in alike.values()]
    fits = [room.counts.of(first + own[0])[0] // size * size for own in kinds]

    def put(kind: int, at: int, most: int, rest: int) -> Iterator[list[tuple[int, int]]]:
        """Yield ways for *rest* pods from a leaf of a kind on, which gets *most* pods at most."""
        if not rest:
            yield []
        elif kind < len(kinds):
            if at < len(kinds[kind]):
                for here in range(min(most, rest), 0, -size):
                    for others in put(kind, at + 1, here, rest - here):
                        yield [(kinds[kind][at], here), *others]
            yield from put(kind + 1, 0, fits[kind + 1] if kind + 1 < len(fits) else 0, rest)

    yield from map(sorted, put(0, 0, fits[0] if fits else 0, pods))
