"""Small sharers move up so that exclusive CPUs lie on one package; placement.md §2."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import (
    Created,
    Reconfigured,
    Resized,
    ResizeEnded,
    Stopped,
    Synchronized,
)
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Moved
from nri_policy.engine.placement.making_way import find_last_relocations
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.store.encoding import decode_grant, encode
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Sort
from tests.support import bookkeeping, nodes
from tests.support.engine_driver import EngineDriver

NEAR = Hint(kind=HintKind.DEVICES, source="/dev/one", cpus=CPUSet(), nodes=CPUSet([1]))
TWO = "package:2 numa:1 core:4 pu:1"  # sockets of CPUs 0-3 and 4-7
RESERVED: dict[str, Any] = {"reservedResources": {"cpu": "cpuset:0"}}


def sharers(driver: EngineDriver, *milli: int, **options: Any) -> list[Container]:
    made = [nodes.container(each, **options) for each in milli]
    for each in made:
        driver.create(each)
    return made


def notes(driver: EngineDriver, container: Container) -> tuple[str, ...]:
    return driver.engine.state.placed[container.id].explanation.notes


def test_a_sharer_moves_up_so_that_exclusive_cpus_lie_on_one_package() -> None:
    driver = EngineDriver(TWO, **RESERVED)
    far, near = sharers(driver, 100, 200)
    assert (driver.pool(far), driver.pool(near)) == ("socket #1", "socket #0")
    large = nodes.container(4000)
    assert driver.create(large) == "4-7"
    assert (driver.pool(far), driver.cpus(far), driver.mems(far)) == ("root", "1-3", "0-1")
    assert driver.pool(near) == "socket #0"
    assert notes(driver, far) == (
        f"moved from socket #1 to root: {large.full_name} needs CPUs close together",
    )
    assert notes(driver, large) == (
        f"its CPUs are closer together because {far.full_name} moved to a wider pool",
    )
    causes = {each: change.cause for each, change in driver.decision.changes.items()}
    assert causes == {far.id: f"{notes(driver, far)[0]}; its memory was on nodes 1 before"}


def test_nobody_moves_where_that_is_switched_off_or_cpus_are_not_pinned() -> None:
    for spec in ({"makeWay": {"movers": 0}}, {"pinCPU": False}):
        driver = EngineDriver(TWO, **RESERVED, **spec)
        for each in (nodes.container(100), nodes.container(4000)):
            driver.handle(Created(container=each))
        assert [placed.grant.pool for placed in driver.engine.state.placed.values()] == [1, 2]


def test_more_than_are_allowed_stay_and_the_explanation_says_so() -> None:
    driver = EngineDriver("package:2 numa:1 core:6 pu:1", makeWay={"movers": 1}, **RESERVED)
    made = sharers(driver, 100, 100, 100, 100)
    large = nodes.container(6000)
    driver.create(large)
    assert all("socket" in driver.pool(each) for each in made)
    assert notes(driver, large) == ("one socket would do if 2 containers moved; 1 is the limit",)


def moved(**spec: Any) -> tuple[EngineDriver, Container, Container]:
    """Return a node on which a small container has moved up for a large one, and the two."""
    driver = EngineDriver(TWO, **RESERVED, **spec)
    (small,) = sharers(driver, 100)
    large = nodes.container(4000)
    driver.create(large)
    assert (driver.pool(small), driver.cpus(large)) == ("root", "4-7")
    return driver, small, large


def test_a_sharer_that_moved_up_is_narrowed_at_its_own_resize_be_it_to_the_same_amount() -> None:
    driver, small, large = moved()
    driver.stop(large)
    driver.create(again := nodes.container(4000))
    driver.stop(again)
    assert driver.pool(small) == "root"
    assert driver.resize(small, small.resources) == "4-7"
    assert (driver.grant(small).home, driver.grant(small).returned) == (None, False)


def test_who_has_moved_goes_back_once_and_only_once() -> None:
    driver, small, large = moved()
    assert driver.grant(small).home == 1
    driver.stop(large)
    assert (driver.pool(small), driver.cpus(small)) == ("socket #1", "4-7")
    assert notes(driver, small)[-1] == "back on socket #1"
    assert driver.decision.moved == (Moved(container_id=small.id, before=2, after=1),)
    again = nodes.container(4000)
    driver.create(again)
    assert driver.pool(small) == "root"
    driver.stop(again)
    assert driver.pool(small) == "root", "a job that comes each minute must not move it each minute"
    driver.resize(small, nodes.resources(200, 200))
    assert (driver.grant(small).home, driver.grant(small).returned) == (None, False)


def test_its_own_amount_on_the_wide_pool_keeps_no_sharer_from_going_back() -> None:
    driver = EngineDriver(TWO, **RESERVED)
    small, near = sharers(driver, 1900, 2000, qos=QoS.BURSTABLE)
    assert (driver.pool(small), driver.pool(near)) == ("socket #1", "socket #0")
    driver.create(large := nodes.container(3000))
    assert driver.pool(small) == "root"
    driver.resize(large, nodes.resources(2000, 2000))
    assert driver.pool(small) == "socket #1"


def test_a_resize_that_frees_cpus_brings_one_back_once_it_is_in_force() -> None:
    for certain in (True, False):
        driver, small, large = moved()
        resources = nodes.resources(2000, 2000)
        resized = Resized(container_id=large.id, resources=resources, certain=certain)
        driver.handle(resized)
        assert (driver.pool(small) == "root") is not certain
        if not certain:
            driver.handle(ResizeEnded(container_id=large.id))
        assert driver.pool(small) == "socket #1"
        bookkeeping.check(driver.engine, driver.runtime)


def test_the_oldest_that_fits_comes_back_and_one_an_event() -> None:
    driver = EngineDriver("package:2 numa:1 core:6 pu:1", **RESERVED)
    made = sharers(driver, 700, 300, 700, 300)
    (near,) = [each for each in made if driver.pool(each) == "socket #0"][:1]
    large = nodes.container(6000)
    driver.create(large)
    away = [each for each in made if driver.pool(each) == "root"]
    assert len(away) == 2
    assert near not in away
    driver.stop(large)
    assert [driver.pool(each) for each in away] == ["socket #1", "root"]
    driver.stop(near)
    assert [driver.pool(each) for each in away] == ["socket #1", "socket #1"]


def test_a_restart_recalls_the_home_unless_it_is_gone_or_elsewhere() -> None:
    driver, small, large = moved()
    view = view_of(driver.engine)
    held = {each: decode_grant(encode(view.to_store(each))) for each in view.placed}
    assert held[small.id].home == "socket #1"
    running = tuple(
        nodes.running(each, driver.runtime.cpus[each.id], driver.runtime.mems[each.id])
        for each in (small, large)
    )
    for pool, home, expected in (
        ("root", "socket #1", "socket #1"),
        ("root", "die #7/0", "root"),
        ("socket #0", "socket #1", "socket #0"),
    ):
        held[small.id] = replace(held[small.id], pool=pool, home=home)
        other = EngineDriver(TWO, **RESERVED)
        other.runtime.cpus, other.runtime.mems = driver.runtime.cpus, driver.runtime.mems
        other.handle(Synchronized(containers=running, held=held))
        other.handle(Stopped(container_id=large.id))
        assert other.pool(small) == expected


def test_a_resize_keeps_its_cpus_rather_than_to_take_others_elsewhere() -> None:
    driver = EngineDriver(TWO, **RESERVED)
    grows = nodes.container(2000)
    assert driver.create(grows) == "4-5"
    small = replace(nodes.container(100), hints=(NEAR,))
    driver.create(small)
    assert driver.pool(small) == "socket #1"
    assert driver.resize(grows, nodes.resources(4000, 4000)) == "4-7"
    assert driver.pool(small) == "root"
    assert driver.decision.explanation is not None
    assert driver.decision.explanation.kind is DecisionKind.RESIZED


def test_exempt_ones_stay_and_the_newcomer_is_wide() -> None:
    strict = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
    static = {"static-cpus.resource-policy.nri.io/pod": "true"}
    for exempt in (strict, static):
        driver = EngineDriver(TWO, **RESERVED)
        stays = replace(nodes.container(100, annotations=exempt), hints=(NEAR,))
        driver.create(stays)
        assert driver.pool(stays) == "socket #1"
        large = nodes.container(4000)
        driver.create(large)
        assert driver.pool(stays) == "socket #1"
        assert driver.grant(large).exclusive != CPUSet.parse("4-7")


def test_a_newcomer_keeps_its_own_strict_hints() -> None:
    """Beside node 0 it fits with fewer CPUs only: nobody moves off node 1 for it."""
    driver = EngineDriver("package:2 numa:2 core:2 pu:1", **RESERVED)
    sharers(driver, 100, 100, 100, 100)
    annotations = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
    hint = Hint(kind=HintKind.DEVICES, source="/dev/one", cpus=CPUSet(), nodes=CPUSet([2, 3]))
    large = replace(nodes.container(2000, annotations=annotations), hints=(hint,))
    driver.create(large)
    assert driver.cpus(large) in {"4-5", "6-7"}
    assert len(driver.decision.moved) == 1


def test_a_preemptible_container_makes_way_by_its_own_rule_after_the_movers() -> None:
    driver = EngineDriver(TWO, **RESERVED)
    (small,) = sharers(driver, 100)
    for _ in range(2):
        driver.create(nodes.best_effort())
    large = nodes.container(4000)
    assert driver.create(large) == "4-7"
    assert driver.grant(small).home is not None
    preempted = [
        placed for placed in driver.engine.state.placed.values() if placed.grant.preemptible
    ]
    assert all(placed.grant.home is None for placed in preempted)


def annotated(**options: str) -> dict[str, str]:
    return {
        f"{key.replace('_', '-')}.resource-policy.nri.io/pod": text for key, text in options.items()
    }


def test_strictly_hinted_ones_stay_in_the_last_resort_too() -> None:
    """It fits with both at the top alone: so it is refused, and nobody moves."""
    driver = EngineDriver("package:2 numa:1 core:4 pu:1")
    strict = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
    bound = replace(nodes.container(100, annotations=strict), hints=(NEAR,))
    driver.create(bound)
    (free,) = sharers(driver, 200)
    assert (driver.pool(bound), driver.pool(free)) == ("socket #1", "socket #0")
    driver.create(nodes.container(2000))
    driver.refuse(nodes.container(5000))
    assert (driver.pool(bound), driver.pool(free)) == ("socket #1", "socket #0")


def test_the_last_resort_tries_no_move_twice() -> None:
    driver = EngineDriver(TWO)
    far, _ = sharers(driver, 100, 200)
    request, _ = driver.engine.layout.requests.read(nodes.container(4000))
    found = find_last_relocations(driver.engine.state, request)
    assert [each.movers for each in found] == [(far.id,)]


@pytest.mark.parametrize("packing", ["spread", "tight"])
def test_the_smallest_that_suffices_moves_whatever_the_packing(packing: str) -> None:
    driver = EngineDriver(TWO, packing=packing, **RESERVED)
    far, near, more = sharers(driver, 300, 200, 100)
    large = nodes.container(4000)
    assert driver.create(large) == "4-7"
    assert {driver.pool(each) for each in (far, near, more)} == {"socket #0", "root"}
    assert all(driver.cpus(each) == "1-3" for each in (far, near, more))


def test_alignment_keeps_the_newcomer_in_a_node_and_a_sharer_moves_inside_it() -> None:
    driver = EngineDriver("package:1 numa:2 l3:2 core:4 pu:1", alignment="numa", **RESERVED)
    made = sharers(driver, 100, 100, 100, 100)
    assert len({driver.pool(each) for each in made}) == 4
    four = nodes.container(4000)
    driver.create(four)
    (moved,) = driver.decision.moved
    assert driver.engine.layout.tree.pools[moved.after].name == "NUMA node #0"
    assert driver.engine.layout.picker.domains.touched(driver.grant(four).exclusive) == (1, 1, 1)


def test_a_mover_keeps_the_kind_of_memory_that_it_has() -> None:
    driver = EngineDriver("package:2(hbm=8GiB cxl=64GiB) numa:1(memory=16GiB) core:4", **RESERVED)
    hbm = annotated(memory_type="hbm")
    far, near = sharers(driver, 100, 200, annotations=hbm)
    assert (driver.pool(far), driver.mems(far)) == ("socket #1", "3")
    large = nodes.container(4000, annotations=annotated(memory_type="pmem"))
    assert driver.create(large) == "4-7"
    assert (driver.pool(far), driver.mems(far), driver.mems(large)) == ("root", "2-3", "1,5")
    driver.stop(large)
    assert (driver.pool(far), driver.mems(far)) == ("socket #1", "2-3")
    assert driver.pool(near) == "socket #0"


FAST_FIRST = "package:1 numa:1 l3:2 core:4 pu:1 base=2GHz base@0-3=3GHz"
HIGH = annotated(prefer_cpu_priority="high")


def test_a_sharer_moves_for_cpus_of_the_wanted_priority_on_one_package() -> None:
    driver = EngineDriver(FAST_FIRST, **RESERVED)
    made = sharers(driver, 200, 100)
    assert [driver.pool(each) for each in made] == [
        "socket #0/L3 cache #1",
        "socket #0/L3 cache #0",
    ]
    assert driver.create(nodes.container(3000, annotations=HIGH)) == "1-3"
    assert [driver.pool(each) for each in made] == ["socket #0/L3 cache #1", "socket #0"]


def test_nobody_moves_to_bring_a_container_closer_on_cpus_of_another_priority() -> None:
    driver = EngineDriver(FAST_FIRST, **RESERVED)
    (small,) = sharers(driver, 200)
    (stays,) = sharers(driver, 100, annotations=annotated(static_cpus="true"))
    assert driver.create(nodes.container(1000)) == "4"
    high = nodes.container(3000, annotations=HIGH)
    assert driver.create(high) == "1-2,5"
    assert (driver.pool(small), driver.pool(stays)) == (
        "socket #0/L3 cache #1",
        "socket #0/L3 cache #0",
    )
    assert notes(driver, high) == ()


def test_whole_cores_on_one_package_are_made_way_for() -> None:
    driver = EngineDriver("package:2 numa:1 core:4 pu:2", fullCores="require", **RESERVED)
    far, near = sharers(driver, 100, 200)
    large = nodes.container(7000)
    driver.create(large)
    assert str(driver.grant(large).exclusive) == "8-15"
    assert (driver.pool(far), driver.pool(near)) == ("root", "socket #0")


def test_who_turns_reserved_has_no_home_to_go_back_to() -> None:
    driver = EngineDriver(TWO, **RESERVED)
    small, large = nodes.container(100, namespace="ops"), nodes.container(4000)
    for each in (small, large):
        driver.create(each)
    assert driver.grant(small).home == 1
    settings = nodes.settings(**RESERVED, reservedPoolNamespaces=["ops"])
    driver.handle(Reconfigured(settings=settings))
    assert (driver.grant(small).sort, driver.grant(small).home) == (Sort.RESERVED, None)
    driver.stop(large)
    assert driver.decision.moved == ()


def test_a_sharer_that_is_resized_to_exclusive_cpus_moves_others_and_not_itself() -> None:
    driver = EngineDriver(TWO, **RESERVED)
    grows, near, other = sharers(driver, 100, 700, 100)
    assert [driver.pool(each) for each in (grows, near, other)] == [
        *("socket #1", "socket #0", "socket #1"),
    ]
    assert driver.resize(grows, nodes.resources(4000, 4000)) == "4-7"
    assert [each.container_id for each in driver.decision.moved] == [other.id]
    assert driver.grant(grows).home is None


@pytest.mark.parametrize("refused", [True, False])
def test_who_is_moved_during_its_resize_is_right_however_that_ends(refused: bool) -> None:
    driver = EngineDriver(TWO, **RESERVED)
    (small,) = sharers(driver, 300)
    less = nodes.resources(200, 200)
    driver.handle(Resized(container_id=small.id, resources=less, certain=False))
    large = nodes.container(4000)
    driver.handle(Created(container=large))
    assert (driver.pool(small), driver.cpus(small), driver.cpus(large)) == ("root", "1-3", "4-7")
    if refused:  # its cpuset is uncertain, so its update is sent again
        driver.runtime.forget(small.id)
    driver.handle(ResizeEnded(container_id=small.id, refused=refused))
    bookkeeping.check(driver.engine, driver.runtime)
    assert (driver.pool(small), driver.grant(small).home) == ("root", 1)
    assert driver.grant(small).shared == (300 if refused else 200)
    driver.stop(large)
    assert driver.pool(small) == "socket #1"


def test_who_is_booked_around_a_node_leaves_as_well_where_that_empties_it() -> None:
    driver = EngineDriver("package:2 numa:2 core:2 pu:1", **RESERVED)

    def near(cpus: str, container: Container) -> Container:
        hint = replace(NEAR, nodes=CPUSet(), cpus=CPUSet.parse(cpus))
        placed = replace(container, hints=(hint,))
        driver.create(placed)
        return placed

    gone = near("2", nodes.container(1000))
    around = near("1-3", nodes.container(1200, 1300))
    driver.stop(gone)
    inside = near("3", nodes.container(700))
    near("4-5", nodes.container(2000))
    near("6", nodes.container(100, annotations=annotated(static_cpus="true")))
    assert (driver.pool(around), driver.pool(inside)) == ("socket #0", "NUMA node #1")
    assert driver.create(nodes.container(2000)) == "2-3"
    assert (driver.pool(around), driver.pool(inside)) == ("root", "root")


def test_what_could_be_closer_still_is_said_of_who_became_closer() -> None:
    driver = EngineDriver("package:1 numa:2 l3:2 core:4 pu:1", makeWay={"movers": 1}, **RESERVED)
    two_each = (600, "4"), (600, "5"), (600, "12"), (600, "13")
    for milli, cpus in (4000, "8-11"), (1100, "1"), *two_each:
        near = replace(NEAR, nodes=CPUSet(), cpus=CPUSet.parse(cpus))
        driver.create(replace(nodes.container(milli), hints=(near,)))
    four = nodes.container(4000)
    driver.create(four)
    assert driver.grant(four).exclusive <= CPUSet.parse("1-7"), "one NUMA node, two caches"
    assert len(driver.decision.moved) == 1
    said = notes(driver, four)[-1]
    assert said == "one L3 cache would do if 2 containers moved; 1 is the limit"
