"""Filters: which leaves one kind of pod may use by taints, selector and affinity, and why not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec

from nri_policy.cluster.objects.matching import Toleration, find_untolerated, is_selected
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.native._domains import Mask

NODE_SELECTOR = 1  # codes of masks; taints have those from TAINT on
AFFINITY = 2
TAINT = 3
MAX_TAINTS = 255 - TAINT  # kinds of taints told apart in one mask
MAX_FILTERS = 64  # of one tree that are kept; the least recently used goes first


class Filter:
    """The mask of one kind of pod, and what its codes stand for."""

    def __init__(self, spec: PodSpec, tolerations: Sequence[Toleration], leaves: int) -> None:
        self.spec = spec
        self.tolerations = tolerations
        self._taints: dict[str, int] = {}
        scored = spec.affinity is not None and bool(spec.affinity.preferred)
        self.mask = Mask(leaves, scored)
        required = spec.affinity is not None and spec.affinity.required is not None
        self.reads_labels = bool(spec.node_selector) or required or scored

    def update(self, leaf: int, node: ClusterNode) -> None:
        """Read the properties of the node that *leaf* is."""
        spec = self.spec
        # A node that several exclude counts under the first of these (spec cluster.md §4.5).
        taint = find_untolerated(node.taints, self.tolerations) if node.taints else None
        score = code = 0
        if taint is not None:
            text = str(taint)
            known = self._taints
            code = TAINT + known.setdefault(text, min(len(known), MAX_TAINTS))
        elif not is_selected(node.labels, spec.node_selector):
            code = NODE_SELECTOR
        elif spec.affinity is not None:
            code = 0 if spec.affinity.requires(node) else AFFINITY
            score = spec.affinity.score(node)
        self.mask.set(leaf, code, score)

    def reason(self, code: int) -> str:
        """Return the meaning of a code, in the words of messages."""
        if code == NODE_SELECTOR:
            return "nodeSelector"
        if code == AFFINITY:
            return "affinity"
        text = next(text for text, number in self._taints.items() if number == code - TAINT)
        return f'taint "{text}"'


class Filters:
    """The filters of a tree, by kind of pod; forks share them, as no node changes in a fork."""

    def __init__(self, leaves: int) -> None:
        self._leaves = leaves
        self._latest: OrderedDict[bytes, Filter] = OrderedDict()

    def find(
        self,
        spec: PodSpec,
        tolerations: Sequence[Toleration],
        nodes: Sequence[ClusterNode | None],
        tainted: Collection[int],
    ) -> Filter:
        """Return the filter of pods that tolerate just these taints.

        *nodes* are indexed by leaf; *tainted* are leaves with tainted nodes.
        """
        key = b""
        if spec.node_selector or spec.affinity is not None or tolerations:
            key = msgspec.json.encode((tolerations, spec.node_selector, spec.affinity))
        found = self._latest.get(key)
        if found is None:
            found = self._latest[key] = Filter(spec, tolerations, self._leaves)
            for leaf in range(len(nodes)) if found.reads_labels else tainted:
                node = nodes[leaf]
                if node is not None:
                    found.update(leaf, node)
            if len(self._latest) > MAX_FILTERS:
                self._latest.popitem(last=False)
        self._latest.move_to_end(key)
        return found

    def update(self, leaf: int, node: ClusterNode) -> None:
        """Read the node that is at a leaf now."""
        for each in self._latest.values():
            each.update(leaf, node)
