"""Supply, Table and Slack: what every pool has left, and how they compare; placement.md §2, §4.

The kernels work on flat arrays; this module is their Python face and makes a Supply from a tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_policy._pools import Slack, Supply
from nri_policy._table import Column, Table
from nri_policy.cpuset import CPUSet
from nri_policy.pools.tree import PoolTree

__all__ = ["Column", "Slack", "Supply", "Table", "cuttable", "supply_of"]


def supply_of(tree: PoolTree, sharable: CPUSet, isolated: CPUSet) -> Supply:
    """Return the untouched supply of *tree*'s pools."""
    return Supply(
        [-1 if pool.parent is None else pool.parent for pool in tree.pools],
        [pool.cpus for pool in tree.pools],
        sharable,
        isolated,
        [pool.id for pool in tree.pools if not tree.within_numa(pool)],
        [tree.one_package_holds(pool) for pool in tree.pools],
    )


def cuttable(supply: Supply, pools: Iterable[int]) -> tuple[int, ...]:
    """Return how many sharable CPUs a new exclusive grant could have in each of *pools* (§2).

    Containers without a request are not counted: they make room.
    """
    table = supply.score(1, 0, False, 0, False, None, None, None, False)
    return tuple(max(0, int(table.row(pool)[Column.CAPACITY]) + 1) for pool in pools)
