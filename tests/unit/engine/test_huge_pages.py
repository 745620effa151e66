"""Huge pages: amounts of their own for each memory node, and a part of placement (§7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.event import Created, PodStopped, Resized, Synchronized
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.nrt.zones import measure, zones
from nri_policy.report.answer import answer_report
from nri_policy.workload.pod import Container, Pod
from tests.support import bookkeeping, nodes, rooms
from tests.support.engine_driver import EngineDriver

GIB, MIB = 1 << 30, 1 << 20
ONE_SIDED = "package:1 numa:2(memory=32GiB hugepages-1Gi=0,16) core:4 pu:1"
BOTH = "package:1 numa:2(memory=32GiB hugepages-1Gi=8) core:4 pu:1"
RESERVED = {"reservedResources": {"cpu": "cpuset:0"}}


def huge(count: int, milli: int = 2000, *, size: int = GIB, **options: Any) -> Container:
    """Return a container that asks for so many huge pages."""
    plain = nodes.container(milli, **options)
    asked = replace(plain.resources, memory_limit=GIB, hugepages=((size, count * size),))
    return replace(plain, resources=asked)


def with_pages(machine: Machine, *counts: int) -> Machine:
    """Return *machine* with so many huge pages of 1 GiB on its nodes."""
    pairs = zip(machine.nodes, counts, strict=True)
    return replace(
        machine, nodes=tuple(replace(node, hugepages=((GIB, count),)) for node, count in pairs)
    )


def left(driver: EngineDriver, node: int) -> str:
    """Return what the topology object says of the huge pages that a NUMA node has left."""
    layout = driver.engine.layout
    zone = zones(layout, measure(view_of(driver.engine)), {})[node]
    return next(each.available for each in zone.resources if each.name == "hugepages-1Gi")


def restarted(driver: EngineDriver, containers: Sequence[Container]) -> EngineDriver:
    """Return a new daemon on the same machine that finds *containers* and what was stored."""
    view = view_of(driver.engine)
    held = {each: view.to_store(each) for each in view.holders}
    again = EngineDriver(driver.engine.layout.machine, **RESERVED)
    listed = tuple(
        nodes.running(each, *view.sent[each.id], driver.runtime.quotas.get(each.id))
        for each in containers
    )
    again.handle(Synchronized(containers=listed, held=held))
    assert not again.decision.changes
    again.runtime.cpus, again.runtime.mems = driver.runtime.cpus.copy(), driver.runtime.mems.copy()
    bookkeeping.check(again.engine, again.runtime)
    return again


def test_containers_run_where_their_huge_pages_are_or_have_these_nodes_too() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    first, second, third = (huge(4) for _ in range(3))
    assert (driver.create(first), driver.mems(first)) == ("4-5", "1")
    assert (driver.create(second), driver.mems(second)) == ("6-7", "1")
    assert (driver.create(third), driver.mems(third)) == ("1-2", "0-1"), "CPUs are on node 0 alone"
    assert not driver.decision.warnings
    plain = nodes.container(1000)
    driver.create(plain)
    assert driver.mems(plain) == "0", "who asks for none has its memory as ever"


def test_a_container_larger_than_the_pages_of_a_node_gets_several() -> None:
    driver = EngineDriver(BOTH, **RESERVED)
    large = huge(12)
    driver.create(large)
    assert driver.mems(large) == "0-1"
    driver.stop(large)
    first, second, third = huge(6), huge(6), huge(2, 1000, qos=QoS.BURSTABLE)
    assert {driver.create(each) and driver.mems(each) for each in (first, second)} == {"0", "1"}
    driver.create(third)
    assert not driver.decision.warnings


def test_a_nearer_node_without_free_pages_is_no_part_of_the_zone() -> None:
    driver = EngineDriver(
        "package:2 numa:2(memory=8GiB hugepages-1Gi=0,0,0,4) core:2 pu:1", alignment="none"
    )
    driver.create(nodes.container(2000))
    large = huge(4, 5000)
    driver.create(large)
    assert "3" in driver.mems(large)
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    sharer = huge(2, 500, qos=QoS.BURSTABLE)
    driver.create(sharer)
    assert CPUSet.parse("1") <= CPUSet.parse(driver.mems(sharer))


def test_where_the_books_have_too_few_it_may_use_all_nodes_with_pages_and_is_told() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    driver.create(huge(14, 1000))
    late = huge(4, 1000)
    driver.create(late)
    assert "1" in driver.mems(late)
    (warning,) = driver.decision.warnings
    assert warning.startswith("4 × 1Gi huge pages are not free by the books")
    other_size = huge(4, 1000, size=2 * MIB)
    driver.create(other_size)
    (warning,) = driver.decision.warnings
    assert warning.startswith("4 × 2Mi huge pages")


def test_with_alignment_a_container_that_cannot_be_beside_its_pages_is_refused() -> None:
    spec = {"reservedResources": {"cpu": "cpuset:4"}, "alignment": "numa"}
    driver = EngineDriver(ONE_SIDED, **spec)
    first = huge(4)
    assert (driver.create(first), driver.mems(first)) == ("5-6", "1")
    assert driver.refuse(huge(4)) == (
        "no pool within a NUMA node has room for 1 GiB of memory and 4 × 1Gi huge pages beside the"
        " CPUs that it has left"
    )
    assert driver.refuse(huge(13, 1000)) == "13 × 1Gi huge pages do not fit: nodes 1 have 12 left"
    with pytest.raises(PlacementError) as refusal:
        driver.handle(Created(container=huge(13, 1000)))
    assert (refusal.value.lack, refusal.value.available) == (Lack.HUGE_PAGES, 12 * GIB)
    assert driver.refuse(huge(1, 1000, size=2 * MIB)) == (
        "1 × 2Mi huge pages do not fit: the node has none"
    )


def test_what_is_left_is_published_and_comes_back() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    assert (left(driver, 0), left(driver, 1)) == ("0", str(16 * GIB))
    container = huge(4)
    driver.create(container)
    assert (left(driver, 0), left(driver, 1)) == ("0", str(12 * GIB))
    driver.stop(container)
    assert left(driver, 1) == str(16 * GIB)


def test_the_explanation_says_which_pages_it_has_and_where() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    container, plain = huge(4), nodes.container(1000)
    for each in (container, plain):
        driver.create(each)
    view = view_of(driver.engine)
    answers = [answer_report(view, view.placed[each.id]) for each in (container, plain)]
    assert [each.huge_pages for each in answers] == ["4 × 1Gi on node 1", None]


def test_nobody_is_widened_off_its_huge_pages() -> None:
    driver = EngineDriver("package:1 numa:2(memory=8GiB hugepages-1Gi=4) core:4 pu:1", **RESERVED)
    own = huge(2, 500, qos=QoS.BURSTABLE)
    own = replace(own, resources=replace(own.resources, memory_limit=3 * GIB))
    driver.create(own)
    before = driver.mems(own)
    large = nodes.container(2000)
    large = replace(large, resources=replace(large.resources, memory_limit=4 * GIB))
    driver.create(large)
    assert driver.mems(own) == before


def test_a_restart_finds_the_pages_booked_as_they_were() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    containers = [huge(6, 1000), huge(6, 1000), huge(6, 1000)]  # the last one has too few
    for each in containers:
        driver.create(each)
    again = restarted(driver, containers)
    assert [again.grant(each) for each in containers] == [driver.grant(each) for each in containers]
    assert left(again, 1) == left(driver, 1) == "0"
    again.stop(containers[0])
    assert left(again, 1) == str(4 * GIB), "what was missing is booked first"


def test_pages_that_are_set_aside_later_count_from_then_on() -> None:
    driver = EngineDriver(with_pages(nodes.machine(ONE_SIDED), 0, 4), **RESERVED)
    first = huge(4, 1000)
    driver.create(first)
    driver.reconfigure(machine=with_pages(nodes.machine(ONE_SIDED), 8, 4))
    assert driver.mems(first) == "1"
    second = huge(4, 1000)
    driver.create(second)
    assert driver.mems(second) == "0"


def in_room(pod: Pod, name: str, count: int, milli: int) -> Container:
    """Return a container of a pod that has its CPUs as one."""
    plain = rooms.tenant(pod, name, milli)
    asked = replace(plain.resources, hugepages=((GIB, count * GIB),))
    return replace(plain, resources=asked)


def test_a_room_is_where_its_first_containers_huge_pages_are_and_each_books_its_own() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    pod = rooms.pod(2000)
    main, helper = in_room(pod, "main", 4, 1000), in_room(pod, "helper", 2, 500)
    driver.create(main)
    assert driver.mems(main) == "1"
    assert left(driver, 1) == str(12 * GIB)
    driver.create(helper)
    assert (driver.mems(helper), left(driver, 1)) == ("1", str(10 * GIB))
    driver.stop(helper)
    assert left(driver, 1) == str(12 * GIB)
    driver.runtime.forget(main.id)
    driver.handle(PodStopped(pod_id=pod.id))
    assert left(driver, 1) == str(16 * GIB)


def test_a_rooms_memory_stays_booked_when_its_first_container_has_huge_pages() -> None:
    driver, pod = EngineDriver(ONE_SIDED, **RESERVED), rooms.pod(2000, memory=GIB)
    main = in_room(pod, "main", 4, 1000)
    driver.create(main)
    bookings = driver.engine.state.memory.bookings
    booked = {each: (of.request.amount, of.request.hugepages) for each, of in bookings.items()}
    assert booked == {pod.id: (GIB, ()), main.id: (0, ((GIB, 4 * GIB),))}
    assert left(driver, 1) == str(12 * GIB)


def test_a_containers_zone_has_its_huge_pages_beside_the_memory_of_its_room() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    whole = nodes.container(4000)  # all CPUs of node 1
    driver.create(whole)
    pod = rooms.pod(2000, memory=GIB)
    plain, huge_one = in_room(pod, "plain", 0, 500), in_room(pod, "huge", 4, 1000)
    driver.create(plain)
    driver.create(huge_one)
    assert (driver.mems(plain), driver.mems(huge_one)) == ("0", "0-1")
    assert left(driver, 1) == str(12 * GIB)
    again = restarted(driver, [whole, plain, huge_one])
    assert [again.grant(each) for each in (plain, huge_one)] == [
        driver.grant(each) for each in (plain, huge_one)
    ]
    booked = driver.engine.state.memory.bookings[huge_one.id]
    assert again.engine.state.memory.bookings[huge_one.id] == booked
    assert left(again, 1) == left(driver, 1)
    driver.handle(Resized(container_id=pod.id, resources=nodes.resources(3000, 3000)))
    assert (driver.mems(huge_one), left(driver, 1)) == ("0-1", str(12 * GIB)), "pages do not move"


def test_a_container_in_a_room_is_told_that_the_books_have_too_few_huge_pages() -> None:
    driver = EngineDriver(ONE_SIDED, **RESERVED)
    pod = rooms.pod(2000)
    first, second = in_room(pod, "first", 14, 1000), in_room(pod, "second", 4, 500)
    driver.create(first)
    driver.create(second)
    assert driver.mems(second) == "1"
    (warning,) = driver.decision.warnings
    assert warning.startswith("4 × 1Gi huge pages are not free by the books")


def test_a_sharer_that_moves_up_keeps_its_huge_pages_where_they_are() -> None:
    driver = EngineDriver(BOTH, **RESERVED)
    sharer = huge(2, 500, qos=QoS.BURSTABLE)
    sharer = replace(sharer, resources=replace(sharer.resources, memory_limit=0))
    driver.create(sharer)
    zone = driver.mems(sharer)
    state = driver.engine.state
    untouched = state.memory.snapshot()
    state.memory.rehome(sharer.id, driver.engine.layout.tree.top.id)
    assert str(state.memory.bookings[sharer.id].zone) == zone
    state.memory.restore(untouched)
    driver.stop(sharer)
    assert [left(driver, node) for node in (0, 1)] == [str(8 * GIB)] * 2
