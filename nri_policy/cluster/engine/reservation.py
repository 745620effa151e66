"""Which hosts are set aside for a group that has waited long; spec cluster.md §9.

Only lasting pods count: pods that are always restarted, including DaemonSets, and groups of such
pods. With preemption, groups of lower priority end.

Required or preferred level: a domain whose hosts could hold the group then: the one where most of
its pods fit now, then the one with most free, then the lowest values. In it, and everywhere for a
group without a level: the freest hosts, as few as could hold the group. Pod sets come one after the
other; one that fits beside those before it gets no more hosts. For pods that a running group lacks:
the freest hosts, as few as hold them, where its request lets them go. Other steps of the
group's JobSet stay: they may end only after it, and it may have to share their domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.bisection import smallest_fitting_up_to
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.search.job_set_domains import find_other_steps
from nri_policy.cluster.engine.search.replacement import host_of_place
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.usage import find_named_nodes
from nri_policy.cluster.engine.unit_capacity import UnitCapacity
from nri_policy.cluster.objects.document import DocumentError, format_amount
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    PlacementRequest,
    is_lasting,
)
from nri_policy.cluster.requests.request import (
    Unit,
    Unplaceable,
    exclusive_of,
    together_of,
    units_of,
)
from nri_policy.cluster.view import ClusterView
from nri_policy.foundation.wording import counted

MAX_HELD = 1000  # answers that are kept: whether hosts hold a request

_NONE: Mapping[str, int] = MappingProxyType({})
_BESIDE = "fits nowhere beside what stays"


class _Emptied(Struct, frozen=True):
    """The cluster after the end of all pods that end by themselves."""

    engine: Engine
    staying: Mapping[str, Mapping[Key, PlacementGroup]]  # by node, the groups that do
    held: dict[tuple[bytes, frozenset[str]], bool]  # whether hosts alone hold a request


class Reservations:
    """Chooses hosts by their room after the end of all pods that end by themselves."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._empty = engine.without_usage()
        self._emptied: dict[int, _Emptied] = {}  # by priority, with preemption

    def find_lack(self, group: PlacementGroup) -> str | None:
        """Return what *group* would still lack after all pods and groups that can end have ended.

        Other steps of its JobSet stay. None if it would fit then; an empty text if it would not
        even fit an empty cluster. Raises DocumentError.
        """
        asked = replace(group, status=GroupStatus())
        found = self._emptied_beside_steps(group).place(asked)
        if found.assignments:
            return None
        if not self._empty.place(asked, explain=False).assignments:
            return ""
        return f"{_BESIDE}: {self._short_hosts(asked) or found.message}"

    def choose(
        self,
        group: PlacementGroup,
        kept: Collection[str] = (),
        more: Mapping[str, int] = _NONE,
    ) -> tuple[str, ...] | None:
        """Return the hosts for *group*, those that are *kept* first; None if none could hold it.

        Of one that has places, for the pods that it lacks: on failed nodes, and *more*.
        """
        try:
            closed = self._engine.closed_to(group)
            kept = [
                name for name in kept if name in self._engine.state.nodes and name not in closed
            ]
            if kept and self._hold(kept, group, more):
                return tuple(sorted(kept))
            if group.status.assignments:
                return self._choose_beside(group, more)
            return self._choose(group, kept, closed)
        except (DocumentError, Unplaceable):
            return None

    def may_find_more_room(
        self, group: PlacementGroup, hosts: Collection[str], fitting: int
    ) -> bool:
        """Whether more than *fitting* pods may fit now on what `choose` returns without *kept*.

        *hosts* hold the group. So those that are chosen are in a domain of the level that *hosts*
        share one of, or of a finer level, and no more pods fit there than in the fullest of these.
        Groups of several pod sets, and those that have places, are not looked at.
        """
        only = units_of(group)
        if len(only) != 1 or only[0].leader is not None or group.status.assignments:
            return True
        if exclusive_of(group.pod_sets) is not None or together_of(group) is not None:
            return True
        most = UnitCapacity(self._engine.state, only[0]).most_in_a_domain(hosts)
        return most is None or most > fitting

    def _emptied_for(self, group: PlacementGroup) -> _Emptied:
        if not self._empty.state.is_up_to_date():
            self._empty = self._engine.without_usage()
            self._emptied.clear()
        preemption = self._engine.state.settings.groups.preemption
        priority = group.priority if preemption else 0
        found = self._emptied.get(priority)
        if found is None:
            groups = [each for each in self._engine.state.groups.values() if is_lasting(each)]
            if preemption:
                groups = [each for each in groups if each.priority >= priority]
            at: dict[str, dict[Key, PlacementGroup]] = {}
            for each in groups:
                for node in find_assigned_nodes(each.status, self._engine.state.view):
                    at.setdefault(node, {})[each.key] = each
            found = self._emptied[priority] = _Emptied(self._engine.emptied(groups), at, {})
        return found

    def _emptied_beside_steps(self, group: PlacementGroup) -> Engine:
        """Return the emptied cluster with the other steps of a group's JobSet."""
        engine = self._emptied_for(group).engine
        if others := self._other_steps(group):
            engine = engine.fork()
            for each in others:
                engine.state.set_group(each)
        return engine

    def _short_hosts(self, group: PlacementGroup) -> str:
        """Return what all hosts lack for a pod that an empty one would hold; nothing if none do."""
        for unit in units_of(group):
            emptied, empty = (
                UnitCapacity(self._emptied_for(group).engine.state, unit),
                UnitCapacity(self._empty.state, unit),
            )
            hosts = [name for name in empty.leaf if empty.pods(name)]
            if not unit.workers.count or any(emptied.pods(name) for name in hosts):
                continue
            for name, asked in sorted(unit.workers.amounts.items()):
                left = {host: emptied.left(host, name) for host in hosts}
                freest = max(hosts, key=left.__getitem__, default="")
                if freest and left[freest] < asked:
                    amounts = max(0, left[freest]), empty.left(freest, name)
                    most, whole = (format_amount(name, each) for each in amounts)
                    if name == "cpu":  # both in the unit that the message names
                        most, whole = (f"{each / 1000:g}" for each in amounts)
                    unit_name = "CPUs" if name == "cpu" else name
                    return (
                        f"DaemonSets and services leave at most {most} of {whole} {unit_name}"
                        " on each host"
                    )
        return ""

    def _choose(
        self, group: PlacementGroup, kept: Sequence[str], closed: Collection[str]
    ) -> tuple[str, ...] | None:
        chosen: list[str] = []
        pod_sets: list[str] = []
        for unit in units_of(group):
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
        free = self._engine.without_nodes(self._engine.taken_from(group))
        whole = _in_one_domain(group, unit)
        emptied = self._emptied_beside_steps(group)
        now, empty = UnitCapacity(free.state, whole), UnitCapacity(emptied.state, whole)
        for names in _domains(now, empty, kept):
            open_ = [name for name in names if name not in chosen and name not in closed]
            fitting = [name for name in open_ if empty.pods(name)]
            fitting.sort(key=lambda name: (name not in kept, *now.order(name)))
            pods = {name: empty.pods(name) for name in (*chosen, *fitting)}

            def hold(names: Sequence[str], pods: Mapping[str, int] = pods) -> bool:
                names = [*chosen, *names]
                most = sum(pods[name] for name in names)
                return most >= unit.workers.count and self._hold(names, group)

            some = _fewest(fitting, hold)
            if some is not None:
                return [*chosen, *some]
        return None

    def _choose_beside(
        self, group: PlacementGroup, more: Mapping[str, int]
    ) -> tuple[str, ...] | None:
        """Return the hosts for the pods that a group with places lacks."""
        failed = {*group.status.unhealthy_nodes}
        lacking = [unit for unit in units_of(lacking_pods(group, more)) if unit.workers.count]
        if not lacking:
            return ()
        rooms = [UnitCapacity(self._engine.state, unit) for unit in lacking]
        nodes = [
            self._engine.state.nodes[name]
            for name in {name for each in rooms for name in each.leaf}
        ]
        names = [node.name for node in nodes if node.host not in failed]
        names.sort(key=lambda name: min(room.order(name) for room in rooms))
        some = _fewest(names, lambda names: self._hold(names, group, more))
        if some is None:
            return None
        before = {
            (each.pod_set, *one.values): one.count
            for each in group.status.assignments
            for one in each.domains
            if host_of_place(each, one) not in failed
        }
        used = {
            name
            for each in self._place_on(some, group, more).assignments
            for one in each.domains
            if one.count > before.get((each.pod_set, *one.values), 0)
            for name in find_named_nodes(each.levels, one.values, self._engine.state.view)
        }
        return tuple(sorted(used & {*some}))

    def _hold(
        self, names: Collection[str], group: PlacementGroup, more: Mapping[str, int] = _NONE
    ) -> bool:
        """Whether these hosts alone could hold *group*, or what it lacks, as `choose` has it."""
        if group.status.assignments:
            return bool(self._place_on(names, group, more).assignments)
        held = self._emptied_for(group).held
        beside = [(each.key, each.status) for each in self._other_steps(group)]
        key = msgspec.json.encode((group.pod_sets, group.together, beside)), frozenset(names)
        found = held.get(key)
        if found is None:
            if len(held) >= MAX_HELD:
                held.clear()
            found = held[key] = bool(self._place_on(names, group, more).assignments)
        return found

    def _place_on(
        self, names: Collection[str], group: PlacementGroup, more: Mapping[str, int]
    ) -> GroupStatus:
        """Return the status of *group* if it were placed on these hosts once all has ended there.

        What it has on other hosts stays, where nothing else has room.
        """
        if not group.status.assignments:
            group = replace(group, status=GroupStatus())
        failed = {*group.status.unhealthy_nodes}
        own = [
            self._engine.state.nodes[name]
            for name in find_assigned_nodes(group.status, self._engine.state.view)
        ]
        others = {node.name for node in own if node.host not in failed} - {*names}
        only = [*names, *others]
        at = self._emptied_for(group).staying
        staying = {key: each for name in only for key, each in at.get(name, {}).items()}
        staying |= {each.key: each for each in self._other_steps(group)}
        if own:
            staying[group.key] = group
        made = self._engine.emptied(staying.values(), only)
        for name in others:
            made.state.occupy(name, self._engine.state.nodes[name].allocatable, 1)
        return made.place(group, more=more)

    def _other_steps(self, group: PlacementGroup) -> list[PlacementGroup]:
        """Return the groups of a group's JobSet that do not end before it: they may wait for it."""
        return find_other_steps(group, self._engine.state.usages.steps_beside(group))

    def _where_it_would_be(
        self, group: PlacementGroup, closed: Collection[str]
    ) -> tuple[str, ...] | None:
        """Return the hosts that *group* would get once all has ended; None if it does not fit."""
        open_ = self._engine.state.nodes.keys() - closed
        status = self._place_on(open_, group, _NONE)
        return find_assigned_nodes(status, self._engine.state.view) or None


