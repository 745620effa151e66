"""The tree of one topology: the nodes at its leaves, free amounts, and filters of pods.

Its shape never changes: a node that goes leaves its leaf empty, and the leaf of one that is
cordoned or not ready is empty. Only a path that was not there before makes the tree anew, and that
when it is used next. All that changes is by the number of the leaf: which node is there, which a
fork shares while no node changes, and what is left there, of which each fork has its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.state.filter import Filter, Filters
from nri_policy.cluster.engine.state.known_counts import KnownCounts
from nri_policy.cluster.engine.state.shape import Path, Shape
from nri_policy.cluster.engine.state.usage import Usage
from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.matching import Toleration
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.objects.settings import Topology
from nri_policy.cluster.requests.request import PlacementPlan
from nri_policy.foundation.copies import copy_with
from nri_policy.native._counts import Counts
from nri_policy.native._domains import Mask, Rows, Vector
from nri_policy.native._node_order import arrange, index_nodes

_FULL = 1  # code of leaves without room for a leader; never shown

_ANYWHERE = PodSpec()
_ALONE = array("i", [0])  # the order of one node


class Demand(Struct, frozen=True, kw_only=True):
    """Pods of one kind of which is asked how many fit where, in slices, beside their leader."""

    plan: PlacementPlan
    pod: Amounts
    kind: Filter
    leader: Amounts | None = None
    leader_kind: Filter | None = None
    held: Mapping[int, int] = {}  # leaf -> pods there that count for the most on a host
    limits: Mapping[int, int] = {}  # leaf of a host, the first of its zones -> pods, at most
    leader_limits: Mapping[int, int] = {}  # the same for the leader
    beside: Mapping[int, int] = {}  # the same for pods where the leader is

    def key(self) -> object:
        """Return a key: demands without limits are equal if their keys are."""
        plan = self.plan
        return (
            frozenset(self.pod.items()),
            self.kind,
            plan.size,
            plan.slice_level,
            frozenset(plan.inner.items()),
            None if self.leader is None else frozenset(self.leader.items()),
            self.leader_kind,
            plan.most,
            plan.apart,
            plan.capped,
            None if plan.most is None and plan.apart < 0 else frozenset(self.held.items()),
        )


class Tree:
    """The leaves of one topology: hosts, or what is above them; `ZoneTree` goes on below."""

    def __init__(
        self, topology: Topology, nodes: Iterable[ClusterNode], used: Mapping[str, Amounts]
    ) -> None:
        """Take *nodes* by name, and by node what its pods use, read again as it changes."""
        self.left_out: dict[str, str] = {}  # node -> why it takes no part
        self._away: dict[str, int] = {}  # node that is cordoned or not ready -> its empty leaf
        self._used = used
        self._hosts_assigned = False  # whether assignments name hosts below the leaves
        self.known_counts = KnownCounts()
        every = [*nodes]
        self._by_name = array("i", bytes(4 * len(every)))  # leaves, by the names of first nodes
        paths, first, others = arrange(
            every, tuple(topology.levels), topology.node_labels, self.left_out, self._by_name
        )
        del self._by_name[len(paths) :]
        found = index_nodes(first, paths)
        if topology.by_host and (others or len(found[1]) < len(first)):
            # a node that takes part keeps its path beside a cordoned one of its host: its old self
            every = [each for each in every if each.name not in self.left_out]
            self._by_name = array("i", bytes(4 * len(every)))
            paths, first, others = arrange(
                every, tuple(topology.levels), topology.node_labels, {}, self._by_name
            )
            paths, first, kept = self._keep_first(paths, first, others)
            found = index_nodes(first, paths)
            self._by_name = array("i", [kept[leaf] for leaf in self._by_name if leaf in kept])
        self._node_at: dict[str, int]  # node -> its leaf, the first of its zones
        self._host_at: dict[str, int]  # hostname -> the same
        self._tainted: set[int]  # leaves
        self._named_alike: bool  # whether nodes have the names of their hosts
        self._node_at, self._host_at, self._tainted, amounts, self._named_alike = found
        # leaf -> its node, where leaves are hosts or zones
        self._nodes: list[ClusterNode | None] = []
        self.shape: Shape
        self._fill(topology, paths, first, others, amounts)
        self._filters = Filters(self.shape.domains.leaves)
        for name in self.left_out:
            leaf = self._node_at.pop(name, None)
            if leaf is not None:
                there = self._nodes[leaf : leaf + 1] or [first[leaf], *others.get(leaf, ())]
                self._leave(next(each for each in there if each and each.name == name), leaf)
                self._away[name] = leaf

    def _fill(
        self,
        topology: Topology,
        paths: list[Path],
        first: list[ClusterNode],
        others: Mapping[int, list[ClusterNode]],
        amounts: Any,
    ) -> None:
        """Give each leaf the amounts of its nodes: the *first* of its path, and *others* there."""
        self.shape = Shape(topology, paths, self._host_at)
        self.rows = Rows(self.shape.domains)
        self.rows.fill(amounts)
        if topology.by_host:
            self._nodes = list(first)
        else:
            self._host_at, self._tainted = {}, set()
            for node, leaf in zip(first, range(len(first)), strict=True):
                self._host_at[node.host] = leaf
            for leaf, more in others.items():
                for node in more:
                    self._node_at[node.name] = leaf
                    self._host_at[node.host] = leaf
                    self.rows.add(leaf, node.allocatable, 1, 1)
        for name, each in self._used.items():
            self.use(name, each, 1)

    def _keep_first(
        self, paths: list[Path], first: list[ClusterNode], others: Mapping[int, list[ClusterNode]]
    ) -> tuple[list[Path], list[ClusterNode], dict[int, int]]:
        """Leave out nodes with the hostname of another: the first by path, then by name, stays."""
        hosts = [path[-1] for path in paths]
        for leaf, more in others.items():
            self.left_out |= dict.fromkeys((each.name for each in more), _twice(hosts[leaf]))
        seen: set[str] = set()
        kept: dict[int, int] = {}  # leaf -> what it is then
        for leaf, host in enumerate(hosts):
            if host in seen:
                self.left_out[first[leaf].name] = _twice(host)
            else:
                kept[leaf] = len(kept)
                seen.add(host)
        return [paths[leaf] for leaf in kept], [first[leaf] for leaf in kept], kept

    def by_leaf(self, pods: Mapping[str, int]) -> dict[int, int]:
        """Return pods by leaf, from pods by node; nodes without a leaf are left out."""
        at = self._node_at
        return {at[node]: count for node, count in pods.items() if node in at}

    def nodes_in(self, ranges: Iterable[range]) -> Iterator[str]:
        """Yield the names of the nodes at leaves, each once."""
        leaves = {leaf for each in ranges for leaf in each}
        if not self.shape.by_host:
            return (node for node, leaf in self._node_at.items() if leaf in leaves)
        nodes = ((leaf, self._nodes[leaf]) for leaf in leaves)
        # The first of its zones counts for a node.
        return (each.name for leaf, each in nodes if each and self._node_at[each.name] == leaf)

    def leaves_of_nodes(self) -> Mapping[str, int]:
        """Return the nodes that take part, each with its leaf, the first of its zones."""
        return self._node_at

    def has_all(self, nodes: int, keys: Path) -> bool:
        """Return whether so many nodes take part, on all leaves, below the values of *keys*."""
        full = len(self._node_at) == len(self._nodes) == nodes
        return full and self.shape.levels == (*keys, HOSTNAME)

    def leaves_by_name(self) -> array[int]:
        """Return the leaves by the names of the nodes that they were made for."""
        return self._by_name

    def knows_all(self, nodes: Mapping[str, ClusterNode]) -> bool:
        """Return whether each of all *nodes* has a leaf by its name, taking part or not."""
        if not (self.shape.by_host and self._named_alike):
            return False
        out = nodes.keys() - self._node_at.keys() if len(self._node_at) < len(nodes) else ()
        return all(
            name in self.shape.hosts and nodes[name].labels.get(HOSTNAME) == name for name in out
        )

    def nodes_by_leaf(self) -> list[ClusterNode | None]:
        """Return the tree's own list of the node that each leaf is, of hosts or zones."""
        return self._nodes

    def tainted_leaves(self) -> set[int]:
        """Return the leaves whose nodes have taints, where leaves are hosts or zones."""
        return {*self._tainted}

    def fork(self) -> Self:
        """Return a tree that goes on by itself, while no node changes in this one."""
        return copy_with(self, rows=self.rows.fork(), known_counts=KnownCounts(self.known_counts))

    def without_usage(
        self, nodes: Mapping[str, ClusterNode], only: Collection[str] | None = None
    ) -> Self:
        """Return a tree of the same leaves with nothing in use, and none but these nodes if any."""
        made = copy_with(self, rows=Rows(self.shape.domains), known_counts=KnownCounts())
        if only is None and self.shape.by_host:
            made.rows.fill([None if each is None else each.allocatable for each in self._nodes])
        else:
            for name in nodes if only is None else only:
                leaf = self._node_at.get(name)
                if leaf is not None:
                    made.rows.add(leaf, nodes[name].allocatable, 1, 1)
        return made

    def close(self, node: ClusterNode) -> None:
        """Let no pods go to a node, which stays part of the tree."""
        leaf = self._node_at.get(node.name)
        if leaf is None:
            return
        amounts = {} if self.shape.by_host else node.allocatable  # others share its leaf
        for each in self.shape.zones_from(leaf):
            self.rows.add(each, amounts, -1, -1)

    def is_empty(self) -> bool:
        """Return whether no node takes part."""
        return not self._node_at

    def leaf_of(self, node: str) -> int | None:
        """Return the leaf that a node takes part in, the first of its zones."""
        return self._node_at.get(node)

    def has_node(self, leaf: int) -> bool:
        """Return whether a node is at a leaf, even if it takes no new pods."""
        if self.rows.nodes_at(leaf):
            return True
        if self.shape.by_host and self._nodes[leaf] is not None:  # it is closed in this fork
            return True
        away = any(leaf in self.shape.zones_from(each) for each in self._away.values())
        return away or leaf in self._node_at.values()

    def change(self, old: ClusterNode | None, new: ClusterNode | None) -> bool:
        """Take in that a node changed, came (no *old*) or went (no *new*).

        Return False if the tree is to be made anew.
        """
        if not self.shape.by_host and self._hosts_assigned:
            return False  # assigned pods leave the tree with their host
        name = (old or new).name  # type: ignore[union-attr]  # one of them is there
        leaf = self._node_at.pop(name, None)
        self._away.pop(name, None)
        if leaf is not None:
            assert old is not None
            self._leave(old, leaf)
        elif self.left_out.pop(name, "").startswith("hostname"):
            return False
        path = None if new is None else self._path(new)
        if new is None or path is None:
            return leaf is None or not self._has_twin(leaf)
        found = self.shape.find_path(path)
        if found is not None and name in self.left_out:
            self._away[name] = found
            return leaf is None or not self._has_twin(leaf)
        if found is None or not self._is_free(found, name):
            return False
        self._join(new, found)
        return found == leaf or leaf is None or not self._has_twin(leaf)

    def _is_free(self, leaf: int, _name: str) -> bool:
        """Return whether a node may join a leaf."""
        return not self.shape.by_host or self._nodes[leaf] is None

    def _has_twin(self, leaf: int) -> bool:
        """Return whether some node was left out for the hostname of *leaf*."""
        return _twice(self.shape.path_at(leaf)[-1]) in self.left_out.values()

    def use(self, node: str, amounts: Amounts, times: int) -> None:
        """Take what a pod requests off its node *times* times."""
        leaf = self._node_at.get(node)
        if leaf is not None:
            self.rows.add(leaf, amounts, -times)

    def assume(self, usage: Usage, times: int) -> bool:
        """Take what pods of an assignment request off the leaves that it names, *times* times.

        Off a zone only those that its object does not count yet: without the reported ones.
        Return False if a place is neither a leaf nor a host.
        """
        by_host = usage.levels[0] == HOSTNAME
        if by_host and self.shape.named_levels == [HOSTNAME]:
            self.rows.take(self._host_at, usage.places, 0, usage.amounts, times)
            return True
        found = True
        for place in usage.places:
            leaf = self.shape.find(usage.levels, place.values)
            if leaf is None and by_host:
                self._hosts_assigned = True  # even if the host does not exist yet
            host = self._host_at.get(place.values[0]) if by_host else None
            reported = times * usage.reported
            self._assume_at(leaf, host, usage.amounts, times * place.count, reported)
            found = found and (leaf is not None or by_host)
        return found

    def _assume_at(
        self, leaf: int | None, host: int | None, amounts: Amounts, times: int, _reported: int
    ) -> None:
        """Take amounts off the *leaf* that an assignment names, else off the *host*."""
        at = host if leaf is None else leaf
        if at is not None:
            self.rows.add(at, amounts, -times)

    def close_hosts(self, hosts: Iterable[str], kind: Filter) -> None:
        """Close those of *hosts* that the filter *kind* admits."""
        for host in hosts if self.shape.by_host else ():
            first = self._host_at.get(host)
            for leaf in () if first is None else self.shape.zones_from(first):
                if self.rows.nodes_at(leaf) and not kind.mask.get(leaf):
                    self.rows.add(leaf, {}, 0, -1)

    def take(self, places: Mapping[int, int], pod: Amounts) -> None:
        """Count pods as used at leaves."""
        self.assume(self._usage(places, pod), 1)

    def _usage(self, places: Mapping[int, int], pod: Amounts) -> Usage:
        """Return what pods use at leaves."""
        there = self.shape.entries(places.items())
        return Usage(self.shape.named_levels, there, with_place(pod))

    def filter(self, spec: PodSpec, *, scored: bool) -> Filter:
        """Return which leaves a pod may use; selectors count only where leaves are hosts."""
        if not self.shape.by_host:
            return self.filter_of(_ANYWHERE, ())
        affinity = spec.affinity
        if affinity is not None and not scored:
            affinity = replace(affinity, preferred=None)
        tolerations = (*spec.tolerations, *self.shape.topology.tolerations)
        if affinity is None and not spec.node_selector and not self._tainted:
            return self.filter_of(_ANYWHERE, ())
        return self.filter_of(
            PodSpec(node_selector=spec.node_selector, affinity=affinity), tolerations
        )

    def filter_of(self, spec: PodSpec, tolerations: Sequence[Toleration]) -> Filter:
        """Return which leaves a pod may use that tolerates these taints and no others."""
        return self._filters.find(spec, tolerations, self._nodes, self._tainted)

    def counts(self, demand: Demand) -> Counts:
        """Return how many fit where, what was known of the last time brought up to date.

        With limits nothing is kept: those of the next group are others.
        """
        if demand.limits or demand.leader_limits or demand.beside:
            return self.count_once(demand)
        return self.known_counts.find(demand.key(), partial(self.count_once, demand))

    def count_once(self, demand: Demand, within: range | None = None) -> Counts:
        """Return new counts, only of the leaves *within*."""
        leaves = range(self.shape.domains.leaves) if within is None else within
        hosts, host_of = self._of_hosts(demand)
        leader, plan, caps = demand.leader, demand.plan, self._caps(demand)
        most = self._limits(demand)
        if caps is not None and plan.capped == self.shape.domains.levels - 1:
            most, caps = caps if most is None else [*map(min, most, caps)], None
        return Counts(
            self.rows,
            Vector(self.rows, with_place(demand.pod)),
            demand.kind.mask,
            size=plan.size,
            slice_level=plan.slice_level,
            inner=plan.inner,
            leader=None if leader is None else Vector(self.rows, with_place(leader)),
            leader_mask=self._leader_mask(demand),
            low=leaves.start,
            high=leaves.stop,
            hosts=hosts,
            host_of=host_of,
            most=most,
            beside=self._beside(demand),
            cap_level=plan.capped,
            cap=caps,
        )

    def _caps(self, demand: Demand) -> list[int] | None:
        """Return how many more pods each domain of a level takes that takes one; None without."""
        apart = demand.plan.apart
        if apart < 0:
            return None
        domains = self.shape.domains
        taken = {domains.above(leaf, apart) for leaf in demand.held}
        firsts = (domains.leaves_below(each).start for each in domains.of_level(demand.plan.capped))
        return [0 if domains.above(leaf, apart) in taken else 1 for leaf in firsts]

    def _limits(self, demand: Demand) -> list[int] | None:
        """Return how many pods each leaf takes at most, whatever it has; None without limits."""
        most, held, leaves = demand.plan.most, demand.held, self.shape.domains.leaves
        if not self.shape.by_host or (most is None and not demand.limits):
            return None
        if most is None:
            found = [MAX_COUNT] * leaves
        else:
            found = [max(0, most - held.get(leaf, 0)) for leaf in range(leaves)]
        for leaf, limit in demand.limits.items():
            found[leaf] = min(found[leaf], limit)
        return found

    def _beside(self, demand: Demand) -> list[int] | None:
        """Return how many pods each leaf takes at most where the leader is; None without limits."""
        if not self.shape.by_host or not demand.beside:
            return None
        return [demand.beside.get(leaf, MAX_COUNT) for leaf in range(self.shape.domains.leaves)]

    def _leader_mask(self, demand: Demand) -> Mask | None:
        """Return which leaves a leader may use, of those that take it."""
        if demand.leader_kind is None:
            return None
        mask = demand.leader_kind.mask
        full = [leaf for leaf, limit in demand.leader_limits.items() if limit < 1]
        if not full or not self.shape.by_host:
            return mask
        made = Mask(self.shape.domains.leaves, scored=False)
        for leaf in range(self.shape.domains.leaves):
            made.set(leaf, mask.get(leaf))
        for leaf in full:
            made.set(leaf, _FULL)
        return made

    def _of_hosts(self, _demand: Demand) -> tuple[Counts | None, list[int] | None]:
        """Return the counts of the hosts that leaves are in, and the host of each leaf."""
        return None, None

    def _path(self, node: ClusterNode) -> Path | None:
        """Return the path of a node, None without one; note why it takes no part (cluster.md §4.1).

        One that is cordoned or not ready has a path, and takes no part.
        """
        topology = self.shape.topology
        paths, *_ = arrange(
            [node], tuple(topology.levels), topology.node_labels, self.left_out, _ALONE
        )
        return paths[0] if paths else None

    def _leave(self, node: ClusterNode, leaf: int) -> None:
        """Make a node no part of its leaf, or its zones."""
        for each in self.shape.zones_from(leaf):
            self.rows.add(each, {}, 0, -1)
            if self.shape.by_host:
                self._nodes[each] = None
                self._tainted.discard(each)
        if not self.shape.by_host:
            self._host_at.pop(node.host, None)
        self._add(node, leaf, -1)

    def _join(self, node: ClusterNode, leaf: int) -> None:
        """Make a node part of its leaf, or its zones."""
        for each in self.shape.zones_from(leaf):
            self.rows.add(each, {}, 0, 1)
            if self.shape.by_host:
                self._nodes[each] = node
                self._named_alike &= node.labels[HOSTNAME] == node.name
                if node.taints:
                    self._tainted.add(each)
                self._filters.update(each, node)
        if not self.shape.by_host:
            self._host_at[node.host] = leaf
        self._node_at[node.name] = leaf
        self._add(node, leaf, 1)

    def _add(self, node: ClusterNode, leaf: int, times: int) -> None:
        """Add what a node has, less what its pods use, to a leaf *times* times."""
        self.rows.add(leaf, node.allocatable, times)
        self.rows.add(leaf, self._used.get(node.name, {}), -times)


def _twice(host: str) -> str:
    return f"hostname {host} twice"
