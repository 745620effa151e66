"""Every running container finds its place again; spec placement.md §10."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Reconfigured, Stopped, Synchronized
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.restart.listed_container import in_force
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import view_of
from nri_policy.pools.capacity import Earlier
from nri_policy.workload.pod import Container, ContainerState, Resources, shares_of
from tests.support import bookkeeping, memory_maps, nodes
from tests.support.engine_driver import EngineDriver

TWO_CPUS = {
    "noderesource.dev/resources": (
        '{"containers": {"c0": {"requests": {"cpu": 2}, "limits": {"cpu": 2}}}}'
    )
}

HIDDEN = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
WHOLE = {"full-cores.resource-policy.nri.io/pod": "require"}
OWN = {**WHOLE, "prefer-shared-cpus.resource-policy.nri.io/pod": "false"}


def at(container: Container, cpus: str, mems: str = "") -> Container:
    """Return *container* as running there."""
    return nodes.running(container, CPUSet.parse(cpus), CPUSet.parse(mems))


def synchronized(*containers: Container, **spec: Any) -> EngineDriver:
    """Return a life that began with *containers* running."""
    driver = EngineDriver(**spec)
    listen(driver, *containers)
    return driver


def resized(container: Container, milli: int) -> Container:
    """Return *container* with so many milli-CPU, running where it did."""
    resources = nodes.resources(milli, milli)
    old = container.resources
    return replace(container, resources=replace(resources, cpus=old.cpus, mems=old.mems))


def listen(driver: EngineDriver, *containers: Container) -> None:
    for container in containers:
        driver.runtime.cpus[container.id] = CPUSet.parse(container.resources.cpus)
        driver.runtime.mems[container.id] = CPUSet.parse(container.resources.mems)
    driver.handle(Synchronized(containers=containers))
    for gone in driver.runtime.cpus.keys() - driver.engine.state.placed.keys():
        driver.runtime.forget(gone)
    bookkeeping.check(driver.engine, driver.runtime)


@pytest.mark.parametrize(
    ("container", "cpus", "mems", "pool"),
    [
        (nodes.container(2000), "13-14", "3", "NUMA node #3"),
        (nodes.container(5000), "3,5,8,11,15", "0-3", "root"),
        (nodes.container(1500), "12-15", "3", "NUMA node #3"),
        (nodes.container(500), "8-15", "2-3", "socket #1"),
        (nodes.container(100, 200), "1-3", "0", "NUMA node #0"),
        (nodes.best_effort(), "1-15", "0-3", "root"),
        (nodes.container(100, 200, namespace="kube-system"), "0", "0-3", "root"),
        # more than is left on the reserved CPUs
        (nodes.container(1800, namespace="kube-system"), "4-7", "1", "NUMA node #1"),
        (nodes.container(500, annotations=HIDDEN), "8,10", "2", "NUMA node #2"),
    ],
)
def test_a_cpuset_that_can_be_a_grant_is_kept(
    container: Container, cpus: str, mems: str, pool: str
) -> None:
    driver = synchronized(at(container, cpus, mems))
    assert (driver.changed(), driver.decision.warnings) == ({}, ())
    assert (driver.cpus(container), driver.pool(container)) == (cpus, pool)
    assert driver.engine.state.placed[container.id].explanation.kind is DecisionKind.KEPT


@pytest.mark.parametrize(
    ("container", "cpus", "exclusive"),
    [
        (nodes.container(3000, annotations=WHOLE), "12-15", "12-15"),
        (nodes.container(1000, annotations=WHOLE), "14-15", "14-15"),
        (nodes.container(1000, annotations={**WHOLE, **HIDDEN}), "4", "4-5"),
        (nodes.container(3000, annotations={**WHOLE, **HIDDEN}), "4,6", "4-7"),
        (nodes.container(2500, annotations=OWN), "12-15", "12-13"),
        # it came before whole cores were required
        (nodes.container(3000, annotations=WHOLE), "4-6", "4-6"),
    ],
)
def test_whole_cores_are_kept_with_all_their_threads(
    container: Container, cpus: str, exclusive: str
) -> None:
    driver = synchronized(at(container, cpus, "1" if cpus.startswith("4") else "3"))
    assert driver.changed() == {}
    assert (driver.cpus(container), str(driver.grant(container).exclusive)) == (cpus, exclusive)


def test_whole_cores_with_a_stranger_on_a_sibling_are_kept_as_they_are() -> None:
    hidden = nodes.container(1000, annotations={**WHOLE, **HIDDEN})
    driver = synchronized(at(nodes.container(1000), "5", "1"), at(hidden, "4", "1"))
    assert driver.changed() == {}
    assert str(driver.grant(hidden).exclusive) == "4"


def test_what_cannot_be_a_grant_is_placed_and_told() -> None:
    wrong = nodes.container(2000)
    nowhere = nodes.best_effort()
    reserved = nodes.container(1000)
    driver = synchronized(at(wrong, "4-6"), at(nowhere, ""), at(reserved, "0"))
    assert driver.cpus(wrong) == "4-5"
    assert driver.changed().keys() == {wrong.id, nowhere.id, reserved.id}


def test_cpus_that_two_claim_are_neithers_own() -> None:
    first, second = nodes.container(2000), nodes.container(2000)
    driver = synchronized(at(first, "4-5", "1"), at(second, "5-6", "1"))
    one, other = driver.grant(first).exclusive, driver.grant(second).exclusive
    assert one.isdisjoint(other)
    mixed = [nodes.container(1500), nodes.container(1500)]
    driver = synchronized(*(at(each, "4-7", "1") for each in mixed))
    assert len(driver.grant(mixed[0]).exclusive | driver.grant(mixed[1]).exclusive) == 2


def test_cpus_in_only_one_cpuset_become_exclusive() -> None:
    first, second = nodes.container(1500), nodes.container(1500)
    driver = synchronized(at(first, "4,6-7", "1"), at(second, "4-5,7", "1"))
    assert driver.changed() == {}
    assert [str(driver.grant(each).exclusive) for each in (first, second)] == ["6", "5"]


def test_the_rest_comes_by_size_and_class_and_age() -> None:
    """Whatever the runtime's order: the large exclusive ones find whole nodes."""
    containers = [
        nodes.best_effort(),
        nodes.container(100, 200),
        nodes.container(500),
        nodes.container(1000),
        nodes.container(3000),
        nodes.container(4000),
        nodes.container(4000),
    ]
    driver = synchronized(*(at(each, "") for each in containers))
    assert list(driver.engine.state.placed) == [
        containers[index].id for index in (5, 6, 4, 3, 2, 1, 0)
    ]
    assert [driver.cpus(containers[index]) for index in (5, 6)] == ["4-7", "8-11"]
    again = synchronized(*(at(each, "") for each in reversed(containers)))
    assert again.runtime.cpus == driver.runtime.cpus


