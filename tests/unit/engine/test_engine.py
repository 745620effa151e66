"""Each event of the engine: the grant, the changes of other containers, the refusals."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Drifted,
    PodStopped,
    Reconfigured,
    Resized,
    ResizeEnded,
    Started,
    Stopped,
    Synchronized,
)
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Decision
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node.view import view_of
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Level
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.pod import Container, Resources
from tests.support import bookkeeping, memory_maps, nodes
from tests.support.engine_driver import EngineDriver

DOMAIN = "resource-policy.nri.io"


def annotated(**options: str) -> dict[str, str]:
    """Return annotations for a pod; underscores stand for hyphens."""
    return {f"{key.replace('_', '-')}.{DOMAIN}/pod": value for key, value in options.items()}


def static() -> Container:
    return nodes.best_effort(annotations=annotated(static_cpus="true"))


def life_of(*requests: int, machine: Machine | str = nodes.SMALL, **spec: Any) -> EngineDriver:
    """Return a life with Guaranteed containers of these milli-CPU."""
    driver = EngineDriver(machine, **spec)
    for request in requests:
        driver.create(nodes.container(request))
    return driver


# -- creation


def test_a_repeated_creation_gives_the_same_and_books_it_once() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    assert driver.create(container) == driver.create(container) == "4-5"
    assert driver.changed() == {}
    assert len(driver.free()) == 13


def test_a_successor_of_the_same_name_takes_its_predecessors_place() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    driver.create(container)
    driver.runtime.forget(container.id)
    successor = replace(container, id="again")
    assert driver.create(successor) == "4-5"
    assert list(driver.engine.state.placed) == ["again"]
    driver.handle(Stopped(container_id=container.id))
    assert driver.cpus(successor) == "4-5"


def test_a_pod_deleted_by_force_keeps_its_cpus_beside_its_successor_of_the_same_name() -> None:
    driver = EngineDriver()
    old = nodes.container(2000)
    driver.create(old)
    new = replace(old, id="new", pod=replace(old.pod, id="new-pod", uid="new-uid"))
    assert (driver.create(new), driver.cpus(old)) == ("8-9", "4-5")
    assert view_of(driver.engine).by_name()[old.full_name].container.id == "new"
    driver.handle(Stopped(container_id=old.id))
    assert list(driver.engine.state.placed) == ["new"]


def test_a_refused_creation_leaves_all_as_it_was() -> None:
    driver = life_of(4000, 4000)
    message = driver.refuse(nodes.container(8000))
    assert message == "no pool has room for 8 exclusive CPUs: root comes closest, 1 CPU short"


def test_a_bad_annotation_is_that_containers_error() -> None:
    driver = EngineDriver()
    bad = nodes.container(1000, annotations=annotated(hide_hyperthreads="yes"))
    with pytest.raises(AnnotationError, match=r"hide-hyperthreads\..*yes"):
        driver.handle(Created(container=bad))


def test_preserved_containers_are_left_alone() -> None:
    driver = EngineDriver()
    preserved = nodes.container(4000, annotations=annotated(**{"cpu.preserve": "true"}))
    assert driver.create(preserved) == ""
    assert driver.decision.placement is not None
    assert driver.decision.placement.shares is None
    assert driver.mems(preserved) == "0-3", "its memory is not preserved"
    assert len(driver.free()) == 15
    both = annotated(**{"cpu.preserve": "true", "memory.preserve": "true"})
    untouched = nodes.container(4000, annotations=both)
    assert (driver.create(untouched), driver.mems(untouched)) == ("", "")


def test_what_is_not_pinned_is_not_told() -> None:
    driver = EngineDriver(pinCPU=False)
    container = nodes.container(2000)
    driver.handle(Created(container=container))
    placement = driver.decision.placement
    assert placement is not None
    assert (str(placement.cpus), str(placement.mems), placement.shares) == ("", "1", None)
    driver = EngineDriver(pinMemory=False)
    driver.handle(Created(container=container))
    assert (driver.cpus(container), driver.mems(container)) == ("4-5", "")


@pytest.mark.parametrize(
    ("milli", "limit", "shares"),
    [(0, 100, 2), (100, 200, 102), (1500, None, 1536), (4000, None, 4096), (1, 100, 2)],
)
def test_shares_follow_the_milli_cpu(milli: int, limit: int | None, shares: int) -> None:
    driver = EngineDriver()
    driver.create(nodes.container(milli, limit))
    assert driver.decision.placement is not None
    assert driver.decision.placement.shares == shares


# -- making room


def test_no_guest_is_the_reason_to_place_another_worse() -> None:
    driver = EngineDriver()
    guests = [nodes.best_effort() for _ in range(4)]
    assert [driver.create(guest) for guest in guests] == ["4-7", "8-11", "12-15", "1-3"]
    four = nodes.container(4000)
    # no node has four to spare beside its guest; a socket has, but is less deep
    assert (driver.create(four), driver.pool(four)) == ("4-7", "NUMA node #1")
    assert driver.pool(guests[0]) == "socket #0"
    assert driver.changed() == {guests[0].id: "1-3"}
    # and none moves where that gains nothing
    assert driver.create(nodes.container(3000)) == "8-10"
    assert driver.changed() == {guests[1].id: "11"}
    assert driver.pool(guests[1]) == "NUMA node #2"


def test_guests_make_room_in_a_wide_pool_for_fewer_nodes() -> None:
    """Eight CPUs are in no socket: three nodes if each keeps one for its guest, else two."""
    driver = EngineDriver("package:2 numa:2 core:4")
    guests = [nodes.best_effort() for _ in range(2)]
    assert [driver.create(guest) for guest in guests] == ["4-7", "8-11"]
    assert driver.create(nodes.container(3000)) == "12-14"
    large = nodes.container(8000)
    assert (driver.create(large), driver.pool(large)) == ("4-11", "root")
    assert {driver.cpus(guest) for guest in guests} == {"1-3", "15"}


def test_guests_move_to_the_nearest_pool_above_and_hear_of_it() -> None:
    driver = EngineDriver()
    guests = [nodes.best_effort() for _ in range(4)]
    for guest in guests:
        driver.create(guest)
    assert [driver.create(nodes.container(cpus)) for cpus in (4000, 3000, 4000)] == [
        *("4-7", "8-10", "12-15"),
    ]
    assert [driver.cpus(guest) for guest in guests] == ["1-3", "11", "11", "1-3"]
    # the first node has three CPUs, and a guest; so has the socket then, none
    own = nodes.container(3000)
    assert (driver.create(own), driver.pool(own)) == ("1-3", "NUMA node #0")
    assert driver.decision.explanation is not None
    assert driver.decision.explanation.kind is DecisionKind.MADE_ROOM
    assert driver.changed() == {guests[0].id: "11", guests[3].id: "11"}
    assert [driver.pool(guest) for guest in guests] == [
        *("root", "NUMA node #2", "socket #1", "root"),
    ]


def test_a_moved_guest_keeps_its_memory_and_takes_its_explanation_along() -> None:
    driver = EngineDriver("package:1 numa:2 core:2")
    near, other = nodes.best_effort(), nodes.best_effort()
    assert (driver.create(near), driver.mems(near)) == ("2-3", "1")
    assert (driver.create(other), driver.mems(other)) == ("1", "0")
    own = nodes.container(2000)
    assert driver.create(own) == "2-3"
    assert driver.changed() == {near.id: "1"}
    assert driver.mems(near) == "0-1", "its pages stay there, new ones are beside its CPU"
    placed = driver.engine.state.placed[near.id]
    assert driver.engine.layout.tree.pools[placed.grant.pool].name == "socket #0"
    assert placed.explanation.pool == placed.grant.pool
    assert placed.explanation.notes == (
        f"moved from NUMA node #1 to socket #0: {own.full_name} took its CPUs",
    )


def test_static_containers_are_never_moved() -> None:
    driver = EngineDriver("package:1 numa:2 core:2")
    fixed = static()
    assert (driver.create(fixed), driver.pool(fixed)) == ("2-3", "NUMA node #1")
    message = driver.refuse(nodes.container(3000))
    assert message.endswith("socket #0 comes closest, 1 CPU short")
    two = nodes.container(2000)
    assert driver.create(two) == "1-2"
    assert (driver.cpus(fixed), driver.pool(fixed)) == ("3", "NUMA node #1")


def test_a_guest_without_any_sharable_cpu_runs_on_the_reserved_ones_until_one_is_free() -> None:
    driver = EngineDriver("package:1 core:4")
    guest, late = nodes.best_effort(), nodes.container(0, 1000)
    all_of_it = nodes.container(3000)
    assert driver.create(guest) == "1-3"
    assert driver.create(all_of_it) == "1-3"
    assert driver.changed() == {guest.id: "0"}
    assert driver.create(late) == "0"
    explanation = driver.decision.explanation
    assert explanation is not None
    assert explanation.kind is DecisionKind.SPILLED
    driver.resize(all_of_it, nodes.resources(2000, 2000))
    assert driver.changed() == {guest.id: "3", late.id: "3"}


def test_a_static_container_is_refused_in_plain_words_if_no_sharable_cpu_is_left() -> None:
    driver = life_of(3000, machine="package:1 core:4")
    message = driver.refuse(static())
    assert message == "no pool has room for a share of a CPU: socket #0 comes closest, 1 CPU short"


def test_where_every_cpu_is_reserved_a_refusal_says_so_and_new_settings_warn() -> None:
    every: dict[str, Any] = {"reservedResources": {"cpu": "cpuset:0-15"}}
    cause = "no CPU is left for pods: reservedResources.cpu takes 0-15"
    driver = EngineDriver(**every)
    assert driver.refuse(nodes.container(500)) == f"no room for 500m of a shared CPU: {cause}"
    assert driver.refuse(nodes.container(2000)) == f"no room for 2 exclusive CPUs: {cause}"
    driver = EngineDriver()
    assert driver.handle(Reconfigured(settings=nodes.settings(**every))).warnings == (cause,)


def test_requests_of_nothing_never_stand_in_the_way() -> None:
    """However many guests there are, and wherever, every CPU can become someone's own."""
    driver = EngineDriver()
    guests = [nodes.best_effort() for _ in range(20)]
    for guest in guests:
        driver.create(guest)
    for _ in range(15):
        driver.create(nodes.container(1000))
    assert {driver.cpus(guest) for guest in guests} == {"0"}
    driver.refuse(nodes.container(1000))


