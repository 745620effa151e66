"""The tree of one topology: its leaves by path, what each has left, and who may use it.

Owns which nodes take part and where their leaves are. A node that goes, is cordoned or not ready leaves its
leaf empty; only a path that was not there before makes the tree anew, and that when it is used next.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from nri_policy._domains import Counts, Domains, Mask, Rows, Vector
from nri_policy.cluster.document import PODS, Amounts
from nri_policy.cluster.matching import Toleration, selected, untolerated
from nri_policy.cluster.node import HOSTNAME, Node
from nri_policy.cluster.pod import PodSpec
from nri_policy.cluster.settings import Topology

Path = tuple[str, ...]

NODE_SELECTOR = 1  # codes of masks; taints have those from TAINT on
AFFINITY = 2
TAINT = 3
MAX_TAINTS = 255 - TAINT  # kinds of taints told apart in one mask
MAX_MASKS = 64  # kept; the least recently used goes first
MAX_COUNTS = 16


class Filter:
    """The mask of one kind of pod, and what its codes stand for."""

    def __init__(self, spec: PodSpec, tolerations: Sequence[Toleration], leaves: int) -> None:
        self._spec = spec
        self._tolerations = tolerations
        self._taints: dict[str, int] = {}
        scored = spec.affinity is not None and bool(spec.affinity.preferred)
        self.mask = Mask(leaves, scored)
        required = spec.affinity is not None and spec.affinity.required is not None
        self.reads_labels = bool(spec.node_selector) or required or scored

    def update(self, leaf: int, node: Node) -> None:
        """Read the properties of the node that *leaf* is."""
        spec = self._spec
        taint = untolerated(node.taints, self._tolerations) if node.taints else None
        score = code = 0
        if taint is not None:
            text = str(taint)
            known = self._taints
            code = TAINT + known.setdefault(text, min(len(known), MAX_TAINTS))
        elif not selected(node.labels, spec.node_selector):
            code = NODE_SELECTOR
        elif spec.affinity is not None:
            code = 0 if spec.affinity.requires(node) else AFFINITY
            score = spec.affinity.score(node)
        self.mask.set(leaf, code, score)

    def reason(self, code: int) -> str:
        """Return what a code stands for, as messages have it."""
        if code == NODE_SELECTOR:
            return "nodeSelector"
        if code == AFFINITY:
            return "affinity"
        text = next(text for text, number in self._taints.items() if number == code - TAINT)
        return f'taint "{text}"'


class Tree:
    """The leaves of one topology."""

    def __init__(
        self, topology: Topology, nodes: Iterable[Node], used: Mapping[str, Amounts]
    ) -> None:
        self.topology = topology
        self.left_out: dict[str, str] = {}  # node -> why it takes no part
        self._get = _getter(topology.levels)
        self._used = used
        members: dict[Path, list[Node]] = {}
        for node in nodes:
            path = self._path(node)
            if path is None:
                continue
            members.setdefault(path, []).append(node)
        self.paths: list[Path] = sorted(members)
        self.domains = Domains(self.paths)
        self.rows = Rows(self.domains)
        self.leaf_at: dict[Path, int] = {path: leaf for leaf, path in enumerate(self.paths)}
        self.host_at: dict[str, int] = {}  # hostname -> leaf
        self._node_at: dict[str, int] = {}  # node -> leaf, of those that take part
        self._tainted: set[int] = set()
        self._nodes: dict[int, Node] = {}  # leaf -> its node, where leaves are hosts
        self._filters: OrderedDict[bytes, Filter] = OrderedDict()
        self._counts: OrderedDict[Any, Counts] = OrderedDict()
        for path in self.paths:
            for node in sorted(members[path], key=lambda each: each.name):
                self._join(node, self.leaf_at[path])

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels, coarse to fine."""
        return tuple(self.topology.levels)

    def leaf_of(self, node: str) -> int | None:
        """Return the leaf that a node takes part in."""
        return self._node_at.get(node)

    def change(self, old: Node | None, new: Node | None) -> bool:
        """Take in that a node changed, came (no *old*) or went (no *new*).

        Return False if the tree is to be made anew.
        """
        name = (old or new).name  # type: ignore[union-attr]  # one of them is there
        leaf = self._node_at.pop(name, None)
        if leaf is not None:
            assert old is not None
            self.rows.add(leaf, old.allocatable, -1, -1)
            self.rows.add(leaf, self._used.get(name, {}), 1)
            if self.topology.by_host:
                self._nodes.pop(leaf, None)
        self.left_out.pop(name, None)
        if new is None:
            return True
        path = self._path(new)
        if path is None:
            return True
        found = self.leaf_at.get(path)
        if found is None:
            return False
        self._join(new, found)
        return True

    def use(self, node: str, amounts: Amounts, times: int) -> None:
        """Take what a pod requests off its node's leaf *times* times."""
        leaf = self._node_at.get(node)
        if leaf is not None:
            self.rows.add(leaf, amounts, -times)

    def find(self, levels: Sequence[str], values: Sequence[str]) -> int | None:
        """Return the leaf that an assignment's values name, None where it has none."""
        if list(levels) == [HOSTNAME]:
            return self.host_at.get(values[0])
        if tuple(levels) == self.levels:
            return self.leaf_at.get(tuple(values))
        return None

    def values(self, leaf: int) -> list[str]:
        """Return the values by which assignments name a leaf."""
        return [self.paths[leaf][-1]] if self.topology.by_host else list(self.paths[leaf])

    def named_levels(self) -> list[str]:
        """Return the levels to which `values` belong."""
        return [HOSTNAME] if self.topology.by_host else list(self.levels)

    def filter(self, spec: PodSpec, *, scored: bool) -> Filter:
        """Return which leaves a pod may use; selectors count only where leaves are hosts."""
        if not self.topology.by_host:
            spec = PodSpec()
        affinity = spec.affinity
        if affinity is not None and not scored:
            affinity = msgspec.structs.replace(affinity, preferred=None)
        tolerations = (*spec.tolerations, *self.topology.tolerations)
        spec = PodSpec(node_selector=spec.node_selector, affinity=affinity)
        key = msgspec.json.encode((tolerations, spec.node_selector, affinity))
        found = self._filters.get(key)
        if found is None:
            found = Filter(spec, tolerations, self.domains.leaves)
            for leaf in self._nodes if found.reads_labels else self._tainted:
                found.update(leaf, self._nodes[leaf])
            self._filters[key] = found
            if len(self._filters) > MAX_MASKS:
                self._filters.popitem(last=False)
        self._filters.move_to_end(key)
        return found

    def counts(  # noqa: PLR0913 - keywords: what is counted
        self,
        pod: Amounts,
        kind: Filter,
        *,
        size: int,
        slice_level: int,
        inner: dict[int, int],
        leader: Amounts | None,
        leader_kind: Filter | None,
    ) -> Counts:
        """Return the counts of a pod set, those of the last time brought up to date."""
        key = (
            frozenset(pod.items()),
            kind,
            size,
            slice_level,
            frozenset(inner.items()),
            None if leader is None else frozenset(leader.items()),
            leader_kind,
        )
        found = self._counts.get(key)
        if found is None:
            found = self.count(
                pod,
                kind,
                size=size,
                slice_level=slice_level,
                inner=inner,
                leader=leader,
                leader_kind=leader_kind,
            )
            self._counts[key] = found
            if len(self._counts) > MAX_COUNTS:
                self._counts.popitem(last=False)
        self._counts.move_to_end(key)
        return found

    def count(  # noqa: PLR0913 - keywords: what is counted
        self,
        pod: Amounts,
        kind: Filter,
        *,
        size: int,
        slice_level: int,
        inner: dict[int, int],
        leader: Amounts | None = None,
        leader_kind: Filter | None = None,
        within: range | None = None,
    ) -> Counts:
        """Return new counts, only of the leaves *within*."""
        leaves = range(self.domains.leaves) if within is None else within
        return Counts(
            self.rows,
            Vector(self.rows, {**pod, PODS: pod.get(PODS, 0) + 1}),
            kind.mask,
            size=size,
            slice_level=slice_level,
            inner=inner,
            leader=None
            if leader is None
            else Vector(self.rows, {**leader, PODS: leader.get(PODS, 0) + 1}),
            leader_mask=leader_kind.mask if leader_kind else None,
            low=leaves.start,
            high=leaves.stop,
        )

    def _path(self, node: Node) -> Path | None:
        """Return the path of a node; None, and noted why, if it takes no part."""
        reason = ""
        path: Path = ()
        if not node.ready:
            reason = "not ready"
        elif node.unschedulable:
            reason = "unschedulable"
        elif not selected(node.labels, self.topology.node_labels):
            reason = "nodeLabels"
        else:
            try:
                path = self._get(node.labels)
            except KeyError as error:
                reason = f"no label {error.args[0]}"
        if reason:
            self.left_out[node.name] = reason
            return None
        return path

    def _join(self, node: Node, leaf: int) -> None:
        """Make a node part of its leaf."""
        if self.topology.by_host:
            host = self.paths[leaf][-1]
            if leaf in self._nodes or self.host_at.get(host, leaf) != leaf:
                self.left_out[node.name] = f"hostname {host} twice"
                return
            self.host_at[host] = leaf
            self._nodes[leaf] = node
            if node.taints:
                self._tainted.add(leaf)
            else:
                self._tainted.discard(leaf)
            for each in self._filters.values():
                each.update(leaf, node)
        self._node_at[node.name] = leaf
        self.rows.add(leaf, node.allocatable, 1, 1)
        self.rows.add(leaf, self._used.get(node.name, {}), -1)

    def path_of(self, node: Node) -> Path | None:
        """Return the path that a node's labels name, whether it takes part or not."""
        try:
            path: Path = self._get(node.labels)
        except KeyError:
            return None
        return path

    def summary(self) -> Counter[str]:
        """Return how many nodes are left out for each reason."""
        return Counter(self.left_out.values())


def _getter(levels: Sequence[str]) -> Any:
    """Return the function from labels to a path; it raises KeyError."""
    if len(levels) == 1:
        only = levels[0]
        return lambda labels: (labels[only],)
    return itemgetter(*levels)