def test_of_two_of_a_name_the_running_newest_one_exists() -> None:
    one = at(nodes.container(2000), "4-5", "1")
    newer = replace(at(one, "8-9", "2"), id="newer", created=one.created + 1)
    created = replace(newer, id="created", state=ContainerState.CREATED, created=one.created + 2)
    for order in ([one, newer, created], [created, newer, one], [newer, one, created]):
        driver = synchronized(*order)
        assert list(driver.engine.state.placed) == ["newer"]
        assert driver.cpus(newer) == "8-9"


def test_two_pods_of_one_name_both_keep_their_cpus() -> None:
    old = at(nodes.container(2000), "4-5", "1")
    new = replace(at(old, "8-9", "2"), id="new", created=old.created + 1)
    new = replace(new, pod=replace(old.pod, id="new-pod", uid="new-uid"))
    for order in ([old, new], [new, old]):
        driver = synchronized(*order)
        assert (driver.cpus(old), driver.cpus(new)) == ("4-5", "8-9")


def test_of_two_of_an_id_the_running_newest_one_exists() -> None:
    old = at(nodes.container(2000), "4-5", "1")
    new = replace(at(old, "8-9", "2"), created=old.created + 1)
    stopping = replace(new, state=ContainerState.CREATED, created=new.created + 1)
    for order in ([old, new, stopping], [stopping, new, old], [new, old, new]):
        driver = EngineDriver()
        driver.runtime.cpus[old.id], driver.runtime.mems[old.id] = CPUSet([8, 9]), CPUSet([2])
        driver.handle(Synchronized(containers=tuple(order)))
        assert list(driver.engine.state.placed) == [old.id]
        assert str(driver.grant(old).exclusive) == "8-9"
        assert driver.changed() == {}