def lacking_pods(group: PlacementGroup, more: Mapping[str, int]) -> PlacementGroup:
    """Return the pods that a group with places lacks, as a group that may go anywhere."""
    failed = {*group.status.unhealthy_nodes}
    lost = Counter(dict(more))
    for each in group.status.assignments:
        lost[each.pod_set] += sum(
            one.count for one in each.domains if host_of_place(each, one) in failed
        )
    pod_sets = []
    for own in group.pod_sets:
        topology = own.request.topology if own.request else None
        anywhere = PlacementRequest(unconstrained=True, topology=topology)
        pod_sets.append(replace(own, count=lost[own.name], request=anywhere))
    return replace(group, pod_sets=(*pod_sets,), status=GroupStatus())


def _in_one_domain(group: PlacementGroup, unit: Unit) -> Unit:
    """Return a unit that names the level that its whole group is to be in a domain of, if any."""
    request, together = unit.workers.request or PlacementRequest(), together_of(group)
    level = exclusive_of(group.pod_sets) or (together.required if together else None)
    if level is None or request.required or request.slices:
        return unit
    asked = replace(request, required=level, preferred=None, unconstrained=False)
    return replace(unit, workers=replace(unit.workers, request=asked))


def _fewest(names: Sequence[str], holds: Callable[[Sequence[str]], bool]) -> Sequence[str] | None:
    """Return the shortest start of *names* that holds the group; None if all together do not."""
    number = smallest_fitting_up_to(len(names), lambda number: holds(names[:number]))
    return None if number is None else names[:number]