# -- reserved CPUs


def system(milli: int, **options: Any) -> Container:
    return nodes.container(milli, 10 * milli or None, namespace="kube-system", **options)


def test_reserved_containers_share_the_reserved_cpus() -> None:
    driver = EngineDriver(reservedResources={"cpu": 2})
    assert [driver.create(system(milli)) for milli in (1000, 500, 500)] == ["0-1"] * 3
    assert driver.engine.state.reserved_milli == 2000
    best_effort = nodes.best_effort(namespace="kube-system")
    assert driver.create(best_effort) == "0-1"
    assert driver.decision.warnings == ()


def test_too_many_reserved_requests_use_ordinary_cpus_with_a_warning() -> None:
    driver = EngineDriver()
    assert driver.create(system(750)) == "0"
    over = system(251)
    assert driver.create(over) == "4-7"
    warning = "asks for 251m of the reserved CPUs, which have 250m left"
    assert driver.decision.warnings == (warning,)
    assert driver.decision.explanation is not None
    assert driver.decision.explanation.notes == (warning,)
    assert driver.create(system(250)) == "0"


def test_reserved_containers_are_never_refused_for_want_of_cpus() -> None:
    driver = life_of(3000, machine="package:1 core:4")
    assert driver.create(system(1000)) == "0"
    over = system(500)
    assert driver.create(over) == "0"
    assert driver.decision.warnings == (
        "asks for 500m of the reserved CPUs, which have 0 left",
        "no other CPUs are left: it shares the reserved ones",
    )
    # who requests nothing fits however tight it is
    assert driver.create(nodes.best_effort(namespace="kube-system")) == "0"
    assert not driver.decision.warnings


