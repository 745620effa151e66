"""Every running container finds its place again; spec placement.md §10."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cpuset import CPUSet
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Reconfigured, Synchronized
from nri_policy.engine.explanation import Outcome
from nri_policy.engine.placement import RefusalError
from nri_policy.node import view_of
from nri_policy.pools.capacity import Earlier
from nri_policy.workload.pod import Container, Resources, State, shares_of
from tests.support import bookkeeping, memory_maps, nodes
from tests.support.engine_driver import Life

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


def synchronized(*containers: Container, **spec: Any) -> Life:
    """Return a life that began with *containers* running."""
    life = Life(**spec)
    listen(life, *containers)
    return life


def resized(container: Container, milli: int) -> Container:
    """Return *container* with so many milli-CPU, running where it did."""
    resources = nodes.resources(milli, milli)
    old = container.resources
    return replace(container, resources=replace(resources, cpus=old.cpus, mems=old.mems))


def listen(life: Life, *containers: Container) -> None:
    for container in containers:
        life.runtime.cpus[container.id] = CPUSet.parse(container.resources.cpus)
        life.runtime.mems[container.id] = CPUSet.parse(container.resources.mems)
    life.handle(Synchronized(containers=containers))
    for gone in life.runtime.cpus.keys() - life.engine.state.placed.keys():
        life.runtime.forget(gone)
    bookkeeping.check(life.engine, life.runtime)


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
    life = synchronized(at(container, cpus, mems))
    assert life.decision == replace(life.decision, changes=(), warnings=())
    assert (life.cpus(container), life.pool(container)) == (cpus, pool)
    assert life.engine.state.placed[container.id].explanation.outcome is Outcome.KEPT


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
    life = synchronized(at(container, cpus, "1" if cpus.startswith("4") else "3"))
    assert life.changed() == {}
    assert (life.cpus(container), str(life.grant(container).exclusive)) == (cpus, exclusive)


def test_whole_cores_with_a_stranger_on_a_sibling_are_kept_as_they_are() -> None:
    hidden = nodes.container(1000, annotations={**WHOLE, **HIDDEN})
    life = synchronized(at(nodes.container(1000), "5", "1"), at(hidden, "4", "1"))
    assert life.changed() == {}
    assert str(life.grant(hidden).exclusive) == "4"


def test_what_cannot_be_a_grant_is_placed_and_told() -> None:
    wrong = nodes.container(2000)
    nowhere = nodes.best_effort()
    reserved = nodes.container(1000)
    life = synchronized(at(wrong, "4-6"), at(nowhere, ""), at(reserved, "0"))
    assert life.cpus(wrong) == "4-5"
    assert life.changed().keys() == {wrong.id, nowhere.id, reserved.id}


def test_cpus_that_two_claim_are_neithers_own() -> None:
    first, second = nodes.container(2000), nodes.container(2000)
    life = synchronized(at(first, "4-5", "1"), at(second, "5-6", "1"))
    one, other = life.grant(first).exclusive, life.grant(second).exclusive
    assert one.isdisjoint(other)
    mixed = [nodes.container(1500), nodes.container(1500)]
    life = synchronized(*(at(each, "4-7", "1") for each in mixed))
    assert len(life.grant(mixed[0]).exclusive | life.grant(mixed[1]).exclusive) == 2


def test_what_one_alone_has_is_its_own() -> None:
    first, second = nodes.container(1500), nodes.container(1500)
    life = synchronized(at(first, "4,6-7", "1"), at(second, "4-5,7", "1"))
    assert life.changed() == {}
    assert [str(life.grant(each).exclusive) for each in (first, second)] == ["6", "5"]


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
    life = synchronized(*(at(each, "") for each in containers))
    assert list(life.engine.state.placed) == [
        containers[index].id for index in (5, 6, 4, 3, 2, 1, 0)
    ]
    assert [life.cpus(containers[index]) for index in (5, 6)] == ["4-7", "8-11"]
    again = synchronized(*(at(each, "") for each in reversed(containers)))
    assert again.runtime.cpus == life.runtime.cpus


def test_of_two_of_a_name_the_running_newest_one_exists() -> None:
    one = at(nodes.container(2000), "4-5", "1")
    newer = replace(at(one, "8-9", "2"), id="newer", created=one.created + 1)
    created = replace(newer, id="created", state=State.CREATED, created=one.created + 2)
    for order in ([one, newer, created], [created, newer, one], [newer, one, created]):
        life = synchronized(*order)
        assert list(life.engine.state.placed) == ["newer"]
        assert life.cpus(newer) == "8-9"


def test_of_two_of_an_id_the_running_newest_one_exists() -> None:
    old = at(nodes.container(2000), "4-5", "1")
    new = replace(at(old, "8-9", "2"), created=old.created + 1)
    stopping = replace(new, state=State.CREATED, created=new.created + 1)
    for order in ([old, new, stopping], [stopping, new, old], [new, old, new]):
        life = Life()
        life.handle(Synchronized(containers=tuple(order)))
        assert list(life.engine.state.placed) == [old.id]
        assert str(life.grant(old).exclusive) == "8-9"
        assert life.changed() == {}


def test_of_two_alike_the_one_that_was_placed_last_exists() -> None:
    """Older runtimes do not say when a container was created."""
    life = Life()
    old = replace(nodes.container(2000), created=0)
    new = replace(old, id="new")
    life.create(old)
    life.runtime.forget(old.id)
    life.create(new)
    for order in ([old, new], [new, old]):
        listen(life, *(at(each, life.cpus(new), life.mems(new)) for each in order))
        assert list(life.engine.state.placed) == ["new"]


def listed(life: Life, container: Container, resources: Resources) -> Container:
    """Return *container* as running where it was told, with other *resources*."""
    return at(replace(container, resources=resources), life.cpus(container), life.mems(container))


def test_a_resize_that_was_missed_is_taken_in() -> None:
    life = Life()
    grows, shrinks, other = nodes.container(1000), nodes.container(2000), nodes.container(1000)
    for each in (grows, shrinks, other):
        life.create(each)
    before = {each.id: life.grant(each).exclusive for each in (grows, shrinks, other)}
    listen(
        life,
        listed(life, grows, nodes.resources(3000, 3000)),
        listed(life, shrinks, nodes.resources(1000, 1000)),
        listed(life, other, other.resources),
    )
    assert len(life.grant(grows).exclusive) == 3
    assert before[grows.id] < life.grant(grows).exclusive
    assert len(life.grant(shrinks).exclusive) == 1
    assert life.grant(shrinks).exclusive < before[shrinks.id]
    assert life.grant(other).exclusive == before[other.id]
    assert all(life.engine.state.placed[each.id].container.resized for each in (grows, shrinks))
    assert not life.engine.state.placed[other.id].container.resized
    assert life.changed().keys() == {grows.id, shrinks.id}


def test_a_missed_resize_that_does_not_fit_leaves_what_there_was() -> None:
    life = Life()
    grows, other = nodes.container(2000), nodes.container(12_000)
    for each in (grows, other):
        life.create(each)
    before = life.cpus(grows)
    listen(
        life,
        listed(life, grows, nodes.resources(9000, 9000)),
        listed(life, other, other.resources),
    )
    assert life.cpus(grows) == before
    (warning,) = life.decision.warnings
    assert warning.startswith(f"{grows.full_name}: no pool has room for 9 exclusive CPUs")
    assert warning.endswith("it keeps its own")


def test_a_limit_that_changed_is_known_without_moving_anybody() -> None:
    life = Life()
    container = nodes.container(100, 200)
    life.create(container)
    again = listed(life, container, replace(container.resources, memory_limit=1 << 30))
    listen(life, again)
    assert life.changed() == {}
    assert life.engine.state.placed[container.id].container.resources.memory_limit == 1 << 30


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
    life = Life()
    life.create(container)
    assert len(life.grant(container).exclusive) == 2
    listen(life, listed(life, container, shown))
    assert life.changed() == {}
    known = life.engine.state.placed[container.id].container
    assert (known.resources, known.resized) == (container.resources, False)


@pytest.mark.parametrize("resized", [True, False])
def test_a_restart_takes_in_what_was_resized_meanwhile(*, resized: bool) -> None:
    container = nodes.container(1000, annotations=TWO_CPUS)
    before = Life()
    before.create(container)
    held = {container.id: view_of(before.engine).to_store(container.id)}
    shown = nodes.resources(3000, 3000)
    if not resized:  # with the shares that we have set
        shown = replace(container.resources, cpu_shares=shares_of(2000))
    life = Life()
    life.handle(Synchronized(containers=(listed(before, container, shown),), held=held))
    grant, kept = life.grant(container), before.grant(container)
    assert len(grant.exclusive) == (3 if resized else 2)
    assert kept.exclusive <= grant.exclusive
    assert life.engine.state.placed[container.id].container.resized is resized
    assert bool(life.changed()) is resized


def test_what_is_odd_about_a_new_place_is_said() -> None:
    """As when the container is created: here, that its limit is out of reach."""
    large = nodes.container(1000, 15_000)
    own = nodes.container(8000)
    created = Life()
    created.create(own)
    created.create(large)
    (note,) = created.decision.warnings
    life = synchronized(at(own, "8-15", "2-3"), at(large, ""))
    assert life.decision.warnings == (f"{large.full_name}: {note}",)


def test_what_the_runtime_no_longer_has_is_released() -> None:
    life = Life()
    gone, stays = nodes.container(2000), nodes.container(1000)
    shared = nodes.container(100, 200)
    for each in (gone, stays, shared):
        life.create(each)
    assert life.cpus(shared) == "12-15"
    other = at(nodes.container(2000), "5-6", "1")
    listen(life, at(stays, life.cpus(stays), life.mems(stays)), at(shared, "12-15", "3"), other)
    assert life.engine.state.placed.keys() == {stays.id, shared.id, other.id}
    assert life.changed() == {}
    assert life.cpus(other) == "5-6"


@pytest.mark.parametrize("killed", [False, True])
def test_who_left_and_who_came_meanwhile_is_named(*, killed: bool) -> None:
    """To whoever is wider or narrower for it."""
    life = Life("package:1 core:8")
    gone = [nodes.container(1000) for _ in range(5)]
    shared = nodes.best_effort()
    for each in (*gone, shared):
        life.create(each)
    held = {each: view_of(life.engine).to_store(each) for each in life.engine.state.placed}
    if killed:
        life.engine = Engine(life.engine.layout.machine, life.engine.layout.settings)
    came = nodes.container(2000)
    decision = life.handle(
        Synchronized(
            containers=(at(shared, "6-7", "0"), at(came, "0-7", "0")), held=held if killed else {}
        )
    )
    (cause,) = {each.cause for each in decision.changes if each.container_id == shared.id}
    names = sorted(each.full_name for each in gone)
    assert f"{', '.join(names[:3])} and 2 more stopped meanwhile" in cause
    assert f"; {came.full_name} came meanwhile" in cause


def test_a_cpuset_that_someone_changed_is_set_right_again() -> None:
    life = Life()
    container = nodes.container(2000)
    life.create(container)
    listen(life, at(container, "0-15", "0-3"))
    assert life.changed() == {container.id: "4-5"}


def test_who_was_resized_behind_our_back_gets_what_it_asks_for_now() -> None:
    life = Life()
    less, more = nodes.container(3000), nodes.container(1000)
    for each in (less, more):
        life.create(each)
    before, kept = life.grant(less).exclusive, life.grant(more).exclusive
    listed = [at(each, life.cpus(each), life.mems(each)) for each in (less, more)]
    listed[0] = resized(listed[0], 1000)
    listed[1] = resized(listed[1], 2000)
    listen(life, *listed)
    assert life.grant(less).exclusive < before
    assert life.grant(more).exclusive > kept
    assert life.changed().keys() == {less.id, more.id}
    listed = [at(each, life.cpus(each), life.mems(each)) for each in listed]
    listen(life, *listed)
    assert life.changed() == {}, "it was taken in for good"
    listed[0] = resized(listed[0], 14_000)
    listen(life, *listed)
    assert life.changed() == {}, "it fits nowhere, and keeps its own"


def test_who_has_started_behind_our_back_begins_its_cold_start() -> None:
    machine = nodes.machine("package:1(pmem=8GiB) numa:1(memory=4GiB) core:4")
    life = Life(memory_maps.with_nodes(machine, normal=True))
    annotations = {"cold-start.resource-policy.nri.io": "duration: 60s"}
    container = nodes.container(1000, annotations=annotations)
    life.create(container)
    assert view_of(life.engine).next_deadline is None
    running = at(container, life.cpus(container), life.mems(container))
    life.handle(Synchronized(containers=(running,), now=100.0))
    assert view_of(life.engine).next_deadline == 160.0


def test_who_fits_nowhere_shares_what_is_left() -> None:
    """Left as it runs it would be on CPUs that are somebody else's own."""
    large, small, shared = nodes.container(12_000), nodes.container(4000), nodes.container(1500)
    listed = at(large, "1-12", "0-3"), at(small, "4-7", "1"), at(shared, "4-7", "1")
    life = synchronized(*listed)
    (warning,) = life.decision.warnings
    short = "no pool has room for 4 exclusive CPUs: root comes closest, 1 CPU short"
    note = f"{short}; it shares 1500m CPU now"
    assert warning == f"{small.full_name}: {note}"
    assert (life.cpus(large), life.cpus(small)) == ("1-12", "14-15")
    assert note in life.engine.state.placed[small.id].explanation.notes
    assert life.grant(shared).exclusive, "nobody goes without for it"
    life.stop(large)
    assert life.changed().keys() == {small.id, shared.id}


