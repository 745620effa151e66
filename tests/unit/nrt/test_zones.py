"""The form of the zones; their numbers are checked by tests/scenarios/test_published_zones.py."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Distances, Machine, MemoryKind
from nri_policy.node import view_of
from nri_policy.node.alignment import is_split
from nri_policy.nrt.zones import Devices, measure, zones
from nri_policy.pools.supply import Supply
from nri_policy.report import plain
from tests.support import memory_maps, nodes
from tests.support.engine_driver import EngineDriver
from tests.support.topology_twin import Twin, amounts

L3 = "package:2 die:2 numa:1 l3:2 core:4"


def shown(machine: Machine | str = nodes.SMALL, **spec: Any) -> dict[str, dict[str, Any]]:
    """Return the zones of an idle machine by name."""
    machine = nodes.machine(machine) if isinstance(machine, str) else machine
    engine = Engine(machine, nodes.settings(**spec))
    found = published(engine)
    Twin(view_of(engine)).check(found)
    return {zone["name"]: zone for zone in found}


def published(engine: Engine, devices: Devices | None = None) -> list[dict[str, Any]]:
    found = zones(engine.layout, measure(view_of(engine)), devices or {})
    return [plain(zone) for zone in found]


def attributes(zone: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in zone["attributes"]}


def sparse(ids: tuple[int, ...]) -> Machine:
    """Return a machine whose NUMA nodes have these ids."""
    whole = nodes.machine(f"package:1 numa:{len(ids)} core:2")
    numbers = dict(zip((node.id for node in whole.nodes), ids, strict=True))
    return replace(
        whole,
        nodes=tuple(
            replace(node, id=numbers[node.id], nearest=CPUSet(numbers[n] for n in node.nearest))
            for node in whole.nodes
        ),
        distances=Distances(nodes=ids, matrix=whole.distances.matrix),
    )


def test_numa_zones_have_the_distances_to_all_of_them() -> None:
    found = shown()
    assert found["node-1"]["type"] == "Node"
    assert found["node-1"]["costs"] == [
        {"name": "node-0", "value": 11},
        {"name": "node-1", "value": 10},
        {"name": "node-2", "value": 21},
        {"name": "node-3", "value": 21},
    ]


def test_ids_that_the_machine_lacks_are_zones_without_resources() -> None:
    found = shown(sparse((1, 4)))
    assert [name for name in found if name.startswith("node-")] == [
        f"node-{number}" for number in range(5)
    ]
    assert amounts(found["node-3"]) == {"cpu": (0, 0, 0), "memory": (0, 0, 0)}
    assert found["node-3"]["costs"] == [
        {"name": f"node-{number}", "value": 10 if number == 3 else 255} for number in range(5)
    ]
    assert [cost["value"] for cost in found["node-4"]["costs"]] == [255, 11, 255, 255, 10]
    assert amounts(found["node-4"])["cpu"] == (2000, 2000, 2000)


def test_nodes_that_schedulers_crash_on_are_left_out() -> None:
    engine = Engine(sparse((0, 64)), nodes.settings())
    numa = [zone["name"] for zone in published(engine) if zone["type"] == "Node"]
    assert numa == [f"node-{number}" for number in range(64)]


def test_a_node_without_cpus_has_memory_only() -> None:
    found = amounts(shown(memory_maps.TIERED)["node-4"])
    assert found["cpu"] == (0, 0, 0)
    assert found["memory"] == (64 << 30, 64 << 30, 64 << 30)


def test_cpus_without_memory_count_where_the_engine_counts_them() -> None:
    machine = nodes.machine("package:1 numa:2 core:2")
    machine = memory_maps.with_nodes(machine, memory={1: 0})
    found = shown(machine)
    assert amounts(found["node-0"])["cpu"] == (4000, 3000, 3000)
    assert amounts(found["node-1"]) == {"cpu": (0, 0, 0), "memory": (0, 0, 0)}


def test_memory_of_a_device_exists_but_is_for_nobody() -> None:
    machine = memory_maps.with_nodes(nodes.machine(), kind={3: MemoryKind.DEVICE})
    assert amounts(shown(machine)["node-3"])["memory"] == (4 << 30, 0, 0)


def test_every_size_of_hugepages_is_a_resource_of_every_zone() -> None:
    pages = {0: ((2 << 20, 512),), 1: ((2 << 20, 0), (1 << 30, 1))}
    found = shown(memory_maps.with_nodes(nodes.machine(), hugepages=pages))
    assert amounts(found["node-0"])["hugepages-2Mi"] == (1 << 30,) * 3
    assert amounts(found["node-0"])["hugepages-1Gi"] == (0, 0, 0)
    assert amounts(found["node-1"])["hugepages-1Gi"] == (1 << 30,) * 3
    assert amounts(found["node-3"])["hugepages-2Mi"] == (0, 0, 0)
    # memory in huge pages does not count as ordinary memory
    assert amounts(found["node-1"])["memory"] == (4 << 30, 3 << 30, 3 << 30)


def test_devices_are_resources_of_their_nodes() -> None:
    engine = Engine(nodes.machine(), nodes.settings())
    found = published(engine, {1: {"example.com/gpu": (2, 1)}, 70: {"example.com/nic": (1, 1)}})
    assert amounts(found[1])["example.com/gpu"] == (2, 2, 1)
    assert amounts(found[0])["example.com/gpu"] == (0, 0, 0)
    assert {*amounts(found[4])} == {"cpu", "memory"}, "pools have none"


def test_reserved_cpus_and_memory_are_capacity_but_not_allocatable() -> None:
    found = shown(reservedResources={"cpu": "cpuset:4-5", "memory": "4Gi"})
    assert amounts(found["node-1"]) == {
        "cpu": (4000, 2000, 2000),
        "memory": (4 << 30,) + (3 << 30,) * 2,
    }
    assert attributes(found["NUMA node #1"])["reserved cpuset"] == "4-5"


def test_pools_have_the_names_and_types_of_the_peer() -> None:
    found = shown(L3)
    types = {name: zone["type"] for name, zone in found.items() if zone["type"] != "Node"}
    assert types == {
        "root": "virtual node",
        "socket #0": "socket",
        "NUMA node #0": "numa node",
        "NUMA node #0/L3 cache #0": "L3 cache",
        "NUMA node #0/L3 cache #1": "L3 cache",
        "NUMA node #1": "numa node",
        "NUMA node #1/L3 cache #0": "L3 cache",
        "NUMA node #1/L3 cache #1": "L3 cache",
        "socket #1": "socket",
        "NUMA node #2": "numa node",
        "NUMA node #2/L3 cache #0": "L3 cache",
        "NUMA node #2/L3 cache #1": "L3 cache",
        "NUMA node #3": "numa node",
        "NUMA node #3/L3 cache #0": "L3 cache",
        "NUMA node #3/L3 cache #1": "L3 cache",
    }
    assert "parent" not in found["root"]
    assert found["NUMA node #2/L3 cache #1"]["parent"] == "NUMA node #2"
    assert shown("package:1 die:2 core:4")["die #0/1"]["type"] == "die"
    assert shown("package:1 core:2")["socket #0"]["type"] == "socket"


def test_a_pool_tells_its_memory_by_kind_and_nothing_of_what_it_lacks() -> None:
    assert attributes(shown(memory_maps.TIERED)["socket #1"]) == {
        "memory set": "1,3,5",
        "shared cpuset": "4-7",
        "dram set": "1",
        "pmem set": "5",
        "hbm set": "3",
        "containers": "0",
    }


def test_shared_room_of_a_pool_is_in_milli_cpu_and_cpus_in_use_are_named() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(1500))
    driver.create(nodes.container(300, 600))
    found = {zone["name"]: zone for zone in published(driver.engine)}
    Twin(view_of(driver.engine)).check([*found.values()])
    used = attributes(found["NUMA node #1"])
    assert (used["exclusive cpuset"], used["shared cpuset"], used["containers"]) == (
        "4",
        "5-7",
        "1",
    )
    (cpu,) = (each for each in found["NUMA node #1"]["resources"] if each["name"] == "cpu")
    assert (cpu["capacity"], cpu["allocatable"], cpu["available"]) == ("4", "4", "2500m")
    assert amounts(found["node-1"])["cpu"] == (4000, 4000, 2500)


def test_a_fraction_that_a_zone_has_is_shown_and_misleads_no_whole_request() -> None:
    driver = EngineDriver(alignment="numa")
    for _ in range(4):
        driver.create(nodes.container(1200))  # one of its own, and 200m of the rest
    for zone in published(driver.engine)[:4]:
        assert amounts(zone)["cpu"][2] % 1000
    (cpu,) = (each for each in published(driver.engine)[1]["resources"] if each["name"] == "cpu")
    assert cpu["available"] == "2800m"
    driver.engine.fork().handle(Created(container=nodes.container(2500)))
    three = nodes.container(3000, annotations=nothing_shared())
    with pytest.raises(PlacementError):
        driver.engine.handle(Created(container=three))


def test_a_node_whose_cpus_make_no_pool_has_no_more_than_these() -> None:
    """Fake NUMA makes nodes that cross packages."""
    machine = nodes.machine("package:2 numa:1 core:3 pu:1")
    crossing = (CPUSet.parse("0-1,3"), CPUSet.parse("2,4-5"))
    crossed = memory_maps.with_nodes(machine, cpus=dict(enumerate(crossing)))
    found = shown(crossed)
    assert [amounts(found[f"node-{each}"])["cpu"] for each in (0, 1)] == [
        (3000, 2000, 2000),
        (3000, 3000, 3000),
    ]


def test_isolated_cpus_are_never_added_to_ordinary_ones() -> None:
    machine = replace(nodes.machine(), isolated=CPUSet.parse("4-5,8-11"))
    found = shown(machine)
    assert amounts(found["node-1"])["cpu"] == (4000, 4000, 2000)
    assert amounts(found["node-2"])["cpu"] == (4000, 4000, 4000)


def test_threads_of_cores_that_are_not_idle_are_not_available_where_cores_are_given_whole() -> None:
    machine = nodes.machine("package:1 numa:2 core:4 pu:2")
    siblings = machine.cores[0].cpus
    reserved = {"cpu": f"cpuset:{min(siblings)}"}
    for full_cores, left in (("off", 7000), ("require", 6999)):
        driver = EngineDriver(machine, reservedResources=reserved, fullCores=full_cores)
        assert amounts(published(driver.engine)[0])["cpu"] == (8000, 7000, left)


def test_a_container_without_a_request_takes_nothing_away() -> None:
    driver = EngineDriver()
    idle = amounts(published(driver.engine)[1])
    for _ in range(20):
        driver.create(nodes.best_effort())
    assert amounts(published(driver.engine)[1]) == idle


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("full_cores", ["off", "require"])
def test_the_roomiest_zone_says_exactly_what_the_next_container_can_have(
    full_cores: str, seed: int
) -> None:
    """The engine itself places what is said to be left.

    A CPU more is refused, or taken from what small sharers keep in their pools (placement.md §2).
    """
    chance = random.Random(seed)
    driver = EngineDriver(
        "package:2 numa:2 l3:2 core:2 pu:2", alignment="numa", fullCores=full_cores
    )
    left = 0
    for _ in range(30):
        container = (
            nodes.container(chance.choice((1000, 2000, 3000, 1500)))
            if chance.random() < 0.6
            else nodes.container(chance.randrange(0, 900), 1000)
        )
        try:
            driver.create(container)
        except PlacementError:
            continue
        found = published(driver.engine)
        Twin(view_of(driver.engine)).check(found)
        numa = [zone for zone in found if zone["type"] == "Node"]
        left = max(amounts(zone)["cpu"][2] for zone in numa)
        whole = left // 1000 * 1000
        for amount in {left, whole} - {0}:
            trial = driver.engine.fork()
            trial.handle(Created(container=nodes.container(amount)))
            *_, placed = trial.state.placed.values()
            assert not is_split(view_of(trial), placed), amount
        more = nodes.container(whole + 1000, annotations=nothing_shared())
        trial, pools = driver.engine.fork(), pools_of(driver.engine)
        with suppress(PlacementError):
            trial.handle(Created(container=more))
            moved = {each for each, pool in pools.items() if pools_of(trial)[each] != pool}
            assert moved, "there was more left than was said"
    assert left < 8000


def test_no_amount_is_negative_where_containers_have_more_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server accepts negative amounts, and schedulers would add them up; spec nrt.md §0."""
    monkeypatch.setattr(Supply, "allocatable_shared", lambda *_: -500)
    engine = Engine(nodes.machine(nodes.SMALL), nodes.settings())
    amounts = measure(view_of(engine))
    assert {*amounts.pool_milli, *amounts.numa_milli} == {0}
    assert not [each for each in published(engine) if '"-' in json.dumps(each)]


def pools_of(engine: Engine) -> dict[str, int]:
    return {each: placed.grant.pool for each, placed in engine.state.placed.items()}


def nothing_shared() -> dict[str, str]:
    return {"prefer-shared-cpus.resource-policy.nri.io": "false"}


def test_a_machine_that_has_no_numa_is_one_zone() -> None:
    machine = nodes.machine("package:1 core:2")
    assert [name for name in shown(machine) if name.startswith("node-")] == ["node-0"]
