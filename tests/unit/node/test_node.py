"""The node's turn, its observers and its views."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Prepared, Reconfigured, Stopped, kind
from nri_policy.engine.grant import Decision
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node, NodeView, Outcome
from nri_policy.node.cpu_classes import assign_cpus
from nri_policy.pools.capacity import CapacityError
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from tests.support import nodes
from tests.support.claims import part


def idle() -> tuple[Node, Engine]:
    engine = Engine(nodes.machine(), nodes.settings())
    return Node(engine), engine


async def test_events_are_handled_in_a_turn_and_nowhere_else() -> None:
    node, _ = idle()
    event = Created(container=nodes.container(1000))
    with pytest.raises(AssertionError, match="in a turn"):
        node.handle(event)
    assert not node.view.placed
    async with node.turn:
        node.handle(event)
    assert node.view.placed.keys() == {event.container.id}


async def test_turns_come_one_by_one_in_the_order_in_which_they_were_asked_for() -> None:
    node, _ = idle()
    order: list[int] = []

    async def take(number: int) -> None:
        async with node.turn:
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*map(take, range(3)))
    assert order == [0, 0, 1, 1, 2, 2]


async def test_observers_see_each_event_with_the_node_after_it() -> None:
    node, _ = idle()
    seen: list[tuple[Event, Outcome, NodeView]] = []
    node.add_observers(lambda *what: seen.append(what))
    fits, too_large = nodes.container(1000), nodes.container(99_000)
    settings = nodes.settings(reservedResources={"cpu": "cpuset:99"})
    impossible = Reconfigured(settings=settings, machine=None)
    async with node.turn:
        decision = node.handle(Created(container=fits))
        with pytest.raises(PlacementError):
            node.handle(Created(container=too_large))
        with pytest.raises(CapacityError):
            node.handle(impossible)
        assert not seen, "no answer waits for them"
        await asyncio.sleep(0)
    assert [type(outcome) for _, outcome, _ in seen] == [Decision, PlacementError, CapacityError]
    assert seen[0][1] is decision
    assert all(view is node.view for _, _, view in seen), "what is refused changes nothing"
    assert node.view.placed.keys() == {fits.id}


async def test_the_time_that_the_engine_took_is_told_of_what_is_refused_as_well() -> None:
    took: list[Event] = []
    node = Node(idle()[1], time_decision=lambda event, _: took.append(event))
    events = [Created(container=nodes.container(milli)) for milli in (1000, 99_000)]
    async with node.turn:
        node.handle(events[0])
        with pytest.raises(PlacementError):
            node.handle(events[1])
    node.catch_up()
    assert took == events


async def test_only_what_is_to_be_committed_is_done_before_the_answer() -> None:
    order: list[str] = []
    _, engine = idle()

    def note(where: str) -> Callable[[Event, Outcome, NodeView], None]:
        return lambda event, _outcome, _view: order.append(f"{where} {kind(event)}")

    node, container = Node(engine, commit=note("commit")), nodes.container(1000)
    node.add_observers(note("first"), note("second"))
    async with node.turn:
        node.handle(Created(container=container))
        node.handle(Stopped(container_id=container.id))
        assert order == ["commit created", "commit stopped"]
        node.catch_up()
    events = ["first created", "second created", "first stopped", "second stopped"]
    assert order[2:] == events, "who reads what they have noted has them hear of it first"
    await asyncio.sleep(0)
    assert order[2:] == events, "once"


async def test_observers_are_called_at_the_end_of_a_step_not_in_a_turn_of_the_loop() -> None:
    node, _ = idle()
    seen: list[Event] = []
    node.add_observers(lambda event, *_: seen.append(event))
    created = Created(container=nodes.container(1000))

    def handle() -> None:
        node.handle(created)
        assert not seen

    async with node.turn:
        node.step(handle)
        assert seen == [created]
        with pytest.raises(PlacementError):
            node.step(lambda: node.handle(Created(container=nodes.container(99_000))))
        assert len(seen) == 2
        node.handle(Stopped(container_id=created.container.id))
    assert len(seen) == 2, "outside of a step in the next turn"
    await asyncio.sleep(0)
    assert len(seen) == 3


async def test_an_observer_hears_nothing_that_was_decided_before_it_came() -> None:
    node, _ = idle()
    seen: list[Event] = []
    async with node.turn:
        node.handle(Created(container=nodes.container(1000)))
        node.add_observers(lambda event, *_: seen.append(event))
        await asyncio.sleep(0)
    assert not seen


async def test_a_bug_in_one_observer_keeps_no_other_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, _ = idle()
    seen: list[Event] = []

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    node.add_observers(fail, lambda event, *_: seen.append(event))
    events = [Created(container=nodes.container(1000)) for _ in range(2)]
    async with node.turn:
        for each in events:
            node.handle(each)
    await asyncio.sleep(0)
    assert seen == events
    assert caplog.text.count("event=observer-failed kind=created") == 2


async def test_a_view_stays_as_it_was() -> None:
    node, _ = idle()
    own, shared = nodes.container(2000), nodes.container(100, 200)
    async with node.turn:
        node.handle(Created(container=own))
        before = node.view
        sent, pools = dict(before.sent), before.supply().snapshot()
        node.handle(Created(container=shared))
        node.handle(Stopped(container_id=own.id))
    assert before.placed.keys() == {own.id}
    assert dict(before.sent) == sent
    assert before.supply().snapshot() == pools
    assert before.exclusive == before.taken != node.view.taken
    assert node.view.placed.keys() == {shared.id}


async def test_a_view_has_the_books_of_the_engine() -> None:
    node, engine = idle()
    async with node.turn:
        for _ in range(3):
            node.handle(Created(container=nodes.container(1500)))
    view, state = node.view, engine.state
    assert view.supply().snapshot() == state.supply.snapshot()
    assert view.free == state.supply.free_cpus()
    assert view.free_isolated == state.supply.free_isolated_cpus()
    nodes_ = view.layout.memory.nodes
    assert view.memory().free(nodes_) == state.memory.free(nodes_)
    assert view.bookings == state.memory.bookings
    # a reader that changes its copy changes nothing for others
    view.supply().take(view.free)
    assert view.supply().free_cpus() == view.free == state.supply.free_cpus()


async def test_a_fork_lives_on_its_own() -> None:
    node, _ = idle()
    fork, container = node.fork(), nodes.container(1000)
    fork.handle(Created(container=container))
    assert not node.view.placed


async def test_a_container_may_know_its_memory_nodes_by_kind() -> None:
    node, _ = idle()
    container = nodes.container(1000)
    async with node.turn:
        node.handle(Created(container=container))
    exposed = node.view.exposed(container.id)
    assert exposed["DRAM_MEMS"] == exposed["ALL_MEMS"] != ""
    assert "PMEM_MEMS" not in exposed, "the node has none"


async def test_a_container_may_know_which_of_its_cpus_are_beside_each_device() -> None:
    node, _ = idle()

    def near(kind: HintKind, source: str, device: str = "", cpus: str = "", ids: str = "") -> Hint:
        at, nodes = CPUSet.parse(cpus), CPUSet.parse(ids)
        return Hint(kind=kind, source=source, device=device, cpus=at, nodes=nodes)

    hints = (
        near(HintKind.MOUNTS, "/data", ids="0"),
        near(HintKind.DEVICES, "/dev/fast0", cpus="12-15"),
        near(HintKind.DEVICES, "/dev/$(reboot)", cpus="12-15"),
        near(HintKind.POD_RESOURCES, "podresourceapi:gpu", "GPU-1", ids="0"),
        near(HintKind.POD_RESOURCES, "podresourceapi:gpu", "GPU|2", ids="0"),
        near(HintKind.CLAIMS, "claim:gpu.x", "gpu-0 (claim gpus)", ids="2"),
    )
    annotations = {"topologyhints.resource-policy.nri.io/pod": "pod-resources"}
    container = replace(nodes.container(2000, annotations=annotations), hints=hints)
    async with node.turn:
        node.handle(Created(container=container))
    exposed = node.view.exposed(container.id)
    own = exposed["EXCLUSIVE_CPUS"]
    assert CPUSet.parse(own) <= CPUSet.parse("0-3")
    assert {name: value for name, value in exposed.items() if name.startswith("DEVICE")} == {
        "DEVICE_0": "/dev/fast0|3|",
        "DEVICE_1": f"GPU-1|0|{own}",
        "DEVICE_2": "gpu-0 (claim gpus)|2|",
    }


async def test_only_containers_with_cpus_of_their_own_are_in_a_class_of_cpus() -> None:
    classes = [{"name": name} for name in ("all", "fast")]
    settings = nodes.settings(
        cpuClasses=classes, sharedPoolCPUClass="all", defaultExclusiveCPUClass="fast"
    )
    node = Node(Engine(nodes.machine(), settings))
    own, shared = nodes.container(2000), nodes.container(100, 200)
    async with node.turn:
        for each in (own, shared):
            node.handle(Created(container=each))
    placed = node.view.placed
    found = node.view.classes_of(placed[own.id])
    assert found is not None
    assert found.cpu is not None
    assert found.cpu.name == "fast"
    assert node.view.classes_of(placed[shared.id]) is None


async def test_each_available_cpu_is_in_one_class() -> None:
    settings = nodes.settings(
        reservedResources={"cpu": "cpuset:0"},
        cpuClasses=[{"name": name} for name in ("all", "reserved", "fast")],
        sharedPoolCPUClass="all",
        reservedPoolCPUClass="reserved",
        defaultExclusiveCPUClass="fast",
    )
    node = Node(Engine(nodes.machine(), settings))
    own = nodes.container(2000)
    async with node.turn:
        node.handle(Prepared(parts=(part(2000, 3),)))  # nobody uses them yet
        node.handle(Created(container=own))
    assert [(each.given.name, str(each.cpus), each.origin) for each in assign_cpus(node.view)] == [
        ("reserved", "0", "reservedPoolCPUClass"),
        ("fast", "4-5", own.full_name),
        ("fast", "12-13", "defaultExclusiveCPUClass"),
        ("all", "1-3,6-11,14-15", "sharedPoolCPUClass"),
    ]
