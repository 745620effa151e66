"""A leader and its workers are refused just where no packing of zones holds them.

A worker takes more than half of a zone, so that it does not matter which zone a node chooses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.property.seeds import seeds
from tests.unit.cluster.numa.test_aligned_engine import Hosts, leader_group


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