def test_of_two_alike_the_one_that_was_placed_last_exists() -> None:
    """Older runtimes do not say when a container was created."""
    driver = EngineDriver()
    old = replace(nodes.container(2000), created=0)
    new = replace(old, id="new")
    driver.create(old)
    driver.runtime.forget(old.id)
    driver.create(new)
    for order in ([old, new], [new, old]):
        listen(driver, *(at(each, driver.cpus(new), driver.mems(new)) for each in order))
        assert list(driver.engine.state.placed) == ["new"]


def test_another_one_of_the_same_id_is_not_the_one_that_was_known() -> None:
    driver = EngineDriver()
    known, other = nodes.container(2000), nodes.container(1000)
    driver.create(known)
    namesake = replace(known, id="another")
    listen(driver, replace(other, id=known.id), namesake)
    placed = driver.engine.state.placed
    assert {each: len(placed[each].grant.exclusive) for each in placed} == {
        known.id: 1,
        "another": 2,
    }
    for each in [*placed]:
        driver.handle(Stopped(container_id=each))
    assert not driver.engine.state.placed


def listed(driver: EngineDriver, container: Container, resources: Resources) -> Container:
    """Return *container* as running where it was told, with other *resources*."""
    return at(
        replace(container, resources=resources), driver.cpus(container), driver.mems(container)
    )


def test_a_resize_that_was_missed_is_taken_in() -> None:
    driver = EngineDriver()
    grows, shrinks, other = nodes.container(1000), nodes.container(2000), nodes.container(1000)
    for each in (grows, shrinks, other):
        driver.create(each)
    before = {each.id: driver.grant(each).exclusive for each in (grows, shrinks, other)}
    listen(
        driver,
        listed(driver, grows, nodes.resources(3000, 3000)),
        listed(driver, shrinks, nodes.resources(1000, 1000)),
        listed(driver, other, other.resources),
    )
    assert len(driver.grant(grows).exclusive) == 3
    assert before[grows.id] < driver.grant(grows).exclusive
    assert len(driver.grant(shrinks).exclusive) == 1
    assert driver.grant(shrinks).exclusive < before[shrinks.id]
    assert driver.grant(other).exclusive == before[other.id]
    assert all(driver.engine.state.placed[each.id].container.resized for each in (grows, shrinks))
    assert not driver.engine.state.placed[other.id].container.resized
    assert driver.changed().keys() == {grows.id, shrinks.id}


def test_a_missed_resize_that_does_not_fit_leaves_what_there_was() -> None:
    driver = EngineDriver()
    grows, other = nodes.container(2000), nodes.container(12_000)
    for each in (grows, other):
        driver.create(each)
    before = driver.cpus(grows)
    listen(
        driver,
        listed(driver, grows, nodes.resources(9000, 9000)),
        listed(driver, other, other.resources),
    )
    assert driver.cpus(grows) == before
    (warning,) = driver.decision.warnings
    assert warning.startswith(f"{grows.full_name}: no pool has room for 9 exclusive CPUs")
    assert warning.endswith("it keeps what it had")


