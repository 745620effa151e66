"""The engine of the cluster side: where groups would go in a cluster as it is.

A decision changes nothing: who carries it out tells the engine by the event of the group that has
its assignments. Pod sets go one after the other, in other orders, together, or alone in a domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Self

from msgspec.structs import replace

from nri_policy.cluster.engine.pod_set_engine import PodSetEngine, is_replaced
from nri_policy.cluster.engine.search.crowding import (
    crowded_domains,
    nodes_of,
    spreading_of,
)
from nri_policy.cluster.engine.search.domain_search import DomainSearch
from nri_policy.cluster.engine.search.exclusive import nodes_in, taken_domains
from nri_policy.cluster.engine.search.pod_set_order import Orders, order_text
from nri_policy.cluster.engine.search.replacement import kept_leaves
from nri_policy.cluster.engine.search.shared_domain import needed, shared_domains
from nri_policy.cluster.engine.search.spread_assignment import (
    assignment,
    by_node,
)
from nri_policy.cluster.engine.search.unfit_message import not_together
from nri_policy.cluster.engine.state.host_limits import OwnLimits
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    Together,
    is_lasting,
)
from nri_policy.cluster.requests.request import (
    Unit,
    Unplaceable,
    exclusive_of,
    implied,
    is_spread,
    preferring,
    together_of,
    units,
)
from nri_policy.foundation.wording import some
from nri_policy.native._counts import have_left

_BY_ZONES = "nodes that align pods to one NUMA node count by their zones"
MAX_TRIES = 10  # to spread pod sets that are in each other's way
MAX_DOMAINS = 3  # most domains in which `_place_in_one` tries other orders of pod sets


class Engine(PodSetEngine):
    """The state of a cluster, and where groups would go in it."""

    def place(
        self,
        group: PlacementGroup,
        failures: Mapping[str, int] = MappingProxyType({}),
        more: Mapping[str, int] = MappingProxyType({}),
        *,
        explain: bool = True,
    ) -> GroupStatus:
        """Return the status of *group* if it were placed now, or its failed nodes replaced.

        Its pod sets go one after the other, each sees those before. If one finds no room, other
        orders are tried, then a search. Pod sets with a shared level go into the fullest domain
        with enough room. *failures* are recent failures of the group's pods, by node: pods with
        spreading avoid such nodes. *more* pods of a pod set go where replaced ones would; what the
        group has stays. To *explain* a refusal takes longer than to find it. Nothing changes.
        Raises DocumentError for a request that breaks a rule.

        If hosts would refuse pods there, the group is placed again within their limits. If it
        cannot be, the status says what they refuse.
        """
        status = self._place_by_totals(group, failures, more, explain)
        limits = self.limits
        if not status.assignments or not limits.may_refuse():
            return status
        keeps = is_replaced(group, more)
        if not keeps and self._has_places(group):
            made = self.fork()
            made.take_out([*self._usages.out, (group.namespace, group.name)])
            return made.place(group, failures, more, explain=explain)
        kept = group if keeps else None
        placed = replace(group, status=status)
        refused = limits.find_refused(placed, kept)
        if not refused:
            return status
        limited = self._within_limits(group)
        found = limited._place_by_totals(group, failures, more, explain)  # noqa: SLF001 - another engine
        if found.assignments and not limits.find_refused(replace(group, status=found), kept):
            return found
        return limits.refusal(placed, refused, "" if found.assignments else found.message)

    def count_by_zones(self, group: PlacementGroup, status: GroupStatus) -> GroupStatus:
        """Return the *status* of a new group; if hosts have too little in all, as zones count.

        This is slower than a placement: only for reports to people.
        """
        if status.assignments or status.conditions or not self.limits.may_refuse():
            return status
        found = self._within_limits(group)._place_by_totals(group, {}, {}, True)  # noqa: SLF001 - another engine
        if found.message == status.message:
            return status
        return replace(status, message=f"{found.message}; {_BY_ZONES}")

    def _within_limits(self, group: PlacementGroup) -> Self:
        """Return one of the same state that places *group* within the limits of hosts."""
        limits: OwnLimits = {}
        for unit in units(group):
            limits |= self.limits.of(unit)
        return self.with_limits(limits)

    def _has_places(self, group: PlacementGroup) -> bool:
        key = group.namespace, group.name
        known = self.groups.get(key)
        return known is not None and bool(known.status.assignments) and key not in self._usages.out

    def spread(
        self, group: PlacementGroup, failures: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, int]:
        """Return how many new pods of *group* each node would get; under "" those without a place.

        Its pod sets go one after the other, each sees those before. Balance counts the group's
        running pods. *failures* are recent ones of the group's pods, by node. Nothing changes.
        Raises DocumentError for a request that breaks a rule.
        """
        pods: Counter[str] = Counter()
        for new, left in self._spread_group(group, failures).values():
            pods.update(new | {"": left})
        return dict(+pods)

    def _spread_group(
        self, group: PlacementGroup, failures: Mapping[str, int]
    ) -> dict[str, tuple[dict[str, int], int]]:
        """Return, by pod set, the new pods for each node, and how many find no place.

        Hosts that would refuse some get no more than they took, after many tries none at all.
        """
        found = self._spread_by_totals(group, failures)
        if not self.limits.may_refuse():
            return found
        limits: OwnLimits = {}
        for tries in count():
            assignments = [assignment(name, new, self.nodes) for name, (new, _) in found.items()]
            status = GroupStatus(state="Placed", assignments=assignments)
            refused = self.limits.find_refused(replace(group, status=status))
            if not refused:
                break
            for pod_set in () if limits else group.pod_sets:
                limits |= self.limits.of(Unit(workers=pod_set))
            for host, found_there in refused.items():
                nodes = [each.name for each in self.view.on_host(host)]
                for name, each in found_there.items():
                    most = 0 if tries > MAX_TRIES else each.of - each.pods
                    limits[name] |= dict.fromkeys(nodes, most)
            found = self.with_limits(limits)._spread_by_totals(group, failures)  # noqa: SLF001 - another engine
        return found

    def _place_by_totals(
        self,
        group: PlacementGroup,
        failures: Mapping[str, int],
        more: Mapping[str, int],
        explain: bool,
    ) -> GroupStatus:
        """Return the status of *group* as `place` does, by what hosts have in all."""
        steps = [unit for unit in units(group) if unit.workers.count]
        together, exclusive = together_of(group), exclusive_of(group.pod_sets)
        if steps and (together is not None or exclusive is not None):
            found = None
            try:
                if exclusive is not None:
                    found = self._place_alone(group, exclusive, steps, failures, more, explain)
                elif together is not None:
                    found = self._place_together(group, together, steps, failures, more, explain)
            except Unplaceable as unplaceable:
                message = str(unplaceable) if explain else ""
                return GroupStatus(state="Unplaceable", message=message)
            if found is not None:
                return found
        trial = self._trial(group, steps, more)
        status, refused = trial._place(group, steps, failures, more, explain)  # noqa: SLF001 - another engine
        if refused is None or len(steps) == 1 or not trial._have_left(steps):  # noqa: SLF001 - another engine
            return status
        return self._place_in_another_order(group, steps, refused, failures) or status

    def _place_alone(  # noqa: PLR0913, PLR0917 - as `place`
        self,
        group: PlacementGroup,
        level: str,
        steps: Sequence[Unit],
        failures: Mapping[str, int],
        more: Mapping[str, int],
        explain: bool,
    ) -> GroupStatus | None:
        """Return the status of a group that has a domain of *level* to itself (cluster.md §3).

        A finer required shared level applies inside the exclusive domain. Raises Unplaceable.
        """
        trees = [self.tree_of(unit) for unit in steps]
        alone, together = Together(required=level), together_of(group)
        at = self.shared_level(alone, trees)
        if together is not None and together.required and self.shared_level(together, trees) > at:
            alone = together
        others = [each for key, each in self.groups.items() if key not in self._usages.out]
        taken = taken_domains(group, at, trees[0], others, self.view)
        engine = self.without_nodes(nodes_in(taken, trees[0]))
        status = engine._place_together(group, alone, steps, failures, more, explain)  # noqa: SLF001 - another engine
        if taken and explain and status is not None and not status.assignments:
            where = some(f"{path[-1]} by {name}" for path, name in sorted(taken.items()))
            status = replace(status, message=f"{status.message}; taken: {where}")
        return status

    def _place_together(  # noqa: PLR0913, PLR0917 - as `place`
        self,
        group: PlacementGroup,
        together: Together,
        steps: Sequence[Unit],
        failures: Mapping[str, int],
        more: Mapping[str, int],
        explain: bool,
    ) -> GroupStatus | None:
        """Return the status of a group whose pod sets go into one domain (cluster.md §3).

        All domains are tried in the order of pod sets, then the fullest in other orders. If none of
        a preferred level holds all, the pod sets go near each other. What is replaced goes where
        the rest is, if that is required. Return None if a preferred level leads to no placement.
        Raises Unplaceable.
        """
        level = self.shared_level(together, [self.tree_of(unit) for unit in steps])
        rest = self._rest_of(group, steps, level) if is_replaced(group, more) else ()
        if rest:
            trial = self._trial(group, steps, more)._inside(rest if together.required else ())  # noqa: SLF001 - another engine
            return trial._place(group, steps, failures, more, explain)[0]  # noqa: SLF001 - another engine
        trial = self._trial(group, steps, more)
        rooms = [trial._room_for(group, unit, {}) for unit in steps]  # noqa: SLF001 - another engine
        closest: Path = ()
        order = steps
        for at in [level] if together.required else range(level, -1, -1):
            domains, most = shared_domains(steps, rooms, at)
            found, first = self._place_in_one(trial, group, order, failures, more, domains)
            if found is not None:
                return found
            closest = first or most
            if at == level and together.preferred and not is_replaced(group, more):
                trial, order = trial._near(level), self._nearest_first(group, steps, level)  # noqa: SLF001 - another engine
        if together.preferred:
            status, refused = trial._place(group, order, failures, more, False)  # noqa: SLF001 - another engine
            return status if refused is None and status.assignments else None
        trial = trial._inside(closest)  # noqa: SLF001 - another engine
        status, unit = trial._place(group, steps, failures, more, explain)  # noqa: SLF001 - another engine
        if explain:
            why = not_together(together.level, closest, steps, unit, status.message)
            status = replace(status, message=why)
        return status

    def _nearest_first(
        self, group: PlacementGroup, steps: Sequence[Unit], level: int
    ) -> Sequence[Unit]:
        """Return units that go into few domains of *level*, as none holds all: strictest first.

        A unit that names no level itself prefers one domain.
        """
        name = self.tree_of(steps[0]).shape.levels[level]
        return self._strictest_first(group, [preferring(unit, name) for unit in steps])

    def _place_in_one(  # noqa: PLR0913, PLR0917 - as `place`
        self,
        trial: Self,
        group: PlacementGroup,
        steps: Sequence[Unit],
        failures: Mapping[str, int],
        more: Mapping[str, int],
        domains: Iterable[Path],
    ) -> tuple[GroupStatus | None, Path]:
        """Return the status of a group in one of *domains*, if any, and the first one tried.

        They are tried in one *trial*: what is refused there leaves nothing taken.
        """
        refused: list[tuple[Path, Unit]] = []
        for path in domains:
            inside = trial._inside(path)
            status, unit = inside._place(group, steps, failures, more, False)  # noqa: SLF001 - another engine
            if status.assignments:
                return status, path
            if unit is not None:
                refused.append((path, unit))
        for path, unit in refused[:MAX_DOMAINS]:
            inside = self._inside(path)
            found = inside._place_in_another_order(group, steps, unit, failures)  # noqa: SLF001 - another engine
            if found is not None:
                return found, path
        return None, refused[0][0] if refused else ()

    def _have_left(self, steps: Sequence[Unit]) -> bool:
        """Whether free amounts of all leaves add up to the requests of all units of their tree."""
        own = [(self.tree_of(unit), unit) for unit in steps if not is_spread(unit.workers)]
        return all(
            have_left(tree.rows, needed(unit for other, unit in own if other is tree))
            for tree, _ in own
        )

    def shared_level(self, together: Together, trees: Sequence[Tree]) -> int:
        """Return the level of which all pod sets share a domain, by index; raises Unplaceable."""
        topology = trees[0].shape.topology
        if any(each.shape.topology.name != topology.name for each in trees):
            raise Unplaceable("pod sets that are to be together name different topologies")
        if together.level.startswith(ZONE_LEVEL):
            known = ", ".join(topology.levels)
            raise Unplaceable(
                f"a group cannot share a domain of {together.level}, a level below the host: name"
                f" one of {known}"
            )
        if together.level not in topology.levels:
            raise Unplaceable(self._unknown_level(together.level, topology))
        return topology.levels.index(together.level)

    def _rest_of(self, group: PlacementGroup, steps: Sequence[Unit], level: int) -> Path:
        """Return the domain of *level* that the pods of a group which stay are in, if any do."""
        given = {each.pod_set: each for each in group.status.assignments}
        for unit in steps:
            tree = self.tree_of(unit)
            for name in unit.names:
                failed = group.status.unhealthy_nodes
                for leaf in kept_leaves(tree, given[name], failed) if name in given else ():
                    return tree.shape.paths[leaf][: level + 1]
        return ()

    def _place_in_another_order(
        self,
        group: PlacementGroup,
        steps: Sequence[Unit],
        refused: Unit,
        failures: Mapping[str, int],
    ) -> GroupStatus | None:
        """Return the status of a new group that is placed in another order than *steps*, if any.

        The unit that was *refused* in that found no room (cluster.md §5).
        """
        order = self._strictest_first(group, steps)
        orders = Orders(steps, order)
        while steps := orders.refuse(refused):
            trial = self._trial(group, steps, {})
            status, unit = trial._place(group, steps, failures, {}, False)  # noqa: SLF001 - another engine
            if unit is None:
                return replace(status, message=order_text(steps))
            refused = unit
        return self._search(group, order) if orders.may_fit() else None

    def _strictest_first(self, group: PlacementGroup, steps: Sequence[Unit]) -> list[Unit]:
        """Return units by the level in which each is to be whole, the finest first.

        Units of equal level are sorted by their share of the pods that fit, largest first.
        """
        trial = self._trial(group, steps, {})
        keys: dict[tuple[str, ...], tuple[int, float]] = {}
        for unit in steps:
            keys[unit.names] = 1, 0.0  # of those that name no level
            with suppress(Unplaceable):
                room = trial._room_for(group, unit, {})  # noqa: SLF001 - another engine
                wanted, domains = room.wanted, room.tree.shape.domains
                fits = sum(room.counts.of(each)[0] for each in domains.of_level(0))
                level = wanted.level if wanted.required else -1
                keys[unit.names] = -level, -unit.workers.count / max(fits, 1)
        return sorted(steps, key=lambda unit: keys[unit.names])

    def _search(self, group: PlacementGroup, order: Sequence[Unit]) -> GroupStatus | None:
        """Return the status of a group whose units a search has placed, if any."""
        if any(is_spread(each.workers) or spreading_of(each) for each in order):
            return None
        trial = self._trial(group, order, {})
        found = DomainSearch(partial(trial._room_for, group), trial.take).find(order)  # noqa: SLF001 - another engine
        if found is None:
            return None
        return GroupStatus(
            state="Placed",
            message=order_text(order, searched=True),
            assignments=_ordered(group, found),
        )

    def _place(
        self,
        group: PlacementGroup,
        steps: Sequence[Unit],
        failures: Mapping[str, int],
        more: Mapping[str, int],
        explain: bool,
    ) -> tuple[GroupStatus, Unit | None]:
        """Place *group* in *steps* in a trial; return the one that found no room, too.

        After a refusal no places are taken.
        """
        replacing = is_replaced(group, more)
        unit: Unit | None = None
        assignments: dict[str, Assignment] = {}
        taken: dict[str, Assignment] = {}
        before: list[Unit] = []
        placed = self.running_of((group.namespace, group.name))
        try:
            trees = [self.tree_of(unit) for unit in steps]  # all, before something is taken
            for unit, tree in zip(steps, trees, strict=True):
                engine = self._beside(group, unit, taken) if taken else self
                if replacing:
                    new, whole = engine._replace(group.status, unit, tree, implied(unit), more)
                else:
                    new = whole = engine._assign_near(group, unit, tree, placed, failures, taken)  # noqa: SLF001 - another engine
                assignments |= whole
                if unit is not steps[-1]:
                    self.take(new, unit)
                    taken |= new
                    before.append(unit)
                    placed += by_node(new.values(), self.view)
        except Unplaceable as refused:
            found = None if replacing else unit
            message = str(refused) if explain else ""
            for each in before:
                self.take(taken, each, -1)
            return GroupStatus(state="Unplaceable", message=message), found
        return GroupStatus(state="Placed", assignments=_ordered(group, assignments)), None

    def closed_to(self, group: PlacementGroup) -> frozenset[str]:
        """Return the nodes that stay closed to a group whatever ends by itself.

        Topology spreading closes these nodes now, or exclusive groups that never end occupy their
        domains.
        """
        found: set[str] = {*self.taken_from(group, lasting=True)}
        for unit in units(group):
            if spreading_of(unit) is not None:
                tree = self.tree_of(unit)
                out = crowded_domains(group, unit, tree, self.groups.values(), self.view)
                found |= nodes_of([each for each in out if each.closed], tree)
        return frozenset(found)

    def taken_from(self, group: PlacementGroup, *, lasting: bool = False) -> frozenset[str]:
        """Return the nodes that a group must not use as it is to have a domain to itself.

        These are the nodes in domains of other exclusive groups; with *lasting*, only of groups
        whose pods never end by themselves.
        """
        level = exclusive_of(group.pod_sets)
        steps = [] if level is None else [unit for unit in units(group) if unit.workers.count]
        if level is None or not steps:
            return frozenset()
        trees = [self.tree_of(unit) for unit in steps]
        at = self.shared_level(Together(required=level), trees)
        others = [each for each in self.groups.values() if not lasting or is_lasting(each)]
        return nodes_in(taken_domains(group, at, trees[0], others, self.view), trees[0])


def _ordered(group: PlacementGroup, assignments: Mapping[str, Assignment]) -> list[Assignment]:
    """Return assignments in the order of a group's pod sets."""
    return [assignments[each.name] for each in group.pod_sets if each.name in assignments]
