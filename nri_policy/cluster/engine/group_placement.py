"""Placing one group by totals: its pod sets one after the other, in other orders, or together.

Pod sets with a shared level go into one domain, those that are to be alone into one without other
groups. A decision changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.crowding import nodes_in, spreading_of
from nri_policy.cluster.engine.search.domain_search import DomainSearch
from nri_policy.cluster.engine.search.exclusive import find_taken_domains
from nri_policy.cluster.engine.search.job_set_domains import (
    find_domains_of_steps,
    find_lacking_steps,
    find_other_steps,
    find_steps,
    merge_steps,
)
from nri_policy.cluster.engine.search.pod_set_order import Orders, describe_order
from nri_policy.cluster.engine.search.replacement import find_kept_leaves
from nri_policy.cluster.engine.search.shared_domain import find_shared_domains, sum_requests
from nri_policy.cluster.engine.search.spread_assignment import count_by_node
from nri_policy.cluster.engine.search.unfit_message import describe_closest, describe_refused
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.host_limits import Limits
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.unit_placement import UnitPlacement, describe_missing_level, tree_of
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, Together
from nri_policy.cluster.requests.request import (
    Unit,
    Unplaceable,
    exclusive_of,
    is_spread,
    prefer_level,
    together_of,
    units_of,
)
from nri_policy.foundation.wording import some
from nri_policy.native._counts import have_left

MAX_DOMAINS = 3  # most domains in which other orders of pod sets are tried


class GroupPlacement(Struct, frozen=True):
    """A group to be placed, or to get places for failed nodes, in one state of a cluster."""

    state: ClusterState
    group: PlacementGroup
    failures: Mapping[str, int]  # recent ones of the group's pods, by node
    more: Mapping[str, int]  # pods of a pod set that go where replaced ones would
    explain: bool
    limits: Limits = MappingProxyType({})  # of hosts, for new pods
    lacking: Sequence[PlacementGroup] = ()  # groups that lack places, too

    def place(self) -> GroupStatus:
        """Return the status that the group would have. Raises DocumentError."""
        found = self._place()
        coming = self.state.usages.steps_to_come(self.group)
        if found.assignments and coming and not self.more:
            return self._place_before(coming) or found
        return found

    def _place(self) -> GroupStatus:
        """Return the status that the group would have without the steps that come later."""
        steps = [unit for unit in units_of(self.group) if unit.workers.count]
        together, exclusive = together_of(self.group), exclusive_of(self.group.pod_sets)
        if steps and (together is not None or exclusive is not None):
            found = None
            try:
                if exclusive is not None:
                    found = self._place_alone(exclusive, steps)
                elif together is not None:
                    found = self._place_with_steps(together)
                    found = found or self.place_together(together, steps)
            except Unplaceable as unplaceable:
                message = str(unplaceable) if self.explain else ""
                return GroupStatus(state="Unplaceable", message=message)
            if found is not None:
                return found
        trial = self._trial(steps)
        status, refused = self._place_steps(trial, steps, explain=self.explain)
        if refused is None or len(steps) == 1:
            return status
        if not keeps_places(self.group, self.more) and not _have_left(trial.state, steps):
            return status
        return self._place_in_another_order(trial, steps, refused) or status

    def _place_alone(self, level: str, steps: Sequence[Unit]) -> GroupStatus | None:
        """Return the status of a group that has a domain of *level* to itself (cluster.md §3).

        A finer required shared level applies inside the exclusive domain. Raises Unplaceable.
        """
        state = self.state
        trees = [tree_of(state, unit) for unit in steps]
        alone, together = Together(required=level), together_of(self.group)
        at = find_shared_level(state, alone, trees)
        if (
            together is not None
            and together.required
            and find_shared_level(state, together, trees) > at
        ):
            alone = together
        others = [each for key, each in state.groups.items() if key not in state.usages.out]
        taken = find_taken_domains(self.group, at, trees[0], others, state.view)
        trial = replace(self, state=state.without_nodes(nodes_in(taken, trees[0])))
        status = trial.place_together(alone, steps)
        if taken and self.explain and status is not None and not status.assignments:
            where = some(f"{path[-1]} by {name}" for path, name in sorted(taken.items()))
            status = replace(status, message=f"{status.message}; taken: {where}")
        return status

    def _place_with_steps(self, together: Together) -> GroupStatus | None:
        """Return the status of a group whose JobSet has other steps that lack places, too.

        It leaves room for these. None if there is no room for all: the group is placed by itself;
        but not if the steps have lost all of their places, and with them the domain that they have
        to share: by itself the group could go where the others never fit. Raises Unplaceable.
        """
        others = [] if self.more else find_lacking_steps(self.group, self.lacking)
        if not others:
            return None
        merged = self._merge(others)
        found = merged.place()
        if found.assignments:
            return self._own_part(found)
        had_places = all(each.status.assignments for each in (self.group, *others))
        if together.required is not None and had_places:
            with suppress(Unplaceable):  # a host lost its label of a level: the others do not wait
                return None if merged.does_anything_stay(together) else found
        return None

    def _place_before(self, coming: Sequence[PlacementGroup]) -> GroupStatus | None:
        """Return the status of a group in a domain with room for *coming* steps of its JobSet, too.

        And for steps that lack places. None if no domain of the level has room for all: those that
        come later do not keep a group from its place.
        """
        together, steps = together_of(self.group), find_steps(self.group, coming)
        if together is None or not steps:
            return None
        beside = [*find_lacking_steps(self.group, self.lacking), *steps]
        merged = replace(self._merge(beside), explain=False)
        units = [unit for unit in units_of(merged.group) if unit.workers.count]
        with suppress(Unplaceable):
            found = merged.place_together(Together(required=together.level), units)
            if found is not None and found.assignments:
                return self._own_part(found)
        return None

    def _merge(self, others: Sequence[PlacementGroup]) -> GroupPlacement:
        """Return the placement of the group and *others*, as one that has all of their pod sets."""
        state = self.state.fork()
        state.take_out(state.usages.out | {each.key for each in others})
        state.usages.forget_plans()  # the merged group keeps no room for further steps
        merged = merge_steps(self.group, others)
        return replace(self, state=state, group=merged, lacking=())

    def _own_part(self, found: GroupStatus) -> GroupStatus:
        """Return what was *found* for the pod sets of the group itself, when placed with others."""
        own = {each.name for each in self.group.pod_sets}
        places = [each for each in found.assignments if each.pod_set in own]
        return GroupStatus(state="Placed", assignments=places)

    def does_anything_stay(self, together: Together) -> bool:
        """Whether pods of the group, or of other steps of its JobSet, stay in a shared domain."""
        steps = [unit for unit in units_of(self.group) if unit.workers.count]
        trees = [tree_of(self.state, unit) for unit in steps]
        level = find_shared_level(self.state, together, trees)
        return bool(self._rest_of(steps, level) or self._domains_of_job_set(steps, level))

    def place_together(self, together: Together, steps: Sequence[Unit]) -> GroupStatus | None:
        """Return the status of a group whose pod sets go into one domain (cluster.md §3).

        All domains are tried in the order of pod sets, then the fullest in other orders. If no
        domain of a preferred level has room, the pod sets go near each other. If the level is
        required, replaced pods join the others. Return None if nothing fits a preferred level.
        Raises Unplaceable.
        """
        level = find_shared_level(
            self.state, together, [tree_of(self.state, unit) for unit in steps]
        )
        keeps = keeps_places(self.group, self.more)
        trial = self._trial(steps)
        if keeps and (rest := self._rest_of(steps, level)):
            inside = replace(trial, within=rest if together.required else ())
            status, unit = self._place_steps(inside, steps, explain=self.explain)
            other = unit and self._place_in_another_order(inside, steps, unit)
            return other or status
        counts = [trial.room_for(unit, {}) for unit in steps]
        others = self._domains_of_job_set(steps, level)
        closest: Path = ()
        order = steps
        for at in [level] if together.required else range(level, -1, -1):
            domains, most = find_shared_domains(steps, counts, at)
            if others:
                domains = iter(dict.fromkeys(path[: at + 1] for path in others))
            found, first = self._place_in_one(trial, order, domains)
            if found is not None:
                return found
            closest = first or most
            if at == level and together.preferred and not keeps:
                order = self._nearest_first(trial, steps, level)
                trial = replace(trial, near_level=level)
        if together.preferred:
            status, refused = self._place_steps(trial, order, explain=False)
            return status if refused is None and status.assignments else None
        inside = replace(trial, within=closest)
        status, unit = self._place_steps(inside, steps, explain=self.explain)
        if self.explain:
            why = describe_refused(steps, unit, status.message)
            message = describe_closest(together.level, closest, why, others.get(closest, ""))
            status = replace(status, message=message)
        return status

    def _domains_of_job_set(self, steps: Sequence[Unit], level: int) -> dict[Path, str]:
        """Return the domains of *level* that the group shares with other steps of its JobSet.

        Each with the name of such a group. None if the group has a domain to itself, or keeps
        places in one.
        """
        out = self.state.usages.out
        groups = self.state.usages.steps_beside(self.group)
        others = find_other_steps(self.group, [each for each in groups if each.key not in out])
        if not others or (keeps_places(self.group, self.more) and self._rest_of(steps, level)):
            return {}
        return find_domains_of_steps(others, level, tree_of(self.state, steps[0]))

    def _nearest_first(
        self, trial: UnitPlacement, steps: Sequence[Unit], level: int
    ) -> Sequence[Unit]:
        """Return units that go into few domains of *level*, as none holds all: strictest first.

        A unit that names no level itself prefers one domain.
        """
        name = tree_of(self.state, steps[0]).shape.levels[level]
        return _strictest_first(trial, [prefer_level(unit, name) for unit in steps])

    def _place_in_one(
        self, trial: UnitPlacement, steps: Sequence[Unit], domains: Iterable[Path]
    ) -> tuple[GroupStatus | None, Path]:
        """Return the status of the group in one of *domains*, if any, and the first one tried.

        They are tried in one *trial*: what is refused there leaves nothing taken.
        """
        refused: list[tuple[Path, Unit]] = []
        for path in domains:
            status, unit = self._place_steps(replace(trial, within=path), steps, explain=False)
            if status.assignments:
                return status, path
            if unit is not None:
                refused.append((path, unit))
        for path, unit in refused[:MAX_DOMAINS]:
            inside = replace(trial, within=path, near_level=-1)
            found = self._place_in_another_order(inside, steps, unit)
            if found is not None:
                return found, path
        return None, refused[0][0] if refused else ()

    def _rest_of(self, steps: Sequence[Unit], level: int) -> Path:
        """Return the domain of *level* that the pods of the group which stay are in, if any do."""
        status = self.group.status
        given = {each.pod_set: each for each in status.assignments}
        for unit in steps:
            tree = tree_of(self.state, unit)
            for name in unit.names:
                failed = status.unhealthy_nodes
                for leaf in find_kept_leaves(tree, given[name], failed) if name in given else ():
                    return tree.shape.paths[leaf][: level + 1]
        return ()

    def _place_in_another_order(
        self, trial: UnitPlacement, steps: Sequence[Unit], refused: Unit
    ) -> GroupStatus | None:
        """Return the status of the group placed in another order than *steps*, if any.

        The unit that was *refused* in that found no room (cluster.md §5).
        """
        order = _strictest_first(trial, steps)
        orders = Orders(steps, order)
        while steps := orders.refuse(refused):
            status, unit = self._place_steps(trial, steps, explain=False)
            if unit is None:
                return replace(status, message=describe_order(steps))
            refused = unit
        return self._search(trial, order, orders.to_search()) if orders.may_fit() else None

    def _search(
        self, trial: UnitPlacement, units: Sequence[Unit], orders: Iterable[Sequence[Unit]]
    ) -> GroupStatus | None:
        """Return the status of the group if a search in one of *orders* finds places for *units*.

        All orders share the steps of one search. If none helps, the pods of small units go to
        leaves in every way. A group of which pods stay is not searched for.
        """
        if keeps_places(self.group, self.more):
            if self.more or not all(map(trial.has_lost_all, units)):
                return None
            trial = replace(trial, state=trial.state.without_nodes(trial.failed_nodes))
        if any(is_spread(each.workers) or spreading_of(each) for each in units):
            return None
        search = DomainSearch(trial.room_for, trial.state.take)
        for distributed, order in product((False, True), orders):
            found = search.find(order, distributed=distributed)
            if found is not None:
                return GroupStatus(
                    state="Placed",
                    message=describe_order(order, searched=True),
                    assignments=self._ordered(found),
                )
        return None

    def _place_steps(
        self, trial: UnitPlacement, steps: Sequence[Unit], *, explain: bool
    ) -> tuple[GroupStatus, Unit | None]:
        """Place the group in *steps* in a trial; return the one that found no room, too.

        After a refusal no places are taken.
        """
        state = trial.state
        replacing = keeps_places(self.group, self.more)
        unit: Unit | None = None
        assignments: dict[str, Assignment] = {}
        taken: dict[str, Assignment] = {}
        before: list[Unit] = []
        placed = trial.placed
        try:
            trees = [tree_of(state, unit) for unit in steps]  # all, before something is taken
            for unit, tree in zip(steps, trees, strict=True):
                beside = trial
                if taken:
                    beside = replace(trial, limits=trial.limits_beside(unit, taken))
                if replacing:
                    new, whole = beside.replace_pods(unit, tree, self.more)
                else:
                    new = whole = beside.assign(unit, tree, placed, taken)
                assignments |= whole
                if unit is not steps[-1]:
                    state.take(new, unit)
                    taken |= new
                    before.append(unit)
                    placed += count_by_node(new.values(), state.view)
        except Unplaceable as refused:
            message = str(refused) if explain else ""
            for each in before:
                state.take(taken, each, -1)
            status = GroupStatus(state="Unplaceable", message=message)
            return status, unit
        return GroupStatus(state="Placed", assignments=self._ordered(assignments)), None

    def _trial(self, steps: Sequence[Unit]) -> UnitPlacement:
        """Return where units are placed: in a fork if something is to be counted apart.

        A group that keeps places counts with the assignments that it comes with, others with none.
        """
        group, state = self.group, self.state
        key = group.key
        known = state.groups.get(key)
        own = [] if key in state.usages.out else state.usages.in_use(key)
        as_given = known is not None and _usage_of(known) == _usage_of(group)
        replacing = keeps_places(group, self.more)
        if len(steps) > 1 or (not as_given if replacing else own):
            state = state.fork()
            if not replacing:
                state.ledger.assume(own, -1)
            elif not as_given:
                state.set_group(group)
        return UnitPlacement(state, group, self.failures, self.limits)

    def _ordered(self, assignments: Mapping[str, Assignment]) -> list[Assignment]:
        """Return assignments in the order of the group's pod sets."""
        return [assignments[each.name] for each in self.group.pod_sets if each.name in assignments]