def test_a_limit_that_changed_is_known_without_moving_anybody() -> None:
    driver = EngineDriver()
    container = nodes.container(100, 200)
    driver.create(container)
    again = listed(driver, container, replace(container.resources, memory_limit=1 << 30))
    listen(driver, again)
    assert driver.changed() == {}
    assert driver.engine.state.placed[container.id].container.resources.memory_limit == 1 << 30


@pytest.mark.parametrize(
    "shown",
    [
        Resources(),  # the runtime does not say
        Resources(cpu_shares=shares_of(2000), cpu_quota=100_000, cpu_period=100_000),
        nodes.resources(1000, 1000),
    ],
)
def test_the_shares_that_we_have_set_are_no_resize(shown: Resources) -> None:
    """The pod's annotation asks for 2 CPUs, its specification for one."""
    container = nodes.container(1000, annotations=TWO_CPUS)
    driver = EngineDriver()
    driver.create(container)
    assert len(driver.grant(container).exclusive) == 2
    listen(driver, listed(driver, container, shown))
    assert driver.changed() == {}
    known = driver.engine.state.placed[container.id].container
    assert (known.resources, known.resized) == (container.resources, False)


@pytest.mark.parametrize("resized", [True, False])
def test_a_restart_takes_in_what_was_resized_meanwhile(*, resized: bool) -> None:
    container = nodes.container(1000, annotations=TWO_CPUS)
    before = EngineDriver()
    before.create(container)
    held = {container.id: view_of(before.engine).to_store(container.id)}
    shown = nodes.resources(3000, 3000)
    if not resized:  # with the shares that we have set
        shown = replace(container.resources, cpu_shares=shares_of(2000))
    driver = EngineDriver()
    driver.runtime.cpus.update(before.runtime.cpus)
    driver.runtime.mems.update(before.runtime.mems)
    driver.handle(Synchronized(containers=(listed(before, container, shown),), held=held))
    grant, kept = driver.grant(container), before.grant(container)
    assert len(grant.exclusive) == (3 if resized else 2)
    assert kept.exclusive <= grant.exclusive
    assert driver.engine.state.placed[container.id].container.resized is resized
    assert bool(driver.changed()) is resized


def test_what_is_odd_about_a_new_place_is_said() -> None:
    """As when the container is created: here, that its limit is out of reach."""
    large = nodes.container(1000, 15_000)
    own = nodes.container(8000)
    created = EngineDriver()
    created.create(own)
    created.create(large)
    (note,) = created.decision.warnings
    driver = synchronized(at(own, "8-15", "2-3"), at(large, ""))
    assert driver.decision.warnings == (f"{large.full_name}: {note}",)


def test_what_the_runtime_no_longer_has_is_released() -> None:
    driver = EngineDriver()
    gone, stays = nodes.container(2000), nodes.container(1000)
    shared = nodes.container(100, 200)
    for each in (gone, stays, shared):
        driver.create(each)
    assert driver.cpus(shared) == "12-15"
    other = at(nodes.container(2000), "5-6", "1")
    listen(
        driver, at(stays, driver.cpus(stays), driver.mems(stays)), at(shared, "12-15", "3"), other
    )
    state = driver.engine.state
    assert state.placed.keys() == state.sent.keys() == {stays.id, shared.id, other.id}
    assert gone.id not in state.quotas
    assert driver.changed() == {}
    assert driver.cpus(other) == "5-6"


def test_what_the_runtime_can_is_known_with_its_list_and_until_it_says_otherwise() -> None:
    driver, able = EngineDriver(), Equipment(no_partition="kernel too old")
    driver.handle(Synchronized(containers=(), equipment=able))
    assert driver.engine.state.equipment == able
    driver.handle(Synchronized(containers=()))
    assert driver.engine.state.equipment == able


