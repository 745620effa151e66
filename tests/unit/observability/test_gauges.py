from __future__ import annotations

from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.engine.event import Created
from nri_policy.node import describe_misfit, view_of
from nri_policy.observability.gauges import Shortcoming, make_gauges, take_snapshot
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

GIB = 1 << 30
DOMAIN = "resource-policy.nri.io"


def gauges(driver: EngineDriver) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("nri_policy_"), *sample.labels.values()): sample.value
        for family in make_gauges(take_snapshot(view_of(driver.engine)))
        for sample in family.samples
    }


def degraded(driver: EngineDriver) -> set[Shortcoming]:
    found = gauges(driver)
    return {kind for kind in Shortcoming if found["degraded_containers", kind]}


def with_memory(container: Container, amount: int) -> Container:
    return replace(container, resources=replace(container.resources, memory_limit=amount))


def cpus(driver: EngineDriver, zone: str) -> dict[str, float]:
    kinds = ("capacity", "exclusive", "shared", "reserved", "isolated", "free")
    return {kind: gauges(driver)["zone_cpus", zone, kind] for kind in kinds}


def test_the_cpus_of_a_pool_are_told_by_what_they_are_used_for() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(1500))
    (pool,) = {driver.pool(each.container) for each in driver.engine.state.placed.values()}
    assert cpus(driver, pool) == {
        "capacity": 4,
        "exclusive": 1,
        "shared": 0.5,
        "reserved": 0,
        "isolated": 0,
        "free": 2.5,
    }
    assert cpus(driver, "root") == {
        "capacity": 16,
        "exclusive": 1,
        "shared": 0.5,
        "reserved": 1,
        "isolated": 0,
        "free": 13.5,
    }


def test_containers_are_counted_where_they_are_booked() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(4000))
    driver.create(nodes.container(100, 200, namespace="kube-system"))
    found = gauges(driver)
    assert found["containers", "root", "Burstable"] == 1
    assert sum(n for key, n in found.items() if key[0] == "containers") == 2


def test_memory_is_told_by_kind_and_by_what_is_left() -> None:
    driver = EngineDriver("package:1 numa:1 core:4 pu:1")
    name = driver.engine.layout.tree.top.name
    before = gauges(driver)
    assert before["zone_memory_bytes", name, "dram", "free"] == 4 * GIB
    request = with_memory(nodes.container(1000), GIB)
    driver.handle(Created(container=request))
    after = gauges(driver)
    assert after["zone_memory_bytes", name, "dram", "free"] == 3 * GIB
    assert after["zone_memory_bytes", name, "dram", "capacity"] == 4 * GIB


def test_who_has_what_it_should_is_not_degraded() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(2000))
    driver.create(nodes.container(500, 1000))
    driver.create(nodes.best_effort())
    assert degraded(driver) == set()


def test_a_guest_on_the_reserved_cpus_is_spilled() -> None:
    driver = EngineDriver("package:1 core:4 pu:1")
    driver.create(nodes.container(3000))
    driver.create(nodes.best_effort())
    assert degraded(driver) == {Shortcoming.SPILLED}


def test_a_system_container_on_ordinary_cpus_has_overflowed() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(1500, 1500, namespace="kube-system"))
    assert degraded(driver) == {Shortcoming.OVERFLOWED}


def test_a_burst_beyond_what_the_pool_has_is_confined() -> None:
    driver = EngineDriver("package:1 core:4 pu:1")
    driver.create(nodes.container(2000, 2500))
    assert degraded(driver) == set()
    driver.create(nodes.container(500, 4000))
    assert degraded(driver) == {Shortcoming.CONFINED}


def test_who_does_without_a_part_of_its_class_is_degraded() -> None:
    driver = EngineDriver(
        schedulingClasses=[{"name": "calm", "policy": "batch"}],
        podQoSSchedulingClasses={"guaranteed": "calm"},
    )
    driver.create(nodes.container(2000))
    driver.create(nodes.best_effort())
    assert degraded(driver) == set()
    driver.engine.state.equipment = Equipment(no_scheduler="runtime too old")
    driver.create(nodes.container(1000))
    assert degraded(driver) == {Shortcoming.CLASS}
    assert gauges(driver)["degraded_containers", "class"] == 1


def test_a_sharer_that_was_moved_off_the_cpus_beside_its_memory_is_remote() -> None:
    driver = EngineDriver("package:2 numa:1 core:4 pu:1", reservedResources={"cpu": "cpuset:0"})
    small = with_memory(nodes.container(100), GIB)
    driver.create(small)
    assert degraded(driver) == set()
    driver.create(nodes.container(4000))
    assert (driver.pool(small), driver.cpus(small), driver.mems(small)) == ("root", "1-3", "1")
    assert degraded(driver) == {Shortcoming.REMOTE}
    placed = driver.engine.state.placed[small.id]
    said = "its memory is on node 1, none of its CPUs is"
    assert describe_misfit(view_of(driver.engine), placed) == said


def test_memory_on_more_nodes_than_the_pools_own_is_widened() -> None:
    driver = EngineDriver()
    driver.handle(Created(container=with_memory(nodes.best_effort(), 2 * GIB)))
    for _ in range(3):
        driver.handle(Created(container=with_memory(nodes.container(2000), 3 * GIB)))
    assert degraded(driver) == set()
    driver.handle(Created(container=with_memory(nodes.container(2000), 3 * GIB)))
    assert degraded(driver) == {Shortcoming.WIDENED}
    # the last one has the same wide zone as the one that it widened
    assert gauges(driver)["degraded_containers", "widened"] == 2
