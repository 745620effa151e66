"""Placing the units of one group: a pod set, or workers with their leader.

A unit goes where a state of the cluster, the limits of hosts and a domain for the whole group leave
room. A decision changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.crowding import (
    CrowdedDomain,
    find_crowded_domains,
    nodes_in,
    spreading_of,
)
from nri_policy.cluster.engine.search.domain_search import UnitCounts
from nri_policy.cluster.engine.search.placement import (
    count,
    find_domain_within,
    find_packing,
    make_assignment,
    make_assignments,
)
from nri_policy.cluster.engine.search.replacement import host_of_place, replace_failed
from nri_policy.cluster.engine.search.spread_assignment import (
    count_by_node,
    make_host_assignment,
    nodes_around,
    replace_spread,
    spread_refusal,
)
from nri_policy.cluster.engine.search.unfit_message import describe_unknown_level
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.host_limits import Limits
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.cluster.objects.settings import ZONE_LEVEL, Topology
from nri_policy.cluster.requests.group import (
    PlacementGroup,
    PlacementRequest,
    PodSet,
)
from nri_policy.cluster.requests.request import (
    PlacementPlan,
    Unit,
    Unplaceable,
    is_spread,
    make_plan,
    requests_topology,
    resolve_requests,
    spread_labels,
)
from nri_policy.cluster.requests.spread_preferences import Preference, read_preferences

MAX_NEAR = 16  # most domains tried near other pod sets


class UnitPlacement(Struct, frozen=True):
    """Where units of a group would go in one state of a cluster."""

    state: ClusterState
    group: PlacementGroup
    failures: Mapping[str, int] = MappingProxyType({})  # recent ones of the group's pods, by node
    limits: Limits = MappingProxyType({})  # of hosts, for new pods
    within: Path = ()  # the domain for all pods, if there is one
    near_level: int = -1  # domains of this level with other pods of the group are tried first

    @property
    def placed(self) -> Counter[str]:
        """The group's running pods, by node."""
        return self.state.running_of(self.group.key)

    def limits_beside(self, unit: Unit, taken: Mapping[str, Assignment]) -> Limits:
        """Return the limits of a unit beside what new assignments of the group have *taken*."""
        if not taken or not self.limits:
            return self.limits
        return self.state.limits.beside(self.limits, self.group, unit, taken)

    def room_for(self, unit: Unit, taken: Mapping[str, Assignment]) -> UnitCounts:
        """Return how many of a unit fit where, beside what new assignments have *taken*."""
        state = self.state
        tree, wanted = plan_of(state, unit, max(0, len(self.within) - 1))
        held: Mapping[int, int] = {}
        if wanted.most is not None or wanted.apart >= 0:
            held = tree.by_leaf(self.placed + count_by_node(taken.values(), state.view))
        limits = self.limits_beside(unit, taken)
        counts, _ = count(tree, unit, wanted, state.settings, held, limits)
        within = find_domain_within(tree, self.within)
        alone = wanted.most is not None or wanted.apart >= 0
        return UnitCounts(tree, wanted, counts, within, fresh=bool(limits) or alone)

    def assign(
        self, unit: Unit, tree: Tree, placed: Counter[str], taken: Mapping[str, Assignment]
    ) -> dict[str, Assignment]:
        """Return the assignments of a unit; *placed* are the group's pods, by node.

        With a level to be near in, the domains of *taken* ones are tried first.
        """
        for path in self._domains_of(taken, tree):
            with suppress(Unplaceable):
                return replace(self, within=path).assign_apart(unit, tree, placed)
        return self.assign_apart(unit, tree, placed)

    def _domains_of(self, taken: Mapping[str, Assignment], tree: Tree) -> list[Path]:
        """Return some domains of the level to be near in, those with the most pods first."""
        if self.near_level < 0:
            return []
        pods: Counter[Path] = Counter()
        for each in taken.values():
            for one in each.domains:
                leaf = tree.shape.find(each.levels, one.values)
                if leaf is not None:
                    pods[tree.shape.paths[leaf][: self.near_level + 1]] += one.count
        return [path for path, _ in pods.most_common(MAX_NEAR)]

    def assign_apart(self, unit: Unit, tree: Tree, placed: Counter[str]) -> dict[str, Assignment]:
        """Return the assignments of a unit, in domains that are not crowded by groups like it.

        Those that only a preference closes are opened one by one, the least crowded first.
        """
        if spreading_of(unit) is None:
            return self.assign_in(tree, unit, placed)
        out = find_crowded_domains(
            self.group, unit, tree, self.state.groups.values(), self.state.view
        )
        last = [each for each in out if not each.closed]
        while True:
            state = self.state.without_nodes(nodes_in([each.path for each in out], tree))
            try:
                return replace(self, state=state).assign_in(tree_of(state, unit), unit, placed)
            except Unplaceable as refused:
                if not last:
                    raise _with_crowded(refused, out) from None
            out.remove(last.pop(0))

    def assign_in(self, tree: Tree, unit: Unit, placed: Counter[str]) -> dict[str, Assignment]:
        """Return the assignments of a unit, packed or spread over the leaves of its tree."""
        held = tree.by_leaf(placed)
        request = unit.workers.request
        find = partial(
            find_packing,
            tree,
            unit,
            self.state.settings,
            held=held,
            limits=self.limits,
            implied=unit.requests_nothing,
            within=self.within,
        )
        if not is_spread(unit.workers):
            packed = make_assignments(tree, unit, find())
            if request is not None and request.max_skew:  # of pods of slices
                placed = count_by_node([packed[unit.workers.name]], self.state.view)
                self._check_balance(unit.workers, placed, self._nodes_within(tree))
            return packed
        everywhere = self._nodes_within(tree)
        if request is None or not requests_topology(request):
            return self._spread_unit(unit, placed, everywhere, everywhere)
        found = find()
        first: dict[str, Assignment] = {}
        if unit.leader is not None:
            place = [(found.leader, 1)]
            first = {unit.leader.name: make_assignment(tree, unit.leader.name, place)}
        nodes = nodes_around(tree, found)
        if request.required:
            return self._spread_unit(unit, placed, nodes, nodes, first)
        if request.preferred:  # not at the cost of their balance
            with suppress(Unplaceable):
                return self._spread_unit(unit, placed, nodes, everywhere, first)
        return self._spread_unit(unit, placed, everywhere, everywhere, first)

    def _spread_unit(
        self,
        unit: Unit,
        placed: Mapping[str, int],
        nodes: Collection[str] | None,
        among: Collection[str] | None,
        first: Mapping[str, Assignment] = MappingProxyType({}),
    ) -> dict[str, Assignment]:
        """Return the assignments of a unit that is spread over *nodes*, balanced *among* nodes.

        A leader takes its place before its workers: where it goes *first*, or as it is spread.
        """
        trial, out = self._trial_of(unit), dict(first)
        if out:
            trial.state.take(out, unit)
        for pod_set in reversed(unit.pod_sets):
            if pod_set.name not in out:
                asked = replace(pod_set, request=unit.workers.request)
                pods = trial.spread_whole(asked, placed, nodes)
                self._check_balance(asked, pods, among)
                out[pod_set.name] = make_host_assignment(pod_set.name, pods, self.state.nodes)
                if pod_set is not unit.workers:
                    trial.state.take({pod_set.name: out[pod_set.name]}, unit)
        return out

    def _trial_of(self, unit: Unit) -> UnitPlacement:
        """Return where a unit is spread, in a fork if its pod sets take places from each other."""
        return self if unit.leader is None else replace(self, state=self.state.fork())

    def replace_pods(
        self, unit: Unit, tree: Tree, more: Mapping[str, int]
    ) -> tuple[dict[str, Assignment], dict[str, Assignment]]:
        """Return the assignments of new pods, those of failed nodes' and *more*; and the whole."""
        status = self.group.status
        if self.has_lost_all(unit) and not more:  # a leader goes where its workers can be, too
            state = self.state.without_nodes(self.failed_nodes)
            found = replace(self, state=state).assign_in(tree_of(state, unit), unit, Counter())
            return found, found
        if is_spread(unit.workers):
            trial = replace(self._trial_of(unit), failures={})

            def spread(pod_set: PodSet, own: Counter[str], within: Collection[str]) -> Assignment:
                nodes = self._nodes_within(tree)
                own_nodes = within if nodes is None else nodes.intersection(within)
                pods = trial.spread_whole(pod_set, own, self._away_from(pod_set, own, own_nodes))
                self._check_balance(pod_set, own + Counter(pods), own_nodes)
                made = make_host_assignment(pod_set.name, pods, self.state.nodes)
                if pod_set.name != unit.workers.name:
                    trial.state.take({pod_set.name: made}, unit)
                return made

            return replace_spread(tree, unit, status, spread, self.state.view, more=more)
        paths = self._paths(tree, status.unhealthy_nodes)
        find = partial(
            replace_failed,
            tree,
            unit,
            status,
            self.state.settings,
            implied=unit.requests_nothing,
            paths=paths,
            more=more,
            limits=self.limits,
            within=find_domain_within(tree, self.within),
        )
        try:
            return find(leader_first=False)
        except Unplaceable as refused:
            if unit.leader is not None:
                with suppress(Unplaceable):
                    return find(leader_first=True)
            raise refused from None

    @property
    def failed_nodes(self) -> frozenset[str]:
        """The nodes on which the group has lost its places."""
        view = self.state.view
        failed = self.group.status.unhealthy_nodes
        return frozenset(node.name for host in failed for node in view.on_host(host))

    def has_lost_all(self, unit: Unit) -> bool:
        """Whether all pods of a unit were on failed nodes, or had no places."""
        status = self.group.status
        given = {each.pod_set for each in status.assignments}
        lost = {each.name: each.count for each in unit.pod_sets if each.name not in given}
        lost |= {
            given.pod_set: sum(each.count for each in given.domains)
            for given in status.assignments
            if all(host_of_place(given, each) in status.unhealthy_nodes for each in given.domains)
        }
        return all(lost.get(each.name) == each.count for each in unit.pod_sets)

    def _nodes_within(self, tree: Tree) -> frozenset[str] | None:
        """Return the nodes of the domain for all pods, None without one."""
        if not self.within:
            return None
        leaves = tree.shape.domains.leaves_below(find_domain_within(tree, self.within))
        return frozenset(tree.nodes_in([leaves]))

    def spread(self) -> dict[str, tuple[dict[str, int], int]]:
        """Return, by pod set, the new pods for each node, and how many find no place."""
        own = self.placed
        found: dict[str, tuple[dict[str, int], int]] = {}
        pod_sets = resolve_requests(self.group)
        trial = replace(self, state=self.state.fork()) if len(pod_sets) > 1 else self
        for number, pod_set in enumerate(pod_sets):
            path = f"spec.podSets[{number}].request"
            try:
                new, left = trial.spread_pods(pod_set, own, None, path)
            except Unplaceable as refused:
                raise DocumentError(join(path, "topology"), str(refused)) from None
            found[pod_set.name] = new, left
            own.update(new)
            for node, pods in new.items() if number + 1 < len(pod_sets) else ():
                trial.state.occupy(node, self.state.kind_of(pod_set), pods)
        return found

    def spread_whole(
        self, pod_set: PodSet, own: Mapping[str, int], within: Collection[str] | None
    ) -> dict[str, int]:
        """Return the pods for each node, of those *within*; raises Unplaceable unless all fit."""
        pods, left = self.spread_pods(pod_set, own, within)
        if left:
            raise spread_refusal(pod_set, left)
        return pods

    def spread_pods(
        self,
        pod_set: PodSet,
        own: Mapping[str, int],
        within: Collection[str] | None,
        path: str = "",
    ) -> tuple[dict[str, int], int]:
        """Return the pods for each node, of those *within*, and how many find no place."""
        request = pod_set.request or PlacementRequest()
        preferences = read_preferences(spread_labels(request), join(path, "spreadOver"))
        tree = self.state.ledger.spread_tree([each.key for each in preferences])
        tolerations = self.state.ledger.topology(request.topology).tolerations
        if request.max_skew:  # kube-scheduler rejects nodes without the label
            labels = request.max_skew.keys()
            having = {
                name for name, node in self.state.nodes.items() if labels <= node.labels.keys()
            }
            if len(having) < len(self.state.nodes):
                within = having if within is None else having.intersection(within)
        limits = self.limits.get(pod_set.name, {})
        for label in request.apart_over:
            within, limits = self._keep_apart(pod_set, label, own, within, limits)
        return tree.spread(pod_set, preferences, tolerations, own, self.failures, within, limits)

    def _keep_apart(
        self,
        pod_set: PodSet,
        label: str,
        own: Mapping[str, int],
        within: Collection[str] | None,
        limits: Mapping[str, int],
    ) -> tuple[Collection[str], Mapping[str, int]]:
        """Return the nodes *within* for pods of which no two share a value of a label, with limits.

        These are a node of each value, which takes one pod, and all nodes without the label.
        """
        nodes, request = self.state.nodes, pod_set.request or PlacementRequest()
        values = {name: value for name, each in nodes.items() if (value := each.labels.get(label))}
        each_value = replace(pod_set, count=len({*values.values()}))
        tolerations = self.state.ledger.topology(request.topology).tolerations
        found, _ = self.state.ledger.spread_tree([label]).spread(
            each_value, [Preference(label)], tolerations, own, self.failures, within, limits
        )
        chosen = {values[name]: name for name in sorted(found, reverse=True) if name in values}
        others = nodes.keys() - values.keys()
        one = {name: min(1, limits.get(name, 1)) for name in chosen.values()}
        kept = others if within is None else others.intersection(within)
        return {*one, *kept}, {**limits, **one}

    def _away_from(
        self, pod_set: PodSet, own: Iterable[str], within: Collection[str]
    ) -> Collection[str]:
        """Return the nodes *within* that share no domain of a level to be apart in with *own*."""
        nodes = self.state.nodes
        for label in pod_set.request.apart_over if pod_set.request else ():
            taken = {nodes[name].labels.get(label) for name in own if name in nodes} - {None, ""}
            within = [name for name in within if nodes[name].labels.get(label) not in taken]
        return within

    def _check_balance(
        self, pod_set: PodSet, pods: Mapping[str, int], within: Collection[str] | None
    ) -> None:
        """Raise Unplaceable if *pods* of a pod set that is spread break its own constraints.

        *pods* are all pods of the pod set, counted by node. Values of a label are compared as far
        as nodes *within* have them.
        """
        request = pod_set.request or PlacementRequest()
        tolerations = self.state.ledger.topology(request.topology).tolerations
        for label, skew in request.max_skew.items():
            tree = self.state.ledger.spread_tree([label])
            if uneven := tree.find_uneven(pod_set, tolerations, pods, skew, within):
                raise Unplaceable(f"topology spread over {label}, maxSkew {skew}: {uneven}")
        for label in request.apart_over:
            if shared := self.state.ledger.spread_tree([label]).find_shared(pods):
                raise Unplaceable(f"pods that exclude each other would share {label} {shared}")

    def _paths(self, tree: Tree, names: Iterable[str]) -> dict[str, Path]:
        """Return the paths of those nodes that still exist, whether they take part or not."""
        nodes = {name: self.state.nodes[name] for name in names if name in self.state.nodes}
        paths = {name: tree.shape.path_of(node) for name, node in nodes.items()}
        return {name: path for name, path in paths.items() if path is not None}


