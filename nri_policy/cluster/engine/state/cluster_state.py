"""What is used where in a cluster: nodes, zones, pods and groups, and the trees made of them.

No I/O, no clock. The same events give the same state in any order. An event changes the leaves of
one node only.

What counts as used on a node, by spec cluster.md §4.3:

1. each pod that is bound, not finished, and in no group with assignments: its effective request,
   and one of the node's `pods`;
2. the assignments of groups, whether their pods run or not, less what finished pods gave back,
   and what pods that were resized use beyond their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

from msgspec.structs import replace

from nri_policy.cluster.engine.state.group_usages import NOTHING, Count, GroupUsages
from nri_policy.cluster.engine.state.host_limits import HostLimits, MakeLimits
from nri_policy.cluster.engine.state.ledger import Ledger
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.usage import Usage, usage_of
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.group import (
    PlacementGroup,
    PlacementRequest,
    PodSet,
    is_by_host,
    is_lasting,
    named_group,
)
from nri_policy.cluster.requests.request import Unit, Unplaceable
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.copies import copy_with

# its node, what it requests, and whether it ends by itself: services and DaemonSet pods do not
BoundPod = tuple[str, Amounts, bool]


class ClusterState:
    """The state of a cluster."""

    def __init__(
        self,
        settings: ClusterSettings,
        view: ClusterView,
        limits: MakeLimits = HostLimits,
    ) -> None:
        """Read nodes and their reports in *view*; *limits* are of hosts, beside their totals."""
        self.settings, self.levels = settings, _levels(settings)
        self.view, self.nodes = view, view.nodes
        self.usages = GroupUsages(view)
        self.groups = self.usages.groups
        self.limits = limits(settings, self.usages)
        self._pods: dict[Key, BoundPod] = {}  # of no group
        self._group_of: dict[Key, Key] = {}  # by pod
        self.ledger = Ledger(settings, view, self.usages)
        self._freed: dict[Key, list[Usage]] = {}  # what groups leave, if they do
        # called for each added, changed or removed group (None), never for trials in forks
        self.on_group: Callable[[Key, PlacementGroup | None], None] = lambda _key, _group: None

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings: what is used where stays, topologies are made anew."""
        self.settings, self.levels = settings, _levels(settings)
        self.ledger.configure(settings)
        self.limits.configure(settings)

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Take in that a node changed, came or went: what is used there counts again with it."""
        self.ledger.change_node(old, new)
        nodes = [each for each in (old, new) if each is not None]
        self.limits.change_hosts({each.host for each in nodes})

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Take in what a node's zones have left, or that its report went."""
        if old != new:
            self.ledger.change_zones(node, old, new)
        known = self.nodes.get(node)
        self.limits.change_hosts([node if known is None else known.host])

    def set_pod(self, pod: Pod) -> None:
        """Store a new or changed pod, in the group that it names."""
        self.set_member(pod, named_group(pod))

    def set_member(self, pod: Pod, group: str | None) -> None:
        """Store a new or changed pod, in a *group* of its namespace or in none."""
        self.remove_pod(*pod.key)
        if not pod.node:
            return
        if group is not None:
            key = (pod.namespace, group)
            self._change_member(key, pod, 1)
            self._group_of[pod.key] = key
            if not pod.finished:
                self.ledger.run(pod.node, 1)
        elif not pod.finished:
            kind = self.kind(pod.spec.effective())
            self.bind(pod.namespace, pod.name, pod.node, kind, ends=pod.spec.ends)

    def add_pods(self, pods: Sequence[Pod]) -> None:
        """Take in new pods: bound, not finished and in no group.

        What equal pods of a node use is counted at once: a file may have 150,000 pods.
        """
        assert not self.ledger.is_fork
        uses: dict[int, tuple[Amounts, bool]] = {}  # by the identity of a spec: equal pods share it
        for pod in pods:
            spec = id(pod.spec)
            if spec not in uses:
                uses[spec] = self.kind(pod.spec.effective()), pod.spec.ends
            kind, ends = uses[spec]
            self._pods[pod.key] = (pod.node, kind, ends)
        places = Counter([(pod.node, id(pod.spec)) for pod in pods])
        for (node, spec), times in places.items():
            kind, ends = uses[spec]
            self._use(node, kind, times, ends=ends)

    def bind(
        self, namespace: str, name: str, node: str, kind: Amounts, *, ends: bool = False
    ) -> None:
        """Take in a pod of no group that is bound to *node* and requests what `kind` returned.

        It *ends* by itself, or stays.
        """
        assert not self.ledger.is_fork
        self._pods[namespace, name] = (node, kind, ends)
        self._use(node, kind, 1, ends=ends)

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        assert not self.ledger.is_fork  # its pods are another's, too
        found = self._pods.pop((namespace, name), None)
        if found is not None:
            node, kind, ends = found
            self.ledger.run(node, -1)
            self.ledger.use_pods(node, kind, -1, ends=ends)
            return
        key = self._group_of.pop((namespace, name), None)
        if key is not None:
            pod = self.usages.members[key][name]
            self._change_member(key, pod, -1)
            if not pod.finished:
                self.ledger.run(pod.node, -1)

    def pods(self) -> dict[Key, BoundPod]:
        """Return the bound pods of no group."""
        return dict(self._pods)

    def is_bound(self, pod: Key) -> bool:
        """Whether a pod of no group is bound to a node, and has not ended."""
        return pod in self._pods

    def running_of(self, group: Key) -> Counter[str]:
        """Return a group's running pods, by node."""
        return self.usages.running_of(group)

    def set_group(self, group: PlacementGroup) -> None:
        """Take in that a group came or changed; its assignments are in use."""
        key = group.key
        members = self.usages.members.get(key, {})
        before = self.usages.count(self.groups.get(key), members)
        after = self.usages.count(group, members)
        old = self.groups.get(key)
        self.usages.put(key, group)
        self._recount(before, after)
        if before != after and any(each is not None and is_lasting(each) for each in (old, group)):
            self.ledger.generation += 1
        self.limits.change_group(key)
        if not self.ledger.is_fork:
            self.on_group(key, group)

    def remove_group(self, namespace: str, name: str) -> None:
        """Remove a group; its running pods then count like pods without a group."""
        key = (namespace, name)
        members = self.usages.members.get(key, {})
        before = self.usages.count(self.groups.get(key), members)
        after = self.usages.count(None, members)
        old = self.groups.get(key)
        self.usages.put(key, None)
        self.usages.forget(key)
        self._recount(before, after)
        if old is not None and is_lasting(old):
            self.ledger.generation += 1
        self.limits.change_group(key)
        if not self.ledger.is_fork:
            self.on_group(key, None)

    @property
    def releases(self) -> int:
        """How often something in use was given back until now."""
        return self.ledger.releases

    def released_since(self, release: int) -> list[str] | None:
        """Return the nodes where something was given back after a release; None: on any node."""
        return self.ledger.released_since(release)

    def kind(self, amounts: Amounts) -> Amounts:
        """Return *amounts* with the place among `pods`, one object for all that are equal."""
        return self.usages.kind(amounts)

    def tree(self, name: str, depth: int = 0) -> Tree:
        """Return the tree of a topology with *depth* types of zones; raises Unplaceable."""
        return self.ledger.tree(name, depth)

    def kind_of(self, pod_set: PodSet) -> Amounts:
        """Return what one pod of a pod set uses."""
        return self.kind(pod_set.amounts)

    def topology_of(self, pod_set: PodSet) -> Topology | None:
        """Return the topology on which a pod set is placed; None if there is none of that name."""
        try:
            return self.ledger.topology((pod_set.request or PlacementRequest()).topology)
        except Unplaceable:
            return None

    @property
    def generation(self) -> int:
        """What changes with nodes, with what zones have in all, with settings and what stays."""
        return self.ledger.generation

    def is_up_to_date(self) -> bool:
        """Whether this fork is still valid: its origin has not changed in a way that matters."""
        return self.ledger.is_up_to_date()

    def fork(self) -> Self:
        """Return a copy for trials: what changes in the copy changes nothing here.

        It takes in no nodes, zones, pods or settings, and lives while nothing changes here.
        """
        usages = self.usages.fork()
        return self._copy(usages, self.ledger.fork(), self.limits.fork(usages))

    def without_usage(self, only: Collection[str] | None = None) -> Self:
        """Return a state of these nodes, or *only* of some, with nothing in use.

        Valid until nodes, capacities of zones or settings change.
        """
        usages = GroupUsages(self.view)
        return self._copy(usages, self.ledger.without_usage(only), self.limits.emptied(usages))

    def emptied(
        self, staying: Iterable[PlacementGroup], only: Collection[str] | None = None
    ) -> Self:
        """Return a state of these nodes, or *only* of some, as if all that can end had ended.

        In use are then: lasting pods without a group, and the places of *staying* groups.
        Valid as long as `without_usage`, and until lasting pods or *staying* groups change.
        """
        usages, ledger = GroupUsages(self.view), self.ledger.without_usage(only, lasting=True)
        for each in staying:
            key = each.key
            usages.put(key, each)
            ledger.assume(usages.in_use(key), 1)
        return self._copy(usages, ledger, self.limits.emptied(usages, self._pods, only))

    def _copy(self, usages: GroupUsages, ledger: Ledger, limits: HostLimits) -> Self:
        """Return a state of the same nodes and pods with other books."""
        groups = usages.groups
        return copy_with(self, usages=usages, groups=groups, ledger=ledger, limits=limits)

    def without_nodes(self, nodes: Collection[str]) -> Self:
        """Return a fork with these *nodes* closed; without *nodes* return this state."""
        if not nodes:
            return self
        made = self.fork()
        made.close(nodes)
        return made

    def close(self, nodes: Collection[str]) -> None:
        """Close these *nodes* to new pods in this fork."""
        self.ledger.close(nodes)

    def occupy(self, node: str, kind: Amounts, times: int) -> None:
        """Have *times* more pods on a node of this fork, each of what `kind` returned."""
        self.ledger.use(node, kind, times)
        self.ledger.run(node, times)

    def end(self, pods: Sequence[Pod]) -> None:
        """Free in this fork the room of bound pods without a group."""
        for pod in pods:
            self.occupy(pod.node, self.kind(pod.spec.effective()), -1)
        self.usages.ended = (*self.usages.ended, *pods)

    def take_out(self, groups: Collection[Key]) -> None:
        """Have just these groups leave their places in this fork, with their pods."""
        wanted = frozenset(groups)
        if unknown := wanted - self._freed.keys():
            self._freed = {**self._freed, **{key: self._usages_to_free(key) for key in unknown}}
        back, gone = self.usages.out - wanted, wanted - self.usages.out
        self.ledger.assume([each for key in back for each in self._freed[key]], 1)
        self.ledger.assume([each for key in gone for each in self._freed[key]], -1)
        self.usages.out = wanted

    def _usages_to_free(self, key: Key) -> list[Usage]:
        # The report of a zone lacks what runs there: it is free once the pods end.
        return [
            replace(each, reported=0) if each.reported else each for each in self.usages.in_use(key)
        ]

    def take(self, assignments: Mapping[str, Assignment], unit: Unit, times: int = 1) -> None:
        """Count assignments of a unit's pod sets as used in this fork, *times* times."""
        own = [each for each in unit.pod_sets if each.name in assignments]
        usages = [usage_of(assignments[each.name], self.kind_of(each)) for each in own]
        self.ledger.assume(usages, times)

    def _use(self, node: str, kind: Amounts, times: int, *, ends: bool) -> None:
        """Count *times* pods of no group that began to run on a node."""
        self.ledger.run(node, times)
        self.ledger.use_pods(node, kind, times, ends=ends)

    def _change_member(self, key: Key, pod: Pod, times: int) -> None:
        """Take a pod of a group in (1), or out again (-1).

        Counts the usage that may change first: if an error is raised, the state stays unchanged.
        """
        group = self.groups.get(key)
        members = self.usages.members.get(key, {})
        assigned = group is not None and bool(group.status.assignments)
        if group is not None and assigned and (pod.finished or not is_by_host(group)):
            others = {name: each for name, each in members.items() if name != pod.name}
            then = {**others, pod.name: pod} if times > 0 else others
            before, after = self.usages.count(group, members), self.usages.count(group, then)
        else:
            before = after = NOTHING
            if not pod.finished:
                # a place is in use whether its pod runs or not
                one: Count = (
                    (self.usages.beyond(group, [pod]), [])
                    if group is not None and assigned
                    else ([], [self.usages.of_pod(pod)])
                )
                before, after = (NOTHING, one) if times > 0 else (one, NOTHING)
        if times > 0:
            self.usages.members.setdefault(key, {})[pod.name] = pod
        else:
            del members[pod.name]
            if not members:
                del self.usages.members[key]
        self._recount(before, after)
        self.limits.change_group(key)

    def _recount(self, before: Count, after: Count) -> None:
        for (usages, bound), times in ((before, -1), (after, 1)):
            if usages:
                self.ledger.assume(usages, times)
            for node, kind, ends in bound:
                self.ledger.use_pods(node, kind, times, ends=ends)


def _levels(settings: ClusterSettings) -> frozenset[str]:
    """Return the labels that name levels, of any topology."""
    return frozenset(level for each in settings.topologies for level in each.levels)
