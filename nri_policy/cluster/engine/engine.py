"""The engine of the cluster side: where groups would go in a cluster as it is.

A decision changes nothing: the caller carries it out, and the state takes in the group with its
assignments. Groups are placed by the free amounts of whole hosts. If hosts would refuse pods there,
the engine places the group again within the limits of hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Self

from msgspec.structs import replace

from nri_policy.cluster.engine.group_placement import (
    GroupPlacement,
    find_shared_level,
    keeps_places,
)
from nri_policy.cluster.engine.search.crowding import find_crowded_domains, nodes_in, spreading_of
from nri_policy.cluster.engine.search.exclusive import find_taken_domains
from nri_policy.cluster.engine.search.spread_assignment import make_host_assignment
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.state.host_limits import HostLimits, Limits, MakeLimits, OwnLimits
from nri_policy.cluster.engine.unit_placement import UnitPlacement, tree_of
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, Together, is_lasting
from nri_policy.cluster.requests.request import Unit, exclusive_of, units_of
from nri_policy.cluster.view import ClusterView
from nri_policy.foundation.copies import copy_with

_BY_ZONES = "nodes that align pods to one NUMA node count by their zones"
MAX_TRIES = 10  # to spread pod sets that are in each other's way


class Engine:
    """Where groups would go in a state of a cluster, which changes by events."""

    def __init__(
        self, settings: ClusterSettings, view: ClusterView, limits: MakeLimits = HostLimits
    ) -> None:
        """Read nodes and their reports in *view*; *limits* are of hosts, beside their totals."""
        self.state = ClusterState(settings, view, limits)

    def place(
        self,
        group: PlacementGroup,
        failures: Mapping[str, int] = MappingProxyType({}),
        more: Mapping[str, int] = MappingProxyType({}),
        *,
        explain: bool = True,
        lacking: Sequence[PlacementGroup] = (),
    ) -> GroupStatus:
        """Return the status of *group* if it were placed now, or its failed nodes replaced.

        Its pod sets go one after the other, each sees those before. If one finds no room, other
        orders are tried, then a search. Pod sets with a shared level go into the fullest domain
        with enough room. *failures* are recent failures of the group's pods, by node: pods with
        spreading avoid such nodes. *more* pods of a pod set go where replaced ones would; what the
        group has stays. To *explain* a refusal takes longer than to find it. *lacking* groups lack
        places, too: steps of its JobSet get room beside it. Steps to come get room, too, if a
        domain has room for all steps; the group never waits for such room. Nothing changes.
        Raises DocumentError for a request that breaks a rule.

        If hosts would refuse pods there, the group is placed again within their limits. If it
        cannot be, the status says what they refuse.
        """
        placement = GroupPlacement(self.state, group, failures, more, explain, lacking=lacking)
        status = placement.place()
        limits = self.state.limits
        if not status.assignments or not limits.may_refuse():
            return status
        keeps = keeps_places(group, more)
        if not keeps and self._has_places(group):
            made = self.fork()
            made.state.take_out([*self.state.usages.out, group.key])
            return made.place(group, failures, more, explain=explain, lacking=lacking)
        kept = group if keeps else None
        placed = replace(group, status=status)
        refused = limits.find_refused(placed, kept)
        if not refused:
            return status
        found = replace(placement, limits=self._limits_of(group)).place()
        if found.assignments and not limits.find_refused(replace(group, status=found), kept):
            return found
        if self.state.usages.steps_to_come(group):
            now = self.fork()
            now.state.usages.forget_plans()
            return now.place(group, failures, more, explain=explain, lacking=lacking)
        return limits.refusal(placed, refused, "" if found.assignments else found.message)

    def count_by_zones(self, group: PlacementGroup, status: GroupStatus) -> GroupStatus:
        """Return the *status* of a new group; if hosts have too little in all, as zones count.

        This is slower than a placement: only for reports to people.
        """
        if status.assignments or status.conditions or not self.state.limits.may_refuse():
            return status
        limits = self._limits_of(group)
        found = GroupPlacement(self.state, group, {}, {}, explain=True, limits=limits).place()
        if found.message == status.message:
            return status
        return replace(status, message=f"{found.message}; {_BY_ZONES}")

    def _limits_of(self, group: PlacementGroup) -> Limits:
        """Return how many new pods of a group hosts take."""
        limits: OwnLimits = {}
        for unit in units_of(group):
            limits |= self.state.limits.of(unit)
        return limits

    def _has_places(self, group: PlacementGroup) -> bool:
        key = group.key
        known = self.state.groups.get(key)
        return (
            known is not None
            and bool(known.status.assignments)
            and key not in self.state.usages.out
        )

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
        state = self.state
        placement = UnitPlacement(state, group, failures)
        found = placement.spread()
        if not state.limits.may_refuse():
            return found
        limits: OwnLimits = {}
        for tries in count():
            assignments = [
                make_host_assignment(name, new, state.nodes) for name, (new, _) in found.items()
            ]
            status = GroupStatus(state="Placed", assignments=assignments)
            refused = state.limits.find_refused(replace(group, status=status))
            if not refused:
                break
            for pod_set in () if limits else group.pod_sets:
                limits |= state.limits.of(Unit(workers=pod_set))
            for host, found_there in refused.items():
                nodes = [each.name for each in state.view.on_host(host)]
                for name, each in found_there.items():
                    most = 0 if tries > MAX_TRIES else each.of - each.pods
                    limits[name] |= dict.fromkeys(nodes, most)
            found = replace(placement, limits=limits).spread()
        return found

    def closed_to(self, group: PlacementGroup) -> frozenset[str]:
        """Return the nodes that stay closed to a group whatever ends by itself.

        Topology spreading closes these nodes now, or exclusive groups that never end occupy their
        domains.
        """
        found: set[str] = {*self.taken_from(group, lasting=True)}
        for unit in units_of(group):
            if spreading_of(unit) is not None:
                tree = tree_of(self.state, unit)
                out = find_crowded_domains(
                    group, unit, tree, self.state.groups.values(), self.state.view
                )
                found |= nodes_in([each.path for each in out if each.closed], tree)
        return frozenset(found)

    def taken_from(self, group: PlacementGroup, *, lasting: bool = False) -> frozenset[str]:
        """Return the nodes that a group must not use as it is to have a domain to itself.

        These are the nodes in domains of other exclusive groups; with *lasting*, only of groups
        whose pods never end by themselves.
        """
        level = exclusive_of(group.pod_sets)
        steps = [] if level is None else [unit for unit in units_of(group) if unit.workers.count]
        if level is None or not steps:
            return frozenset()
        trees = [tree_of(self.state, unit) for unit in steps]
        at = find_shared_level(self.state, Together(required=level), trees)
        others = [each for each in self.state.groups.values() if not lasting or is_lasting(each)]
        return nodes_in(find_taken_domains(group, at, trees[0], others, self.state.view), trees[0])

    def fork(self) -> Self:
        """Return an engine for trials: what changes in its state changes nothing here."""
        return copy_with(self, state=self.state.fork())

    def without_usage(self, only: Collection[str] | None = None) -> Self:
        """Return an engine for these nodes, or *only* some, with nothing in use."""
        return copy_with(self, state=self.state.without_usage(only))

    def emptied(
        self, staying: Iterable[PlacementGroup], only: Collection[str] | None = None
    ) -> Self:
        """Return an engine for these nodes, or *only* some, as if all that can end had ended."""
        return copy_with(self, state=self.state.emptied(staying, only))

    def without_nodes(self, nodes: Collection[str]) -> Self:
        """Return an engine with these *nodes* closed to new pods."""
        return copy_with(self, state=self.state.without_nodes(nodes))