def test_a_bad_annotation_is_none_in_who_runs_already() -> None:
    bad = nodes.container(1000, annotations={"cpu.preserve.resource-policy.nri.io/pod": "maybe"})
    good = nodes.container(2000)
    life = synchronized(at(bad, "1", "0"), at(good, "4-5", "1"))
    assert life.changed() == {}
    assert (str(life.grant(bad).exclusive), str(life.grant(good).exclusive)) == ("1", "4-5")
    (warning,) = life.decision.warnings
    note = warning.removeprefix(f"{bad.full_name}: ")
    assert note.startswith("annotation cpu.preserve")
    assert note.endswith("it is placed as if it had no annotations")
    assert note in life.engine.state.placed[bad.id].explanation.notes
    held = {bad.id: view_of(life.engine).to_store(bad.id)}
    life.engine = Engine(nodes.machine(), nodes.settings())
    life.handle(Synchronized(containers=(at(bad, "1", "0"),), held=held))
    assert str(life.grant(bad).exclusive) == "1", "and again in the next life"
    assert life.reconfigure().changes == ()


def test_hidden_threads_are_the_containers_again() -> None:
    hide = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
    container = nodes.container(4000, annotations=hide)
    life = synchronized(at(container, "12,14", "3"))
    assert str(life.grant(container).exclusive) == "12-15"
    assert life.changed() == {}


