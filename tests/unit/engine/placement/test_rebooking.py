"""Who is booked farther up so that another fits, and what never fails; placement.md §2, §4."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Created, Resized, ResizeEnded
from nri_policy.engine.explanation import DecisionKind
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes
from tests.support.engine_driver import EngineDriver

SPREAD = "package:2 numa:2 core:2 pu:1"
RESERVED: dict[str, Any] = {"reservedResources": {"cpu": "cpuset:0"}}


def near(node: int, milli: int, **options: Any) -> Container:
    """Return a container that must be near to a device of a NUMA node."""
    annotations = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
    hint = Hint(kind=HintKind.DEVICES, source="/dev/one", cpus=CPUSet(), nodes=CPUSet([node]))
    container = nodes.container(milli, annotations=annotations, **options)
    return replace(container, hints=(hint,))


def with_memory(container: Container, gib: int) -> Container:
    return replace(container, resources=replace(container.resources, memory_limit=gib << 30))


def sharers(driver: EngineDriver, *milli: int) -> list[Container]:
    made = [nodes.container(each) for each in milli]
    for each in made:
        driver.create(each)
    return made


def test_the_smallest_sharer_that_helps_is_re_booked_alone() -> None:
    driver = EngineDriver(SPREAD, **RESERVED)
    one, two, three, four = sharers(driver, 400, 300, 200, 100)
    assert [driver.pool(each)[-1] for each in (one, two, three, four)] == ["1", "2", "3", "0"]
    large = nodes.container(4000)
    driver.create(large)
    assert len(driver.grant(large).exclusive) == 4
    moved = [each for each in (one, two, three, four) if "socket" in driver.pool(each)]
    assert len(moved) == 1
    notes = driver.engine.state.placed[moved[0].id].explanation.notes
    assert notes[-1].endswith(f"{large.full_name} had no room otherwise")
    placed = driver.engine.state.placed[large.id].explanation
    assert placed.kind is DecisionKind.MADE_ROOM
    assert placed.notes == (f"it has room because {moved[0].full_name} moved to a wider pool",)


def test_as_many_as_it_takes_are_re_booked_and_no_more() -> None:
    driver = EngineDriver(SPREAD, **RESERVED)
    made = sharers(driver, 400, 300, 200, 100)
    driver.create(nodes.container(5000))
    # the two smallest, of two sockets: each shares the CPU that its neighbour keeps
    assert [driver.pool(each) for each in made] == [
        *("NUMA node #1", "NUMA node #2", "socket #1", "socket #0"),
    ]
    driver.refuse(nodes.container(2000))
    driver.create(nodes.container(1000))
    assert {driver.cpus(each) for each in made} == {str(driver.free())}


def test_static_ones_stay_and_a_refusal_moves_nobody() -> None:
    static = {"static-cpus.resource-policy.nri.io/pod": "true"}
    driver = EngineDriver("package:1 numa:2 core:2 pu:1", **RESERVED)
    for _ in range(2):
        driver.create(nodes.container(300, 300, annotations=static))
    assert "2 exclusive CPUs" in driver.refuse(nodes.container(2000))


@pytest.mark.parametrize("pinned", [True, False])
def test_who_is_re_booked_beside_the_same_free_cpus_is_told(pinned: bool) -> None:
    driver = EngineDriver("package:2 numa:1 core:4", pinCPU=pinned)
    wide = nodes.container(3000, 3500)
    driver.create(wide) if pinned else driver.handle(Created(container=wide))
    assert driver.pool(wide) == "socket #1"
    driver.handle(Created(container=near(1, 1500, limit=2000)))
    assert driver.pool(wide) == "root"
    assert (driver.cpus(wide), driver.mems(wide)) == ("1-7" if pinned else "", "0-1")
    told = driver.runtime.cpus[wide.id], driver.runtime.mems[wide.id]
    assert told == bookkeeping.due(driver.engine)[wide.id]


def test_memory_is_not_moved_with_who_is_re_booked() -> None:
    driver = EngineDriver("package:1 numa:2(memory=4GiB) core:2 pu:1", **RESERVED)
    full, other = with_memory(nodes.container(300), 3), nodes.container(300)
    driver.create(full)
    driver.create(other)
    assert (driver.pool(full), driver.mems(full)) == ("NUMA node #1", "1")
    large = with_memory(nodes.container(2000), 2)
    driver.create(large)
    assert (driver.pool(full), driver.cpus(large)) == ("socket #0", "2-3")
    # 3 of the 4 GiB on node 1 are full of pages that stay: it may use node 0, or it would be killed
    assert (driver.mems(full), driver.mems(large)) == ("0-1", "0-1")


def test_who_is_re_booked_during_a_resize_keeps_what_that_frees_until_it_is_in_force() -> None:
    driver = EngineDriver("package:1 numa:2 core:2 pu:1", **RESERVED)
    resized, other = nodes.container(1000), nodes.container(300)
    assert [driver.create(each) for each in (resized, other)] == ["2", "1"]
    small = nodes.resources(200, 200)
    driver.handle(Resized(container_id=resized.id, resources=small, certain=False))
    own = nodes.container(1000)
    driver.handle(Created(container=own))
    assert driver.pool(resized) == "socket #0"
    assert (driver.cpus(own), driver.cpus(resized), driver.cpus(other)) == ("3", "1-2", "1")
    driver.handle(ResizeEnded(container_id=resized.id))
    assert (driver.cpus(resized), driver.cpus(other)) == ("1-2", "1")
    bookkeeping.check(driver.engine, driver.runtime)


def test_nobody_is_re_booked_without_whom_it_fits() -> None:
    driver = EngineDriver("package:2 numa:1 l3:3 core:4 pu:1", alignment="numa", **RESERVED)
    made = sharers(driver, 100, 150, 200, 300, 400)
    before = [driver.pool(each) for each in made]
    assert [pool[:9] for pool in before] == ["socket #0"] * 2 + ["socket #1"] * 3
    driver.create(nodes.container(11000))
    # the smallest ones are of the other socket, and do not help
    assert [driver.pool(each) for each in made] == [
        *(*before[:2], "socket #1", "socket #1", before[4]),
    ]


def test_who_must_stay_near_its_device_is_not_moved_away_from_it() -> None:
    driver = EngineDriver("package:2 numa:1 core:4", **RESERVED)
    bound = near(0, 100)
    driver.create(bound)
    assert driver.pool(bound) == "socket #0"
    (other,) = sharers(driver, 500)
    assert driver.pool(other) == "socket #1"
    driver.create(nodes.container(6000))
    assert (driver.pool(bound), driver.pool(other)) == ("socket #0", "root")
    assert driver.runtime.cpus[bound.id] <= CPUSet.parse("1-3")


def test_a_resize_may_have_sharers_re_booked() -> None:
    driver = EngineDriver("package:1 numa:2 core:2 pu:1", **RESERVED)
    (small,) = sharers(driver, 300)
    own = nodes.container(1000)
    driver.create(own)
    (other,) = sharers(driver, 300)
    before = driver.grant(own).exclusive
    driver.resize(own, nodes.resources(2000, 2000))
    assert before < driver.grant(own).exclusive
    assert {driver.cpus(small), driver.cpus(other)} == {str(driver.free())}


@pytest.mark.parametrize("milli", [3000, 4000, 5000])
def test_a_shrink_is_refused_by_no_rule_that_came_later(milli: int) -> None:
    driver = EngineDriver("package:2 numa:2 core:2 pu:1", **RESERVED)
    wide = nodes.container(5000)
    driver.create(wide)
    before = driver.grant(wide)
    driver.reconfigure(alignment="numa", **RESERVED)
    assert driver.changed() == {}
    driver.resize(wide, nodes.resources(milli, milli))
    after = driver.grant(wide)
    assert after.exclusive <= before.exclusive
    assert len(after.exclusive) == milli // 1000
    assert (after.pool, after.mems) == (before.pool, before.mems)
    assert "within a NUMA node" in driver.refuse(Created(container=nodes.container(milli))), (
        "a newcomer has to keep to it"
    )


def test_a_reserved_container_keeps_its_strict_hint_on_other_cpus() -> None:
    """The reserved CPU is on node 0, its device beside node 3."""
    driver = EngineDriver(SPREAD, **RESERVED)
    reserved = near(3, 300, namespace="kube-system")
    assert (driver.create(reserved), driver.mems(reserved)) == ("6-7", "3")
    assert "strict hint /dev/one" in " ".join(
        driver.engine.state.placed[reserved.id].explanation.notes
    )
    driver.create(nodes.container(1000))
    text = driver.refuse(near(3, 3000, namespace="kube-system"))
    assert "strict hint /dev/one" in text


def test_what_is_short_of_a_huge_request_is_said_in_full() -> None:
    driver = EngineDriver(SPREAD, **RESERVED)
    text = driver.refuse(nodes.container(3_000_000_000))
    assert "3000000 exclusive CPUs" in text
    assert "2999993 CPUs short" in text
