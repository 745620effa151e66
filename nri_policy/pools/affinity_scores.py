"""Affinity scores: how the affinities of a container add up over the tree; spec placement.md §5."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from nri_policy.native._affinity import scores
from nri_policy.pools.tree import PoolTree


class AffinityScorer:
    """Scores the pools of one tree."""

    def __init__(self, tree: PoolTree) -> None:
        self._parents = array("i", (-1 if p.parent is None else p.parent for p in tree.pools))

    def scores(self, pools: array[int], terms: Iterable[tuple[int, int]]) -> array[float]:
        """Return the affinity of every pool, by id: higher is nearer to what pulls.

        *pools* has the pool of each container by its bit, *terms* are weights and the sets of
        containers that have them, a bit each.
        """
        return array("d", scores(self._parents, pools, terms))