@pytest.mark.parametrize("killed", [False, True])
def test_who_left_and_who_came_meanwhile_is_named(*, killed: bool) -> None:
    """The explanations of containers that became wider or narrower name them."""
    driver = EngineDriver("package:1 core:8")
    gone = [nodes.container(1000) for _ in range(5)]
    shared = nodes.best_effort()
    for each in (*gone, shared):
        driver.create(each)
    held = {each: view_of(driver.engine).to_store(each) for each in driver.engine.state.placed}
    if killed:
        driver.engine = Engine(driver.engine.layout.machine, driver.engine.layout.settings)
    came = nodes.container(2000)
    decision = driver.handle(
        Synchronized(
            containers=(at(shared, "6-7", "0"), at(came, "0-7", "0")), held=held if killed else {}
        )
    )
    cause = decision.changes[shared.id].cause
    names = sorted(each.full_name for each in gone)
    assert f"{', '.join(names[:3])} and 2 more stopped meanwhile" in cause
    assert f"; {came.full_name} came meanwhile" in cause


def test_a_cpuset_that_someone_changed_is_set_right_again() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    driver.create(container)
    listen(driver, at(container, "0-15", "0-3"))
    assert driver.changed() == {container.id: "4-5"}


def test_who_was_resized_behind_our_back_gets_what_it_asks_for_now() -> None:
    driver = EngineDriver()
    less, more = nodes.container(3000), nodes.container(1000)
    for each in (less, more):
        driver.create(each)
    before, kept = driver.grant(less).exclusive, driver.grant(more).exclusive
    listed = [at(each, driver.cpus(each), driver.mems(each)) for each in (less, more)]
    listed[0] = resized(listed[0], 1000)
    listed[1] = resized(listed[1], 2000)
    listen(driver, *listed)
    assert driver.grant(less).exclusive < before
    assert driver.grant(more).exclusive > kept
    assert driver.changed().keys() == {less.id, more.id}
    listed = [at(each, driver.cpus(each), driver.mems(each)) for each in listed]
    listen(driver, *listed)
    assert driver.changed() == {}, "it was taken in for good"
    listed[0] = resized(listed[0], 14_000)
    listen(driver, *listed)
    assert driver.changed() == {}, "it fits nowhere, and keeps its own"


def test_who_has_started_behind_our_back_begins_its_cold_start() -> None:
    machine = nodes.machine("package:1(pmem=8GiB) numa:1(memory=4GiB) core:4")
    driver = EngineDriver(memory_maps.with_nodes(machine, normal=True))
    annotations = {"cold-start.resource-policy.nri.io": "duration: 60s"}
    container = nodes.container(1000, annotations=annotations)
    driver.create(container)
    assert view_of(driver.engine).next_deadline is None
    running = at(container, driver.cpus(container), driver.mems(container))
    driver.handle(Synchronized(containers=(running,), now=100.0))
    assert view_of(driver.engine).next_deadline == 160.0


def test_a_running_container_that_fits_nowhere_shares_the_remaining_cpus() -> None:
    """If it kept its cpuset, it would run on CPUs that are exclusive to another container."""
    large, small, shared = nodes.container(12_000), nodes.container(4000), nodes.container(1500)
    listed = at(large, "1-12", "0-3"), at(small, "4-7", "1"), at(shared, "4-7", "1")
    driver = synchronized(*listed)
    (warning,) = driver.decision.warnings
    short = "no pool has room for 4 exclusive CPUs: root comes closest, 1 CPU short"
    note = f"{short}; it shares 1500m CPU now"
    assert warning == f"{small.full_name}: {note}"
    assert (driver.cpus(large), driver.cpus(small)) == ("1-12", "14-15")
    assert note in driver.engine.state.placed[small.id].explanation.notes
    assert driver.grant(shared).exclusive, "another container lost its exclusive CPUs for it"
    driver.stop(large)
    assert driver.changed().keys() == {small.id, shared.id}


