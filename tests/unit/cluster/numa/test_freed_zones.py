"""What zones have left once pods have ended that a report still counts."""

from __future__ import annotations

import pytest

from nri_policy.cluster.numa.freed_zones import Held, free_amounts
from nri_policy.cluster.zones.zone import NodeZones, Zone


def report(*free: int, wide: int = 0) -> NodeZones:
    """Zones of 8 CPUs and 8 of memory, of which so much is free, and one around all of them."""
    zones = [
        Zone(f"node-{at}", "Node", total={"cpu": 8, "memory": 8}, free={"cpu": each, "memory": 8})
        for at, each in enumerate(free)
    ]
    ids = frozenset(range(len(free)))
    around = Zone("root", "virtual node", "", {}, {"cpu": 8 * len(free)}, {"cpu": wide}, ids)
    return NodeZones("n", (*zones, around))


def held(cpu: int, zone: int | None = None, **more: int) -> Held:
    return Held(zone, {"cpu": cpu, **more})


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([held(4, 1)], (2, 7)),  # its zone is known
        ([held(4)], (6, 3)),  # the fullest one that can have held it
        ([held(6)], (8, 3)),  # the only one
        ([held(9)], (2, 3)),  # none: no zone can have held all of it
        ([held(4, 7)], (2, 3)),  # its zone no longer exists
        ([held(2), held(4)], (6, 5)),  # the largest first
        ([held(3), held(3, 1)], (5, 6)),  # those whose zones are known before
        ([held(6, memory=5), held(5)], (8, 8)),
        ([], (2, 3)),
    ],
)
def test_pods_give_back_what_they_had(pods: list[Held], found: tuple[int, int]) -> None:
    after = free_amounts(report(2, 3, wide=5), pods)
    first, second, _ = after.zones
    assert (first.free["cpu"], second.free["cpu"]) == found
    assert first.free["memory"] == 8  # it was not in use


def test_a_zone_gets_no_more_than_it_has_and_wider_ones_get_as_much() -> None:
    after = free_amounts(report(6, 6, wide=10), [held(4, 0), held(1, 1)])
    assert [each.free["cpu"] for each in after.zones] == [8, 7, 15]


def test_what_zones_do_not_list_is_not_theirs() -> None:
    after = free_amounts(report(4, 4), [held(2, 0, gpu=1), Held(None, {"gpu": 1})])
    assert after.zones[0].free == {"cpu": 6, "memory": 8}
