from __future__ import annotations

import pytest

from nri_policy.engine.exclusive_cpus import pick_near
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
        picked = pick_near(self.picker, n, CPUSet.parse(candidates), places, (), slack)
        return None if picked is None else str(picked)


@pytest.mark.parametrize(
    ("n", "localities", "picked"),
    [
        (2, ("0-3", "12-15"), "0,12"),
        (4, ("0-3", "12-15"), "0-1,12-13"),
        (2, ("0-3", "0-3"), "0-1"),
        (5, ("0-3", "12-15"), "0-3,12"),  # 5 is odd: one at each, three more anywhere
        (3, ("8-11",), "8-10"),
        (1, ("0-3", "12-15"), None),
        (2, (), None),
        (0, ("0-3",), None),
        (10, ("0-3", "12-15"), None),  # five do not fit at either
        (2, ("0-3", "400"), None),
    ],
)
def test_cpus_are_spread_over_the_localities(
    n: int, localities: tuple[str, ...], picked: str | None
) -> None:
    found = Node().pick(n, *localities)
    assert found == picked


def test_the_narrow_place_is_served_first() -> None:
    assert Node().pick(2, "0-7", "0", candidates="0,4-7") == "0,4"


def test_spreading_leaves_shared_pools_what_they_need() -> None:
    node = Node()
    node.supply.book(0, 3500, True, False)  # NUMA node #0 needs all of its CPUs
    assert node.pick(2, "0-3", "12-15") is None
    assert node.pick(2, "4-7", "12-15") == "4,12"