def test_a_bad_annotation_of_a_running_container_is_ignored() -> None:
    bad = nodes.container(1000, annotations={"cpu.preserve.resource-policy.nri.io/pod": "maybe"})
    good = nodes.container(2000)
    driver = synchronized(at(bad, "1", "0"), at(good, "4-5", "1"))
    assert driver.changed() == {}
    assert (str(driver.grant(bad).exclusive), str(driver.grant(good).exclusive)) == ("1", "4-5")
    (warning,) = driver.decision.warnings
    note = warning.removeprefix(f"{bad.full_name}: ")
    assert note.startswith("annotation cpu.preserve")
    assert note.endswith("it is placed as if it had no annotations")
    assert note in driver.engine.state.placed[bad.id].explanation.notes
    held = {bad.id: view_of(driver.engine).to_store(bad.id)}
    driver.engine = Engine(nodes.machine(), nodes.settings())
    driver.handle(Synchronized(containers=(at(bad, "1", "0"),), held=held))
    assert str(driver.grant(bad).exclusive) == "1", "and again in the next life"
    assert driver.reconfigure().changes == {}


def test_hidden_threads_are_the_containers_again() -> None:
    hide = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
    container = nodes.container(4000, annotations=hide)
    driver = synchronized(at(container, "12,14", "3"))
    assert str(driver.grant(container).exclusive) == "12-15"
    assert driver.changed() == {}


def test_hidden_threads_are_none_below_those_that_are_shown() -> None:
    """CPU 12 was offline when it came, so 13 is the lowest of its threads on that core."""
    hide = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
    container = nodes.container(3000, annotations=hide)
    driver = synchronized(at(container, "13-14", "3"))
    assert str(driver.grant(container).exclusive) == "13-15"
    assert driver.changed() == {}


def test_preserved_cpus_are_those_that_the_runtime_lists() -> None:
    preserve = {"cpu.preserve.resource-policy.nri.io/pod": "true"}
    container = nodes.best_effort(annotations=preserve)
    driver = synchronized(at(container, "5-6", "1"))
    assert str(driver.grant(container).preserved) == "5-6"


def test_one_that_shares_the_reserved_cpus_stays_there_while_no_others_are_left() -> None:
    driver = EngineDriver()
    own, guest = nodes.container(15_000), nodes.best_effort()
    driver.create(own)
    assert driver.create(guest) == "0"
    driver = synchronized(at(own, "1-15", "0-3"), at(guest, "0", "0-3"))
    assert driver.engine.state.placed[guest.id].explanation.kind is DecisionKind.KEPT
    assert driver.changed() == {}
    assert driver.cpus(guest) == "0"
    driver.stop(own)
    assert driver.cpus(guest) == "1-15"


def test_memory_nodes_that_are_not_here_are_nobodys() -> None:
    container = nodes.container(2000)
    driver = synchronized(at(container, "13-14", "3,7"))
    assert str(driver.grant(container).mems) == "3"


def test_isolated_cpus_are_the_containers_again() -> None:
    container = nodes.container(2000)
    driver = synchronized(at(container, "4-5", "1"), machine=nodes.SMALL + " isolated=4-5")
    assert driver.grant(container).isolated
    assert driver.changed() == {}


def test_odd_cpusets_are_read_as_none() -> None:
    container = nodes.container(2000)
    odd = replace(container, resources=replace(container.resources, cpus="4-x", mems="?"))
    driver = EngineDriver()
    driver.handle(Synchronized(containers=(odd,)))
    assert driver.cpus(container) == "4-5"


def test_shared_containers_keep_what_stored_ones_do_not_need() -> None:
    """A pool without room for its sharer's request: it goes where there is some."""
    full = nodes.container(4000, 5000)
    own = nodes.container(1000)
    driver = synchronized(at(full, "5-7", "1"), at(own, "4", "1"))
    assert driver.cpus(own) == "4"
    assert driver.pool(full) != "NUMA node #1"


def test_a_guest_whose_pool_has_no_cpu_left_moves_up() -> None:
    driver = EngineDriver("package:1 numa:2 core:2")
    guest, own = nodes.best_effort(), nodes.container(2000)
    assert driver.create(guest) == "2-3"
    listen(driver, at(guest, "2-3", "1"), at(own, "2-3", "1"))
    assert driver.cpus(guest) != ""
    assert CPUSet.parse(driver.cpus(guest)).isdisjoint(driver.grant(own).exclusive)