def tree_of(state: ClusterState, unit: Unit) -> Tree:
    """Return the tree on which *unit* is placed; raises Unplaceable.

    It goes below the host only as far as the request names zones.
    """
    request = unit.workers.request
    topology = state.ledger.topology(None if request is None else request.topology)
    named = [each for each in unit.named_levels if each not in topology.levels]
    if not named:
        return state.tree(topology.name)
    below = [ZONE_LEVEL + kind for kind in topology.below_host]
    unknown = [each for each in named if each not in below]
    if unknown:
        raise Unplaceable(describe_missing_level(state, min(unknown), topology))
    return state.tree(topology.name, max(below.index(each) + 1 for each in named))


def plan_of(state: ClusterState, unit: Unit, inside: int = 0) -> tuple[Tree, PlacementPlan]:
    """Return the tree on which *unit* is placed, and what it asks for there; raises Unplaceable.

    All pods go into one domain of the level *inside*.
    """
    tree = tree_of(state, unit)
    anywhere = is_spread(unit.workers) and not requests_topology(unit.workers.request)
    implied = unit.requests_nothing or anywhere
    levels, settings = tree.shape.levels, state.settings
    return tree, make_plan(unit, implied=implied, levels=levels, settings=settings, inside=inside)


def describe_missing_level(state: ClusterState, level: str, topology: Topology) -> str:
    """Say that a topology lacks a level, and name the topologies with this level."""
    others = [each.name for each in state.settings.topologies if level in each.every_level]
    return describe_unknown_level(level, topology, state.view, others)


def _with_crowded(refused: Unplaceable, out: Sequence[CrowdedDomain]) -> Unplaceable:
    """Return the refusal as it is now, with the domains that are closed."""
    closed = ", ".join(str(each) for each in out)
    return Unplaceable(f"{refused}; topology spreading: {closed}" if closed else str(refused))
