"""Topology hints: scores pools by hints, and finds the bounds of strict ones; placement.md §8.

Owns the arithmetic of hints over one tree; `workload.hints` selects a container's hints. A hint
with CPUs is measured by them, one with only NUMA nodes by these. A NUMA
node belongs to each pool that has one of its CPUs. A node without CPUs belongs to the
pools of its nearest nodes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.tree import PoolTree
from nri_policy.workload.annotation_values import ASSIGNED_HINTS, HintKind
from nri_policy.workload.hints import Hint

_A_LEVEL_ABOVE = 0.9
_MOST_KNOWN = 1024  # combinations of places with cached scores

_HintArea = tuple[CPUSet, CPUSet]  # of a hint: its CPUs, its nodes


class Scores(Struct, frozen=True, kw_only=True):
    """The columns of criteria 3 and 4 of §4, a value a pool."""

    hints: array[float]  # product of all scores
    nonzero: array[float]  # product of the non-zero scores, or 0
    depth: array[float]  # 0 where all scores are 0


class Bounds(Struct, frozen=True, kw_only=True):
    """What strict hints leave of the machine."""

    cpus: CPUSet
    mems: CPUSet


class TopologyHints:
    """Measures hints on one tree."""

    def __init__(self, machine: Machine, tree: PoolTree) -> None:
        self._machine = machine
        self._tree = tree
        self._node_cpus = machine.near_cpus
        self._nodes = [
            CPUSet(id_ for id_, near in self._node_cpus.items() if not near.isdisjoint(pool.cpus))
            for pool in tree.pools
        ]
        self._known: dict[tuple[tuple[_HintArea, int], ...], Scores] = {}

    def scores(self, hints: Iterable[Hint]) -> Scores | None:
        """Return the scores of all pools; None if no hint has a place on this machine."""
        places = Counter((hint.cpus, hint.nodes) for hint in hints if self.cpus(hint))
        if not places:
            return None
        key = tuple(places.items())
        if key not in self._known:
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._measure(places)
        return self._known[key]

    def _measure(self, places: Mapping[_HintArea, int]) -> Scores:
        columns = [
            [score**count for score in (self._by_cpus(cpus) if cpus else self._by_nodes(nodes))]
            for (cpus, nodes), count in places.items()
        ]
        rows = list(zip(*columns, strict=True))
        nonzero = [prod(filter(None, row)) if any(row) else 0.0 for row in rows]
        depth = [
            pool.depth if any(row) else 0 for pool, row in zip(self._tree.pools, rows, strict=True)
        ]
        return Scores(
            hints=array("d", map(prod, rows)),
            nonzero=array("d", nonzero),
            depth=array("d", depth),
        )

    def cpus(self, hint: Hint) -> CPUSet:
        """Return the CPUs that *hint* names, or that its nodes have; empty if it names no such."""
        cpus = hint.cpus or CPUSet.union(self._node_cpus.get(id_, EMPTY) for id_ in hint.nodes)
        return cpus & self._machine.online

    def nodes(self, hint: Hint) -> CPUSet:
        """Return the nodes that *hint* names, or that its CPUs are of."""
        nodes = self._machine.nodes
        return hint.nodes or CPUSet(n.id for n in nodes if not n.cpus.isdisjoint(hint.cpus))

    def mems(self, hint: Hint) -> CPUSet:
        """Return the nodes of *hint*, or of its CPUs, and those nearest to them.

        The latter have slower or faster memory beside the same CPUs, so they are equally near.
        """
        nodes, named = self._machine.nodes, self.nodes(hint)
        homes = CPUSet.union(node.nearest for node in nodes if node.id in named)
        return named | CPUSet(node.id for node in nodes if not node.nearest.isdisjoint(homes))

    def bounds(self, hints: Iterable[Hint]) -> Bounds:
        """Return where strict *hints* allow a container to be; empty where they contradict."""
        cpus, mems = self._tree.top.cpus, self._nodes[-1]
        for one in self._demands(hints).values():
            cpus &= one.cpus
            mems &= one.mems
        return Bounds(cpus=cpus, mems=mems)

    def failing(self, hints: Iterable[Hint], cpus: CPUSet, mems: CPUSet) -> str | None:
        """Return what is wrong with *cpus* and *mems* under strict *hints*, None if nothing is."""
        for source, one in self._demands(hints).items():
            if not cpus <= one.cpus:
                return f"strict hint {source}: CPUs {cpus} are not all among its {one.cpus}"
            if not mems <= one.mems:
                return f"strict hint {source}: memory nodes {mems} are not all among its {one.mems}"
        return None

    def device_nodes(self, hints: Iterable[Hint]) -> CPUSet:
        """Return the memory nodes near the devices."""
        return CPUSet.union(self.mems(hint) for hint in _of_devices(hints))

    def pick_memory(self, hints: Iterable[Hint], offer: CPUSet) -> CPUSet | None:
        """Return the part of a pool's *offer* near the devices (§8); None: all of it.

        It must be as good as the offer: on every node of the devices, of the same kinds, and with
        memory that the kernel can use.
        """
        zone = self.device_nodes(hints) & offer
        nodes = [node for node in self._machine.nodes if node.id in offer]
        chosen = [node for node in nodes if node.id in zone]
        if (
            {node.kind for node in chosen} != {node.kind for node in nodes}
            or not any(node.normal for node in chosen)
            or not all(self._is_covered(hint, zone) for hint in _of_devices(hints))
        ):
            return None
        return zone

    def localities(self, hints: Iterable[Hint]) -> tuple[CPUSet, ...]:
        """Return the CPUs near each device, to spread over.

        One device may have several device files, so of device files each place counts once;
        assigned devices precede them.
        """
        devices = _of_devices(hints)
        found = [cpus for cpus in map(self.cpus, devices) if cpus]
        if any(hint.kind is HintKind.DEVICES for hint in devices):
            found = [*dict.fromkeys(found)]
        return tuple(found)

    def _is_covered(self, hint: Hint, zone: CPUSet) -> bool:
        return not self.mems(hint).isdisjoint(zone)

    def _demands(self, hints: Iterable[Hint]) -> dict[str, Bounds]:
        """Return by source what each hint demands: of several devices of a resource, any (§8)."""
        demands: dict[str, Bounds] = {}
        for hint in hints:
            cpus, mems = self.cpus(hint), self.mems(hint)
            if not cpus:
                continue
            if (other := demands.get(hint.source)) is not None:
                cpus, mems = cpus | other.cpus, mems | other.mems
            demands[hint.source] = Bounds(cpus=cpus, mems=mems)
        return demands

    def _by_cpus(self, cpus: CPUSet) -> tuple[float, ...]:
        cpus = cpus & self._machine.online
        return tuple(len(pool.cpus & cpus) / len(cpus) for pool in self._tree.pools)

    def _by_nodes(self, nodes: CPUSet) -> tuple[float, ...]:
        """Return the share of *nodes* in each pool (§8), less by levels above where they fit."""
        nodes = CPUSet(id_ for id_ in nodes if id_ in self._node_cpus)
        scores: list[float] = []
        levels: list[int] = []  # above the deepest pool that holds the nodes that this one holds
        for pool in self._tree.pools:
            inside = nodes & self._nodes[pool.id]
            above = [levels[c] + 1 for c in pool.children if inside <= self._nodes[c]]
            levels.append(max(above, default=0))
            scores.append(len(inside) / len(nodes) * _A_LEVEL_ABOVE ** levels[-1])
        return tuple(scores)


def per_place(n: int, places: int) -> int:
    """Return how many of *n* CPUs are taken at each of so many devices at least (§6)."""
    return n // places


def _of_devices(hints: Iterable[Hint]) -> tuple[Hint, ...]:
    """Return the hints from assigned devices, or where there is none those from device files."""
    hints = tuple(hints)
    assigned = tuple(hint for hint in hints if hint.kind in ASSIGNED_HINTS)
    return assigned or tuple(hint for hint in hints if hint.kind is HintKind.DEVICES)
