from __future__ import annotations

import pytest

from nri_policy.engine.choice.cpu_shares import (
    device_shares,
    even_shares,
    pick_shares,
    proportional,
)
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.picker import Picker, picker_of
from nri_policy.pools.supply import supply_of
from nri_policy.pools.tree import build
from tests.support.nodes import SMALL, machine


class Node:
    """A machine to pick from, with CPUs 0-15 free unless taken."""

    def __init__(self, spec: str = SMALL) -> None:
        self.picker: Picker = picker_of(machine(spec))
        self.tree = build(machine(spec), machine(spec).online)
        self.supply = supply_of(self.tree, machine(spec).online, EMPTY)

    def pick(self, n: int, *localities: str, candidates: str = "0-15") -> str | None:
        slack = self.supply.slack(self.tree.top.id, 0, False, True)
        places = tuple(map(CPUSet.parse, localities))
        shares = device_shares(places, n)
        picked = pick_shares(self.picker, CPUSet.parse(candidates), shares, (), slack)
        return None if picked is None else str(picked)


@pytest.mark.parametrize(
    ("n", "localities", "picked"),
    [
        (2, ("0-3", "12-15"), "0,12"),
        (4, ("0-3", "12-15"), "0-1,12-13"),
        (2, ("0-3", "0-3"), "0-1"),
        (5, ("0-3", "12-15"), "0-2,12-13"),  # of equal remainders the first is larger
        (8, ("0-3", "12-15", "12-15", "12-15"), "0-3,12-15"),  # two of the six are elsewhere
        (3, ("8-11",), "8-10"),
        (10, ("0-3", "12-15"), "0-5,12-15"),  # five do not fit at either
        (2, ("0-3", "400"), "0-1"),
    ],
)
def test_cpus_are_spread_over_the_localities(
    n: int, localities: tuple[str, ...], picked: str | None
) -> None:
    found = Node().pick(n, *localities)
    assert found == picked


@pytest.mark.parametrize(
    ("weights", "n", "parts"),
    [
        ([1, 1], 7, [4, 3]),
        ([1, 2], 8, [3, 5]),
        ([1, 3], 8, [2, 6]),
        ([2, 2, 2, 2], 176, [44, 44, 44, 44]),
        ([1, 1, 1], 1, [1, 0, 0]),
    ],
)
def test_remainders_go_to_the_largest_then_to_the_first(
    weights: list[int], n: int, parts: list[int]
) -> None:
    assert proportional(weights, n) == parts


@pytest.mark.parametrize(
    ("area", "n", "unit", "shares"),
    [
        ("1-27", 15, 1, [("1-13", 8), ("14-27", 7)]),
        ("0-27", 14, 2, [("0-27", 14)]),  # one holds it
        ("0-13", 8, 2, [("0-13", 8)]),
        ("0-27", 18, 2, [("0-13", 10), ("14-27", 8)]),  # whole cores
        ("0-2,14-27", 16, 1, [("0-2", 3), ("14-27", 13)]),
    ],
)
def test_shares_are_as_even_as_whole_cores_and_room_allow(
    area: str, n: int, unit: int, shares: list[tuple[str, int]]
) -> None:
    nodes = CPUSet.parse("0-13"), CPUSet.parse("14-27")
    found = even_shares(CPUSet.parse(area), n, unit, (nodes,))
    assert [(str(part), share) for part, share in found] == shares


def test_the_narrow_place_is_served_first() -> None:
    assert Node().pick(2, "0-7", "0", candidates="0,4-7") == "0,4"


def test_spreading_leaves_shared_pools_what_they_need() -> None:
    node = Node()
    node.supply.book(0, 3500, True, False)  # NUMA node #0 needs all of its CPUs
    assert node.pick(2, "0-3", "12-15") is None
    assert node.pick(2, "4-7", "12-15") == "4,12"
