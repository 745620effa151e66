from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import EMPTY
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine, MemoryKind
from nri_policy.pools.capacity import CapacityError
from nri_policy.pools.memory_map import Home, Kinds, MemoryMap
from nri_policy.settings import Settings
from tests.support import nodes
from tests.support.memory_maps import (
    DEFAULT,
    DRAM,
    EVERY,
    GIB,
    HBM,
    PMEM,
    TIERED,
    ids,
    tree,
    with_nodes,
)
from tests.support.shared_data import NOT_HERE

SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[4] / "shared"))
PLAIN = "package:2 numa:2(memory=16GiB) core:2"


def memory_map(machine: Machine, settings: Settings | None = None) -> MemoryMap:
    return MemoryMap(machine, tree(machine), settings or nodes.settings())


def home(
    machine: Machine, name: str, kinds: Kinds, *, strict: bool = False, cold: bool = False
) -> Home:
    pool = next(pool.id for pool in tree(machine).pools if pool.name == name)
    return memory_map(machine).homes(kinds, strict=strict, cold=cold).each[pool]


def widths(machine: Machine, kinds: Kinds, *, strict: bool = False) -> list[str]:
    at = home(machine, "socket #0", kinds, strict=strict)
    return [str(zone) for zone in memory_map(machine).widths(at.zone, at.growth)]


def test_cxl_counts_as_pmem_and_device_memory_is_not_handed_out() -> None:
    tiered = nodes.machine(TIERED)
    assert memory_map(tiered).kinds == {DRAM: ids("0-1"), PMEM: ids("4-5"), HBM: ids("2-3")}
    device = with_nodes(tiered, kind={5: MemoryKind.DEVICE})
    assert memory_map(device).nodes == ids("0-4")
    assert memory_map(device).kinds[PMEM] == ids("4")


def test_hugepages_are_not_capacity_and_nodes_of_nothing_else_are_off_the_map() -> None:
    pages = {0: ((2 << 20, 512), (GIB, 2)), 1: ((GIB, 16),), 2: ((GIB, 99),)}
    at = memory_map(with_nodes(nodes.machine(PLAIN), hugepages=pages))
    assert at.capacity == {0: 13 * GIB, 3: 16 * GIB}
    assert at.homes(DEFAULT).each[1].zone == ids("0")  # node 1 has no memory left; 0 is nearest


@pytest.mark.parametrize("absent", [0, 1])
def test_nodes_without_memory_get_the_nearest(absent: int) -> None:
    machine = with_nodes(nodes.machine(PLAIN), memory={absent: 0})
    at = memory_map(machine)
    assert all(home.zone for home in at.homes(DEFAULT).each)
    assert absent not in at.capacity


def test_a_machine_that_shows_no_memory_has_an_empty_map() -> None:
    at = memory_map(with_nodes(nodes.machine(PLAIN), memory=0), nodes.settings())
    assert at.nodes == EMPTY
    assert all(home.zone == EMPTY and not home.refused for home in at.homes(DEFAULT).each)


def test_the_reservation_is_spread_over_normal_dram_in_proportion() -> None:
    machine = with_nodes(nodes.machine(TIERED), memory={0: 30 * GIB, 1: 10 * GIB})
    settings = nodes.settings(reservedResources={"cpu": 1, "memory": "4Gi"})
    assert memory_map(machine, settings).capacity == {
        0: 27 * GIB,
        1: 9 * GIB,
        2: 8 * GIB,
        3: 8 * GIB,
        4: 64 * GIB,
        5: 64 * GIB,
    }


def test_shares_of_the_reservation_add_up_to_the_byte() -> None:
    machine = with_nodes(nodes.machine(PLAIN), memory={0: 1000, 1: 1001, 2: 1002, 3: 1003})
    for reserved in (1, 2, 3, 7, 999, 4005, 4006):
        settings = nodes.settings(reservedResources={"cpu": 1, "memory": reserved})
        capacity = memory_map(machine, settings).capacity
        assert sum(capacity.values()) == 4006 - reserved
        assert min(capacity.values()) >= 0


def test_a_reservation_beyond_dram_goes_on_to_other_normal_memory_then_to_movable() -> None:
    machine = nodes.machine(TIERED)
    settings = nodes.settings(reservedResources={"cpu": 1, "memory": "56Gi"})
    assert memory_map(machine, settings).capacity == {
        **dict.fromkeys((0, 1, 2, 3), 0),
        **dict.fromkeys((4, 5), 60 * GIB),
    }


