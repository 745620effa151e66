"""The shape of a tree: its leaves and the domains above them, which assignments name.

It never changes: a tree in which a path comes that was not there before is made anew, with another
shape. A tree shares it with its forks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from nri_policy.cluster.objects.assignment import DomainAssignment
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.settings import ZONE_LEVEL, Topology
from nri_policy.native._domains import Domains
from nri_policy.native._packing import Entries

Path = tuple[str, ...]


class Shape:
    """Leaves are hosts, or what is above them, or zones of hosts; each is known by its number."""

    def __init__(
        self,
        topology: Topology,
        paths: list[Path],
        hosts: dict[str, int],
        below: Sequence[str] = (),
    ) -> None:
        """Take the *paths* of leaves, in order, and the types of zones that lie *below* hosts.

        *hosts* are the leaves of hosts, of those with zones the first ones.
        """
        self.topology = topology
        self.by_host = topology.by_host
        self.levels = (*topology.levels, *(ZONE_LEVEL + each for each in below))
        self._depth = len(topology.levels)  # of hosts
        # Assignments name a leaf from the host on where there is one.
        self._unnamed = self._depth - 1 if self.by_host else 0
        self.named_levels = list(self.levels[self._unnamed :])
        self.paths = paths
        self.domains = Domains(paths)
        self.hosts = hosts
        self.zoned = bool(below)
        self._leaf_at: dict[Path, int] = {}  # where leaves are not hosts
        if self.zoned or not self.by_host:
            self._leaf_at = {path[self._unnamed :]: leaf for leaf, path in enumerate(paths)}
        self._entries = Entries(self.domains.leaves, self._entry)

    def find(self, levels: Sequence[str], values: Sequence[str]) -> int | None:
        """Return the leaf that an assignment's values name, None where it has none."""
        if levels != self.named_levels and list(levels) != self.named_levels:
            return None
        if self.by_host and not self.zoned:
            return self.hosts.get(values[0])
        return self._leaf_at.get(tuple(values))

    def find_path(self, path: Path) -> int | None:
        """Return the leaf of a node's path, of a host with zones the first; None without one."""
        if not self.by_host:
            return self._leaf_at.get(path)
        leaf = self.hosts.get(path[-1])
        return leaf if leaf is not None and self.path_at(leaf) == path else None

    def values(self, leaf: int) -> list[str]:
        """Return the values by which assignments name a leaf."""
        return list(self.paths[leaf][self._unnamed :])

    def entries(self, places: Iterable[tuple[int, int]]) -> list[DomainAssignment]:
        """Return leaves and pods as assignments have them; mostly, equal ones are one object."""
        return self._entries.of(places)

    def _entry(self, leaf: int, count: int) -> DomainAssignment:
        return DomainAssignment(self.values(leaf), count)

    def domain(self, path: Path) -> int | None:
        """Return the domain of a path, None where there is none."""
        leaf = bisect_left(self.paths, path)
        if not path or leaf == len(self.paths) or self.paths[leaf][: len(path)] != path:
            return None
        return self.domains.above(leaf, len(path) - 1)

    def below(self, domain: int, level: int) -> range:
        """Return the domains of *level* that are in a domain above it; of -1, all of the level."""
        if domain < 0:
            return self.domains.of_level(level)
        leaves = self.domains.leaves_below(domain)
        first, last = (self.domains.above(leaf, level) for leaf in (leaves[0], leaves[-1]))
        return range(first, last + 1)

    def path(self, domain: int, level: int) -> Path:
        """Return the path of a domain of *level*."""
        return self.paths[self.domains.leaves_below(domain).start][: level + 1]

    def path_at(self, leaf: int) -> Path:
        """Return the path of the node at a leaf, which may be a zone of it."""
        return self.paths[leaf][: self._depth]

    def zones_from(self, leaf: int) -> range:
        """Return the leaves of the host whose first one is *leaf*: that alone without zones."""
        end = leaf + 1
        if self.zoned:
            path = self.path_at(leaf)
            while end < len(self.paths) and self.path_at(end) == path:
                end += 1
        return range(leaf, end)

    def path_of(self, node: ClusterNode) -> Path | None:
        """Return the path that a node's labels name, whether it takes part or not."""
        path = tuple(node.labels.get(level, "") for level in self.topology.levels)
        known = all(level in node.labels for level in self.topology.levels)
        return path if known else None
