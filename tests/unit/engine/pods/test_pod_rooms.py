"""A pod's room: its CPUs as one, slices for some of its containers, the rest for the others (§3.3).

The machine has 2 sockets of 2 NUMA nodes of 2 cores of 2 threads: node k has CPUs 4k..4k+3. CPU 0
is reserved.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    PodStopped,
    Resized,
    ResizeEnded,
    Stopped,
    Synchronized,
)
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container, Pod
from tests.support import bookkeeping, nodes, rooms
from tests.support.engine_driver import EngineDriver

GIB = 1 << 30


def room(driver: EngineDriver, pod: Pod) -> CPUSet:
    return driver.engine.state.rooms[pod.id].grant.exclusive


def room_pool(driver: EngineDriver, pod: Pod) -> int:
    return driver.engine.state.rooms[pod.id].grant.pool


def started(whole: Pod) -> tuple[EngineDriver, Container, Container, Container]:
    """Return a driver with a pod of 4 CPUs: main has 2 of its own, log and mesh share the rest."""
    driver = EngineDriver()
    main = rooms.tenant(whole, "main", 2000)
    log, mesh = (rooms.tenant(whole, name, 500) for name in ("log", "mesh"))
    for each in (main, log, mesh):
        driver.create(each)
    return driver, main, log, mesh


def test_a_tenant_whose_memory_is_left_alone_has_no_memory_nodes() -> None:
    left_alone = {"memory.preserve.resource-policy.nri.io/container.log": "true"}
    driver, main, log, mesh = started(rooms.pod(4000, annotations=rooms.ROOM | left_alone))
    assert [len(driver.grant(each).mems) for each in (main, log, mesh)] == [1, 0, 1]
    driver.reconfigure(packing="tight")
    driver.stop(main)
    assert [len(driver.grant(each).mems) for each in (log, mesh)] == [0, 1]


def test_a_guaranteed_pod_has_its_cpus_as_one_and_containers_have_slices_or_share() -> None:
    whole = rooms.pod(4000)
    driver, main, log, mesh = started(whole)
    cpus = room(driver, whole)
    assert len(cpus) == 4
    own = CPUSet.parse(driver.cpus(main))
    assert len(own) == 2
    assert driver.cpus(log) == driver.cpus(mesh) == str(cpus - own)
    assert driver.runtime.quotas == {main.id: NO_QUOTA}
    assert driver.engine.state.placed[main.id].explanation.kind is DecisionKind.TENANT
    other = nodes.container(1000)
    driver.create(other)
    assert CPUSet.parse(driver.cpus(other)).isdisjoint(cpus)


def test_tenants_are_where_they_are_because_the_room_is_there() -> None:
    whole = rooms.pod(4000)
    driver, *tenants = started(whole)
    placed, why = driver.engine.state.placed, driver.engine.state.rooms[whole.id].explanation
    assert why.table is not None
    for each in tenants:
        explained = placed[each.id].explanation
        assert (explained.kind, explained.room) == (DecisionKind.TENANT, why.request)
        assert (explained.scores, explained.pool) == (why.scores, why.pool)
    driver.reconfigure(packing="tight")
    assert placed[tenants[0].id].explanation.scores == why.scores
    # the room moves, and those in it with it
    cpus = room(driver, whole)
    driver.reconfigure(reservedResources={"cpu": f"cpuset:{cpus}"})
    moved = driver.engine.state.rooms[whole.id].explanation
    assert moved.pool != why.pool
    for each in tenants:
        explained = driver.engine.state.placed[each.id].explanation
        assert (explained.pool, explained.scores) == (moved.pool, moved.scores)


def test_tenants_whose_room_is_gone_are_where_they_are_for_reasons_of_their_own() -> None:
    whole = rooms.pod(4000)
    driver, main, log, _mesh = started(whole)
    driver.create(nodes.container(11_000))
    machine = driver.engine.layout.machine
    driver.reconfigure(machine=replace(machine, online=machine.online - room(driver, whole)))
    assert not driver.engine.state.rooms
    for each in (main, log):
        explained = driver.engine.state.placed[each.id].explanation
        assert explained.kind is not DecisionKind.TENANT
        assert explained.room is None


def test_a_room_lies_in_one_numa_node_where_its_containers_would_not() -> None:
    driver = EngineDriver()
    for _ in range(2):
        driver.create(nodes.container(2000))
    whole = rooms.pod(4000)
    for name in ("one", "two"):
        driver.create(rooms.tenant(whole, name, 2000))
    assert str(room(driver, whole)) in {"4-7", "8-11", "12-15"}


def test_without_annotation_or_setting_each_container_is_on_its_own() -> None:
    driver, whole = EngineDriver(), rooms.pod(4000, annotations={})
    driver.create(rooms.tenant(whole, "main", 2000))
    assert not driver.engine.state.rooms


def test_the_setting_gives_guaranteed_pods_rooms_but_for_those_that_say_no() -> None:
    driver = EngineDriver(podRooms="guaranteed")
    plain = rooms.pod(2000, annotations={}, name="plain")
    no = {"pod-room.resource-policy.nri.io": "false"}
    without = rooms.pod(2000, annotations=no, name="without")
    burstable = rooms.pod(2000, annotations={}, qos=QoS.BURSTABLE, name="burstable")
    for each in (plain, without, burstable):
        driver.create(rooms.tenant(each, "main", 2000))
    assert [*driver.engine.state.rooms] == [plain.id]


def test_a_burstable_pod_s_containers_share_its_room() -> None:
    driver, whole = EngineDriver(), rooms.pod(3000, qos=QoS.BURSTABLE, memory=2 * GIB)
    web = rooms.tenant(whole, "web", 2500)
    log = rooms.tenant(whole, "log", 500, 1000)
    driver.create(web)
    driver.create(log)
    assert driver.cpus(web) == driver.cpus(log) == str(room(driver, whole))
    assert len(room(driver, whole)) == 3
    bookings = driver.engine.state.memory.bookings
    assert {each: booking.request.amount for each, booking in bookings.items()} == {
        whole.id: 2 * GIB
    }


@pytest.mark.parametrize("milli", [0, 500, 2500])
def test_a_pod_that_asks_for_no_whole_cpus_gets_no_room_and_hears_why(milli: int) -> None:
    driver, whole = EngineDriver(), rooms.pod(milli)
    driver.create(rooms.tenant(whole, "main", 2000))
    assert not driver.engine.state.rooms
    (warning,) = driver.decision.warnings
    assert "its pod gets no room: the pod " in warning
    assert driver.decision.explanation is not None
    assert warning in driver.decision.explanation.notes, "explain says it, too"


def test_reserved_and_preserved_containers_are_no_tenants_and_cut_no_room() -> None:
    annotations = {
        **rooms.ROOM,
        "prefer-reserved-cpus.resource-policy.nri.io/container.agent": "true",
        "cpu.preserve.resource-policy.nri.io/container.probe": "true",
    }
    driver, whole = EngineDriver(), rooms.pod(2000, annotations=annotations)
    agent, probe = (rooms.tenant(whole, name, 100) for name in ("agent", "probe"))
    driver.create(agent)
    driver.create(probe)
    assert not driver.engine.state.rooms
    main = rooms.tenant(whole, "main", 2000)
    driver.create(main)
    assert driver.cpus(main) == str(room(driver, whole))
    assert (driver.cpus(agent), driver.cpus(probe)) == ("0", "")


def test_the_annotation_is_for_whole_pods() -> None:
    annotations = {"pod-room.resource-policy.nri.io/container.main": "true"}
    whole = rooms.pod(2000, annotations=annotations)
    with pytest.raises(AnnotationError, match="only for the whole pod"):
        EngineDriver().create(rooms.tenant(whole, "main", 2000))


def test_a_room_is_refused_like_an_exclusive_request() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(8000))
    whole = rooms.pod(8000)
    text = driver.refuse(rooms.tenant(whole, "log", 100))
    assert text.startswith("its pod's room of 8 CPUs: no pool has room for 8 exclusive CPUs")
    assert not driver.engine.state.rooms


def test_the_devices_of_all_containers_draw_the_room() -> None:
    near = Hint(
        source="podresourceapi:vendor.com/nic",
        kind=HintKind.POD_RESOURCES,
        cpus=CPUSet(),
        nodes=CPUSet([3]),
    )
    driver, whole = EngineDriver(), rooms.pod(3000, hints=(near,))
    log = rooms.tenant(whole, "log", 1000 - 100)
    driver.create(log)
    assert room(driver, whole) <= CPUSet.parse("12-15")


def test_slices_lie_near_to_their_own_devices() -> None:
    near = Hint(
        source="/dev/nic", kind=HintKind.DEVICES, cpus=CPUSet.parse("12-15"), nodes=CPUSet()
    )
    driver, whole = EngineDriver(), rooms.pod(8000)
    log = rooms.tenant(whole, "log", 900)
    driver.create(log)
    main = replace(rooms.tenant(whole, "main", 2000), hints=(near,))
    driver.create(main)
    wanted = room(driver, whole) & CPUSet.parse("12-15")
    if wanted:
        assert CPUSet.parse(driver.cpus(main)) <= wanted


def test_a_slice_larger_than_what_is_left_is_refused() -> None:
    driver, whole = EngineDriver(), rooms.pod(4000)
    driver.create(rooms.tenant(whole, "main", 2000))
    text = driver.refuse(rooms.tenant(whole, "second", 3000))
    assert text == "its pod's room of 4 CPUs has 2 left for its 3 exclusive CPUs"


def test_a_slice_that_whole_cores_of_others_leave_no_cpus_is_refused_with_that_reason() -> None:
    driver, whole = EngineDriver(fullCores="require"), rooms.pod(4000)
    driver.create(rooms.tenant(whole, "main", 3000))
    text = driver.refuse(rooms.tenant(whole, "proxy", 1000))
    assert text == (
        "its pod's room of 4 CPUs has 0 left for its 1 exclusive CPU"
        " (full cores: each container of the room has whole ones)"
    )


def test_sharers_share_the_pool_s_cpus_while_slices_leave_none() -> None:
    driver, whole = EngineDriver(), rooms.pod(2000)
    log, main = rooms.tenant(whole, "log", 0, 100), rooms.tenant(whole, "main", 1000)
    second = rooms.tenant(whole, "second", 1000)
    driver.create(main)
    driver.create(log)
    cpus = room(driver, whole)
    assert driver.cpus(log) == str(cpus - CPUSet.parse(driver.cpus(main)))
    driver.create(second)
    assert CPUSet.parse(driver.cpus(log)).isdisjoint(cpus)
    late = rooms.tenant(whole, "late", 0, 100)
    driver.create(late)
    assert driver.decision.explanation is not None
    assert "no CPUs left to share" in " ".join(driver.decision.explanation.notes)
    driver.stop(main)
    assert driver.cpus(log) == driver.cpus(late) == str(cpus - CPUSet.parse(driver.cpus(second)))


def test_those_without_a_rest_go_to_the_reserved_cpus_when_no_others_are_left() -> None:
    driver, whole = EngineDriver("package:1 core:4"), rooms.pod(3000)
    main, second = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "second", 1000)
    log = rooms.tenant(whole, "log", 0, 100)
    for each in (main, second, log):
        driver.create(each)
    assert driver.cpus(log) == "0"


def test_a_slice_returns_and_a_restart_gets_it_again() -> None:
    whole = rooms.pod(4000)
    driver, main, log, _ = started(whole)
    cpus, own = room(driver, whole), driver.cpus(main)
    driver.stop(main)
    assert driver.cpus(log) == str(cpus)
    init = rooms.tenant(whole, "init", 1000)
    driver.create(init)
    driver.stop(init)
    again = rooms.tenant(whole, "main", 2000)
    assert driver.create(again) == own


def test_a_room_ends_with_its_pod_and_not_with_its_containers() -> None:
    whole = rooms.pod(4000)
    driver, *containers = started(whole)
    for each in containers:
        driver.stop(each)
    assert len(driver.free()) == 11
    driver.handle(PodStopped(pod_id=whole.id))
    assert len(driver.free()) == 15
    assert driver.engine.state.snapshot().supply == nodes.engine().state.snapshot().supply
    assert not driver.engine.state.memory.bookings


def test_a_resized_container_moves_cpus_between_its_slice_and_the_rest() -> None:
    """The pod requests more than its containers, so its room does not change."""
    whole = rooms.pod(4000)
    driver, main, log, _ = started(whole)
    driver.stop(log)
    log = rooms.tenant(whole, "log", 100)
    driver.create(log)
    cpus = room(driver, whole)
    grown = CPUSet.parse(driver.resize(main, nodes.resources(3000, 3000)))
    assert len(grown) == 3
    assert driver.cpus(log) == str(cpus - grown)
    small = CPUSet.parse(driver.resize(main, nodes.resources(1000, 1000)))
    assert small < grown
    assert driver.cpus(log) == str(cpus - small)
    assert room(driver, whole) == cpus


def test_a_room_follows_its_containers_where_the_runtime_says_nothing_of_the_pod() -> None:
    whole = rooms.pod(3000, memory=GIB)
    driver, main, log, _ = started(whole)
    own = driver.cpus(main)
    grown = CPUSet.parse(driver.resize(main, nodes.resources(3000, 3000)))
    assert CPUSet.parse(own) < grown
    cpus = room(driver, whole)
    assert len(cpus) == 4
    assert driver.cpus(log) == str(cpus - grown)
    assert driver.engine.state.placed[log.id].container.pod.amounts == replace(
        nodes.resources(4000, 4000), memory_limit=GIB
    )
    asked = nodes.resources(16000, 16000)
    assert driver.refuse(Resized(container_id=main.id, resources=asked)) == (
        "its pod's room of 4 CPUs cannot be resized to 17: no pool has room for 17 exclusive CPUs:"
        " root comes closest, 2 CPUs short"
    )
    refusal = driver.refuse(Resized(container_id=log.id, resources=nodes.resources(700, 700)))
    assert refusal.endswith("the pod asks for 4200m CPU, and a room is whole CPUs")
    assert room(driver, whole) == cpus
    driver.resize(log, nodes.resources(250, 250))  # a fraction less: the room keeps the CPU
    assert room(driver, whole) == cpus
    asked = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=main.id, resources=asked, certain=False))
    bookkeeping.check(driver.engine, driver.runtime)
    assert room(driver, whole) == cpus
    driver.handle(ResizeEnded(container_id=main.id))
    bookkeeping.check(driver.engine, driver.runtime)
    assert len(room(driver, whole)) == 2
    driver.resize(log, nodes.resources(500, 500))
    asked = nodes.resources(2000, 2000)
    driver.handle(Resized(container_id=main.id, resources=asked, certain=False))
    bookkeeping.check(driver.engine, driver.runtime)
    assert len(room(driver, whole)) == 3
    driver.runtime.forget(main.id)
    driver.handle(ResizeEnded(container_id=main.id, refused=True))
    bookkeeping.check(driver.engine, driver.runtime)
    assert len(room(driver, whole)) == 2


def test_a_room_of_a_pod_with_resources_as_a_whole_follows_the_pod_alone() -> None:
    whole = rooms.pod(4000)
    driver, main, _log, _ = started(whole)
    extra = replace(rooms.tenant(whole, "extra", 4000), pod_level=True)  # the pod's, shown as its
    driver.create(extra)
    cpus = room(driver, whole)
    driver.handle(
        Resized(container_id=main.id, resources=nodes.resources(3000, 3000), certain=True)
    )
    assert room(driver, whole) == cpus


@pytest.mark.parametrize("reconfigured", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_what_a_resize_frees_goes_to_the_rest_once_it_is_in_force(
    refused: bool, reconfigured: bool
) -> None:
    whole = rooms.pod(4000)
    driver, main, log, _ = started(whole)
    cpus, before, rest = room(driver, whole), driver.cpus(main), driver.cpus(log)
    asked = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=main.id, resources=asked, certain=False))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.cpus(log) == rest
    if reconfigured:
        driver.reconfigure(packing="tight")
    assert driver.cpus(log) == rest
    driver.handle(ResizeEnded(container_id=main.id, refused=refused))
    bookkeeping.check(driver.engine, driver.runtime)
    now = before if refused else driver.cpus(main)
    assert driver.cpus(main) == now
    assert driver.cpus(log) == str(cpus - CPUSet.parse(now))


def test_a_pod_s_resize_grows_and_shrinks_its_room_beside_its_slices() -> None:
    whole = rooms.pod(4000)
    driver, main, log, _ = started(whole)
    own, cpus = driver.cpus(main), room(driver, whole)
    driver.handle(Resized(container_id=whole.id, resources=nodes.resources(3000, 3000)))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.cpus(main) == own
    assert len(room(driver, whole)) == 3
    assert room(driver, whole) < cpus
    assert driver.cpus(log) == str(room(driver, whole) - CPUSet.parse(own))
    text = driver.refuse(Resized(container_id=whole.id, resources=nodes.resources(1000, 1000)))
    assert "cannot shrink to 1 CPU: its containers have 2 exclusive CPUs of it" in text
    text = driver.refuse(Resized(container_id=whole.id, resources=nodes.resources(3500, 3500)))
    assert "a room is whole CPUs" in text
    impossible = replace(nodes.resources(3000, 3000), cpu_shares=1 << 40)
    text = driver.refuse(Resized(container_id=whole.id, resources=impossible))
    assert text.startswith("CPU shares of 1099511627776: the kernel takes")
    pool = room_pool(driver, whole)
    driver.handle(Resized(container_id=whole.id, resources=nodes.resources(4000, 4000)))
    bookkeeping.check(driver.engine, driver.runtime)
    assert room_pool(driver, whole) == pool
    assert driver.cpus(main) == own
    driver.handle(Resized(container_id=whole.id, resources=nodes.resources(6000, 6000)))
    bookkeeping.check(driver.engine, driver.runtime)
    assert driver.cpus(main) == own
    assert cpus < room(driver, whole), "its pool has too little: it grows into the socket"


def test_a_room_that_grows_out_of_its_socket_takes_its_slices_along() -> None:
    whole = rooms.pod(4000)
    driver = EngineDriver(reservedResources={"cpu": "cpuset:0-2"})  # 5 CPUs of socket #0 are left
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    for each in (main, log):
        driver.create(each)
    assert driver.pool(main) == "NUMA node #1"
    driver.handle(Resized(container_id=whole.id, resources=nodes.resources(6000, 6000)))
    bookkeeping.check(driver.engine, driver.runtime)
    cpus = room(driver, whole)
    assert driver.pool(main) == driver.pool(log) == "socket #1"
    assert cpus <= CPUSet.parse("8-15")
    assert len(CPUSet.parse(driver.cpus(main))) == 2
    assert driver.cpus(log) == str(cpus - CPUSet.parse(driver.cpus(main)))


def test_a_room_stays_where_its_cpus_are_if_elsewhere_is_no_better() -> None:
    driver, whole = EngineDriver("package:2 numa:2 core:4 pu:1"), rooms.pod(3000)
    main = rooms.tenant(whole, "main", 2000)
    driver.create(main)
    own, before = driver.cpus(main), room(driver, whole)
    assert driver.pool(main) == "NUMA node #1"  # whose socket has the reserved CPU
    driver.handle(Resized(container_id=whole.id, resources=nodes.resources(5000, 5000)))
    assert driver.pool(main) == "socket #0"
    assert before < room(driver, whole)
    assert driver.cpus(main) == own


def test_a_resize_has_one_answer_for_the_tenant_that_is_resized() -> None:
    whole = rooms.pod(4000, qos=QoS.BURSTABLE)
    driver = EngineDriver()
    first, second = (rooms.tenant(whole, name, 2000) for name in ("first", "second"))
    for each in (first, second):
        driver.create(each)
    assert driver.cpus(first) == driver.cpus(second) == "4-7"
    driver.resize(second, nodes.resources(1000, None))
    assert driver.cpus(first) == driver.cpus(second) == "4-6"
    assert second.id not in driver.decision.changes


def listed(driver: EngineDriver, *containers: Container) -> tuple[Container, ...]:
    """Return *containers* as the runtime lists them."""
    runtime = driver.runtime
    return tuple(
        nodes.running(
            each, runtime.cpus[each.id], runtime.mems[each.id], runtime.quotas.get(each.id)
        )
        for each in containers
    )


def restarted(
    driver: EngineDriver, *containers: Container, pods: tuple[Pod, ...] = (), forget: bool = False
) -> EngineDriver:
    """Return a new daemon that finds *containers*, and empty *pods*, with what was stored."""
    view, new = view_of(driver.engine), EngineDriver()
    held = {} if forget else {each: view.to_store(each) for each in (*view.placed, *view.rooms)}
    present = listed(driver, *containers)
    new.runtime = driver.runtime
    new.handle(Synchronized(containers=present, pods=pods, held=held))
    bookkeeping.check(new.engine, new.runtime)
    return new


@pytest.mark.parametrize("forget", [False, True])
def test_a_restart_finds_room_and_slices_by_the_store_or_by_the_cpusets(forget: bool) -> None:
    whole = rooms.pod(4000, memory=GIB)
    driver, main, log, mesh = started(whole)
    before = dict(driver.runtime.cpus)
    new = restarted(driver, main, log, mesh, forget=forget)
    assert new.runtime.cpus == before
    assert not new.decision.changes
    assert room(new, whole) == room(driver, whole)
    assert new.engine.state.memory.bookings.keys() == {whole.id}


def test_a_room_that_grows_heeds_the_affinities_of_its_oldest_container_after_a_restart_too() -> (
    None
):
    match = "{key: name, operator: In, values: [peer]}"
    near = f"main: [{{scope: {{operator: AlwaysTrue}}, match: {match}, weight: 7}}]"
    wish = {"resource-policy.nri.io/affinity": near}
    whole, peer = rooms.pod(4000, annotations=rooms.ROOM | wish), nodes.container(1000, name="peer")
    driver, main = EngineDriver(), rooms.tenant(whole, "main", 2000)
    driver.create(peer)
    driver.create(main)
    tables = []
    for each in (driver, restarted(driver, peer, main)):
        each.handle(Resized(container_id=whole.id, resources=nodes.resources(6000, 6000)))
        tables.append(each.engine.state.rooms[whole.id].explanation.table)
    assert tables[0] is not None
    assert tables[1] is not None
    assert tables[0].row(room_pool(driver, whole))[1] > 0, "the affinity counts"
    assert tables[0].pack() == tables[1].pack()


def notes_of(driver: EngineDriver, container: Container) -> tuple[str, ...]:
    return driver.engine.state.placed[container.id].explanation.notes


def test_explain_says_that_a_room_was_refused_when_the_runtime_listed_its_containers() -> None:
    whole, fraction = rooms.pod(8000, name="whole"), rooms.pod(2500, name="fraction")
    driver = EngineDriver()
    other = nodes.container(9000)
    main, log = rooms.tenant(whole, "main", 1000), rooms.tenant(whole, "log", 500)
    part = rooms.tenant(fraction, "main", 1000)
    everywhere = CPUSet(range(16))
    running = [nodes.running(each, everywhere, CPUSet(range(4))) for each in (main, log, part)]
    driver.create(other)
    held = {other.id: view_of(driver.engine).to_store(other.id)}
    present = (*listed(driver, other), *running)
    driver.handle(Synchronized(containers=present, held=held))
    bookkeeping.check(driver.engine, driver.runtime)
    assert not driver.engine.state.rooms
    refused = "its pod's room of 8 CPUs: no pool has room for 8 exclusive CPUs: root comes closest"
    for each in (main, log):
        assert any(note.startswith(refused) for note in notes_of(driver, each))
    gets_none = "its pod gets no room: the pod asks for 2500m CPU, and a room is whole CPUs"
    assert gets_none in notes_of(driver, part)


def test_a_room_without_containers_outlives_a_restart_while_its_pod_exists() -> None:
    whole = rooms.pod(4000)
    driver, main, *others = started(whole)
    own = driver.cpus(main)
    for each in (main, *others):
        driver.stop(each)
    new = restarted(driver, pods=(whole,))
    assert room(new, whole) == room(driver, whole)
    assert new.create(rooms.tenant(whole, "main", 2000)) == own
    gone = restarted(driver)
    assert not gone.engine.state.rooms
    new.handle(Synchronized(containers=()))
    assert not new.engine.state.rooms
    assert len(new.free()) == 15


def test_containers_that_ran_without_a_room_keep_their_places() -> None:
    driver = EngineDriver()
    whole = rooms.pod(2000, annotations={})
    main, log = rooms.tenant(whole, "main", 1000), rooms.tenant(whole, "log", 500)
    driver.create(main)
    driver.create(log)
    before = dict(driver.runtime.cpus)
    driver.reconfigure(podRooms="guaranteed")
    driver.create(rooms.tenant(whole, "late", 100))
    assert not driver.engine.state.rooms
    assert driver.cpus(main) == str(before[main.id])


def test_a_pod_keeps_its_room_when_the_setting_is_turned_off() -> None:
    driver = EngineDriver(podRooms="guaranteed")
    whole = rooms.pod(3000, annotations={})
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    driver.create(main)
    driver.create(log)
    before = dict(driver.runtime.cpus)
    driver.reconfigure(podRooms="off")
    assert driver.runtime.cpus == before
    late = rooms.tenant(whole, "late", 500)
    driver.create(late)
    assert driver.cpus(late) == driver.cpus(log)
    driver.handle(PodStopped(pod_id=whole.id))
    again = rooms.pod(3000, annotations={}, name="again")
    driver.create(rooms.tenant(again, "main", 2000))
    assert not driver.engine.state.rooms


def test_new_settings_leave_rooms_as_they_are() -> None:
    whole = rooms.pod(4000)
    driver, main, _log, _mesh = started(whole)
    before = dict(driver.runtime.cpus)
    driver.reconfigure(packing="tight")
    assert driver.runtime.cpus == before
    assert driver.grant(main).tenant


def test_a_room_that_loses_cpus_gets_others_and_slices_keep_what_is_left() -> None:
    whole = rooms.pod(4000)
    driver, main, log, _mesh = started(whole)
    machine = driver.engine.layout.machine
    lost = CPUSet([CPUSet.parse(driver.cpus(main)).lowest])
    driver.reconfigure(machine=replace(machine, online=machine.online - lost))
    assert len(room(driver, whole)) == 4
    assert len(CPUSet.parse(driver.cpus(main))) == 2
    assert CPUSet.parse(driver.cpus(log)) == room(driver, whole) - CPUSet.parse(driver.cpus(main))


def test_a_room_on_a_machine_that_has_too_few_left_keeps_what_there_is() -> None:
    driver, whole = EngineDriver("package:1 core:4"), rooms.pod(3000)
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    driver.create(main)
    driver.create(log)
    machine = driver.engine.layout.machine
    driver.reconfigure(machine=replace(machine, online=CPUSet.parse("0-2")))
    assert str(room(driver, whole)) == "1-2"
    assert driver.cpus(main) == "1-2"
    driver.reconfigure(machine=machine)
    assert str(room(driver, whole)) == "1-3"


def test_a_slice_for_which_a_smaller_room_has_too_few_keeps_what_there_is() -> None:
    driver, whole = EngineDriver("package:1 core:4"), rooms.pod(3000)
    main, side = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "side", 1000)
    assert [driver.create(each) for each in (main, side)] == ["1-2", "3"]
    machine = driver.engine.layout.machine
    driver.reconfigure(machine=replace(machine, online=CPUSet.parse("0-2")))
    assert [driver.cpus(each) for each in (main, side)] == ["1-2", "0"]
    *_, said = driver.decision.warnings
    assert said == (
        "default/shop/side: its pod's room of 2 CPUs has 0 left for its 1 exclusive CPU;"
        " it has fewer now"
    )
    assert driver.engine.state.placed[side.id].explanation.notes[-1] in said


def test_tenants_whose_room_fits_nowhere_after_a_restart_keep_their_slices() -> None:
    spec = "package:1 core:4"
    driver, whole = EngineDriver(spec, reservedResources={"cpu": "cpuset:0"}), rooms.pod(3000)
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    assert [driver.create(each) for each in (main, log)] == ["1-2", "3"]
    view = view_of(driver.engine)
    held = {each: view.to_store(each) for each in (*view.placed, *view.rooms)}
    new = EngineDriver(spec, reservedResources={"cpu": "cpuset:0,3"})
    new.runtime = driver.runtime
    driver.runtime.cpus[main.id] = CPUSet.parse("0-3")  # its slice is known from the store
    new.handle(Synchronized(containers=listed(driver, main, log), held=held))
    bookkeeping.check(new.engine, new.runtime)
    assert not new.engine.state.rooms
    assert [new.cpus(each) for each in (main, log)] == ["1-2", "0,3"]
    assert not any(new.grant(each).tenant for each in (main, log))
    assert new.engine.state.placed[main.id].explanation.kind is DecisionKind.KEPT


@pytest.mark.parametrize("refused", [False, True])
def test_a_resize_of_a_tenant_ends_after_its_room_is_gone(*, refused: bool) -> None:
    driver, whole = EngineDriver("package:1 core:6"), rooms.pod(3000)
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    assert [driver.create(each) for each in (main, log)] == ["1-2", "3"]
    small = nodes.resources(1000, 1000)
    driver.handle(Resized(container_id=main.id, resources=small, certain=False))
    machine = driver.engine.layout.machine
    driver.reconfigure(machine=replace(machine, online=CPUSet.parse("0,4-5")))
    assert not driver.engine.state.rooms
    driver.runtime.forget(main.id)
    driver.handle(ResizeEnded(container_id=main.id, refused=refused))
    assert not driver.grant(main).tenant
    assert not driver.engine.state.resizing


def test_pods_with_resources_as_a_whole_have_rooms_though_containers_show_the_pod_s_amounts() -> (
    None
):
    """`log` has no amounts of its own, and is shown with the pod's 4 CPUs."""
    for order in (("main", "log"), ("log", "main")):
        driver, whole = EngineDriver(), rooms.pod(4000)
        containers = {
            "main": rooms.tenant(whole, "main", 2000),
            "log": rooms.tenant(whole, "log", 4000),
        }
        for name in order:
            driver.create(containers[name])
        main, log = containers["main"], containers["log"]
        assert len(CPUSet.parse(driver.cpus(main))) == 2
        assert driver.cpus(log) == str(room(driver, whole) - CPUSet.parse(driver.cpus(main)))


