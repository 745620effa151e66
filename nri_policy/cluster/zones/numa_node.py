"""A node's NUMA zones as the filter and the score see them, read from Node and zones.

NUMA zones are those of type `Node` named `node-N`; what else a NodeResourceTopology lists is
passed over, and counted by reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.zones.zone import NUMA_NAME, NodeZones, Zone
from nri_policy.native._numa_node import MAX_ZONES, Columns, Distances, NumaNode

NODE_TYPE = "Node"
MAX_NUMA_NODES = 1024  # what `topologyManagerMaxNUMANodes` is capped at

_POLICIES = {
    f"{policy}{scope}Level": (name, scope.lower())
    for policy, name in (
        ("SingleNUMANode", "single-numa-node"),
        ("Restricted", "restricted"),
        ("BestEffort", "best-effort"),
    )
    for scope in ("Container", "Pod")
}
_POLICY_NAMES = ("none", "best-effort", "restricted", "single-numa-node")
_SCOPES = ("container", "pod")


class ResourceNumbers:
    """Numbers of resource names, for the arrays."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: str) -> int:
        """Return the number of a resource that a node has."""
        return self._numbers.setdefault(name, len(self._numbers))

    def find(self, name: str) -> int:
        """Return the number of a resource, -1 for an unknown resource."""
        return self._numbers.get(name, -1)


class NumaNodes:
    """Makes the arrays of nodes; those that are alike share distances and columns."""

    def __init__(self) -> None:
        self.resources = ResourceNumbers()
        self._distances: dict[tuple[tuple[int | None, ...], ...], Distances] = {}
        self._columns: dict[tuple[tuple[int, ...], tuple[int, ...]], Columns] = {}

    def read(
        self, allocatable: Iterable[str], zones: NodeZones | None, *, stale: bool
    ) -> tuple[NumaNode, Counter[str]]:
        """Return the node, and how many of its zones were passed over, by reason.

        *allocatable* names the resources of the node; *zones* is None without a
        NodeResourceTopology.
        """
        if zones is None:
            return self._node(allocatable, {}, NodeZones(""), known=False, stale=stale), Counter()
        found, ignored = select_zones(zones.zones)
        return self._node(allocatable, found, zones, known=True, stale=stale), ignored

    def _node(
        self,
        allocatable: Iterable[str],
        zones: Mapping[int, Zone],
        document: NodeZones,
        *,
        known: bool,
        stale: bool,
    ) -> NumaNode:
        policy, scope, most = policy_of(document)
        names = sorted({name for zone in zones.values() for name in zone.free})

        def row(amounts: Amounts) -> list[int | None]:
            return [amounts.get(name) for name in names]

        return NumaNode(
            zones=tuple(zones),
            columns=self._shared_columns(names, allocatable),
            distances=self._shared_distances(zones),
            available=[row(zone.free) for zone in zones.values()],
            allocatable=[row(zone.total) for zone in zones.values()],
            known=known,
            stale=stale,
            single=policy == "single-numa-node",
            by_pod=scope == "pod",
            max_numa=most,
        )

    def _shared_columns(self, names: Iterable[str], host: Iterable[str]) -> Columns:
        number = self.resources.number
        key = tuple(map(number, names)), tuple(sorted(map(number, host)))
        columns = self._columns.get(key)
        if columns is None:
            columns = self._columns[key] = Columns(*key)
        return columns

    def _shared_distances(self, zones: Mapping[int, Zone]) -> Distances:
        by_id = [
            {zone_id(name): cost for name, cost in zone.costs.items()} for zone in zones.values()
        ]
        rows = tuple(tuple(row.get(other) for other in zones) for row in by_id)
        distances = self._distances.get(rows)
        if distances is None:
            distances = self._distances[rows] = Distances(rows)
        return distances


def zone_id(name: str) -> int | None:
    """Return N of `node-N`."""
    match = NUMA_NAME.fullmatch(name)
    return int(match[1]) if match else None


def zone_name(number: int) -> str:
    """Return `node-N`."""
    return f"node-{number}"


def select_zones(zones: Iterable[Zone]) -> tuple[dict[int, Zone], Counter[str]]:
    """Return the NUMA zones by id, ascending, and how many others there were, by reason.

    The last of zones with equal ids counts; of too many, those with the lowest ids.
    """
    found: dict[int, Zone] = {}
    ignored: Counter[str] = Counter()
    for zone in zones:
        number = zone_id(zone.name)
        if zone.type != NODE_TYPE:
            ignored["other type"] += 1
        elif number is None:
            ignored["name is not node-N"] += 1
        else:
            ignored["same id"] += number in found
            found[number] = zone
    kept = dict(sorted(found.items())[:MAX_ZONES])
    ignored[f"more than {MAX_ZONES}"] = len(found) - len(kept)
    return kept, +ignored


def policy_of(document: NodeZones) -> tuple[str, str, int]:
    """Return the kubelet's topology policy, its scope and the most NUMA nodes that it manages.

    Bad values are ignored one by one; the last of duplicates counts.
    """
    policy, scope = _POLICIES.get(next(iter(document.policies), ""), ("none", "container"))
    most = 8
    for name, value in document.attributes:
        if name == "topologyManagerPolicy" and value in _POLICY_NAMES:
            policy = value
        elif name == "topologyManagerScope" and value in _SCOPES:
            scope = value
        elif name == "topologyManagerMaxNUMANodes" and re.fullmatch("[0-9]{1,9}", value):
            most = min(int(value), MAX_NUMA_NODES) if int(value) >= 2 else most
    return policy, scope, most


def find_unknown_policy(document: NodeZones) -> str:
    """Return the policy in an attribute that the kubelet does not know; it is ignored."""
    named = (value for name, value in document.attributes if name == "topologyManagerPolicy")
    return next((value for value in named if value not in _POLICY_NAMES), "")


def aligns_pods(report: NodeZones) -> bool:
    """Whether a node takes a pod only if one NUMA node has room for it, or for each container."""
    return policy_of(report)[0] == "single-numa-node"
