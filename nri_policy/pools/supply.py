"""Supply, Table and Slack: what every pool has left, and how they compare; placement.md §2, §4.

The kernels work on flat arrays; this module is their Python face and makes a Supply from a tree.
"""

from __future__ import annotations

from nri_policy._pools import Slack, Supply
from nri_policy._table import COLUMNS, Table
from nri_policy.cpuset import CPUSet
from nri_policy.pools.tree import PoolTree

__all__ = ["COLUMNS", "Slack", "Supply", "Table", "supply_of"]


def supply_of(tree: PoolTree, sharable: CPUSet, isolated: CPUSet) -> Supply:
    """Return the untouched supply of *tree*'s pools."""
    return Supply(
        [-1 if pool.parent is None else pool.parent for pool in tree.pools],
        [pool.cpus for pool in tree.pools],
        sharable,
        isolated,
    )
