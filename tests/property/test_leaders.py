"""A leader and its workers are refused just where no share of them for each host fits its zones.

Nobody knows which zone a node chooses for a pod, so that the fullest choice counts: each pod, the
largest first, leaves the others the least. Where a worker takes more than half of a zone, it does
not matter, and what fits is what any packing of the zones holds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product

from tests.property.seeds import seeds
from tests.unit.cluster.numa.test_zone_limits import Hosts, leader_group


def holds(free: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether zones that have so much left hold pods of these sizes, each whole: every way."""
    if not sizes:
        return True
    size, *others = sizes
    return any(
        holds([*free[:at], left - size, *free[at + 1 :]], others)
        for at, left in enumerate(free)
        if left >= size
    )


@seeds(60)
def test_a_leader_group_fits_where_zones_hold_it(seed: int) -> None:
    draw = random.Random(seed)
    free = {f"h{at}": (draw.randint(4, 8), draw.randint(4, 8)) for at in range(draw.randint(1, 3))}
    leader, workers, cpu = draw.randint(1, 8), draw.randint(1, 5), draw.randint(5, 8)
    fits = holds([each for zones in free.values() for each in zones], [leader] + [cpu] * workers)
    placed = Hosts(free).place(leader_group(leader, workers, cpu))
    assert bool(placed) == fits, (free, leader, workers, cpu)
    for host in placed and free:
        own = [leader] * placed["leader"].get(host, 0) + [cpu] * placed["workers"].get(host, 0)
        assert holds(free[host], own)


def takes(free: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether zones take pods of these sizes, each in the one that has most, the largest first."""
    left = [*free]
    for size in sorted(sizes, reverse=True):
        left[left.index(max(left))] -= size
    return min(left) >= 0


def is_shared_out(free: Mapping[str, Sequence[int]], leader: int, workers: int, cpu: int) -> bool:
    """Whether hosts take so many pods each: all ways to share them out are tried."""
    return any(
        all(
            takes(zones, [leader] * (host == its_host) + [cpu] * number)
            for (host, zones), number in zip(free.items(), numbers, strict=True)
        )
        for its_host in free
        for numbers in product(range(workers + 1), repeat=len(free))
        if sum(numbers) == workers
    )


@seeds(60)
def test_a_leader_group_is_refused_only_where_no_hosts_take_it(seed: int) -> None:
    """Workers of any size: on one to four hosts of two to four zones, with 16 CPUs in all."""
    draw = random.Random(seed)
    zones = draw.randint(2, 4)
    free = {
        f"h{at}": tuple(draw.randint(1, 16 // zones) for _ in range(zones))
        for at in range(draw.randint(1, 4))
    }
    leader, workers, cpu = draw.randint(1, 8), draw.randint(1, 8), draw.randint(1, 8)
    placed = Hosts(free).place(leader_group(leader, workers, cpu))
    assert bool(placed) == is_shared_out(free, leader, workers, cpu), (free, leader, workers, cpu)
    for host in placed and free:
        own = [leader] * placed["leader"].get(host, 0) + [cpu] * placed["workers"].get(host, 0)
        assert takes(free[host], own)