def test_an_overflow_keeps_out_of_reach_of_later_exclusive_cpus() -> None:
    driver = EngineDriver("package:1 core:4")
    driver.create(system(1000))
    over = system(2001)
    assert driver.create(over) == "1-3"
    message = driver.refuse(nodes.container(1000))
    assert message == "no pool has room for 1 exclusive CPU: socket #0 comes closest, 1 CPU short"


# -- alignment and isolation


def test_alignment_refuses_what_fits_in_no_numa_node() -> None:
    driver = EngineDriver(alignment="numa")
    assert driver.create(nodes.container(4000)) == "4-7"
    message = driver.refuse(nodes.container(5000))
    assert message == (
        "no pool within a NUMA node has room for 5 exclusive CPUs:"
        " NUMA node #3 comes closest, 1 CPU short"
    )
    # only exclusive CPUs are aligned
    assert driver.create(nodes.container(6000, annotations=annotated(prefer_shared_cpus="true")))


def test_alignment_is_named_where_whole_cores_are_required_too() -> None:
    """A NUMA node has two cores, a socket four."""
    driver = EngineDriver(alignment="numa", fullCores="require")
    assert driver.refuse(nodes.container(6000)) == (
        "no pool within a NUMA node has room for 6 exclusive CPUs:"
        " NUMA node #3 comes closest, 2 CPUs short"
    )
    # 2-3 are the only idle core of node 0, which has three CPUs left
    for _ in range(3):
        assert driver.create(nodes.container(4000))
    assert driver.refuse(nodes.container(3000)) == (
        "no pool within a NUMA node has enough whole idle cores for 3 exclusive CPUs"
    )


def sized(cpus: int, memory: int) -> Container:
    """Return a Guaranteed container with a limit of *memory* GiB."""
    plain = nodes.container(1000 * cpus)
    return replace(plain, resources=replace(plain.resources, memory_limit=memory << 30))


def test_alignment_refuses_memory_that_would_not_be_beside_the_cpus() -> None:
    """A node has 4 GiB; without alignment the zone would be widened to the socket's 8."""
    assert EngineDriver().create(sized(1, 5))
    driver = EngineDriver(alignment="numa")
    message = driver.refuse(sized(1, 5))
    assert message == (
        "no pool within a NUMA node has room for 5 GiB of memory beside the CPUs that it has left"
    )
    for _ in range(4):
        assert driver.create(sized(1, 3))
    assert "3 GiB of memory beside" in driver.refuse(sized(1, 3))


def test_alignment_keeps_memory_where_it_is_when_others_come() -> None:
    """A node has 4 GiB. With alignment, the new container gets the wider zone itself."""
    for alignment, stay in (("none", False), ("numa", True)):
        driver = EngineDriver("package:2 numa:1 core:4", alignment=alignment)
        own = [sized(1, 3), sized(1, 3)]
        for each in own:
            driver.create(each)
        homes = [driver.grant(each).mems for each in own]
        shared = sized(1, 2)
        half = replace(shared.resources, cpu_shares=512, cpu_quota=50_000)
        shared = replace(shared, resources=half)
        driver.create(shared)
        assert ([driver.grant(each).mems for each in own] == homes) == stay
        assert str(driver.grant(shared).mems) == "0-1", "where others are widened, with them"


def test_alignment_is_met_by_a_machine_of_one_node() -> None:
    assert EngineDriver("package:2 core:4", alignment="numa")
    driver = EngineDriver("numa:1 package:2 core:4", alignment="numa")
    assert driver.create(nodes.container(6000))


ISOLATED = nodes.SMALL + " isolated=4-5,8"


def test_isolated_cpus_are_used_if_all_are_and_never_mixed() -> None:
    driver = EngineDriver(ISOLATED, preferIsolatedCPUs=True, reservedResources={"cpu": "cpuset:0"})
    wish = annotated(prefer_isolated_cpus="true")
    two, one = nodes.container(2000, annotations=wish), nodes.container(1000)
    assert (driver.create(two), driver.grant(two).isolated) == ("4-5", True)
    assert (driver.create(one), driver.grant(one).isolated) == ("8", True)
    ordinary = nodes.container(1000)
    assert (driver.create(ordinary), driver.grant(ordinary).isolated) == ("12", False)
    driver.stop(one)
    neither = nodes.container(2000, annotations=wish)
    assert CPUSet.parse(driver.create(neither)).isdisjoint(CPUSet.parse("4-5,8"))
    assert not driver.grant(neither).isolated


def test_of_pools_with_as_many_isolated_cpus_left_the_first_one_is_taken() -> None:
    driver = EngineDriver(nodes.SMALL + " isolated=2,6", preferIsolatedCPUs=True)
    assert driver.create(nodes.container(1000)) == "2", "node 1 has more ordinary CPUs: no matter"
    assert driver.create(nodes.container(1000)) == "6"
    ordinary = nodes.container(1000)
    assert (driver.create(ordinary), driver.pool(ordinary)) == ("8", "NUMA node #2"), "most left"


def test_isolated_and_shared_parts_are_from_one_pool() -> None:
    driver = EngineDriver(ISOLATED, preferIsolatedCPUs=True, reservedResources={"cpu": "cpuset:0"})
    mixed = nodes.container(1500)
    assert driver.create(mixed) == "4,6-7", "one of two is left: node 2 would have none"
    assert str(driver.grant(mixed).exclusive) == "4"
    assert len(driver.free()) == 12, "isolated CPUs are cut out of no shared pool"