def _domains(now: UnitCapacity, empty: UnitCapacity, kept: Collection[str]) -> Iterator[list[str]]:
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


def _of_level(
    now: UnitCapacity, empty: UnitCapacity, kept: Collection[str], level: int
) -> Iterator[list[str]]:
    assert now.counts is not None
    number, shape = now.unit.workers.count // now.plan.size, now.tree.shape
    own = {shape.domains.above(now.leaf[name], level) for name in kept if name in now.leaf}
    could = _capacities(empty, level)
    found: list[tuple[bool, int, Path, int]] = []
    for domain in shape.domains.of_level(level):
        path = shape.path(domain, level)
        if level <= now.plan.slice_level and could.get(path, 0) < number:
            continue
        fitting = min(now.counts.of(domain)[0], now.unit.workers.count)
        found.append((domain not in own, -fitting, path, domain))
    for _, alike in groupby(sorted(found), key=itemgetter(0, 1)):
        domains = sorted((each for *_, each in alike), key=lambda each: -now.free_below(each))
        yield from ([*now.tree.nodes_in([shape.domains.leaves_below(each)])] for each in domains)


def _capacities(empty: UnitCapacity, level: int) -> dict[tuple[str, ...], int]:
    """Return how many slices each domain of *level* holds if it is empty."""
    assert empty.counts is not None
    shape = empty.tree.shape
    return {
        shape.path(domain, level): empty.counts.of(domain)[3]
        for domain in shape.domains.of_level(level)
    }


def find_assigned_nodes(status: GroupStatus, view: ClusterView) -> tuple[str, ...]:
    """Return the nodes that the assignments of a status name."""
    found: set[str] = set()
    for each in status.assignments:
        for one in each.domains:
            found.update(find_named_nodes(each.levels, one.values, view))
    return tuple(sorted(found))


def describe_hosts(
    group: PlacementGroup, hosts: Sequence[str], nodes: Mapping[str, ClusterNode]
) -> str:
    """Return where *hosts* are, in short: the domain that *group* asks for if all are in one."""
    for each in group.pod_sets:
        request = each.request or PlacementRequest()
        level = request.required or request.preferred
        values = {nodes[name].labels.get(level or "") for name in hosts}
        if level is not None and len(values) == 1 and (value := values.pop()) is not None:
            return f"{level.rpartition('/')[2]} {value}"
    return counted(len(hosts), "host")
