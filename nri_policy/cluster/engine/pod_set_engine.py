"""Placing one pod set, or workers with their leader, in a cluster as it is.

Owns states to try things in, too: forks, clusters without usage, with closed nodes or with limits.
A decision changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from nri_policy.cluster.engine.search.crowding import (
    CrowdedDomain,
    crowded_domains,
    nodes_of,
    spreading_of,
)
from nri_policy.cluster.engine.search.domain_search import UnitCounts
from nri_policy.cluster.engine.search.placement import (
    assign,
    assignment,
    count,
    domain_within,
    find_packing,
)
from nri_policy.cluster.engine.search.replacement import replace_failed
from nri_policy.cluster.engine.search.spread_assignment import assignment as spread_assignment
from nri_policy.cluster.engine.search.spread_assignment import (
    by_node,
    domain_of,
    replace_spread,
    spread_refusal,
)
from nri_policy.cluster.engine.search.unfit_message import unknown_level
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.group_usages import GroupUsages
from nri_policy.cluster.engine.state.host_limits import Limits
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.usage import Usage, usage_of
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import Amounts, DocumentError, join
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ZONE_LEVEL, Topology
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    PlacementRequest,
    PodSet,
)
from nri_policy.cluster.requests.request import (
    Unit,
    Unplaceable,
    asks,
    implied,
    is_spread,
    named_levels,
    plan,
    requested,
    spread_labels,
)
from nri_policy.cluster.requests.spread_preferences import read_preferences

MAX_NEAR = 16  # most domains tried near other pod sets


class PodSetEngine(ClusterState):
    """The state of a cluster, and where one pod set would go in it."""

    _limits: Limits = MappingProxyType({})  # see `with_limits`
    _within: Path = ()  # see `_inside`
    _near_level = -1  # see `_near`
    _freed: Mapping[Key, Sequence[Usage]] = MappingProxyType({})  # what groups leave, if they do

    def kind_of(self, pod_set: PodSet) -> Amounts:
        """Return what one pod of a pod set uses."""
        return self.kind(pod_set.template.spec.effective())

    def topology_of(self, pod_set: PodSet) -> Topology | None:
        """Return the topology on which a pod set is placed; None if there is none of that name."""
        try:
            return self._ledger.topology((pod_set.request or PlacementRequest()).topology)
        except Unplaceable:
            return None

    def _inside(self, path: Path) -> Self:
        """Return one of the same state that places a group in the domain of a path, if it has any.

        It takes in nothing.
        """
        return self._copy(_within=path)

    def _near(self, level: int) -> Self:
        """Return one of the same state that places pod sets into domains that others are in.

        Domains of *level* count; a pod set without room in these goes anywhere. It takes in
        nothing.
        """
        return self._copy(_near_level=level)

    def _beside(self, group: PlacementGroup, unit: Unit, taken: Mapping[str, Assignment]) -> Self:
        """Return what places a unit beside what new assignments of the same group take."""
        if not taken or not self._limits:
            return self
        return self.with_limits(self.limits.beside(self._limits, group, unit, taken))

    def _room_for(
        self, group: PlacementGroup, unit: Unit, taken: Mapping[str, Assignment]
    ) -> UnitCounts:
        """Return how many of a unit fit where, beside new assignments of others, as `_beside`."""
        tree = self.tree_of(unit)
        wanted = plan(
            unit,
            implied=implied(unit) or not (unit.leader or asks(unit.workers.request)),
            levels=tree.shape.levels,
            settings=self.settings,
            inside=max(0, len(self._within) - 1),
        )
        held: Mapping[int, int] = {}
        if wanted.most is not None or wanted.apart >= 0:
            placed = self.running_of((group.namespace, group.name))
            held = tree.by_leaf(placed + by_node(taken.values(), self.view))
        limits = self._beside(group, unit, taken)._limits  # noqa: SLF001 - another engine
        counts, _ = count(tree, unit, wanted, self.settings, held, limits)
        within = domain_within(tree, self._within)
        alone = wanted.most is not None or wanted.apart >= 0
        return UnitCounts(tree, wanted, counts, within, fresh=bool(limits) or alone)

    def _assign_near(  # noqa: PLR0913, PLR0917 - as `_assign_apart`, and what is taken
        self,
        group: PlacementGroup,
        unit: Unit,
        tree: Tree,
        placed: Counter[str],
        failures: Mapping[str, int],
        taken: Mapping[str, Assignment],
    ) -> dict[str, Assignment]:
        """Return the assignments of a unit, after `_near` in the domains of *taken* ones first."""
        for path in self._domains_of(taken, tree):
            with suppress(Unplaceable):
                inside = self._inside(path)
                return inside._assign_apart(group, unit, tree, placed, failures)  # noqa: SLF001 - another engine
        return self._assign_apart(group, unit, tree, placed, failures)

    def _domains_of(self, taken: Mapping[str, Assignment], tree: Tree) -> list[Path]:
        """Return some domains of the level to be near in, those with the most pods first."""
        if self._near_level < 0:
            return []
        pods: Counter[Path] = Counter()
        for each in taken.values():
            for one in each.domains:
                leaf = tree.shape.find(each.levels, one.values)
                if leaf is not None:
                    pods[tree.shape.paths[leaf][: self._near_level + 1]] += one.count
        return [path for path, _ in pods.most_common(MAX_NEAR)]

    def _assign_apart(
        self,
        group: PlacementGroup,
        unit: Unit,
        tree: Tree,
        placed: Counter[str],
        failures: Mapping[str, int],
    ) -> dict[str, Assignment]:
        """Return the assignments of a unit, in domains that are not crowded by groups like it.

        Those that only a preference closes are opened one by one, the least crowded first.
        """
        if spreading_of(unit) is None:
            return self._assign(unit, tree, placed, failures, implied(unit))
        out = crowded_domains(group, unit, tree, self.groups.values(), self.view)
        last = [each for each in out if not each.closed]
        while True:
            trial = self.without_nodes(nodes_of(out, tree))
            try:
                return trial._assign(unit, trial.tree_of(unit), placed, failures, implied(unit))  # noqa: SLF001 - another engine
            except Unplaceable as refused:
                if not last:
                    raise _with_crowded(refused, out) from None
            out.remove(last.pop(0))

    def _assign(
        self,
        unit: Unit,
        tree: Tree,
        placed: Counter[str],
        failures: Mapping[str, int],
        implied: bool,
    ) -> dict[str, Assignment]:
        """Return the assignments of a unit; *placed* are the group's pods, by node."""
        held = tree.by_leaf(placed)
        request = unit.workers.request
        find = partial(
            find_packing,
            tree,
            unit,
            self.settings,
            held=held,
            limits=self._limits,
            implied=implied,
            within=self._within,
        )
        if not is_spread(unit.workers):
            packed = assign(tree, unit, find())
            if request is not None and request.max_skew:  # of pods of slices
                placed = by_node([packed[unit.workers.name]], self.view)
                self._check_balance(unit.workers, placed, self._nodes_within(tree))
            return packed
        chosen = domain_of(tree, find()) if asks(request) else None
        out: dict[str, Assignment] = {}
        if unit.leader is not None and chosen is not None:
            out[unit.leader.name] = assignment(tree, unit.leader.name, [(chosen.leader, 1)])
        trial = self
        if out:
            trial = self.fork()
            trial.take(out, unit)
        nodes = self._nodes_within(tree) if chosen is None else chosen.nodes
        for pod_set in unit.pod_sets:
            if pod_set.name not in out:
                asked = msgspec.structs.replace(pod_set, request=request)
                pods, left = trial._spread(asked, placed, failures, nodes)  # noqa: SLF001 - another engine
                if left:
                    raise spread_refusal(asked, left)
                self._check_balance(asked, pods, nodes)
                out[pod_set.name] = spread_assignment(pod_set.name, pods, self.nodes)
        return out

    def _replace(
        self,
        status: GroupStatus,
        unit: Unit,
        tree: Tree,
        implied: bool,
        more: Mapping[str, int],
    ) -> tuple[dict[str, Assignment], dict[str, Assignment]]:
        """Return the assignments of new pods, those of failed nodes' and *more*; and the whole."""
        if is_spread(unit.workers):

            def spread(
                pod_set: PodSet, own: Mapping[str, int], within: Collection[str]
            ) -> tuple[dict[str, int], int]:
                nodes = self._nodes_within(tree)
                own_nodes = within if nodes is None else nodes.intersection(within)
                return self._spread(pod_set, own, {}, own_nodes)

            new, whole = replace_spread(tree, unit, status, spread, self.view, more=more)
            for each in unit.pod_sets:
                if each.name in whole:
                    self._check_balance(each, by_node([whole[each.name]], self.view), None)
            return new, whole
        paths = self._paths(tree, status.unhealthy_nodes)
        return replace_failed(
            tree,
            unit,
            status,
            self.settings,
            implied=implied,
            paths=paths,
            more=more,
            limits=self._limits,
            within=domain_within(tree, self._within),
        )

    def _nodes_within(self, tree: Tree) -> frozenset[str] | None:
        """Return the nodes of the domain for all pods, None without one."""
        if not self._within:
            return None
        leaves = tree.shape.domains.leaves_below(domain_within(tree, self._within))
        return frozenset(tree.nodes_in([leaves]))

    def _spread_by_totals(
        self, group: PlacementGroup, failures: Mapping[str, int]
    ) -> dict[str, tuple[dict[str, int], int]]:
        """Return, by pod set, the new pods for each node, and how many find no place."""
        own = self.running_of((group.namespace, group.name))
        found: dict[str, tuple[dict[str, int], int]] = {}
        pod_sets = requested(group)
        trial = self.fork() if len(pod_sets) > 1 else self
        for number, pod_set in enumerate(pod_sets):
            path = f"spec.podSets[{number}].request"
            try:
                new, left = trial._spread(pod_set, own, failures, None, path)  # noqa: SLF001 - another engine
            except Unplaceable as refused:
                raise DocumentError(join(path, "topology"), str(refused)) from None
            found[pod_set.name] = new, left
            own.update(new)
            for node, pods in new.items() if number + 1 < len(pod_sets) else ():
                trial.occupy(node, self.kind_of(pod_set), pods)
        return found

    def _spread(
        self,
        pod_set: PodSet,
        own: Mapping[str, int],
        failures: Mapping[str, int],
        within: Collection[str] | None,
        path: str = "",
    ) -> tuple[dict[str, int], int]:
        """Return the pods for each node, of those *within*, and how many find no place."""
        request = pod_set.request or PlacementRequest()
        preferences = read_preferences(spread_labels(request), join(path, "spreadOver"))
        tree = self._ledger.spread_tree([each.key for each in preferences])
        tolerations = self._ledger.topology(request.topology).tolerations
        if request.max_skew:  # kube-scheduler rejects nodes without the label
            labels = request.max_skew.keys()
            having = {name for name, node in self.nodes.items() if labels <= node.labels.keys()}
            if len(having) < len(self.nodes):
                within = having if within is None else having.intersection(within)
        limits = self._limits.get(pod_set.name, {})
        return tree.spread(pod_set, preferences, tolerations, own, failures, within, limits)

    def _check_balance(
        self, pod_set: PodSet, pods: Mapping[str, int], within: Collection[str] | None
    ) -> None:
        """Raise Unplaceable if *pods* of a pod set that is spread break its own constraints.

        *pods* are all pods of the pod set, counted by node. Values of a label are compared as far
        as nodes *within* have them.
        """
        request = pod_set.request or PlacementRequest()
        tolerations = self._ledger.topology(request.topology).tolerations
        for label, skew in request.max_skew.items():
            tree = self._ledger.spread_tree([label])
            if uneven := tree.find_uneven(pod_set, tolerations, pods, skew, within):
                raise Unplaceable(f"topology spread over {label}, maxSkew {skew}: {uneven}")
        for label in request.apart_over:
            if shared := self._ledger.spread_tree([label]).find_shared(pods):
                raise Unplaceable(f"pods that exclude each other would share {label} {shared}")

    def fork(self) -> Self:
        """Return a copy for trials: what changes in the copy changes nothing here.

        It takes in no nodes, zones, pods or settings, and lives while nothing changes here.
        """
        usages = self._usages.fork()
        return self._copy(
            _usages=usages,
            groups=usages.groups,
            _ledger=self._ledger.fork(),
            limits=self.limits.fork(usages),
        )

    def without_usage(self, only: Collection[str] | None = None) -> Self:
        """Return one of these nodes, or *only* some of them, with nothing in use.

        Valid until nodes, capacities of zones or settings change.
        """
        usages = GroupUsages(self.view)
        return self._copy(
            _usages=usages,
            groups=usages.groups,
            _ledger=self._ledger.without_usage(only),
            limits=self.limits.emptied(usages),
        )

    def emptied(
        self, staying: Iterable[PlacementGroup], only: Collection[str] | None = None
    ) -> Self:
        """Return one of these nodes, or *only* some of them, without what ends by itself.

        In use is what pods of no group have that never end, and the places of *staying* groups.
        Valid as long as `without_usage`, and until lasting pods or *staying* groups change.
        """
        usages, ledger = GroupUsages(self.view), self._ledger.without_usage(only, lasting=True)
        for each in staying:
            key = each.namespace, each.name
            usages.groups[key] = each
            ledger.assume(usages.in_use(key), 1)
        return self._copy(
            _usages=usages,
            groups=usages.groups,
            _ledger=ledger,
            limits=self.limits.emptied(usages, self._lasting, only),
        )

    def _copy(self, **changed: Any) -> Self:
        """Return an engine that differs from this one by the *changed* attributes."""
        made = copy(self)
        vars(made).update(changed)
        return made

    @property
    def generation(self) -> int:
        """What changes with nodes, with what zones have in all, with settings and what stays."""
        return self._ledger.generation

    def is_up_to_date(self) -> bool:
        """Whether this engine is still valid: its origin has not changed in a way that matters."""
        return self._ledger.is_up_to_date()

    def without_nodes(self, nodes: Collection[str]) -> Self:
        """Return a fork with these *nodes* closed; without *nodes* return this engine."""
        if not nodes:
            return self
        made = self.fork()
        made.close(nodes)
        return made

    def with_limits(self, limits: Limits) -> Self:
        """Return one of the same state that places one group by limits, and takes in nothing.

        By pod set and node, *limits* are how many new pods a host takes at most.
        """
        return self._copy(_limits=limits)

    def close(self, nodes: Collection[str]) -> None:
        """Close these *nodes* to new pods in this fork."""
        self._ledger.close(nodes)

    def occupy(self, node: str, kind: Amounts, times: int) -> None:
        """Have *times* more pods on a node of this fork, each of what `kind` returned."""
        self._ledger.use(node, kind, times)
        self._ledger.run(node, times)

    def end(self, pod: Pod) -> None:
        """Have a bound pod of no group end in this fork."""
        self.occupy(pod.node, self.kind(pod.spec.effective()), -1)
        self._usages.ended = (*self._usages.ended, pod)

    def take_out(self, groups: Collection[Key]) -> None:
        """Have just these groups leave their places in this fork, with their pods."""
        wanted = frozenset(groups)
        if unknown := wanted - self._freed.keys():
            self._freed = {**self._freed, **{key: self._usages_to_free(key) for key in unknown}}
        back, gone = self._usages.out - wanted, wanted - self._usages.out
        self._ledger.assume([each for key in back for each in self._freed[key]], 1)
        self._ledger.assume([each for key in gone for each in self._freed[key]], -1)
        self._usages.out = wanted

    def _usages_to_free(self, key: Key) -> list[Usage]:
        # The report of a zone lacks what runs there: it is free once the pods end.
        return [
            replace(each, reported=0) if each.reported else each
            for each in self._usages.in_use(key)
        ]

    def tree_of(self, unit: Unit) -> Tree:
        """Return the tree on which *unit* is placed; raises Unplaceable.

        It goes below the host only as far as the request names zones.
        """
        request = unit.workers.request or PlacementRequest()
        topology = self._ledger.topology(request.topology)
        named = named_levels(request)
        below = [ZONE_LEVEL + kind for kind in topology.below_host]
        unknown = [each for each in named if each not in topology.levels and each not in below]
        if unknown:
            raise Unplaceable(self._unknown_level(min(unknown), topology))
        depth = max((below.index(each) + 1 for each in named if each in below), default=0)
        return self.tree(topology.name, depth)

    def _unknown_level(self, level: str, topology: Topology) -> str:
        others = [each.name for each in self.settings.topologies if level in each.every_level]
        return unknown_level(level, topology, self.view, others)

    def _paths(self, tree: Tree, names: Iterable[str]) -> dict[str, Path]:
        """Return the paths of those nodes that still exist, whether they take part or not."""
        nodes = {name: self.nodes[name] for name in names if name in self.nodes}
        paths = {name: tree.shape.path_of(node) for name, node in nodes.items()}
        return {name: path for name, path in paths.items() if path is not None}

    def _trial(self, group: PlacementGroup, steps: Sequence[Unit], more: Mapping[str, int]) -> Self:
        """Return where *group* is to be placed: a fork if something is to be counted apart.

        A group that keeps places counts with the assignments that it comes with, others with none.
        """
        key = (group.namespace, group.name)
        known = self.groups.get(key)
        own = [] if key in self._usages.out else self._usages.in_use(key)
        as_given = known is not None and _usage_of(known) == _usage_of(group)
        replacing = is_replaced(group, more)
        if len(steps) < 2 and (as_given if replacing else not own):
            return self
        made = self.fork()
        if not replacing:
            made._ledger.assume(own, -1)  # noqa: SLF001 - another engine
        elif not as_given:
            made.set_group(group)
        return made

    def take(self, assignments: Mapping[str, Assignment], unit: Unit, times: int = 1) -> None:
        """Count assignments of a unit's pod sets as used in this fork, *times* times."""
        own = [each for each in unit.pod_sets if each.name in assignments]
        usages = [usage_of(assignments[each.name], self.kind_of(each)) for each in own]
        self._ledger.assume(usages, times)


def is_replaced(group: PlacementGroup, more: Mapping[str, int]) -> bool:
    """Whether a group keeps what it has, and new pods are placed beside that."""
    return bool(group.status.assignments and (group.status.unhealthy_nodes or more))


def _with_crowded(refused: Unplaceable, out: Sequence[CrowdedDomain]) -> Unplaceable:
    """Return the refusal as it is now, with the domains that are closed."""
    closed = ", ".join(str(each) for each in out)
    return Unplaceable(f"{refused}; topology spreading: {closed}" if closed else str(refused))


def _usage_of(group: PlacementGroup) -> object:
    """Return what of a group decides how much it uses, and where."""
    return group.pod_sets, group.status.assignments, group.status.given_back
