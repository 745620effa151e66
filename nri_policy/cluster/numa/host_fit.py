"""Whether a node as a whole takes one pod: what kube-scheduler decides before it looks at zones."""

from __future__ import annotations

from collections.abc import Mapping

from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.objects.matching import find_untolerated, is_selected
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import PodSpec


def find_host_reason(node: ClusterNode, used: Amounts, spec: PodSpec) -> str:
    """Return why *node*, of which pods use so much, does not take a pod; empty if it does."""
    if not node.ready:
        return "not ready"
    taint = find_untolerated(node.all_taints, spec.tolerations)
    if taint is not None:
        return f'taint "{taint}"'
    if not is_selected(node.labels, spec.node_selector):
        return "nodeSelector"
    if spec.affinity is not None and not spec.affinity.requires(node):
        return "affinity"
    lacking = _find_lacking(node.allocatable, used, with_place(spec.effective()))
    return f'resource "{lacking}"' if lacking else ""


def _find_lacking(offered: Amounts, used: Amounts, asked: Mapping[str, int]) -> str:
    """Return the first resource, by name, of which too little is left."""
    for name, amount in sorted(asked.items()):
        if amount and offered.get(name, 0) - used.get(name, 0) < amount:
            return name
    return ""
