"""The examples of placement that must hold, to the CPU."""

from __future__ import annotations

from nri_policy.cpuset import CPUSet
from tests.support import nodes
from tests.support.engine_driver import Life


def test_four_guaranteed_containers_of_one_pod_go_to_four_nodes() -> None:
    life = Life()
    pod = nodes.container(1000).pod
    four = [nodes.container(1000, pod=pod, name=f"c{number}") for number in range(4)]
    # node 0 has less left, because CPU 0 is reserved; then all are equal and the first is next
    assert [life.create(each) for each in four] == ["4", "8", "12", "1"]
    assert [life.mems(each) for each in four] == ["1", "2", "3", "0"]


def test_growing_guaranteed_containers_fill_node_after_node() -> None:
    life = Life(colocatePods=True)
    one, two, three, four = (nodes.container(1000 * cpus) for cpus in (1, 2, 3, 4))
    assert (life.create(one), life.pool(one)) == ("4", "NUMA node #1")
    assert (life.create(two), life.pool(two)) == ("8-9", "NUMA node #2")
    assert (life.create(three), life.pool(three)) == ("12-14", "NUMA node #3")
    # no node has four left: two full cores of two nodes
    assert (life.create(four), life.pool(four), life.mems(four)) == ("2-3,6-7", "socket #0", "0-1")


def test_guaranteed_containers_of_five_keep_to_a_socket_and_others_shrink_and_grow() -> None:
    life = Life()
    first, second = nodes.container(5000), nodes.container(5000)
    assert (life.create(first), life.pool(first)) == ("8-12", "socket #1")
    assert (life.create(second), life.pool(second)) == ("1,4-7", "socket #0")
    one, two = nodes.best_effort(), nodes.best_effort()
    beside = [life.create(one), life.create(two)]
    assert beside == ["13-15", "2-3"]
    own = life.grant(first).exclusive | life.grant(second).exclusive
    assert all(CPUSet.parse(cpus) and CPUSet.parse(cpus).isdisjoint(own) for cpus in beside)
    life.stop(second)
    assert life.changed() == {two.id: "1-3"}


def test_mixed_containers_have_their_own_cpu_and_the_pools() -> None:
    life = Life()
    burstable = [nodes.container(100, 200) for _ in range(4)]
    for each in burstable:
        life.create(each)
    assert sorted(map(life.cpus, burstable)) == ["1-3", "12-15", "4-7", "8-11"]
    first, second = nodes.container(1500), nodes.container(1500)
    for mixed in (first, second):
        cpus = CPUSet.parse(life.create(mixed))
        (own,) = life.grant(mixed).exclusive
        (neighbour,) = [each for each in burstable if life.pool(each) == life.pool(mixed)]
        assert life.changed() == {neighbour.id: str(cpus - CPUSet([own]))}
        assert life.grant(mixed).shared == 500
    assert (life.cpus(first), life.pool(first)) == ("4-7", "NUMA node #1")
    assert (life.cpus(second), life.pool(second)) == ("8-11", "NUMA node #2")


def test_only_available_cpus_are_used() -> None:
    life = Life(availableResources={"cpu": "cpuset:4-11"}, reservedResources={"cpu": "cpuset:11"})
    three, system = nodes.container(3000), nodes.container(100, 200, namespace="kube-system")
    assert (life.create(three), life.mems(three)) == ("4-6", "1")
    assert life.create(system) == "11"


def test_best_effort_spreads_and_makes_way_for_exclusive_cpus() -> None:
    life = Life()
    guests = [nodes.best_effort() for _ in range(4)]
    assert [life.create(guest) for guest in guests] == ["4-7", "8-11", "12-15", "1-3"]
    own = CPUSet()
    for _ in range(4):
        exclusive = nodes.container(1000)
        cpus = CPUSet.parse(life.create(exclusive))
        own |= cpus
        assert len(cpus) == 1
        for guest in guests:
            assert life.cpus(guest)
            assert own.isdisjoint(CPUSet.parse(life.cpus(guest)))
    assert str(own) == "1,4,8,12"


def test_one_cpu_left_is_enough_for_all_who_request_none() -> None:
    life = Life()
    for cpus in (4, 4, 4, 2):
        life.create(nodes.container(1000 * cpus))
    assert len(life.free()) == 1
    left = str(life.free())
    assert life.create(nodes.best_effort()) == left
    assert life.create(nodes.container(0, 500)) == left
    assert life.create(nodes.container(100, 200, namespace="kube-system")) == "0"
    assert life.create(nodes.best_effort(namespace="kube-system")) == "0"
    # the last one goes to who requests it, and nobody is left without
    exclusive = nodes.container(1000)
    assert life.create(exclusive) == left
    assert set(life.changed().values()) == {"0"}
    assert life.create(nodes.best_effort()) == "0"
    life.stop(exclusive)
    assert set(life.changed().values()) == {left}
    assert len(life.changed()) == 3