def _strictest_first(trial: UnitPlacement, steps: Sequence[Unit]) -> list[Unit]:
    """Return units by the level in which each is to be whole, the finest first.

    Units of equal level are sorted by their share of the pods that fit, largest first.
    """
    keys: dict[tuple[str, ...], tuple[int, float]] = {}
    for unit in steps:
        keys[unit.names] = 1, 0.0  # of those that name no level
        with suppress(Unplaceable):
            room = trial.room_for(unit, {})
            wanted, domains = room.wanted, room.tree.shape.domains
            fits = sum(room.counts.of(each)[0] for each in domains.of_level(0))
            level = wanted.level if wanted.required else -1
            keys[unit.names] = -level, -unit.workers.count / max(fits, 1)
    return sorted(steps, key=lambda unit: keys[unit.names])


def find_shared_level(state: ClusterState, together: Together, trees: Sequence[Tree]) -> int:
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
        raise Unplaceable(describe_missing_level(state, together.level, topology))
    return topology.levels.index(together.level)


def is_apart(state: ClusterState, group: PlacementGroup) -> bool:
    """Whether a group and the other steps of its JobSet have no domain in common.

    Steps that are placed together get their places by separate writes; the leader may die between.
    """
    beside = state.usages.steps_beside(group)
    with suppress(Unplaceable, DocumentError):
        together, others = together_of(group), find_other_steps(group, beside)
        if together is None or together.required is None or not others:
            return False
        trees = [tree_of(state, unit) for unit in units_of(group)]
        level = find_shared_level(state, together, trees)
        healthy = replace(group, status=replace(group.status, unhealthy_nodes=[]))
        own, there = (find_domains_of_steps(each, level, trees[0]) for each in ([healthy], others))
        return bool(own and there) and own.keys().isdisjoint(there)
    return False


def keeps_places(group: PlacementGroup, more: Mapping[str, int]) -> bool:
    """Whether a group keeps what it has, and new pods are placed beside that."""
    return bool(group.status.assignments and (group.status.unhealthy_nodes or more))


def _have_left(state: ClusterState, steps: Sequence[Unit]) -> bool:
    """Whether free amounts of all leaves add up to the requests of all units of their tree."""
    own = [(tree_of(state, unit), unit) for unit in steps if not is_spread(unit.workers)]
    return all(
        have_left(tree.rows, sum_requests(unit for other, unit in own if other is tree))
        for tree, _ in own
    )


def _usage_of(group: PlacementGroup) -> object:
    """Return what of a group decides how much it uses, and where."""
    return group.pod_sets, group.status.assignments, group.status.given_back
