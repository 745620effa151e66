"""Filters: which leaves one kind of pod may use by taints, selector and affinity, and why not."""

from __future__ import annotations

from collections.abc import Sequence

from nri_policy.cluster.objects.matching import Toleration, selected, untolerated
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.native._domains import Mask

NODE_SELECTOR = 1  # codes of masks; taints have those from TAINT on
AFFINITY = 2
TAINT = 3
MAX_TAINTS = 255 - TAINT  # kinds of taints told apart in one mask


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
        taint = untolerated(node.taints, self.tolerations) if node.taints else None
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