def test_hidden_threads_are_none_below_those_that_are_shown() -> None:
    """CPU 12 was offline when it came, so 13 is the lowest of its threads on that core."""
    hide = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
    container = nodes.container(3000, annotations=hide)
    life = synchronized(at(container, "13-14", "3"))
    assert str(life.grant(container).exclusive) == "13-15"
    assert life.changed() == {}


def test_isolated_cpus_are_the_containers_again() -> None:
    container = nodes.container(2000)
    life = synchronized(at(container, "4-5", "1"), machine=nodes.SMALL + " isolated=4-5")
    assert life.grant(container).isolated
    assert life.changed() == {}


def test_odd_cpusets_are_read_as_none() -> None:
    container = nodes.container(2000)
    odd = replace(container, resources=replace(container.resources, cpus="4-x", mems="?"))
    life = Life()
    life.handle(Synchronized(containers=(odd,)))
    assert life.cpus(container) == "4-5"


def test_shared_containers_keep_what_stored_ones_do_not_need() -> None:
    """A pool without room for its sharer's request: it goes where there is some."""
    full = nodes.container(4000, 5000)
    own = nodes.container(1000)
    life = synchronized(at(full, "5-7", "1"), at(own, "4", "1"))
    assert life.cpus(own) == "4"
    assert life.pool(full) != "NUMA node #1"


def test_a_guest_whose_pool_has_no_cpu_left_moves_up() -> None:
    life = Life("package:1 numa:2 core:2")
    guest, own = nodes.best_effort(), nodes.container(2000)
    assert life.create(guest) == "2-3"
    listen(life, at(guest, "2-3", "1"), at(own, "2-3", "1"))
    assert life.cpus(guest) != ""
    assert CPUSet.parse(life.cpus(guest)).isdisjoint(life.grant(own).exclusive)


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
    chance, life = random.Random(seed), Life()
    living: list[Container] = []
    for _ in range(16):
        if living and chance.random() < 0.3:
            life.stop(living.pop(chance.randrange(len(living))))
            continue
        milli = chance.choice((1000, 1500, 2000, 3000, chance.randrange(100, 900), 0))
        new = nodes.container(milli) if milli else nodes.best_effort()
        with suppress(RefusalError):
            life.create(new)
            living.append(new)
    places = {each.id: (life.cpus(each), life.mems(each)) for each in living}
    life.engine = Engine(life.engine.layout.machine, life.engine.layout.settings)
    listen(life, *(at(each, *places[each.id]) for each in living))
    assert life.changed() == {}
    assert {each.id: (life.cpus(each), life.mems(each)) for each in living} == places
