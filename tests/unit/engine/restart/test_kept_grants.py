"""Nobody who lost nothing moves, and what is left of a grant is kept; spec placement.md §10."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Reconfigured,
    Resized,
    ResizeEnded,
    Stopped,
    Synchronized,
)
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Distances, Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.pools.capacity import Earlier
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container, ContainerState
from tests.support import bookkeeping, nodes
from tests.support.engine_driver import EngineDriver

HALF = "package:2 numa:1 core:4 pu:1"
GIB = 1 << 30


def without(machine: Machine, gone: str) -> Machine:
    """Return *machine* after CPUs went offline."""
    return machine.restricted(machine.online - CPUSet.parse(gone))


def of_memory(container: Container, gib: int) -> Container:
    return replace(container, resources=replace(container.resources, memory_limit=gib * GIB))


def restarted(driver: EngineDriver, **spec: Any) -> EngineDriver:
    """Return the life of a new daemon with the store of *life*, which found what that one left."""
    state = driver.engine.state
    held = {each: view_of(driver.engine).to_store(each) for each in state.placed}
    earlier = Earlier(reserved=driver.engine.layout.capacity.reserved)
    again = EngineDriver(driver.engine.layout.machine)
    again.engine = Engine(driver.engine.layout.machine, nodes.settings(**spec), earlier)
    again.runtime.cpus.update(driver.runtime.cpus)
    again.runtime.mems.update(driver.runtime.mems)
    again.handle(Synchronized(containers=listed(driver), held=held))
    return again


def listed(driver: EngineDriver) -> tuple[Container, ...]:
    """Return the containers as the runtime lists them."""
    return tuple(
        nodes.running(placed.container, driver.runtime.cpus[each], driver.runtime.mems[each])
        for each, placed in driver.engine.state.placed.items()
    )


def why(driver: EngineDriver, container: Container) -> Explanation:
    """Return why a container is where it is."""
    return driver.engine.state.placed[container.id].explanation


def domains(driver: EngineDriver, cpus: CPUSet) -> int:
    """Return how many NUMA nodes have some of *cpus*."""
    return sum(not node.cpus.isdisjoint(cpus) for node in driver.engine.layout.machine.nodes)


def test_a_shared_part_that_loses_its_cpu_moves_alone() -> None:
    driver = EngineDriver(HALF, reservedResources={"cpu": "cpuset:7"})
    mixed, other, own = nodes.container(1500), nodes.container(3000), nodes.container(2000)
    assert [driver.create(each) for each in (mixed, other, own)] == ["0-3", "4-6", "1-2"]
    driver.stop(other)
    driver.reconfigure(machine=without(nodes.machine(HALF), "3"))
    assert driver.cpus(own) == "1-2"
    assert str(driver.grant(mixed).exclusive) == "0"
    assert (driver.cpus(mixed), driver.pool(mixed)) == ("0,4-6", "root")
    assert "its shared part moved from socket #0" in " ".join(driver.decision.warnings)


def test_a_shared_part_without_room_anywhere_is_dropped_alone() -> None:
    driver = EngineDriver(HALF, reservedResources={"cpu": "cpuset:7"})
    mixed, other, own = nodes.container(1500), nodes.container(3000), nodes.container(2000)
    assert [driver.create(each) for each in (mixed, other, own)] == ["0-3", "4-6", "1-2"]
    driver.reconfigure(machine=without(nodes.machine(HALF), "3"))
    assert [driver.cpus(each) for each in (mixed, own, other)] == ["0", "1-2", "4-6"]
    (warning,) = driver.decision.warnings
    assert warning.startswith(mixed.full_name)
    assert warning.endswith("it has fewer now")
    driver.reconfigure(machine=nodes.machine(HALF))
    assert driver.cpus(mixed) == "0,3", "it has it back with the CPU"


def test_what_is_left_of_two_cpus_stays_where_it_is_for_good() -> None:
    driver = EngineDriver("package:2 numa:1 core:2 pu:1", reservedResources={"cpu": "cpuset:3"})
    two, one = nodes.container(2000), nodes.container(1000)
    assert [driver.create(each) for each in (two, one)] == ["0-1", "2"]
    whole = nodes.machine("package:2 numa:1 core:2 pu:1")
    driver.reconfigure(machine=without(whole, "1"))
    assert driver.cpus(two) == "0"
    driver.stop(one)
    driver.reconfigure(machine=without(whole, "1"))
    assert (driver.cpus(two), driver.pool(two)) == ("0", "socket #0")
    driver.reconfigure(machine=whole)
    assert driver.cpus(two) == "0-1"


def test_memory_that_is_overbooked_on_one_is_nobody_elses_concern() -> None:
    """A node of 4 GiB, found with 6 of one and 1 of another: that one can still be resized."""
    driver = EngineDriver(
        "package:1 numa:1(memory=4GiB) core:8 pu:1", reservedResources={"cpu": "cpuset:0"}
    )
    fat, other = of_memory(nodes.container(2000), 6), of_memory(nodes.container(2000), 1)
    zone = CPUSet([0])
    driver.handle(
        Synchronized(
            containers=(
                nodes.running(fat, CPUSet([1, 2]), zone),
                nodes.running(other, CPUSet([3, 4]), zone),
            )
        )
    )
    for each, cpus in ((fat, "1-2"), (other, "3-4")):
        driver.runtime.cpus[each.id], driver.runtime.mems[each.id] = CPUSet.parse(cpus), zone
    assert driver.engine.state.memory.missing == 3 * GIB
    for milli, count in ((3000, 3), (1000, 1), (2000, 2)):
        for each in (other, fat):
            resources = nodes.resources(milli, milli)
            driver.resize(each, resources)
            assert len(driver.grant(each).exclusive) == count
    assert driver.engine.state.memory.missing == 3 * GIB
    # neither the settings in force nor others that need no more memory are refused
    driver.reconfigure(reservedResources={"cpu": "cpuset:0"})
    assert driver.changed() == {}
    driver.reconfigure(reservedResources={"cpu": "cpuset:0,7"})
    more = {"cpu": "cpuset:0", "memory": "1Gi"}
    refusal = driver.refuse(Reconfigured(settings=nodes.settings(reservedResources=more)))
    assert "those that run there are booked with" in refusal


def test_who_turns_reserved_does_so_at_a_reload_as_at_a_restart() -> None:
    driver = EngineDriver()
    some = [nodes.container(milli, namespace="ops") for milli in (300, 2000, 1500, 400)]
    others = [nodes.container(milli) for milli in (300, 2000, 1500)]
    for each in (*some, *others):
        driver.create(each)
    again = restarted(driver, reservedPoolNamespaces=["ops"])
    driver.reconfigure(reservedPoolNamespaces=["ops"])
    assert [driver.cpus(each) for each in some].count("0") == 2
    for each in (*some, *others):
        assert driver.cpus(each) == again.cpus(each)
        assert driver.grant(each) == again.grant(each)


def test_reserved_containers_that_are_too_many_stay_at_a_restart_pinned_or_not() -> None:
    spec: dict[str, Any] = {"pinCPU": False, "reservedResources": {"cpu": "cpuset:0"}}
    driver = EngineDriver(**spec)
    full = nodes.container(15_000)  # all others, so that both stay on the reserved one
    crowd = [nodes.container(800, 900, namespace="kube-system") for _ in range(2)]
    for each in (full, *crowd):
        driver.handle(Created(container=each))
    assert driver.engine.state.reserved_milli == 1600
    driver.runtime.forget(full.id)
    driver.handle(Stopped(container_id=full.id))
    before = {each.id: driver.grant(each) for each in crowd}
    again = restarted(driver, **spec)
    assert {each.id: again.grant(each) for each in crowd} == before


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_the_same_container_makes_way_after_a_restart(restarts: int) -> None:
    """The younger of equals; here of a runtime that does not say when they were created."""
    spec: dict[str, Any] = {"reservedResources": {"cpu": "cpuset:0"}}
    driver = EngineDriver("package:1 numa:2(memory=4GiB) core:4", **spec)
    others, first, second, last = (
        of_memory(nodes.container(milli), gib)
        for milli, gib in ((4000, 1), (1000, 2), (1000, 2), (1000, 1))
    )
    for each in (others, first, second):
        driver.create(replace(each, created=0))
    assert [driver.mems(each) for each in (others, first, second)] == ["1", "0", "0"]
    for _ in range(restarts):
        driver = restarted(driver, **spec)
    driver.create(last)
    assert [driver.mems(each) for each in (first, second, last)] == ["0", "0-1", "0-1"]


def test_the_oldest_finds_its_place_first_after_a_restart_without_the_store() -> None:
    """Whatever the order in which the runtime lists them; two of them can be on one node."""
    driver = EngineDriver()
    made = [nodes.container(3000) for _ in range(3)]
    listed = [nodes.running(each, CPUSet([0]), CPUSet([0])) for each in reversed(made)]
    for each in listed:
        driver.runtime.cpus[each.id], driver.runtime.mems[each.id] = CPUSet([0]), CPUSet([0])
    driver.handle(Synchronized(containers=tuple(listed)))
    assert [driver.cpus(each) for each in made] == ["4-6", "8-10", "12-14"]


def test_who_keeps_its_place_keeps_its_reasons() -> None:
    driver = EngineDriver()
    container, sharer = nodes.container(2000), nodes.container(500)
    for each in (container, sharer):
        driver.create(each)
    before = why(driver, container)
    driver.reconfigure(unlimitedBurstable="numa")
    assert why(driver, container) == replace(before, tree=driver.engine.layout.tree)
    driver.handle(Reconfigured(machine=without(nodes.machine(), "15")))
    assert why(driver, container) == replace(before, tree=driver.engine.layout.tree)
    # the pools have other names now, so the table of the compared pools is dropped
    driver.handle(Reconfigured(machine=without(nodes.machine(), "8-15")))
    assert why(driver, container).kind is DecisionKind.KEPT
    assert why(driver, container).table is None


def test_who_is_moved_by_new_settings_or_hardware_hears_so() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    cpus = driver.create(container)
    driver.reconfigure(reservedResources={"cpu": f"cpuset:{cpus}"})
    now = why(driver, container)
    assert now.kind is DecisionKind.PLACED, "it has not asked for a resize"
    assert now.notes == (
        f"moved by new settings: it ran on CPUs {cpus} before: those are no longer available",
    )
    cpus = driver.cpus(container)
    driver.handle(Reconfigured(machine=without(nodes.machine(), cpus)))
    assert why(driver, container).notes == (
        f"moved by new hardware: it ran on CPUs {cpus} before: those are no longer available",
    )


def test_a_new_registration_is_no_start_of_the_daemon() -> None:
    driver = EngineDriver()
    sharer, late = nodes.container(500), nodes.container(2000)
    driver.create(sharer)
    driver.handle(Synchronized(containers=listed(driver)))
    before = why(driver, sharer)
    running = replace(late, state=ContainerState.RUNNING)
    driver.handle(Synchronized(containers=(*listed(driver), running)))
    causes = {each.cause for each in driver.decision.changes.values()}
    assert causes == {
        f"the daemon registered with the runtime again; {late.full_name} came meanwhile"
    }
    assert why(driver, sharer) == before


@pytest.mark.parametrize("milli", [5000, 9000])
def test_what_comes_after_depth_moves_nobody_who_runs(milli: int) -> None:
    """Fewer domains, quieter and roomier places are there once the others have gone."""
    spec: dict[str, Any] = {"reservedResources": {"cpu": "cpuset:0"}}
    driver = EngineDriver("package:1 numa:4 core:4 pu:1", **spec)
    sharers = [nodes.container(500, 1000) for _ in range(4)]
    others = [nodes.container(1000) for _ in range(6 if milli == 5000 else 2)]
    wide, small = nodes.container(milli), nodes.container(1000)
    for each in (*sharers, *others, wide, small):
        driver.create(each)
    for each in (*sharers, *others):
        driver.stop(each)
    fresh = EngineDriver("package:1 numa:4 core:4 pu:1", **spec)
    fresh.create(nodes.container(milli))
    own = driver.grant(wide).exclusive
    assert domains(driver, own) > domains(fresh, next(iter(fresh.runtime.cpus.values()))), "wider"
    before = {each.id: driver.grant(each) for each in (wide, small)}
    whole = driver.engine.layout.machine
    driver.handle(Synchronized(containers=listed(driver)))
    assert driver.changed() == {}
    driver.reconfigure(**spec)
    assert driver.changed() == {}
    driver.reconfigure(packing="tight", **spec)
    assert driver.changed() == {}
    driver.reconfigure(**spec)
    nobodys = driver.free() - CPUSet([0])
    driver.reconfigure(machine=without(whole, str(nobodys.first(1))))
    assert driver.changed() == {}
    driver.reconfigure(machine=whole)
    assert driver.changed() == {}
    assert {each.id: driver.grant(each) for each in (wide, small)} == before
    again = restarted(driver, **spec)
    assert again.changed() == {}
    assert {each.id: again.grant(each) for each in (wide, small)} == before


def test_a_shrink_keeps_cpus_away_from_a_strict_hint_that_came_later() -> None:
    """It is found on node 3, and its device is near node 1."""
    annotations = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
    hint = Hint(kind=HintKind.DEVICES, source="/dev/one", cpus=CPUSet(), nodes=CPUSet([1]))
    strict = replace(nodes.container(3000, annotations=annotations), hints=(hint,))
    driver = EngineDriver()
    cpus, mems = CPUSet([12, 13, 14]), CPUSet([3])
    driver.runtime.cpus[strict.id], driver.runtime.mems[strict.id] = cpus, mems
    driver.handle(Synchronized(containers=(nodes.running(strict, cpus, mems),)))
    assert driver.changed() == {}
    driver.resize(strict, nodes.resources(2000, 2000))
    assert (driver.cpus(strict), driver.mems(strict)) == ("12-13", "3")


def test_what_is_left_of_isolated_cpus_stays_its_own_though_others_would_be_enough() -> None:
    spec = "package:2 numa:1 core:3 pu:2 isolated=2-3,8"
    driver = EngineDriver(spec)
    wanted = {"prefer-isolated-cpus.resource-policy.nri.io/pod": "true"}
    own = nodes.container(3000, annotations=wanted)
    assert driver.create(own) == "2-3,8"
    driver.reconfigure(machine=without(nodes.machine(spec), "8"))
    assert driver.cpus(own) == "2-3"
    (warning,) = driver.decision.warnings
    assert warning.endswith("too few isolated CPUs are left; it has fewer now")
    driver.reconfigure(machine=nodes.machine(spec))
    assert driver.cpus(own) == "2-3,8"


def test_settings_in_force_are_kept_while_containers_have_less_than_they_ask_for() -> None:
    driver = EngineDriver("package:1 core:4 pu:1")
    large = nodes.container(4000, None, qos=QoS.BURSTABLE)
    small = nodes.container(100)
    for each in (large, small):
        driver.handle(Created(container=each, admitted=True))
    assert [driver.grant(each).shared for each in (large, small)] == [3000, 0]
    driver.reconfigure()
    assert [driver.grant(each).shared for each in (large, small)] == [3000, 0]
    assert all("keeps a part of what it had" in each for each in driver.decision.warnings)
    driver.reconfigure(machine=nodes.machine("package:1 core:6 pu:1"))
    assert [driver.grant(each).shared for each in (large, small)] == [4000, 100]


def without_memory(machine: Machine, node: int) -> Machine:
    """Return *machine* after a memory node went."""
    kept = [each for each in machine.nodes if each.id != node]
    places = [place for place, id_ in enumerate(machine.distances.nodes) if id_ != node]
    matrix = tuple(tuple(machine.distances.matrix[i][j] for j in places) for i in places)
    ids = CPUSet(each.id for each in kept)
    return replace(
        machine,
        nodes=tuple(replace(each, nearest=each.nearest & ids) for each in kept),
        distances=Distances(nodes=tuple(ids), matrix=matrix),
    )


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("dram,pmem", "1,4", "1"), ("dram", "1", "0,2-3")]
)
def test_who_loses_its_shared_part_and_memory_keeps_its_cpus_and_no_node_that_is_gone(
    kind: str, before: str, after: str
) -> None:
    gone = int(before[-1])
    whole = nodes.machine("package:2(pmem=4GiB) numa:2(memory=1GiB) core:2 pu:2")
    driver = EngineDriver(whole)
    mixed = nodes.container(1500, annotations={"memory-type.resource-policy.nri.io": kind})
    assert driver.create(mixed) == "4-7"
    assert str(driver.grant(mixed).mems) == before
    driver.reconfigure(machine=without_memory(without(whole, "1-3,5-15"), gone))
    grant = driver.grant(mixed)
    assert (str(grant.exclusive), grant.shares, str(grant.mems)) == ("4", False, after)
    assert driver.runtime.mems[mixed.id] == grant.mems


@pytest.mark.parametrize("refused", [False, True])
def test_what_a_resize_frees_is_kept_from_others_when_the_settings_change(refused: bool) -> None:
    driver = EngineDriver("package:1 core:6 pu:1", reservedResources={"cpu": "cpuset:0"})
    resized, sharer = nodes.container(3000), nodes.container(500)
    assert [driver.create(each) for each in (resized, sharer)] == ["1-3", "4-5"]
    small = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=resized.id, resources=small, certain=False))
    assert driver.cpus(resized) == "1"
    settings = nodes.settings(reservedResources={"cpu": "cpuset:5"})
    driver.handle(Reconfigured(settings=settings))
    assert (driver.cpus(resized), driver.cpus(sharer)) == ("1", "0,4"), "it still has 2-3"
    assert driver.engine.state.taken == CPUSet.parse("1-3")
    if refused:
        driver.runtime.forget(resized.id)
    driver.handle(ResizeEnded(container_id=resized.id, refused=refused))
    bookkeeping.check(driver.engine, driver.runtime)
    ended = ("1-3", "0,4") if refused else ("1", "0,2-4")
    assert (driver.cpus(resized), driver.cpus(sharer)) == ended


def test_a_resize_goes_on_when_the_machine_loses_what_it_frees() -> None:
    driver = EngineDriver("package:1 core:6 pu:1", reservedResources={"cpu": "cpuset:0"})
    resized, sharer = nodes.container(3000), nodes.container(500)
    assert [driver.create(each) for each in (resized, sharer)] == ["1-3", "4-5"]
    small = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=resized.id, resources=small, certain=False))
    machine = nodes.machine("package:1 core:6 pu:1")
    driver.handle(Reconfigured(machine=without(machine, "3")))
    assert driver.engine.state.taken == CPUSet.parse("1-2")
    driver.runtime.forget(resized.id)
    driver.handle(ResizeEnded(container_id=resized.id, refused=True))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.cpus(resized) == "1-2,4", "two of its CPUs are left, and it gets another"


def test_a_refused_resize_gives_back_what_the_settings_of_now_give() -> None:
    driver = EngineDriver("package:1 core:6 pu:1", reservedResources={"cpu": "cpuset:0"})
    resized = nodes.container(3000)
    assert driver.create(resized) == "1-3"
    small = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=resized.id, resources=small, certain=False))
    shared = nodes.settings(reservedResources={"cpu": "cpuset:0"}, preferSharedCPUs=True)
    driver.handle(Reconfigured(settings=shared))
    assert driver.engine.state.supply.free_cpus() == CPUSet.parse("1,4-5")
    driver.runtime.forget(resized.id)
    driver.handle(ResizeEnded(container_id=resized.id, refused=True))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.cpus(resized) == "1-5"
