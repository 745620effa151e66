"""Which hosts are set aside for a group that has waited long; spec cluster.md §9.

Required or preferred level: a domain whose hosts, if empty, could hold the group: the one where
most of its pods fit now, then the one with most free, then the lowest values. In it, and everywhere
for a group without a level: the freest hosts, as few as could hold the group if they were empty.
Pod sets come one after the other; one that fits beside those before it gets no more hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.room import Room
from nri_policy.cluster.engine.usage import nodes_named
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.group import GroupStatus, PlacementGroup, PlacementRequest
from nri_policy.cluster.objects.request import (
    Unit,
    Unplaceable,
    units,
)
from nri_policy.foundation.wording import counted


class Reservations:
    """Chooses hosts in a cluster as it is, by what they could hold if it were empty."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._empty = engine.without_usage()

    @property
    def empty(self) -> Engine:
        """What the cluster could hold if it were empty."""
        if not self._empty.is_up_to_date():
            self._empty = self._engine.without_usage()
        return self._empty

    def choose(self, group: PlacementGroup, kept: Collection[str] = ()) -> tuple[str, ...] | None:
        """Return the hosts for *group*, those that are *kept* first; None if none could hold it."""
        try:
            closed = self._engine.closed_to(group)
            kept = [name for name in kept if name in self._engine.nodes and name not in closed]
            if kept and self._hold(kept, group):
                return tuple(sorted(kept))
            return self._choose(group, kept, closed)
        except (DocumentError, Unplaceable):
            return None

    def _choose(
        self, group: PlacementGroup, kept: Sequence[str], closed: Collection[str]
    ) -> tuple[str, ...] | None:
        chosen: list[str] = []
        pod_sets: list[str] = []
        for unit in units(group):
            if not unit.workers.count:
                continue
            pod_sets += [each.name for each in unit.pod_sets]
            own = tuple(each for each in group.pod_sets if each.name in pod_sets)
            found = self._more(replace(group, pod_sets=own), unit, chosen, kept, closed)
            if found is None:
                return self._where_it_would_be(group, closed)
            chosen = found
        return tuple(sorted(chosen))

    def _more(
        self,
        group: PlacementGroup,
        unit: Unit,
        chosen: list[str],
        kept: Sequence[str],
        closed: Collection[str],
    ) -> list[str] | None:
        """Return *chosen* with the hosts that *unit*, the last of *group*, needs beside them."""
        if chosen and self._hold(chosen, group):
            return chosen
        now, empty = Room(self._engine, unit), Room(self.empty, unit)
        for names in _domains(now, empty, kept):
            open_ = [name for name in names if name not in chosen and name not in closed]
            fitting = [name for name in open_ if empty.pods(name)]
            fitting.sort(key=lambda name: (name not in kept, *now.order(name)))
            if (some := self._fewest(chosen, fitting, group)) is not None:
                return [*chosen, *some]
        return None

    def _fewest(
        self, chosen: Sequence[str], names: Sequence[str], group: PlacementGroup
    ) -> Sequence[str] | None:
        """Return as few of *names*, from the first, as hold *group* together with *chosen*."""
        low, high = 0, 1  # low do not hold it
        while not self._hold([*chosen, *names[:high]], group):
            if high >= len(names):
                return None
            low, high = high, 2 * high
        high = min(high, len(names))
        while high - low > 1:
            middle = (low + high) // 2
            if self._hold([*chosen, *names[:middle]], group):
                high = middle
            else:
                low = middle
        return names[:high]

    def _hold(self, names: Collection[str], group: PlacementGroup) -> bool:
        """Whether these hosts alone, if empty, could hold *group*."""
        asked = replace(group, status=GroupStatus())
        return bool(self._engine.without_usage(names).place(asked).assignments)

    def _where_it_would_be(
        self, group: PlacementGroup, closed: Collection[str]
    ) -> tuple[str, ...] | None:
        """Return the hosts that *group* would get in an empty cluster; None if it does not fit."""
        empty = self.empty
        if closed:
            empty = self._engine.without_usage(self._engine.nodes.keys() - closed)
        status = empty.place(replace(group, status=GroupStatus()))
        return hosts_named(status, empty) or None


def _domains(now: Room, empty: Room, kept: Collection[str]) -> Iterator[list[str]]:
    """Yield the hosts of each domain that could hold a pod set if empty, the best domain first.

    For one that is preferred in a domain, domains of coarser levels, and then everything, follow.
    """
    if now.counts is None or empty.counts is None:
        return
    wanted = now.plan
    if not wanted.unconstrained:
        levels = [wanted.level] if wanted.required else [*range(wanted.level, -1, -1)]
        for level in levels:
            yield from _of_level(now, empty, kept, min(level, now.host_level))
    if not wanted.required:
        yield [*now.leaf]


def _of_level(now: Room, empty: Room, kept: Collection[str], level: int) -> Iterator[list[str]]:
    assert now.counts is not None
    number = now.unit.workers.count // now.plan.size
    members: dict[int, list[str]] = {}
    for name, leaf in now.leaf.items():
        members.setdefault(now.tree.shape.domains.above(leaf, level), []).append(name)
    could = _capacities(empty, level)
    found: list[tuple[bool, int, tuple[str, ...], list[str]]] = []
    for domain, names in members.items():
        path = now.tree.shape.path(domain, level)
        if level <= now.plan.slice_level and could.get(path, 0) < number:
            continue
        fitting = min(now.counts.of(domain)[0], now.unit.workers.count)
        found.append((not any(name in kept for name in names), -fitting, path, names))
    for _, alike in groupby(sorted(found), key=itemgetter(0, 1)):
        yield from sorted(
            (names for *_, names in alike),
            key=lambda names: -sum(now.free(name) for name in names),
        )


def _capacities(empty: Room, level: int) -> dict[tuple[str, ...], int]:
    """Return how many slices each domain of *level* holds if it is empty."""
    assert empty.counts is not None
    shape = empty.tree.shape
    return {
        shape.path(domain, level): empty.counts.of(domain)[3]
        for domain in shape.domains.of_level(level)
    }


def hosts_named(status: GroupStatus, engine: Engine) -> tuple[str, ...]:
    """Return the nodes that the assignments of a status name."""
    found: set[str] = set()
    for each in status.assignments:
        for one in each.domains:
            found.update(nodes_named(each.levels, one.values, engine.view))
    return tuple(sorted(found))


def place_of(group: PlacementGroup, hosts: Sequence[str], engine: Engine) -> str:
    """Return where *hosts* are, in short: the domain that *group* asks for if all are in one."""
    for each in group.pod_sets:
        request = each.request or PlacementRequest()
        level = request.required or request.preferred
        values = {engine.nodes[name].labels.get(level or "") for name in hosts}
        if level is not None and len(values) == 1 and (value := values.pop()) is not None:
            return f"{level.rpartition('/')[2]} {value}"
    return counted(len(hosts), "host")