def test_a_running_container_is_never_refused_for_want_of_a_slice() -> None:
    driver, whole = EngineDriver(), rooms.pod(4000)
    driver.create(rooms.tenant(whole, "main", 3000))
    late = rooms.tenant(whole, "late", 2000)
    driver.handle(Created(container=late, admitted=True))
    bookkeeping.check(driver.engine, driver.runtime)
    assert CPUSet.parse(driver.cpus(late)) < room(driver, whole)


def test_a_refused_slice_leaves_no_room_behind() -> None:
    driver, whole = EngineDriver(), rooms.pod(1000)
    driver.refuse(rooms.tenant(whole, "main", 2000))
    assert not driver.engine.state.rooms
    driver.handle(Stopped(container_id="nobody"))
    assert isinstance(driver.engine, Engine)


def test_a_refused_room_is_explained_by_the_container_that_asked_first() -> None:
    driver, whole = EngineDriver(), rooms.pod(17_000)
    first = rooms.tenant(whole, "main", 1000)
    with pytest.raises(PlacementError, match="its pod's room of 17 CPUs") as caught:
        driver.handle(Created(container=first))
    explanation = caught.value.explanation
    assert explanation is not None
    assert explanation.container == first.full_name
    assert explanation.notes[-1] == str(caught.value)