def test_required_isolation_refuses_what_cannot_have_it() -> None:
    driver = EngineDriver(ISOLATED, reservedResources={"cpu": "cpuset:0"})
    require = annotated(require_isolated_cpus="true")
    four = nodes.container(4000, annotations=require)
    assert driver.refuse(four) == (
        "no pool has room for 4 exclusive isolated CPUs: root comes closest, 1 CPU short"
    )
    three = nodes.container(3000, annotations=require)
    assert (driver.create(three), driver.pool(three)) == ("4-5,8", "root")
    # exclusive CPUs only: there is nothing to isolate for who shares
    assert driver.create(nodes.container(500, annotations=require)) == "12-15"


def test_required_isolation_is_refused_with_the_reason_where_the_kernel_isolates_nothing() -> None:
    require = annotated(require_isolated_cpus="true")
    assert EngineDriver().refuse(nodes.container(2000, annotations=require)) == (
        "no room for 2 exclusive isolated CPUs: the kernel of this node isolates no CPUs"
    )


# -- Burstable containers


def test_an_unlimited_container_likes_the_level_that_is_set() -> None:
    driver = EngineDriver()
    for level, expected in (("system", "root"), ("package", "socket #1"), ("numa", "NUMA node #1")):
        driver = EngineDriver(unlimitedBurstable=level)
        container = nodes.container(500, None, qos=QoS.BURSTABLE)
        driver.create(container)
        assert driver.pool(container) == expected
    container = nodes.container(
        500, None, qos=QoS.BURSTABLE, annotations=annotated(unlimited_burstable="l3cache")
    )
    driver.create(container)
    assert driver.pool(container) == "NUMA node #2"


def test_a_pool_is_as_close_to_a_level_as_there_are_links_up_or_down_to_it() -> None:
    layout = EngineDriver().engine.layout
    found = {
        level: {pool.name: layout.burst_levels[level][pool.id] for pool in layout.tree.pools}
        for level in (Level.SYSTEM, Level.PACKAGE, Level.NUMA)
    }
    names = ("root", "socket #1", "NUMA node #3")
    assert [[found[level][name] for name in names] for level in found] == [
        [0, -1, -2],
        [-1, 0, -1],
        [-2, -1, 0],
    ]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(3000, "NUMA node #1"), (4000, "NUMA node #1"), (6000, "socket #1"), (11000, "root")],
)
def test_a_limit_is_met_by_the_deepest_pool_that_has_as_much(limit: int, expected: str) -> None:
    driver = EngineDriver()
    container = nodes.container(500, limit)
    driver.create(container)
    assert driver.pool(container) == expected
    assert driver.decision.warnings == ()


def test_a_little_of_a_limit_is_not_worth_another_numa_node() -> None:
    driver = EngineDriver()
    container = nodes.container(500, 5000)  # 1000m missing; across nodes it counts as 1250m missing
    driver.create(container)
    assert driver.pool(container) == "NUMA node #1"
    assert driver.decision.warnings == (
        "its CPU limit of 5 does not fit: NUMA node #1 leaves it 4 at most",
    )


def test_a_limit_that_fits_nowhere_confines_the_container_where_least_is_missing() -> None:
    driver = EngineDriver()
    container = nodes.container(500, 100_000)
    driver.create(container)
    assert driver.pool(container) == "NUMA node #1"
    assert driver.decision.warnings == (
        "its CPU limit of 100 does not fit: NUMA node #1 leaves it 4 at most",
    )
    assert driver.decision.explanation is not None
    assert driver.decision.explanation.notes == driver.decision.warnings


# -- priorities and hidden threads


HYBRID = "package:1 core:8(efficiency=4) pu:2"  # cores of two: 0-7, of one: 8-11


def test_the_wanted_priority_is_met_if_it_can_be() -> None:
    driver = EngineDriver(HYBRID, defaultCPUPriority="low", reservedResources={"cpu": "cpuset:0"})
    one = nodes.container(2000)
    assert driver.create(one) == "8-9"
    high = nodes.container(2000, annotations=annotated(prefer_cpu_priority="high"))
    assert driver.create(high) == "2-3"
    assert driver.create(nodes.container(3000)) == "4,10-11", "what there is, then the other class"


def test_a_pool_that_has_the_wanted_priority_comes_first() -> None:
    driver = EngineDriver("package:1 numa:2 core:4 base=2GHz base@0-3=3GHz")
    high = annotated(prefer_cpu_priority="high")
    assert driver.create(nodes.container(1000)) == "4", "node 1 has more left"
    assert driver.create(nodes.container(2000, annotations=high)) == "1-2"
    assert driver.create(nodes.container(2000, annotations=high)) == "5-6", "node 0 has one"
    # who shares has no class
    driver.create(nodes.container(100, 200, annotations=high))
    assert driver.decision.explanation is not None
    assert driver.decision.explanation.request is not None
    assert driver.decision.explanation.request.exclusive == 0


def test_hidden_threads_stay_booked() -> None:
    driver = EngineDriver()
    hidden = nodes.container(4000, annotations=annotated(hide_hyperthreads="true"))
    assert driver.create(hidden) == "4,6"
    assert str(driver.grant(hidden).exclusive) == "4-7"
    assert CPUSet.parse("5,7").isdisjoint(driver.free())
    shared = nodes.container(500, 600, annotations=annotated(hide_hyperthreads="true"))
    assert driver.create(shared) == "8,10"
    reserved = system(100, annotations=annotated(hide_hyperthreads="true"))
    assert driver.create(reserved) == "0"


# -- resize


def test_a_resize_grows_beside_and_shrinks_to_a_part() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    assert driver.create(container) == "4-5"
    assert driver.resize(container, nodes.resources(3000, 3000)) == "4-6"
    assert driver.resize(container, nodes.resources(1000, 1000)) == "4", "one core stays whole"
    driver.create(nodes.container(1000))
    assert driver.resize(container, nodes.resources(4000, 4000)) == "4-7"
    # its pool has too few CPUs: it moves to the pool above, and keeps its old CPUs
    assert driver.resize(container, nodes.resources(5000, 5000)) == "2,4-7"
    assert driver.pool(container) == "socket #0"