def test_a_reservation_of_more_than_there_is_refuses_to_start() -> None:
    machine = nodes.machine(PLAIN)
    whole = {"cpu": 1, "memory": "64Gi"}
    assert sum(memory_map(machine, nodes.settings(reservedResources=whole)).capacity.values()) == 0
    with pytest.raises(CapacityError, match=r"reservedResources.memory: cannot reserve 65 GiB"):
        memory_map(machine, nodes.settings(reservedResources={"cpu": 1, "memory": "65Gi"}))
    with pytest.raises(CapacityError, match=r"of 64 GiB"):
        memory_map(
            machine,
            nodes.settings(
                reservedResources={"cpu": 1, "memory": "65Gi"},
                availableResources={"memory": "66Gi"},
            ),
        )


def test_available_memory_bounds_the_sum_but_no_node() -> None:
    settings = nodes.settings(
        availableResources={"memory": "20Gi"}, reservedResources={"cpu": 1, "memory": "4Gi"}
    )
    at = memory_map(nodes.machine(PLAIN), settings)
    assert at.withheld == 44 * GIB
    assert at.capacity_of(ids("0")) == 15 * GIB
    assert at.capacity_of(ids("0-1")) == at.capacity_of(ids("0-3")) == 16 * GIB


def test_each_kind_starts_on_its_local_node() -> None:
    machine = with_nodes(nodes.machine(TIERED), normal=True)
    for package in (0, 1):
        for kinds, zone in (
            (DEFAULT, {0, 4}),
            ({DRAM}, {0}),
            ({HBM}, {2}),
            ({PMEM}, {4}),
            (EVERY, {0, 2, 4}),
        ):
            at = home(machine, f"socket #{package}", frozenset(kinds))
            assert set(at.zone) == {node + package for node in zone}
    assert home(machine, "root", DEFAULT).zone == ids("0-1,4-5")


def test_a_zone_of_movable_memory_gets_the_nearest_normal_node() -> None:
    assert home(nodes.machine(TIERED), "socket #1", frozenset({PMEM})).zone == ids("1,5")
    near = with_nodes(nodes.machine(TIERED), normal={0: True, 1: False, 2: False, 3: False})
    assert home(near, "socket #1", frozenset({PMEM})).zone == ids("0,5")


def test_a_kind_that_the_pool_lacks_is_taken_from_the_nearest_node_that_has_it() -> None:
    machine = nodes.machine("package:2 numa:2(memory=16GiB) core:2")
    machine = with_nodes(machine, kind={2: HBM}, normal=True)
    assert home(machine, "NUMA node #0", frozenset({DRAM, HBM})).zone == ids("0,2")
    assert home(machine, "NUMA node #3", frozenset({HBM})).zone == ids("2")


def test_kinds_that_the_machine_lacks_are_left_out_and_dram_stands_in_for_all() -> None:
    plain = nodes.machine(PLAIN)
    assert home(plain, "NUMA node #1", EVERY, strict=True).kinds == {DRAM}
    assert home(plain, "NUMA node #1", frozenset({HBM})).zone == ids("1")
    assert not memory_map(plain).has({HBM, PMEM})
    refused = home(plain, "NUMA node #1", frozenset({HBM, PMEM}), strict=True)
    assert refused.refused == "this node has no memory of kind pmem, hbm"


def test_a_strict_request_cannot_start_where_its_kind_is_movable_only() -> None:
    machine = nodes.machine(TIERED)
    refused = home(machine, "socket #0", frozenset({PMEM}), strict=True).refused
    assert refused.startswith("memory of kind pmem is movable only on this node")
    # a normal node of its kind, if farther away, will do
    machine = with_nodes(machine, normal={5: True})
    at = home(machine, "socket #0", frozenset({PMEM}), strict=True)
    assert (at.zone, at.refused) == (ids("4-5"), "")


def test_zones_grow_by_the_same_kinds_then_by_dram_pmem_and_hbm() -> None:
    machine = with_nodes(nodes.machine(TIERED), normal=True)
    assert widths(machine, frozenset({DRAM})) == ["0", "0-1", "0-1,4-5", "0-5"]
    assert widths(machine, frozenset({HBM})) == ["2", "2-3", "0-3", "0-5"]
    assert widths(machine, frozenset({PMEM})) == ["4", "4-5", "0-1,4-5", "0-5"]
    assert widths(machine, DEFAULT) == ["0,4", "0-1,4", "0-1,4-5", "0-5"]


