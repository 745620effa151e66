"""The cluster side: which node, and which part of it, a pod goes to.

Built like the node's side: a pure engine over one tree of domains, from zone to NUMA node, and thin
adapters around it. It knows nothing of the node's engine, and nothing of the node knows it.

| | |
|---|---|
| `offline` | `place`, `fit`, `spread`: plain values in, plain values out, no cluster needed |
| `Cluster` | nodes and their reports, by events: `set_node`, `set_zones`, `remove_…` |
| `Cluster.view` | what there is now, which an `Engine` reads |
| `Cluster.follow` | has the `Engine.state` of the view take in its changes |
| `Engine.state` | takes in the rest by events (`set_pod`, `set_group`, `remove_…`, `bind`) |
| `Engine.fork` | one to try things in; what its state takes in, the other never sees |
| `Engine.place` | the status that a group would get now; changes nothing |
| `Engine.state.tree` | a topology's `Tree`: `rows`, `left_out` and why |
| `Tree.shape` | what never changes of it: `levels`, `paths`, `domains` |
| `explain` | what fits where, what limits, and the smallest changes that would make a group fit |
| `read_snapshot`, `read_group`, `read_node`, `read_pod`, `read_settings` | from plain values |
| `DocumentError` | what they raise: `path` and `text` of what is wrong |
"""

from __future__ import annotations

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import ClusterNode, read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import ClusterSettings, Topology, read_settings
from nri_policy.cluster.planning.explanation import GroupExplanation, explain
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup, read_group
from nri_policy.cluster.snapshot import ClusterSnapshot, read_snapshot
from nri_policy.cluster.view import Cluster, ClusterView

__all__ = [
    "Cluster",
    "ClusterNode",
    "ClusterSettings",
    "ClusterSnapshot",
    "ClusterView",
    "DocumentError",
    "Engine",
    "GroupExplanation",
    "GroupStatus",
    "PlacementGroup",
    "Pod",
    "Topology",
    "Tree",
    "explain",
    "read_group",
    "read_node",
    "read_pod",
    "read_settings",
    "read_snapshot",
]