def test_a_resize_beyond_its_pool_stays_around_it_where_another_is_no_better_by_depth() -> None:
    driver = EngineDriver("package:2 numa:2 core:4 pu:1")
    container = nodes.container(3000)
    assert driver.create(container) == "4-6"
    # no node holds 5: socket #1 has more CPUs left
    assert driver.resize(container, nodes.resources(5000, 5000)) == "1,4-7"


def test_a_resize_that_fits_nowhere_leaves_everything() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    driver.create(container)
    event = Resized(container_id=container.id, resources=nodes.resources(16000, 16000))
    assert "1 CPU short" in driver.refuse(event)
    assert str(driver.grant(container).exclusive) == "4-5"
    assert driver.resize(container, nodes.resources(3000, 3000)) == "4-6"


def test_a_refused_resize_leaves_cold_starts_classes_and_earlier_resizes_as_they_were() -> None:
    machine = nodes.machine("package:1(pmem=8GiB) numa:1(memory=4GiB) core:8")
    driver = EngineDriver(
        memory_maps.with_nodes(machine, normal=True),
        schedulingClasses=[{"name": "calm", "nice": 5}],
    )
    annotations = {
        "cold-start.resource-policy.nri.io/pod": "duration: 60s",
        "scheduling-class.resource-policy.nri.io/pod": "calm",
    }
    cold, shrinks = nodes.container(2000, annotations=annotations), nodes.container(3000)
    for each in (cold, shrinks):
        driver.create(each)
        driver.handle(Started(container_id=each.id, now=0.0))
    small, large = nodes.resources(1000, 1000), nodes.resources(99_000, 99_000)
    driver.handle(Resized(container_id=shrinks.id, resources=small, certain=False))
    state = driver.engine.state

    def noted() -> tuple[dict[str, Any], ...]:
        return {**state.cold}, {**state.classes}, {**state.resizing}

    before = noted()
    assert [[*each] for each in before] == [[cold.id], [cold.id], [shrinks.id]]
    for each in (cold, shrinks):
        assert "99 exclusive CPUs" in driver.refuse(Resized(container_id=each.id, resources=large))
        assert noted() == before


def test_a_cold_start_ends_no_later_for_a_resize_that_the_runtime_refuses() -> None:
    machine = nodes.machine("package:1(pmem=8GiB) numa:1(memory=4GiB) core:8")
    driver = EngineDriver(memory_maps.with_nodes(machine, normal=True))
    annotations = {"cold-start.resource-policy.nri.io/pod": "duration: 60s"}
    container = nodes.container(2000, annotations=annotations)
    driver.create(container)
    driver.handle(Started(container_id=container.id, now=5.0))
    small = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=container.id, resources=small, certain=False))
    driver.runtime.forget(container.id)
    driver.handle(ResizeEnded(container_id=container.id, refused=True))
    assert driver.engine.state.cold == {container.id: 65.0}


def test_zeros_in_a_resize_mean_as_before() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    driver.create(container)
    assert driver.resize(container, Resources(memory_limit=1 << 30)) == "4-5"
    assert driver.changed() == {}
    assert driver.resize(container, Resources(cpu_quota=300_000)) == "4-6"
    assert driver.resize(container, Resources(cpus="12", mems="3")) == "4-6", "the cpuset is ours"
    burstable = nodes.container(500, 1000)
    driver.create(burstable)
    driver.resize(burstable, Resources(cpu_quota=-1))
    assert driver.engine.state.placed[burstable.id].request.cpu_limit is None


def test_a_resize_is_on_top_of_all_earlier_ones() -> None:
    """Also of one that changed nothing about CPUs at the time."""
    driver = EngineDriver()
    container = nodes.container(2000)
    driver.create(container)
    driver.resize(container, Resources(memory_limit=1 << 30, oom_score_adj=500))
    resources = driver.engine.state.placed[container.id].container.resources
    assert (resources.memory_limit, resources.oom_score_adj) == (1 << 30, 500)


def test_a_resize_replaces_exact_requirements() -> None:
    exact = {"noderesource.dev/resources": '{"containers": {"c0": {"requests": {"cpu": "3"}}}}'}
    driver = EngineDriver()
    container = nodes.container(2000, annotations=exact)
    assert driver.create(container) == "4-6"
    assert driver.resize(container, Resources()) == "4-6", "a resize without amounts changed it"
    assert driver.resize(container, nodes.resources(4000, 4000)) == "4-7"
    assert driver.resize(container, nodes.resources(3000, 3000)) == "4-6"
    again = nodes.container(2000, annotations=exact)
    assert driver.create(again) == "8-10"
    # a resize to the amounts that it has: from now on these count, not the annotation
    assert driver.resize(again, nodes.resources(3000, 3000)) == "8-10"
    assert driver.resize(again, Resources(memory_limit=1 << 30)) == "8-10"


def test_a_resize_from_shared_to_exclusive_and_back() -> None:
    driver = EngineDriver()
    container = nodes.container(500)
    assert driver.create(container) == "4-7"
    assert driver.resize(container, nodes.resources(1500, 1500)) == "4-7"
    assert str(driver.grant(container).exclusive) == "4"
    assert driver.resize(container, nodes.resources(2000, 2000)) == "4-5"
    assert driver.resize(container, nodes.resources(999, 999)) == "4-7"
    assert driver.decision.placement is not None
    assert driver.decision.placement.shares == 1022


def test_a_resize_within_the_pool_makes_room_before_it_moves() -> None:
    driver = EngineDriver("package:1 numa:2 core:4")
    guest = nodes.best_effort()
    container = nodes.container(3000)
    assert driver.create(container) == "4-6"
    driver.create(nodes.best_effort())  # node 0 has more left, and then a guest
    assert (driver.create(guest), driver.pool(guest)) == ("7", "NUMA node #1")
    assert driver.resize(container, nodes.resources(4000, 4000)) == "4-7"
    assert driver.changed() == {guest.id: "1-3"}


