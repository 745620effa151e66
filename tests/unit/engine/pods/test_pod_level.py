"""Pods with resources as a whole: who has CPUs of its own, and the pod's memory booked once (§3.2).

The containers are as real kubelets show them: `log` has the pod's 4 CPUs and memory, and asks for
none of its own; `mesh` shows by its shares that the pod has resources as a whole.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Described, Resized, Synchronized
from nri_policy.engine.restart.listed_container import in_force
from nri_policy.node import view_of
from nri_policy.workload.amounts import AmountSource, described
from nri_policy.workload.pod import Container, Resources, shares_of
from tests.support import nodes
from tests.support.engine_driver import EngineDriver
from tests.support.pod_level import CONTAINERS, MIB, manifest, said, shown

SHOP = manifest()
SHOP_AMOUNTS = Resources(
    cpu_shares=4096, cpu_quota=400_000, cpu_period=100_000, memory_limit=512 * MIB
)


def by_object() -> dict[str, Container]:
    return {name: described(each, said(SHOP)) for name, each in shown(SHOP).items()}


def asked(driver: EngineDriver, *containers: Container) -> list[tuple[int, int]]:
    """Return the exclusive CPUs and the shared milli-CPU that containers hold."""
    grants = [driver.grant(each) for each in containers]
    return [(len(each.exclusive), each.shared) for each in grants]


def booked(driver: EngineDriver) -> dict[str, int]:
    """Return the MiB booked for each container."""
    placed = driver.engine.state.placed.values()
    bookings = driver.engine.state.memory.bookings
    for each in placed:
        assert bookings[each.container.id].request.amount == each.request.memory
    return {each.container.name: each.request.memory // MIB for each in placed}


@pytest.mark.parametrize("first", [*CONTAINERS])
def test_by_its_object_each_container_has_what_it_asks_for_whoever_comes_first(first: str) -> None:
    driver, containers = EngineDriver(), by_object()
    order = [first, *(name for name in containers if name != first)]
    for name in order:
        driver.create(containers[name])
    assert asked(driver, *containers.values()) == [(0, 0), (2, 0), (0, 100)]
    for each in driver.engine.state.placed.values():
        assert each.request.steering.source is AmountSource.OBJECT


def test_a_container_that_shows_what_its_pod_is_has_another_one_s_cpus_given_back() -> None:
    driver, containers = EngineDriver(), shown(SHOP)
    log, main, mesh = containers.values()
    driver.create(log)
    driver.create(main)
    assert asked(driver, log, main) == [(4, 0), (2, 0)], "nothing shows that they are not its own"
    driver.create(mesh)
    assert asked(driver, log, main, mesh) == [(0, 0), (2, 0), (0, 100)]
    assert driver.runtime.cpus[log.id] <= driver.free(), "others may have them now"
    assert not driver.runtime.cpus[log.id] & driver.runtime.cpus[main.id]
    notes = driver.engine.state.placed[log.id].explanation.notes
    assert "placed anew: default/shop/mesh shows that its pod has resources as a whole" in notes


def test_whoever_comes_after_it_is_known_is_not_mistaken() -> None:
    driver, containers = EngineDriver(), shown(SHOP)
    log, main, mesh = containers.values()
    for each in (mesh, log, main):
        driver.create(each)
    assert asked(driver, log, main, mesh) == [(0, 0), (2, 0), (0, 100)]


def test_an_object_that_is_known_late_corrects_what_was_estimated() -> None:
    driver, containers = EngineDriver(), shown(SHOP)
    log, main, _ = containers.values()
    driver.create(main)
    driver.create(log)
    driver.handle(Described(pod_id="shop", said=said(SHOP)))
    assert asked(driver, log, main) == [(0, 0), (2, 0)]
    assert driver.runtime.cpus[log.id] <= driver.free()
    again = driver.handle(Described(pod_id="shop", said=said(SHOP)))
    assert not again.changes


def test_an_ordinary_pod_stays_where_it_is_once_its_object_is_known() -> None:
    driver = EngineDriver()
    plain = manifest({"main": CONTAINERS["main"], "side": CONTAINERS["main"]}, None)
    containers = shown(plain)
    for each in containers.values():
        driver.create(each)
    grants = [driver.grant(each) for each in containers.values()]
    decision = driver.handle(Described(pod_id="shop", said=said(plain)))
    assert not decision.changes
    assert [driver.grant(each) for each in containers.values()] == grants


def test_an_object_that_is_newer_than_the_container_is_not_what_it_has() -> None:
    """It was resized, and the kubelet has not begun with that."""
    grown = manifest(CONTAINERS | {"main": {"limits": {"cpu": 3, "memory": "128Mi"}}})
    main = described(shown(SHOP)["main"], said(grown))
    assert (main.requirements, main.pod_level) == (None, True)


def test_a_burstable_container_with_more_shares_than_its_pod_requests_nothing() -> None:
    pod = manifest({"log": {}}, {"requests": {"cpu": 1}, "limits": {"cpu": 3}})
    driver, containers = EngineDriver(), shown(pod)
    driver.create(containers["log"])
    assert asked(driver, containers["log"]) == [(0, 0)]
    assert driver.engine.state.placed["shop-log"].request.cpu_limit is None


def test_the_memory_of_a_pod_is_booked_once_whoever_comes_and_goes() -> None:
    driver, containers = EngineDriver(), by_object()
    log, main, mesh = containers.values()
    driver.create(log)
    assert booked(driver) == {"log": 512}
    driver.create(main)
    assert booked(driver) == {"log": 384, "main": 128}
    driver.create(mesh)
    assert booked(driver) == {"log": 384, "main": 128, "mesh": 0}
    driver.stop(main)
    assert booked(driver) == {"log": 512, "mesh": 0}
    driver.stop(log)
    assert booked(driver) == {"mesh": 512}
    driver.stop(mesh)
    assert booked(driver) == {}


def test_a_restart_moves_nobody_and_knows_what_was_known() -> None:
    driver, containers = EngineDriver(), by_object()
    for each in containers.values():
        driver.create(each)
    view = view_of(driver.engine)
    held = {each: view.to_store(each) for each in view.placed}
    listed = tuple(
        nodes.running(each, driver.runtime.cpus[each.id], driver.runtime.mems[each.id])
        for each in shown(SHOP).values()
    )
    after = EngineDriver()
    for each in listed:
        after.runtime.cpus[each.id] = driver.runtime.cpus[each.id]
        after.runtime.mems[each.id] = driver.runtime.mems[each.id]
    after.handle(Synchronized(containers=listed, held=held))
    assert not after.changed()
    assert asked(after, *containers.values()) == [(0, 0), (2, 0), (0, 100)]
    assert booked(after) == booked(driver)
    placed = after.engine.state.placed
    assert {each: placed[each].container.requirements for each in placed} == {
        each.id: each.requirements for each in containers.values()
    }


def test_a_resize_of_the_pod_that_nobody_heard_of_gives_nobody_cpus_of_its_own() -> None:
    driver, containers = EngineDriver(), by_object()
    for each in containers.values():
        driver.create(each)
    view = view_of(driver.engine)
    held = {each: view.to_store(each) for each in view.placed}
    listed = []
    for each in shown(SHOP).values():
        running = nodes.running(each, driver.runtime.cpus[each.id], driver.runtime.mems[each.id])
        if each.name != "main":
            milli = driver.engine.state.placed[each.id].request.milli
            found = replace(
                running.resources,
                cpu_shares=shares_of(milli),  # as we have set them
                cpu_quota=600_000,
                memory_limit=1024 * MIB,
            )
            known = replace(running, pod_level=True)
            running = in_force(known, found, each.resources, milli)
        listed.append(running)
    after = EngineDriver()
    after.handle(Synchronized(containers=tuple(listed), held=held))
    assert asked(after, *containers.values()) == [(0, 0), (2, 0), (0, 100)]
    assert booked(after) == {"main": 128, "log": 896, "mesh": 0}


def test_a_resize_of_its_memory_leaves_a_container_that_fills_its_pod_its_cpus() -> None:
    """Without the pod's object, it would look like a container without requests."""
    filled = manifest({"main": {"limits": {"cpu": 4, "memory": "128Mi"}}, "log": {}})
    driver, containers = EngineDriver(), shown(filled)
    main, log = (described(each, said(filled)) for each in containers.values())
    driver.create(main)
    driver.create(log)
    assert asked(driver, main, log) == [(4, 0), (0, 0)]
    driver.resize(main, replace(main.resources, memory_limit=256 * MIB))
    assert asked(driver, main, log) == [(4, 0), (0, 0)]
    assert booked(driver) == {"main": 256, "log": 256}


