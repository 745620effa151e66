"""Width: in how many packages, NUMA nodes and L3 domains CPUs lie; placement.md §2.

Owns the widths that follow from the tree and the sharable CPUs alone. Widths compare in this order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.picker import Picker, domain_tree
from nri_policy.pools.tree import PoolTree

Width = tuple[int, int, int]  # packages, NUMA nodes, L3 domains


class Widths(Struct, frozen=True, kw_only=True):
    """The widths and sizes of the pools of one tree."""

    pools: tuple[Width, ...]  # by id
    sizes: tuple[int, ...]  # sharable CPUs, free or not; by id
    # of each level, the coarsest first: sharable CPUs of its largest domain, of the two largest, …
    largest: tuple[tuple[int, ...], ...]

    def least(self, cpus: int) -> Width:
        """Return the fewest domains that have so many CPUs, at each level by itself."""
        packages, nodes, l3s = (1 + bisect_left(sums, cpus) for sums in self.largest)
        return packages, nodes, l3s


def widths_of(tree: PoolTree, picker: Picker, sharable: CPUSet) -> Widths:
    """Return the widths of *tree*, whose *picker* knows the domains."""
    made = domain_tree(tree)
    largest = []
    for at in made.at:
        sizes = Counter[int]()
        for id_, domain in enumerate(made.domains):
            if domain.leaf is not None:
                sizes[at[id_]] += len(domain.leaf & sharable)
        largest.append(tuple(accumulate(sorted(sizes.values(), reverse=True))))
    return Widths(
        pools=tuple(picker.domains.touched(pool.cpus) for pool in tree.pools),
        sizes=tuple(len(pool.cpus & sharable) for pool in tree.pools),
        largest=tuple(largest),
    )