def test_a_resize_of_an_unknown_container_does_nothing() -> None:
    driver = EngineDriver()
    decision = driver.handle(Resized(container_id="who", resources=nodes.resources(1000, 1000)))
    assert decision == Decision(container_id="who")


# -- end


def test_an_unknown_end_changes_nothing() -> None:
    driver = life_of(2000)
    assert driver.handle(Stopped(container_id="who")) == Decision()
    assert driver.handle(PodStopped(pod_id="who")) == Decision()


def test_a_pods_end_ends_all_its_containers_at_once() -> None:
    driver = EngineDriver()
    first = nodes.container(1000, name="c0")
    second = nodes.container(2000, name="c1", pod=first.pod)
    guest = nodes.best_effort()
    for each in (first, second):
        driver.create(each)
    driver.create(guest)
    for each in (first, second):
        driver.runtime.forget(each.id)
    driver.handle(PodStopped(pod_id=first.pod.id))
    assert list(driver.engine.state.placed) == [guest.id]
    assert len(driver.free()) == 15


def test_only_who_is_concerned_hears_of_a_change() -> None:
    driver = EngineDriver()
    shared = [nodes.container(100, 200) for _ in range(4)]
    for each in shared:
        driver.create(each)
    top = nodes.container(100, 16000)
    assert driver.create(top) == "1-15"
    own = nodes.container(1000)
    assert driver.create(own) == "4"
    assert driver.changed() == {shared[0].id: "5-7", top.id: "1-3,5-15"}
    driver.stop(own)
    assert driver.changed() == {shared[0].id: "4-7", top.id: "1-15"}
    driver.stop(shared[0])
    assert driver.changed() == {}


# -- new settings, new hardware


def test_refused_settings_leave_the_old_ones() -> None:
    driver = life_of(4000, 4000, 4000)
    layout = driver.engine.layout
    with pytest.raises(CapacityError, match="no pool has room for 4 exclusive CPUs"):
        driver.reconfigure(reservedResources={"cpu": 5})
    assert driver.engine.layout is layout
    assert driver.create(nodes.container(3000)) == "1-3"
    with pytest.raises(CapacityError):
        driver.reconfigure(reservedResources={"cpu": 17})
    assert driver.engine.layout is layout


def test_settings_that_only_steer_new_choices_move_no_one() -> None:
    driver = EngineDriver(HYBRID)
    first, second = nodes.container(2000), nodes.container(2000)
    shared = nodes.container(500, None, qos=QoS.BURSTABLE)
    mixed = nodes.container(1500)
    for each in (first, second, shared, mixed):
        driver.create(each)
    driver.stop(first)
    held = {each.id: driver.grant(each) for each in (second, shared, mixed)}
    for spec in (
        {"unlimitedBurstable": "numa"},
        {"defaultCPUPriority": "low"},
        {"preferIsolatedCPUs": True},
    ):
        decision = driver.reconfigure(**spec)
        assert decision.changes == {}
        assert {each.id: driver.grant(each) for each in (second, shared, mixed)} == held


def test_what_is_ones_own_stays_so_even_if_it_cannot_be_read_off_the_cpuset() -> None:
    driver = EngineDriver("package:1 core:6")
    first, mixed = nodes.container(1000), nodes.container(1500)
    assert [driver.create(each) for each in (first, mixed)] == ["1", "2-5"]
    driver.stop(first)
    assert (driver.cpus(mixed), str(driver.grant(mixed).exclusive)) == ("1-5", "2")
    driver.reconfigure(unlimitedBurstable="system", defaultCPUPriority="high")
    assert str(driver.grant(mixed).exclusive) == "2"


def test_more_reserved_cpus_move_who_was_on_them_and_guests_alone() -> None:
    driver = EngineDriver()
    four, one = nodes.container(4000), nodes.container(3000)
    guest = nodes.best_effort()
    assert [driver.create(each) for each in (four, one, guest)] == ["4-7", "8-10", "12-15"]
    driver.reconfigure(reservedResources={"cpu": "cpuset:0,7"})
    # its node has too few CPUs now; it moves to another one, and the BestEffort guest there leaves
    assert driver.changed() == {four.id: "12-15", guest.id: "11"}
    assert driver.cpus(one) == "8-10"


def test_guests_whose_pool_is_used_up_by_new_settings_move_up() -> None:
    driver = EngineDriver("package:1 numa:2 core:4")
    own = nodes.container(2000)
    guest = nodes.best_effort()
    assert driver.create(own) == "4-5"
    driver.create(nodes.best_effort())
    assert (driver.create(guest), driver.pool(guest)) == ("6-7", "NUMA node #1")
    driver.reconfigure(reservedResources={"cpu": "cpuset:6-7"})
    assert (driver.cpus(guest), driver.cpus(own)) == ("0-3", "4-5")


def test_reserved_containers_move_with_the_reserved_cpus() -> None:
    driver = EngineDriver()
    one = system(500)
    driver.create(one)
    driver.reconfigure(reservedResources={"cpu": "cpuset:8-9"})
    assert driver.changed() == {one.id: "8-9"}


def test_fewer_reserved_cpus_overflow_like_a_new_request() -> None:
    driver = EngineDriver(reservedResources={"cpu": 2})
    first, second = system(1000), system(1000)
    assert [driver.create(each) for each in (first, second)] == ["0-1", "0-1"]
    driver.reconfigure(reservedResources={"cpu": 1})
    assert driver.cpus(first) == "0"
    assert CPUSet.parse(driver.cpus(second)).isdisjoint(CPUSet([0]))
    assert driver.engine.state.reserved_milli == 1000


