"""Supply, Table, Slack, Search: what pools have left, and how they compare; placement.md §2, §4.

The kernels work on flat arrays; this module is their Python face and makes a Supply from a tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.native import _pools
from nri_policy.native._making_way import Search
from nri_policy.native._pools import Slack, Supply
from nri_policy.native._table import Column, Table
from nri_policy.pools.tree import Pool, PoolTree

__all__ = ["Column", "Search", "Slack", "Supply", "Table", "cuttable", "supply_of", "width_cost"]


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


def width_cost(tree: PoolTree, pool: Pool, limit: int) -> int:
    """Return the milli-CPU that the width of *pool* counts against a *limit* in milli-CPU (§4)."""
    return _pools.width_cost(limit, not tree.within_numa(pool), tree.one_package_holds(pool))


def cuttable(supply: Supply, pools: Iterable[int]) -> tuple[int, ...]:
    """Return how many sharable CPUs a new exclusive grant could have in each of *pools* (§2).

    Containers without a request are not counted: they make room.
    """
    table = supply.score(exclusive=1, with_preemptible=False)
    return tuple(max(0, int(table.row(pool)[Column.CAPACITY]) + 1) for pool in pools)
