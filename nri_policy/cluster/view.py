"""The nodes of a cluster and what they report of their zones: held once, and read by all.

Only `Cluster` changes them, one event at a time. It updates its own tables first, then
its followers in their order of arrival: between two events all tables show the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.zones.zone import NodeZones


class ClusterView(Struct, frozen=True):
    """The present nodes and reports; read only, it changes with the cluster."""

    nodes: Mapping[str, ClusterNode] = {}
    zones: Mapping[str, NodeZones] = {}  # by node
    stale: AbstractSet[str] = frozenset()  # nodes whose reports make no sense
    other_hostnames: Mapping[str, tuple[str, ...]] = {}  # hostname -> nodes that have another name

    def on_host(self, host: str) -> list[ClusterNode]:
        """Return the nodes with a hostname: that of this name alone, where there is one.

        A node without the label has its name as its hostname.
        """
        alike = self.nodes.get(host)
        if alike is not None and alike.labels.get(HOSTNAME, host) == host:
            return [alike]
        return [self.nodes[name] for name in self.other_hostnames.get(host, ())]


class Follower(Protocol):
    """A part of the cluster side that keeps tables of nodes and zones."""

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Take in that a node changed, came (no *old*) or went (no *new*)."""

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Take in a node's report, which may say the same as before, or that it went."""


class Cluster:
    """Takes in events of nodes and their reports."""

    def __init__(self, nodes: Iterable[ClusterNode] = (), zones: Iterable[NodeZones] = ()) -> None:
        self._nodes = {each.name: each for each in nodes}
        self._other_hostnames: dict[str, tuple[str, ...]] = {}
        for each in self._nodes.values():
            if each.labels.get(HOSTNAME) != each.name:  # few
                self._add_hostname(each)
        self._zones = {each.node: each for each in zones}
        self._stale: dict[str, None] = {}  # its keys serve as a read-only set
        self.view = ClusterView(
            MappingProxyType(self._nodes),
            MappingProxyType(self._zones),
            self._stale.keys(),
            MappingProxyType(self._other_hostnames),
        )
        self._followers: list[Follower] = []

    def follow(self, *followers: Follower) -> None:
        """Tell *followers* of all changes from now on."""
        self._followers += followers

    def set_node(self, node: ClusterNode) -> None:
        """Take in that a node came or changed."""
        old = self._nodes.get(node.name)
        if old != node:
            self._nodes[node.name] = node
            if old is not None:
                self._remove_hostname(old)
            self._add_hostname(node)
            for each in self._followers:
                each.change_node(old, node)

    def remove_node(self, name: str) -> None:
        """Take in that a node went."""
        old = self._nodes.pop(name, None)
        if old is not None:
            self._remove_hostname(old)
            for each in self._followers:
                each.change_node(old, None)

    def set_zones(self, zones: NodeZones) -> None:
        """Take in what a node reported of its zones."""
        old = self._zones.get(zones.node)
        self._stale.pop(zones.node, None)
        self._zones[zones.node] = zones
        for each in self._followers:
            each.change_zones(zones.node, old, zones)

    def remove_zones(self, node: str, *, stale: bool = False) -> None:
        """Take in that a node's report went, or that it makes no sense (*stale*)."""
        old = self._zones.pop(node, None)
        if stale:
            self._stale[node] = None
        else:
            self._stale.pop(node, None)
        for each in self._followers:
            each.change_zones(node, old, None)

    def _add_hostname(self, node: ClusterNode) -> None:
        host = node.labels.get(HOSTNAME)
        if host is not None and host != node.name:
            self._other_hostnames[host] = (*self._other_hostnames.get(host, ()), node.name)

    def _remove_hostname(self, node: ClusterNode) -> None:
        host = node.labels.get(HOSTNAME)
        if host is not None and host != node.name:
            others = tuple(name for name in self._other_hostnames.pop(host) if name != node.name)
            if others:
                self._other_hostnames[host] = others