def test_strict_zones_grow_by_their_kinds_only() -> None:
    machine = with_nodes(nodes.machine(TIERED), normal=True)
    assert widths(machine, frozenset({HBM}), strict=True) == ["2", "2-3"]
    assert widths(machine, DEFAULT, strict=True) == ["0,4", "0-1,4", "0-1,4-5"]


def test_zones_grow_by_distance() -> None:
    machine = nodes.machine(
        "package:1 numa:4(memory=1GiB) core:1"
        " distances=10,20,30,40/20,10,40,30/30,40,10,20/40,30,20,10"
    )
    at = memory_map(machine)
    growth = at.homes(DEFAULT).each[0].growth
    assert [str(zone) for zone in at.widths(ids("0"), growth)] == ["0", "0-1", "0-3"]
    assert [str(zone) for zone in at.widths(ids("0,2"), growth)] == ["0,2", "0-3"]


def test_a_zone_of_two_nodes_grows_to_what_is_nearest_to_either() -> None:
    machine = nodes.machine(
        "package:1 numa:4(memory=1GiB) core:1"
        " distances=10,20,40,40/20,10,40,30/40,40,10,20/40,30,20,10"
    )
    at = memory_map(machine)
    assert at.grow(ids("0-1"), (at.nodes,)) == ids("0-1,3")


def test_distances_that_differ_by_direction_count_by_their_mean() -> None:
    machine = nodes.machine(
        "package:1 numa:3(memory=1GiB) core:1 distances=10,20,21/40,10,50/21,50,10"
    )
    at = memory_map(machine)
    assert at.grow(ids("0"), (at.nodes,)) == ids("0,2")


def test_more_than_64_node_ids_work() -> None:
    at = memory_map(nodes.machine("package:2 numa:40(memory=1GiB) core:1"))
    assert at.capacity_of(at.nodes) == 80 * GIB
    zones = [str(zone) for zone in at.widths(ids("79"), at.homes(DEFAULT).each[0].growth)]
    assert zones == ["79", "40-79", "0-79"]


def test_cold_start_is_on_the_pmem_of_the_pool() -> None:
    machine = with_nodes(nodes.machine(TIERED), normal=True)
    at = home(machine, "socket #1", DEFAULT, cold=True)
    assert (at.zone, at.cold, at.cold_refused) == (ids("5"), True, "")
    assert at.kinds == {PMEM}


@pytest.mark.parametrize(
    ("machine", "kinds", "reason"),
    [
        (nodes.machine(PLAIN), DEFAULT, "not of dram alone"),
        (nodes.machine(TIERED), frozenset({DRAM}), "not of dram alone"),
        (nodes.machine(TIERED), DEFAULT, "the pmem of socket #0 is movable only"),
        (
            with_nodes(nodes.machine(TIERED), normal=True, memory={4: 0}),
            DEFAULT,
            "socket #0 has no pmem",
        ),
    ],
)
def test_cold_start_without_effect_says_why(machine: Machine, kinds: Kinds, reason: str) -> None:
    pool = tree(machine).pools.index(
        next(pool for pool in tree(machine).pools if "package" in pool.levels)
    )
    at, warm = (memory_map(machine).homes(kinds, cold=cold).each[pool] for cold in (True, False))
    assert reason in at.cold_refused
    assert (at.zone, at.cold) == (warm.zone, False)


@pytest.mark.parametrize(
    ("capture", "default", "pmem", "hbm"),
    [
        ("guest/c-pmem", "0,2", "2", "0"),
        ("guest/c2-pmem-movable", "0,2", "0,2", "0"),
        ("guest/d-hbm", "0", "0", "2"),
        ("guest/g2-unplugged", "0,3", "3", "0"),
        ("real/hwloc-64intel64-fakeKNL-SNC4-hybrid", "0", "0", "7"),
        ("real/hwloc-nvidiagpunumanodes", "0", "0", "0"),
        ("real/nri-server", "0,4", "4", "0"),
    ],
)
def test_captured_machines_start_each_kind_near_their_first_pool(
    capture: str, default: str, pmem: str, hbm: str
) -> None:
    path = SHARED / "captures" / f"{capture}.tar.xz"
    if not path.exists():
        pytest.skip(NOT_HERE)
    with open_capture(path) as folder:
        machine = discover(folder)
    at = memory_map(machine)
    starts = [
        at.homes(kinds).each[0].zone for kinds in (DEFAULT, frozenset({PMEM}), frozenset({HBM}))
    ]
    assert [str(zone) for zone in starts] == [default, pmem, hbm]
