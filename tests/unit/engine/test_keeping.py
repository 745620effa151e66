"""Nobody who lost nothing moves, and what is left of a grant is kept; spec placement.md §10."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nri_policy.cpuset import CPUSet
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Reconfigured, Stopped, Synchronized
from nri_policy.engine.synchronization import to_store
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import Earlier
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes
from tests.support.engine_driver import Life

HALF = "package:2 core:4 pu:1"
GIB = 1 << 30


def without(machine: Machine, gone: str) -> Machine:
    """Return *machine* after CPUs went offline."""
    return machine.restricted(machine.online - CPUSet.parse(gone))


def of_memory(container: Container, gib: int) -> Container:
    return replace(container, resources=replace(container.resources, memory_limit=gib * GIB))


def restarted(life: Life, **spec: Any) -> Life:
    """Return the life of a new daemon with the store of *life*, which found what that one left."""
    state = life.engine.state
    held = {each: to_store(state, each) for each in state.placed}
    earlier = Earlier(reserved=life.engine.layout.capacity.reserved)
    again = Life(life.engine.layout.machine)
    again.engine = Engine(life.engine.layout.machine, nodes.settings(**spec), earlier)
    listed = [
        nodes.running(placed.container, life.runtime.cpus[each], life.runtime.mems[each])
        for each, placed in state.placed.items()
    ]
    for each in listed:
        again.runtime.cpus[each.id] = CPUSet.parse(each.resources.cpus)
        again.runtime.mems[each.id] = CPUSet.parse(each.resources.mems)
    again.handle(Synchronized(containers=tuple(listed), held=held))
    return again


def test_a_shared_part_that_loses_its_cpu_moves_alone() -> None:
    life = Life(HALF, reservedResources={"cpu": "cpuset:7"})
    mixed, other, own = nodes.container(1500), nodes.container(3000), nodes.container(2000)
    assert [life.create(each) for each in (mixed, other, own)] == ["0-3", "4-6", "1-2"]
    life.stop(other)
    life.reconfigure(machine=without(nodes.machine(HALF), "3"))
    assert life.cpus(own) == "1-2"
    assert str(life.grant(mixed).exclusive) == "0"
    assert (life.cpus(mixed), life.pool(mixed)) == ("0,4-6", "root")
    assert "its shared part moved from socket #0" in " ".join(life.decision.warnings)


def test_a_shared_part_without_room_anywhere_is_dropped_alone() -> None:
    life = Life(HALF, reservedResources={"cpu": "cpuset:7"})
    mixed, other, own = nodes.container(1500), nodes.container(3000), nodes.container(2000)
    assert [life.create(each) for each in (mixed, other, own)] == ["0-3", "4-6", "1-2"]
    life.reconfigure(machine=without(nodes.machine(HALF), "3"))
    assert [life.cpus(each) for each in (mixed, own, other)] == ["0", "1-2", "4-6"]
    (warning,) = life.decision.warnings
    assert warning.startswith(mixed.full_name)
    assert warning.endswith("it has fewer now")
    life.reconfigure(machine=nodes.machine(HALF))
    assert life.cpus(mixed) == "0,3", "it has it back with the CPU"


def test_what_is_left_of_two_cpus_stays_where_it_is_for_good() -> None:
    life = Life("package:2 core:2 pu:1", reservedResources={"cpu": "cpuset:3"})
    two, one = nodes.container(2000), nodes.container(1000)
    assert [life.create(each) for each in (two, one)] == ["0-1", "2"]
    whole = nodes.machine("package:2 core:2 pu:1")
    life.reconfigure(machine=without(whole, "1"))
    assert life.cpus(two) == "0"
    life.stop(one)
    life.reconfigure(machine=without(whole, "1"))
    assert (life.cpus(two), life.pool(two)) == ("0", "socket #0")
    life.reconfigure(machine=whole)
    assert life.cpus(two) == "0-1"


def test_memory_that_is_overbooked_on_one_is_nobody_elses_concern() -> None:
    """A node of 4 GiB, found with 6 of one and 1 of another: that one can still be resized."""
    life = Life("package:1 numa:1(memory=4GiB) core:8 pu:1", reservedResources={"cpu": "cpuset:0"})
    fat, other = of_memory(nodes.container(2000), 6), of_memory(nodes.container(2000), 1)
    zone = CPUSet([0])
    life.handle(
        Synchronized(
            containers=(
                nodes.running(fat, CPUSet([1, 2]), zone),
                nodes.running(other, CPUSet([3, 4]), zone),
            )
        )
    )
    for each, cpus in ((fat, "1-2"), (other, "3-4")):
        life.runtime.cpus[each.id], life.runtime.mems[each.id] = CPUSet.parse(cpus), zone
    assert life.engine.state.memory.missing == 3 * GIB
    for milli, count in ((3000, 3), (1000, 1), (2000, 2)):
        for each in (other, fat):
            resources = nodes.resources(milli, milli)
            life.resize(each, resources)
            assert len(life.grant(each).exclusive) == count
    assert life.engine.state.memory.missing == 3 * GIB
    # the settings in force are not refused for it, nor others that need no more of it
    life.reconfigure(reservedResources={"cpu": "cpuset:0"})
    assert life.changed() == {}
    life.reconfigure(reservedResources={"cpu": "cpuset:0,7"})
    more = {"cpu": "cpuset:0", "memory": "1Gi"}
    refusal = life.refuse(Reconfigured(settings=nodes.settings(reservedResources=more)))
    assert "those that run there are booked with" in refusal


def test_reserved_containers_that_are_too_many_stay_at_a_restart_pinned_or_not() -> None:
    spec: dict[str, Any] = {"pinCPU": False, "reservedResources": {"cpu": "cpuset:0"}}
    life = Life(**spec)
    full = nodes.container(15_000)  # all others, so that both stay on the reserved one
    crowd = [nodes.container(800, 900, namespace="kube-system") for _ in range(2)]
    for each in (full, *crowd):
        life.handle(Created(container=each))
    assert life.engine.state.reserved_milli == 1600
    life.runtime.forget(full.id)
    life.handle(Stopped(container_id=full.id))
    before = {each.id: life.grant(each) for each in crowd}
    again = restarted(life, **spec)
    assert {each.id: again.grant(each) for each in crowd} == before


def test_the_same_container_makes_way_after_a_restart() -> None:
    """The younger of equals; here of a runtime that does not say when they were created."""
    life = Life("package:1 numa:2(memory=4GiB) core:4")
    old, young = (of_memory(nodes.container(100), 2) for _ in range(2))
    for each in (old, young):
        life.create(replace(each, created=0))
    state = life.engine.state
    created = [state.placed[each.id].container.created for each in (old, young)]
    assert created == sorted(created)
    assert created[0] < created[1]
    again = restarted(life)
    bookings = again.engine.state.memory.bookings
    assert [bookings[each.id].request.created for each in (old, young)] == created
    bookkeeping.check(again.engine, again.runtime)
