"""A container that has stopped, and keeps its grant: its cgroup is still a kernel partition."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.event import (
    Created,
    PodStopped,
    Reconfigured,
    Resized,
    Started,
    Stopped,
    Synchronized,
)
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes, rooms
from tests.support.engine_driver import EngineDriver


def stopped() -> tuple[EngineDriver, Container]:
    driver, container = EngineDriver(), nodes.container(2000)
    driver.create(container)
    driver.handle(Stopped(container_id=container.id, keeps=True))
    return driver, container


def test_it_keeps_its_cpus_whatever_comes_until_it_stops_for_good() -> None:
    driver, container = stopped()
    own = driver.grant(container).exclusive
    assert own
    for event in (
        PodStopped(pod_id=container.pod.id),
        Synchronized(containers=()),
        Resized(container_id=container.id, resources=nodes.resources(1000, 1000)),
        Started(container_id=container.id, now=1.0),
        Stopped(container_id=container.id, keeps=True),
    ):
        assert not driver.handle(event).changes
        assert driver.grant(container).exclusive == own
    driver.stop(container)
    assert own <= driver.free()
    assert not driver.engine.state.placed


def test_its_successor_gets_other_cpus_and_stays_when_it_goes() -> None:
    driver, container = stopped()
    successor = replace(container, id="successor")
    driver.handle(Created(container=successor, admitted=True))
    assert not driver.grant(successor).exclusive & driver.grant(container).exclusive
    driver.stop(container)
    assert driver.engine.state.find(successor.identity) == successor.id


def test_one_that_is_listed_has_not_stopped() -> None:
    driver, container = stopped()
    cpus, mems = driver.runtime.cpus[container.id], driver.runtime.mems[container.id]
    driver.handle(Synchronized(containers=(nodes.running(container, cpus, mems),)))
    assert driver.engine.state.find(container.identity) == container.id
    driver.handle(Synchronized(containers=()))
    assert not driver.engine.state.placed


def test_its_pod_keeps_the_room_that_its_cpus_are_of() -> None:
    driver, whole = EngineDriver(), rooms.pod(4000)
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    driver.create(main)
    driver.create(log)
    own = driver.grant(main).exclusive
    driver.handle(Stopped(container_id=main.id, keeps=True))
    driver.runtime.forget(log.id)
    for event in (PodStopped(pod_id=whole.id), Synchronized(containers=())):
        driver.handle(event)
        assert driver.engine.state.rooms[whole.id].grant.exclusive >= own
    driver.runtime.forget(main.id)
    driver.handle(Stopped(container_id=main.id))
    driver.handle(PodStopped(pod_id=whole.id))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.engine.state.snapshot().supply == nodes.engine().state.snapshot().supply


def test_new_settings_leave_it_where_it_is() -> None:
    driver, container = stopped()
    own = driver.grant(container).exclusive
    driver.reconfigure(preferSharedCPUs=True)
    assert driver.grant(container).exclusive == own
    other = nodes.container(2000)
    driver.create(other)
    assert not driver.runtime.cpus[other.id] & own
    refusal = driver.refuse(
        Reconfigured(settings=nodes.settings(reservedResources={"cpu": f"cpuset:{own}"}))
    )
    assert refusal.startswith(f"{container.full_name}: CPUs {own} cannot be taken from it while")


def test_new_hardware_leaves_it_the_cpus_that_are_left() -> None:
    driver, container = stopped()
    own = driver.grant(container).exclusive
    lost = CPUSet([own.lowest])
    for gone in lost, own:
        left = nodes.machine().online - gone
        driver.reconfigure(machine=rooms.with_cpus(nodes.machine(), left))
        assert driver.grant(container).exclusive == own - gone
        driver.reconfigure(preferSharedCPUs=True)
        assert driver.grant(container).exclusive == own - gone
    driver.reconfigure(machine=nodes.machine())
    assert not driver.grant(container).exclusive
    (note,) = driver.engine.state.placed[container.id].explanation.notes
    assert note.startswith("moved by new hardware")
    driver.stop(container)
    assert own <= driver.free()


def test_one_that_lost_cpus_before_it_stopped_gets_none_back() -> None:
    machine = nodes.machine("core:4")
    driver, container = EngineDriver(machine), nodes.container(3000)
    assert driver.create(container) == "1-3"
    driver.reconfigure(machine=rooms.with_cpus(machine, CPUSet([0, 1, 2])))
    driver.handle(Stopped(container_id=container.id, keeps=True))
    driver.reconfigure(machine=machine)
    assert str(driver.grant(container).exclusive) == "1-2"


def test_new_settings_leave_the_room_where_it_is_a_slice_of() -> None:
    driver, whole = EngineDriver(), rooms.pod(4000)
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    driver.create(main)
    driver.create(log)
    own = driver.grant(main).exclusive
    room = driver.engine.state.rooms[whole.id].grant.exclusive
    driver.handle(Stopped(container_id=main.id, keeps=True))
    driver.reconfigure(preferSharedCPUs=True)
    assert driver.engine.state.rooms[whole.id].grant.exclusive == room
    assert driver.grant(main).exclusive == own
    lost = CPUSet([own.lowest])
    left = nodes.machine().online - lost
    driver.reconfigure(machine=rooms.with_cpus(nodes.machine(), left))
    assert driver.engine.state.rooms[whole.id].grant.exclusive >= room - lost
    assert driver.grant(main).exclusive == own - lost
