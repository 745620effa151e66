"""The examples of placement that must hold, to the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.amounts import described
from nri_policy.workload.pod import Container, Pod
from nri_policy.workload.requirements import PodRequirements, Requirements
from tests.support import nodes
from tests.support.engine_driver import EngineDriver


def test_four_guaranteed_containers_of_one_pod_go_to_four_nodes() -> None:
    driver = EngineDriver()
    pod = nodes.container(1000).pod
    four = [nodes.container(1000, pod=pod, name=f"c{number}") for number in range(4)]
    # node 0 has less left, because CPU 0 is reserved; then all are equal and the first is next
    assert [driver.create(each) for each in four] == ["4", "8", "12", "1"]
    assert [driver.mems(each) for each in four] == ["1", "2", "3", "0"]


def test_growing_guaranteed_containers_fill_node_after_node() -> None:
    driver = EngineDriver(colocatePods=True)
    one, two, three, four = (nodes.container(1000 * cpus) for cpus in (1, 2, 3, 4))
    assert (driver.create(one), driver.pool(one)) == ("4", "NUMA node #1")
    assert (driver.create(two), driver.pool(two)) == ("8-9", "NUMA node #2")
    assert (driver.create(three), driver.pool(three)) == ("12-14", "NUMA node #3")
    # no node has four left: two full cores of two nodes
    assert (driver.create(four), driver.pool(four), driver.mems(four)) == (
        "2-3,6-7",
        "socket #0",
        "0-1",
    )


def test_guaranteed_containers_of_five_keep_to_a_socket_and_others_shrink_and_grow() -> None:
    driver = EngineDriver()
    first, second = nodes.container(5000), nodes.container(5000)
    assert (driver.create(first), driver.pool(first)) == ("8-12", "socket #1")
    assert (driver.create(second), driver.pool(second)) == ("2,4-7", "socket #0")
    one, two = nodes.best_effort(), nodes.best_effort()
    beside = [driver.create(one), driver.create(two)]
    assert beside == ["13-15", "1,3"]
    own = driver.grant(first).exclusive | driver.grant(second).exclusive
    assert all(CPUSet.parse(cpus) and CPUSet.parse(cpus).isdisjoint(own) for cpus in beside)
    driver.stop(second)
    assert driver.changed() == {two.id: "1-3"}


def test_mixed_containers_have_their_own_cpu_and_the_pools() -> None:
    driver = EngineDriver()
    burstable = [nodes.container(100, 200) for _ in range(4)]
    for each in burstable:
        driver.create(each)
    assert sorted(map(driver.cpus, burstable)) == ["1-3", "12-15", "4-7", "8-11"]
    first, second = nodes.container(1500), nodes.container(1500)
    for mixed in (first, second):
        cpus = CPUSet.parse(driver.create(mixed))
        (own,) = driver.grant(mixed).exclusive
        (neighbour,) = [each for each in burstable if driver.pool(each) == driver.pool(mixed)]
        assert driver.changed() == {neighbour.id: str(cpus - CPUSet([own]))}
        assert driver.grant(mixed).shared == 500
    assert (driver.cpus(first), driver.pool(first)) == ("4-7", "NUMA node #1")
    assert (driver.cpus(second), driver.pool(second)) == ("8-11", "NUMA node #2")


def test_only_available_cpus_are_used() -> None:
    driver = EngineDriver(
        availableResources={"cpu": "cpuset:4-11"}, reservedResources={"cpu": "cpuset:11"}
    )
    three, system = nodes.container(3000), nodes.container(100, 200, namespace="kube-system")
    assert (driver.create(three), driver.mems(three)) == ("4-6", "1")
    assert driver.create(system) == "11"


def test_best_effort_spreads_and_makes_way_for_exclusive_cpus() -> None:
    driver = EngineDriver()
    guests = [nodes.best_effort() for _ in range(4)]
    assert [driver.create(guest) for guest in guests] == ["4-7", "8-11", "12-15", "1-3"]
    own = CPUSet()
    for _ in range(4):
        exclusive = nodes.container(1000)
        cpus = CPUSet.parse(driver.create(exclusive))
        own |= cpus
        assert len(cpus) == 1
        for guest in guests:
            assert driver.cpus(guest)
            assert own.isdisjoint(CPUSet.parse(driver.cpus(guest)))
    assert str(own) == "1,4,8,12"


def test_one_cpu_left_is_enough_for_all_who_request_none() -> None:
    driver = EngineDriver()
    for cpus in (4, 4, 4, 2):
        driver.create(nodes.container(1000 * cpus))
    assert len(driver.free()) == 1
    left = str(driver.free())
    assert driver.create(nodes.best_effort()) == left
    assert driver.create(nodes.container(0, 500)) == left
    assert driver.create(nodes.container(100, 200, namespace="kube-system")) == "0"
    assert driver.create(nodes.best_effort(namespace="kube-system")) == "0"
    # the last shared CPU becomes exclusive; the sharers move to the reserved CPU
    exclusive = nodes.container(1000)
    assert driver.create(exclusive) == left
    assert set(driver.changed().values()) == {"0"}
    assert driver.create(nodes.best_effort()) == "0"
    driver.stop(exclusive)
    assert set(driver.changed().values()) == {left}
    assert len(driver.changed()) == 3


def debug(pod: Pod, **more: Any) -> Container:
    """Return a container as `kubectl debug` adds it to a running pod: it can ask for nothing."""
    plain = replace(nodes.best_effort(), pod=pod, name="debugger")
    return replace(plain, **more)


@pytest.mark.parametrize("number", range(4))
def test_a_debug_container_is_on_its_guaranteed_pods_numa_node(number: int) -> None:
    driver = EngineDriver()
    four = [nodes.container(1000) for _ in range(4)]
    for each in four:
        driver.create(each)
    container = debug(four[number].pod)
    driver.create(container)
    assert driver.pool(container) == driver.pool(four[number])
    assert driver.mems(container) == driver.mems(four[number])
    assert driver.grant(container).exclusive == CPUSet()


@pytest.mark.parametrize("number", range(4))
def test_a_container_that_its_pods_object_does_not_list_is_on_its_pods_numa_node(
    number: int,
) -> None:
    driver = EngineDriver()
    four = [nodes.container(100, 200) for _ in range(4)]
    for each in four:
        driver.create(each)
    pod = four[number].pod
    said = PodRequirements(containers={"c0": Requirements(cpu_request=100)}, pod_level=False)
    added = described(debug(pod), said)
    assert added.ephemeral
    assert not described(four[number], said).ephemeral
    driver.create(added)
    assert driver.pool(added) == driver.pool(four[number])


def test_a_container_without_requests_that_came_with_its_pod_is_where_it_was() -> None:
    """It is where fewest are, as without any debug container."""
    driver = EngineDriver()
    main = nodes.container(1000, 2000)
    driver.create(main)
    beside = debug(main.pod)
    driver.create(beside)
    assert driver.pool(beside) != driver.pool(main)
