"""What runs on the hosts that are set aside for a group: whether something there has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.settings import ZONE_LEVEL


class Occupants:
    """Pods that ran on hosts when these were set aside, and still run.

    Later arrivals do not count, so the list gets shorter.
    """

    def __init__(self, state: ClusterState, hosts: Collection[str]) -> None:
        self._state = state
        self._there = frozenset(hosts)
        self._hosts = [state.nodes[name] for name in hosts if name in state.nodes]
        self._pods = {key for key, (node, *_) in state.pods().items() if node in self._there}
        self._groups = self._count(state.groups)
        self._release = state.releases  # what ended until then has been noted

    def note_ends(self) -> bool:
        """Return whether something has ended since this was asked last."""
        released = self._state.released_since(self._release)
        self._release = self._state.releases
        if released is not None and self._there.isdisjoint(released):
            return False
        pods = {key for key in self._pods if self._state.is_bound(key)}
        groups = self._count(self._groups)
        kept = {key: min(number, groups.get(key, 0)) for key, number in self._groups.items()}
        ended = pods != self._pods or kept != self._groups
        self._pods, self._groups = pods, {key: each for key, each in kept.items() if each}
        return ended

    def _count(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return how many places each group has on these hosts."""
        paths: dict[tuple[str, ...], tuple[set[tuple[str | None, ...]], int]] = {}
        found: dict[Key, int] = {}
        for key in keys:
            group = self._state.groups.get(key)
            for each in () if group is None else group.status.assignments:
                levels = tuple(each.levels)
                if levels not in paths:
                    paths[levels] = self._paths(levels)
                there, depth = paths[levels]
                for one in each.domains:
                    if tuple(one.values[:depth]) in there:
                        found[key] = found.get(key, 0) + one.count
        return found

    def _paths(self, levels: Sequence[str]) -> tuple[set[tuple[str | None, ...]], int]:
        """Return the hosts' values of *levels* down to hosts, and the number of these levels."""
        named = [each for each in levels if not each.startswith(ZONE_LEVEL)]
        return {tuple(_value(node, each) for each in named) for node in self._hosts}, len(named)


def _value(node: ClusterNode, level: str) -> str | None:
    return node.host if level == HOSTNAME else node.labels.get(level)