def test_settings_that_come_before_the_containers_reserve_nothing_of_theirs() -> None:
    earlier = Earlier(reserved=CPUSet.parse("0"), exclusive=CPUSet.parse("1-3"))
    engine = Engine(nodes.machine(), nodes.settings(reservedResources={"cpu": 1}), earlier)
    engine.handle(Reconfigured(settings=nodes.settings(reservedResources={"cpu": 2})))
    reserved = engine.layout.capacity.reserved
    assert len(reserved) == 2
    assert reserved.isdisjoint(earlier.exclusive)
    engine.handle(Synchronized(containers=()))
    engine.handle(Reconfigured(settings=nodes.settings(reservedResources={"cpu": 4})))
    assert not engine.layout.capacity.reserved.isdisjoint(earlier.exclusive)


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_store_moves_nobody(seed: int) -> None:
    """Cpusets are read as what they were given for, by a daemon that knows nothing else."""
    chance, driver = random.Random(seed), EngineDriver()
    living: list[Container] = []
    for _ in range(16):
        if living and chance.random() < 0.3:
            driver.stop(living.pop(chance.randrange(len(living))))
            continue
        milli = chance.choice((1000, 1500, 2000, 3000, chance.randrange(100, 900), 0))
        new = nodes.container(milli) if milli else nodes.best_effort()
        with suppress(PlacementError):
            driver.create(new)
            living.append(new)
    places = {each.id: (driver.cpus(each), driver.mems(each)) for each in living}
    driver.engine = Engine(driver.engine.layout.machine, driver.engine.layout.settings)
    listen(driver, *(at(each, *places[each.id]) for each in living))
    assert driver.changed() == {}
    assert {each.id: (driver.cpus(each), driver.mems(each)) for each in living} == places


OLD, NEW, NEWEST = (nodes.resources(each, each) for each in (1000, 2000, 3000))
UNTOLD = replace(NEWEST, cpu_shares=0)  # cgroup v2 has weights


@pytest.mark.parametrize(
    ("listed", "known", "found", "expected"),
    [
        (OLD, None, OLD, OLD),
        (OLD, NEW, NEW, NEW),  # the list is older
        (NEW, OLD, NEW, NEW),  # what is known is older
        (OLD, OLD, NEWEST, NEWEST),  # both are
        (OLD, NEW, NEWEST, NEWEST),
        (OLD, None, NEWEST, NEWEST),  # nothing is known
        (OLD, NEW, UNTOLD, NEWEST),
        (OLD, NEW, replace(NEWEST, cpu_quota=-1), replace(NEW, cpu_shares=NEWEST.cpu_shares)),
        (OLD, NEW, replace(NEW, memory_limit=1 << 30), replace(NEW, memory_limit=1 << 30)),
        (OLD, NEW, Resources(), NEW),  # nothing can be read
    ],
)
def test_of_three_witnesses_of_a_resize_the_cgroup_counts(
    listed: Resources, known: Resources | None, found: Resources, expected: Resources
) -> None:
    container = replace(nodes.container(1000), resources=listed)
    assert in_force(container, found, known, 1000).resources == expected


def test_a_cgroup_counts_for_the_shares_of_a_burstable_container_too() -> None:
    """A kernel that has shares says what was requested, unless we have set them."""
    old, new = nodes.resources(500, None), nodes.resources(800, None)
    container = replace(nodes.container(500, 2000), resources=old)
    assert in_force(container, new, old, 500).resources == new
    assert in_force(container, new, old, 800).resources == old


def test_systemd_rounds_a_quota_and_resizes_nobody() -> None:
    asked = nodes.resources(1234, 1234)
    rounded = replace(asked, cpu_quota=124_000)
    container = replace(nodes.container(1234), resources=asked)
    assert in_force(container, rounded, None, 0).resources == asked