def test_who_turns_reserved_leaves_the_ordinary_cpus_and_explain_says_why() -> None:
    driver = EngineDriver(reservedResources={"cpu": 2})
    own, shared = (nodes.container(milli, namespace="ops") for milli in (2000, 500))
    other = nodes.container(2000)
    before = [driver.create(each) for each in (own, shared, other)]
    driver.reconfigure(reservedResources={"cpu": 2}, reservedPoolNamespaces=["ops"])
    assert [driver.cpus(each) for each in (own, shared, other)] == ["0-1", before[1], before[2]]
    assert driver.engine.state.reserved_milli == 2000
    explained = driver.engine.state.placed[own.id].explanation
    assert explained.kind is DecisionKind.RESERVED
    moved = f"moved by new settings: it ran on CPUs {before[0]} before: "
    assert any(note.startswith(moved) for note in explained.notes)
    # there is no room for this one
    (why,) = driver.engine.state.placed[shared.id].explanation.notes
    assert why == "asks for 500m of the reserved CPUs, which have 0 left"
    driver.reconfigure(reservedResources={"cpu": 2})
    assert driver.engine.state.reserved_milli == 0
    assert len(driver.grant(own).exclusive) == 2
    assert [driver.cpus(each) for each in (shared, other)] == before[1:]


def test_a_changed_entitlement_moves_only_who_has_it() -> None:
    driver = EngineDriver()
    own, shared = nodes.container(2000), nodes.container(2500)
    assert [driver.create(each) for each in (own, shared)] == ["4-5", "8-11"]
    driver.reconfigure(preferSharedCPUs=True)
    assert driver.cpus(shared) == "8-11"
    assert not driver.grant(own).exclusive
    driver.reconfigure(preferSharedCPUs=False)
    assert len(driver.grant(own).exclusive) == 2
    assert driver.pool(own) == "NUMA node #1"


def offline(spec: str, cpus: str) -> Machine:
    return nodes.machine(f"{spec} offline={cpus}")


def test_who_loses_a_cpu_gets_another_and_the_rest_stay() -> None:
    driver = EngineDriver(reservedResources={"cpu": "cpuset:0"})
    first, second = nodes.container(2000), nodes.container(2000)
    guest = nodes.best_effort()
    assert [driver.create(each) for each in (first, second, guest)] == ["4-5", "8-9", "12-15"]
    decision = driver.reconfigure(machine=offline(nodes.SMALL, "5"))
    assert driver.cpus(second) == "8-9"
    assert driver.cpus(first) == "4,6"
    assert next(iter(decision.changes)) == first.id
    assert set(driver.changed()) == {first.id}
    driver.reconfigure(machine=nodes.machine())
    assert (driver.cpus(first), driver.cpus(second)) == ("4,6", "8-9")


def test_lost_hardware_cannot_be_refused() -> None:
    driver = life_of(4000, 4000, 4000, 3000)
    decision = driver.reconfigure(machine=offline(nodes.SMALL, "9,13"))
    assert len(decision.warnings) == 2
    assert all(warning.endswith("; it has fewer now") for warning in decision.warnings)
    held = sorted(str(p.grant.exclusive) for p in driver.engine.state.placed.values())
    assert held == ["1-3", "12,14-15", "4-7", "8,10-11"], "who lost a CPU keeps the others"


def test_cpus_beyond_the_new_machine_are_forgotten() -> None:
    driver = EngineDriver("package:2 core:40")
    last = nodes.container(40_000)
    assert driver.create(last) == "40-79"
    decision = driver.reconfigure(machine=offline("package:2 core:40", "40-79"))
    assert len(decision.warnings) == 1
    driver = EngineDriver("package:2 core:40")
    mixed = nodes.container(1500)
    driver.create(mixed)
    assert driver.pool(mixed) == "socket #1"
    driver.reconfigure(machine=offline("package:2 core:40", "40-79"))
    assert driver.pool(mixed) == "socket #0"


def test_repeated_settings_change_nothing() -> None:
    driver = life_of(2000, 500, 1500, 3000)
    for each in (nodes.best_effort(), nodes.container(100, 200), system(2000)):
        driver.create(each)
    assert driver.reconfigure().changes == {}
    assert driver.engine.handle(Reconfigured()).changes == {}


def test_settings_with_another_reading_of_the_machine_can_be_refused() -> None:
    driver = life_of(4000, 4000, 4000)
    before = driver.engine.layout
    with pytest.raises(CapacityError, match="no pool has room"):
        driver.handle(
            Reconfigured(
                settings=nodes.settings(reservedResources={"cpu": 5}), machine=nodes.machine()
            )
        )
    assert driver.engine.layout is before


# -- drift


def test_who_drifted_is_told_again_what_was_decided_and_nothing_else_changes() -> None:
    driver = life_of(2000, 500, 0)
    own, shared, guest = driver.engine.state.placed
    before = driver.engine.state.snapshot()
    for drifted in (own, guest):
        driver.runtime.forget(drifted)
    driver.handle(Drifted(container_ids=(own, "gone", guest)))
    assert [*driver.decision.changes] == [own, guest]
    assert {change.cause for change in driver.decision.changes.values()} == {"it had drifted"}
    assert driver.engine.state.snapshot() == before
    assert shared not in driver.changed()
    bookkeeping.check(driver.engine, driver.runtime)


# -- odd machines


