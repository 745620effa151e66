"""The cluster side: which node, and which part of it, a pod goes to.

Built like the node's side: a pure engine over one tree of domains, from zone to NUMA node, and thin
adapters around it. It knows nothing of the node's engine, and nothing of the node knows it.
"""

from __future__ import annotations

from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.group import PlacementGroup
from nri_policy.cluster.node import Node
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.settings import Settings, Topology

__all__ = ["DocumentError", "Node", "PlacementGroup", "Pod", "Settings", "Topology"]