@pytest.mark.parametrize("known", [True, False])
def test_a_resize_of_the_pod_as_a_whole_gives_nobody_cpus_of_its_own(known: bool) -> None:
    driver = EngineDriver()
    log, main, mesh = (by_object() if known else shown(SHOP)).values()
    for each in (main, log, mesh):
        driver.create(each)
    quota = 600_000
    pod = Resources(
        cpu_shares=shares_of(6000), cpu_quota=quota, cpu_period=100_000, memory_limit=1024 * MIB
    )
    for each, shares in ((log, 2), (mesh, 102)):
        resized = replace(
            each.resources, cpu_shares=shares, cpu_quota=quota, memory_limit=1024 * MIB
        )
        driver.handle(Resized(container_id=each.id, resources=resized, pod=pod))
    assert asked(driver, log, main, mesh) == [(0, 0), (2, 0), (0, 100)]
    assert booked(driver) == {"main": 128, "log": 896, "mesh": 0}


@pytest.mark.parametrize("known", [True, False])
def test_the_memory_of_a_pod_that_shrinks_is_booked_once(known: bool) -> None:
    """Containers shrink before the pod: until then, the pod's new limit looks like their own."""
    driver = EngineDriver()
    log, main, mesh = (by_object() if known else shown(SHOP)).values()
    for each in (main, log, mesh):
        driver.create(each)
    for each in (log, mesh):
        less = replace(each.resources, memory_limit=256 * MIB)
        driver.handle(Resized(container_id=each.id, resources=less, pod=SHOP_AMOUNTS))
    pod = replace(SHOP_AMOUNTS, memory_limit=256 * MIB)
    driver.handle(Resized(container_id=log.pod.id, resources=pod))
    assert booked(driver) == {"main": 128, "log": 128, "mesh": 0}
    assert asked(driver, log, main, mesh) == [(0, 0), (2, 0), (0, 100)]
    driver.stop(main)
    assert booked(driver) == {"log": 256, "mesh": 0}