@pytest.mark.parametrize(
    "spec",
    [
        "package:1 core:1",
        "package:3 numa:1 core:3",
        "package:2 numa:2(memory=4GiB,0) l3:1 core:4",
        "package:2 numa:1 core:35 pu:2",
        "package:2 numa:2 core:80 pu:2",
        "package:2 die:2 l3:2 core:3 pu:4 offline=0-5",
        "package:2 numa:1(memory=0) core:2",
    ],
)
def test_odd_machines_take_all_sorts_and_give_all_back(spec: str) -> None:
    driver = EngineDriver(spec)
    untouched = driver.engine.state.snapshot()
    containers = [
        *(nodes.container(milli) for milli in (1000, 2000, 500, 1500, 4000)),
        *(nodes.container(100, limit) for limit in (100, 3000, 10**6)),
        nodes.container(200, None, qos=QoS.BURSTABLE),
        nodes.best_effort(),
        system(500),
        static(),
    ]
    alive = []
    for container in containers:
        try:
            driver.create(container)
        except PlacementError:
            continue
        alive.append(container)
    assert any(container.pod.qos is QoS.BEST_EFFORT for container in alive)
    for container in alive:
        driver.stop(container)
    assert driver.engine.state.snapshot() == untouched


def test_4096_cpus_are_shared_out_like_sixteen() -> None:
    driver = EngineDriver(nodes.largest())
    # the emptiest domain of all that have as much left is the first: domain 0 has the reserved CPU
    assert driver.create(nodes.container(4000)) == "8-11"
    assert driver.create(nodes.container(8000)) == "16-23"
    assert driver.create(nodes.container(1000)) == "24"
    large = nodes.container(600_000)
    driver.create(large)
    assert driver.pool(large) == "root"
    guest = nodes.best_effort()
    driver.create(guest)
    most = nodes.container(3_400_000)
    driver.create(most)
    bookkeeping.check(driver.engine, driver.runtime)


def test_engines_agree_to_the_letter() -> None:
    """The same events give the same decisions, in whatever process."""
    decisions: list[list[object]] = []
    for _ in range(2):
        engine = Engine(nodes.machine(), nodes.settings())
        decisions.append([])
        for number, milli in enumerate((1000, 0, 1500, 100, 3000)):
            container = replace(nodes.container(milli), id=f"c{number}", created=number)
            container = replace(
                container, pod=replace(container.pod, id=f"p{number}", name=f"p{number}")
            )
            decision = engine.handle(Created(container=container))
            changes = [*decision.changes.items()]
            decisions[-1].append((decision.grant, decision.placement, changes))
    assert decisions[0] == decisions[1]


HUGE = 2**63 - 1  # milli-CPU: the most that an annotation may name


@pytest.mark.parametrize("milli", [3_000_000_000, 10**12, 10**15, HUGE])
def test_absurd_amounts_are_refused_and_break_nothing(milli: int) -> None:
    driver = life_of(500, 1500)
    whole = milli - milli % 1000
    for cpu in (whole, whole + 1, milli):
        text = f'{{"containers": {{"c0": {{"requests": {{"cpu": "{cpu}m"}}}}}}}}'
        exact = {"noderesource.dev/resources": text}
        own = exact | annotated(prefer_shared_cpus="false")
        for container in (
            nodes.container(1000, annotations=exact),
            nodes.container(1000, annotations=own),
            nodes.container(1000, 2000, annotations=exact),
        ):
            assert "no pool has room for" in driver.refuse(container)
        isolated = own | annotated(require_isolated_cpus="true")
        assert "isolates no CPUs" in driver.refuse(nodes.container(1000, annotations=isolated))
        reserved = nodes.container(1000, 2000, namespace="kube-system", annotations=exact)
        assert driver.create(reserved) == "0"
    limit = (
        f'{{"containers": {{"c0": {{"requests": {{"cpu": 1}}, "limits": {{"cpu": "{milli}m"}}}}}}}}'
    )
    assert driver.create(
        nodes.container(1000, 2000, annotations={"noderesource.dev/resources": limit})
    )


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (Resources(cpu_shares=2**64 - 5), f"CPU shares of {2**64 - 5}: the kernel takes 1 to 2621"),
        (Resources(cpu_shares=262_145), "CPU shares of 262145: the kernel takes 1 to 262144"),
        (Resources(cpu_period=2**64 - 7), f"CPU period of {2**64 - 7}: the kernel takes 1000 to 1"),
        (Resources(cpu_period=999), "CPU period of 999: the kernel takes 1000 to 1000000"),
        (Resources(cpu_quota=2**44), f"CPU quota of {2**44}: the kernel takes 1000 to {2**44 - 1}"),
        (Resources(cpu_quota=999), "CPU quota of 999: the kernel takes 1000 to"),
    ],
)
def test_cpu_amounts_that_no_kernel_takes_are_refused(resources: Resources, reason: str) -> None:
    driver = life_of(500)
    container = nodes.container(1000, 2000)
    cpus = driver.create(container)
    assert reason in driver.refuse(Resized(container_id=container.id, resources=resources))
    assert reason in driver.refuse(replace(nodes.container(1000), resources=resources))
    assert driver.cpus(container) == cpus
    quota = Resources(cpu_shares=262_144, cpu_quota=-5, cpu_period=1000)
    assert "no pool has room for 256 shared CPUs" in driver.refuse(
        Resized(container_id=container.id, resources=quota)
    )
    assert driver.resize(container, Resources(cpu_quota=2**44 - 1, cpu_period=1_000_000))


def test_a_refusal_says_that_sharing_needs_a_whole_cpu_if_that_is_why_more_is_short() -> None:
    driver = life_of(3000, machine="package:1 core:4")
    assert driver.refuse(nodes.container(100)) == (
        "no pool has room for 100m of a shared CPU: socket #0 comes closest, 1 CPU short"
        " (sharing needs one whole CPU)"
    )
    driver = life_of(2500, machine="package:1 core:4")
    message = driver.refuse(nodes.container(1500, 2500))
    assert "for 1500m of shared CPUs: " in message
    assert message.endswith(" short")


def test_a_container_that_runs_with_absurd_shares_asks_for_no_more_than_the_kernel_counts() -> None:
    driver = life_of(500)
    container = replace(nodes.container(1000), resources=Resources(cpu_shares=2**64 - 5))
    decision = driver.handle(Synchronized(containers=(container,), held={}, now=0.0))
    assert any("256 exclusive" in each for each in decision.warnings), decision.warnings
