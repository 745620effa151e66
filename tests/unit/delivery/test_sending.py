"""What the runtime hears outside of events, when, and by which way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Gone, Listed, Registered
from nri_policy.delivery.next_actions import MAX_TRIES, PATIENCE, PATIENCE_TO_REGISTER
from nri_policy.delivery.record import Cpuset, Phase
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Stopped
from nri_policy.engine.grant import Placement
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node, view_of
from nri_policy.nri.errors import Code
from nri_policy.nri.plugin import Call, PluginIdentity
from nri_policy.nri.session import UPDATE_TIMEOUT, Session
from nri_policy.nri.ttrpc import IncomingCall
from nri_policy.plugin import runtime_link as link_module
from nri_policy.plugin.answers import Answers
from nri_policy.plugin.convert import update_of
from nri_policy.plugin.runtime_link import RuntimeLink
from nri_policy.proto import nri_pb2 as pb
from tests.support import nodes
from tests.support.deliveries import change
from tests.support.patience import until
from tests.unit.nri.peer import FakeTime, Peer, RecordingPlugin, listening


async def idle() -> None:
    """Let everybody run for a while in which nothing is to happen."""
    for _ in range(50):
        await asyncio.sleep(0)


@dataclass(slots=True, kw_only=True)
class Scene:
    """A telling of containers that all hold a grant, and the runtime that is told."""

    engine: Engine
    node: Node
    executor: Executor
    answers: Answers
    link: RuntimeLink
    session: Session
    time: FakeTime
    peers: asyncio.Queue[Peer]
    peer: Peer
    ids: list[str] = field(default_factory=list)

    def placement(self, number: int, cpus: str = "") -> Placement:
        """Return what a container was told last, or is to be told instead."""
        view = self.node.view
        placement = view.placement(self.ids[number])
        assert placement is not None
        if cpus:
            other = {self.ids[number]: (CPUSet.parse(cpus), placement.mems)}
            self.node.view = replace(view, sent={**view.sent, **other})
            return self.placement(number)
        return placement

    def change(self, number: int, cpus: str = "") -> dict[str, Placement]:
        """Return the same as a change of that container."""
        return {self.ids[number]: self.placement(number, cpus)}

    def handle(self, event: Event) -> None:
        """Have something happen."""
        self.engine.handle(event)
        self.node.view = view_of(self.engine)
        if isinstance(event, Stopped):
            self.executor.apply(Gone(event.container_id))

    def register(self, *changed: int, cpus: str = "", observed: bool = False) -> None:
        """Have the runtime list all, of which some *changed*, and are *observed* in their place."""
        changes = {self.ids[each]: self.placement(each, cpus) for each in changed}
        in_place = {
            each: Cpuset(cpus=new.cpus, mems=new.mems) for each, new in changes.items() if observed
        }
        self.executor.apply(Listed(recorded=in_place, observed=in_place))
        self.executor.apply(
            Registered(
                phases=dict.fromkeys(self.ids, Phase.RUNNING),
                changes={
                    each: replace(new, quota=NO_QUOTA) if observed else new
                    for each, new in changes.items()
                },
                unseen={},
                listed={},
                new=(),
            )
        )

    def note(self, *numbers: int) -> None:
        self.executor.decide({self.ids[number]: self.placement(number) for number in numbers})

    async def wait(self, seconds: float) -> None:
        """Let *seconds* pass once the telling waits, and for no answer to a call."""

        def waits() -> bool:
            return any(
                due - self.time.reading < 20 and task.get_name() != "nri pauses"
                for task, due in self.time.sleepers.items()
            )

        await idle()  # until then a wait may still be there that has been given up
        await until(waits)
        self.time.advance(seconds)

    async def call(self) -> tuple[IncomingCall, list[pb.ContainerUpdate]]:
        """Return the runtime's next request, and what it is to update."""
        request = await self.peer.request("UpdateContainers")
        return request, [*pb.UpdateContainersRequest.FromString(request.payload).update]

    def fail(self, request: IncomingCall, *updates: pb.ContainerUpdate) -> None:
        response = pb.UpdateContainersResponse(failed=updates).SerializeToString()
        self.peer.refuse(request, Code.UNKNOWN, "failed to update", response)

    def silent(self) -> bool:
        return not self.peer.events


@asynccontextmanager
async def scene(tmp_path: Path, nri: str = "v0.12.2") -> AsyncIterator[Scene]:
    path, time = tmp_path / "nri.sock", FakeTime()
    engine = Engine(nodes.machine(), nodes.settings())
    containers = [nodes.container(100, 200) for _ in range(3)]
    for container in containers:
        engine.handle(Created(container=container))
    node = Node(engine)
    executor = Executor(node, None, clock=time.clock)
    session = Session(
        RecordingPlugin(),
        PluginIdentity(name="a", index="01"),
        clock=time.clock,
        delay=lambda _: 1.0,
    )
    async with listening(path) as peers, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(session.run(str(path)), name="session"),
            group.create_task(executor.run(RuntimeLink(session)), name="delivery"),
        ]
        peer = await peers.get()
        await peer.handshake(nri)
        yield Scene(
            engine=engine,
            node=node,
            executor=executor,
            answers=Answers(executor),
            link=RuntimeLink(session),
            session=session,
            time=time,
            peers=peers,
            peer=peer,
            ids=[container.id for container in containers],
        )
        for task in tasks:
            task.cancel()


async def test_who_is_where_it_is_to_be_hears_of_another_quota_at_leisure(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.register(0, observed=True)
        assert not it.executor.state.pending
        assert [*it.executor.state.unrecorded] == [it.ids[0]]


async def test_the_answer_about_a_resize_tells_of_the_container_itself(tmp_path: Path) -> None:
    """It was in its place already, and the runtime believed it elsewhere."""
    async with scene(tmp_path) as it:
        state, placement = it.executor.state, it.placement(0)
        change(it.executor, it.ids[0], unrecorded=0.0)
        it.answers.note(it.ids[0], placement)
        assert not state.unrecorded
        recorded = state.records[it.ids[0]].recorded
        assert recorded is not None
        assert recorded.has(placement)


async def test_the_next_response_takes_along_what_others_have_not_heard(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0, 1, 2)
        taken = it.answers.take(it.ids[1])
        assert [update.container_id for update in taken] == [it.ids[0], it.ids[2]]
        assert all(update.ignore_failure for update in taken)
        assert taken[0].linux.resources.cpu.cpus == str(it.placement(0).cpus)
        assert it.answers.take() == []
        await idle()
        it.time.advance(PATIENCE)
        await idle()
        it.peer.send("RunPodSandbox", pb.RunPodSandboxRequest())
        await it.peer.event()  # the answer: nothing was said before it
        assert it.silent()


@pytest.mark.parametrize("nri", ["v0.12.1", "v0.12.2"])
async def test_what_no_response_takes_along_is_told_in_one_call(tmp_path: Path, nri: str) -> None:
    async with scene(tmp_path, nri) as it:
        it.note(0)
        it.note(1)
        await it.wait(PATIENCE - 0.01)
        await idle()
        it.time.advance(0.01)
        request, updates = await it.call()
        assert [update.container_id for update in updates] == it.ids[:2]
        assert not any(update.ignore_failure for update in updates)
        it.peer.respond(request)
        await it.executor.messages.flush(it.link)
        assert it.answers.take() == []
        assert not it.executor.state.refused


@pytest.mark.parametrize(("nri", "in_answers"), [("v0.12.1", 1), ("v0.12.0", 3)])
async def test_ends_in_a_row_have_others_grow_by_one_answer_and_then_by_a_call(
    tmp_path: Path, nri: str, in_answers: int
) -> None:
    """The call has only the latest CPUs. Where none is safe, each answer has them."""
    async with scene(tmp_path, nri) as it:
        has = Cpuset(cpus=CPUSet([1]), mems=it.placement(0).mems)
        it.executor.apply(Listed(recorded={it.ids[0]: has}, observed={}))
        taken = list[pb.ContainerUpdate]()
        for cpus in ("1-2", "1-3", "1-4"):
            it.executor.decide(it.change(0, cpus))
            await idle()
            taken += it.answers.take()
        latest = taken
        assert len(taken) == in_answers
        if in_answers == 1:
            await it.wait(PATIENCE)
            request, latest = await it.call()
            it.peer.respond(request)
            await it.executor.messages.flush(it.link)
        assert latest[-1].linux.resources.cpu.cpus == "1-4"
        it.time.advance(PATIENCE)
        it.executor.decide(it.change(0, "1-5"))
        it.executor.decide(it.change(1, "1"))
        assert len(it.answers.take()) == 2


@pytest.mark.parametrize("nri", ["v0.12.0", "v0.8.0", ""])
async def test_a_runtime_that_could_hang_is_told_by_registering_again(
    tmp_path: Path, nri: str
) -> None:
    async with scene(tmp_path, nri) as it:
        it.note(0)
        await it.wait(PATIENCE_TO_REGISTER - 0.01)
        await idle()
        assert it.session.synchronized
        it.time.advance(0.01)
        await it.peer.closed_by_plugin()
        assert it.silent()
        await until(lambda: any(t.get_name() == "session" for t in it.time.sleepers))
        it.time.advance(1.0)
        await (await it.peers.get()).handshake(nri)
        # the plugin itself returns them from Synchronize
        assert [update.container_id for update in it.answers.take()] == [it.ids[0]]


async def test_a_runtime_whose_list_was_answered_late_is_not_registered_with_only_to_tell(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, "v0.8.0") as it:
        for _ in range(3):
            it.session._note_synchronize(late=True)
        it.note(0)
        await it.wait(PATIENCE_TO_REGISTER)
        await idle()
        assert it.session.synchronized
        await it.wait(PATIENCE_TO_REGISTER)  # the pause of 8 seconds is over
        await it.peer.closed_by_plugin()


async def test_each_change_is_given_the_time_to_go_along(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0)
        await it.wait(PATIENCE - 0.1)
        assert len(it.answers.take()) == 1
        await idle()
        it.note(1)
        await it.wait(PATIENCE - 0.1)
        await idle()
        assert [u.container_id for u in it.answers.take()] == [it.ids[1]]
        it.note(2)
        await idle()
        await it.wait(PATIENCE)
        _, updates = await it.call()
        assert [u.container_id for u in updates] == [it.ids[2]]


async def test_what_comes_late_after_a_response_is_told_again_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0, 1)
        await it.wait(PATIENCE)
        request, _ = await it.call()
        it.executor.decide(it.change(0, "8-11"))
        (overtaking,) = (u for u in it.answers.take() if u.container_id == it.ids[0])
        it.peer.respond(request)
        request, (again,) = await it.call()
        assert again.container_id == it.ids[0]
        assert again.linux.resources.cpu.cpus == overtaking.linux.resources.cpu.cpus == "8-11"
        it.peer.respond(request)
        await it.executor.messages.flush(it.link)


async def test_a_failed_update_is_tried_again_and_given_up_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path) as it:
        it.note(0, 1)
        for tries in range(MAX_TRIES):
            await it.wait(PATIENCE * 2**tries - 0.01)
            await idle()
            it.time.advance(0.01)
            request, updates = await it.call()
            assert [u.container_id for u in updates] == it.ids[: 1 if tries else 2]
            assert not it.executor.state.refused
            it.fail(request, updates[0])
            if tries < MAX_TRIES - 1:
                records, expected = it.executor.state.records, tries + 1
                await until(lambda: records[it.ids[0]].attempts == expected)  # noqa: B023
                # a response would not say whether it fails again
                assert it.answers.take() == []
        await until(lambda: bool(it.executor.state.refused))
        assert it.executor.state.known(it.ids[0]).refused == it.placement(0)
        (line,) = [each for each in caplog.records if each.msg == "update-refused"]
        name = it.node.view.placed[it.ids[0]].container.full_name
        assert (line.levelno, vars(line)["container"]) == (logging.ERROR, name)
        assert vars(line)["cpus"] == it.placement(0).cpus
        it.note(0)
        assert not it.executor.state.refused
        await it.wait(PATIENCE)
        request, _ = await it.call()
        it.peer.respond(request)


@pytest.mark.parametrize("silent", [True, False])
async def test_a_call_of_which_nobody_knows_what_came_leads_to_a_new_registration(
    tmp_path: Path, *, silent: bool
) -> None:
    async with scene(tmp_path) as it:
        it.note(0)
        await it.wait(PATIENCE)
        request, _ = await it.call()
        if silent:
            it.time.advance(UPDATE_TIMEOUT)
        else:
            it.peer.refuse(request, Code.UNAVAILABLE, "not now")
        await it.peer.closed_by_plugin()
        assert [update.container_id for update in it.answers.take()] == [it.ids[0]]


async def test_nothing_is_lost_with_the_connection(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0)
        await it.wait(PATIENCE)
        await it.call()
        it.peer.close()
        await until(lambda: not it.session.synchronized)
        assert [update.container_id for update in it.answers.take()] == [it.ids[0]]


async def test_more_than_fits_into_a_message_goes_into_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as it:
        it.note(0, 1, 2)
        size = update_of(it.ids[0], it.placement(0), ignore_failure=True).ByteSize()
        monkeypatch.setattr(link_module, "MAX_MESSAGE", 5 * (size + 8) // 2)
        await it.wait(PATIENCE)
        request, updates = await it.call()
        assert [u.container_id for u in updates] == it.ids[:2]
        it.peer.respond(request)
        request, updates = await it.call()
        assert [u.container_id for u in updates] == it.ids[2:]
        it.peer.respond(request)
        await it.executor.messages.flush(it.link)
        it.note(0, 1, 2)
        assert [[u.container_id for u in it.answers.take()] for _ in range(3)] == [
            it.ids[:2],
            it.ids[2:],
            [],
        ]


async def test_500_containers_are_one_message(tmp_path: Path) -> None:
    """On the largest machine, with cpusets that are as long as they come there."""
    async with scene(tmp_path) as it:
        cpus = ",".join(map(str, range(0, 4096, 8)))
        for _ in range(497):
            container = nodes.best_effort()
            it.handle(Created(container=container))
            it.ids.append(container.id)
        it.executor.decide(
            {
                it.ids[number]: replace(it.placement(number), cpus=CPUSet.parse(cpus))
                for number in range(400)
            }
        )
        it.note(*range(400, 500))
        await it.wait(PATIENCE)
        sent, updates = await it.call()
        assert len(updates) == 500
        assert len(sent.payload) < 4 << 20


async def test_who_is_gone_is_not_told(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0, 1)
        it.handle(Stopped(container_id=it.ids[0]))
        await it.wait(PATIENCE)
        request, updates = await it.call()
        assert [u.container_id for u in updates] == [it.ids[1]]
        it.handle(Stopped(container_id=it.ids[1]))
        it.fail(request, *updates)
        await it.executor.messages.flush(it.link)
        assert not it.executor.state.refused


async def test_a_response_takes_nothing_along_for_who_is_gone(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0, 1)
        change(it.executor, it.ids[2], refused=it.placement(2))
        for gone in (0, 2):
            it.handle(Stopped(container_id=it.ids[gone]))
        assert [u.container_id for u in it.answers.take()] == [it.ids[1]]
        assert not it.executor.state.refused


async def test_what_changed_there_and_back_during_a_call_is_told_again(tmp_path: Path) -> None:
    """Which came last, the call or the response that went there, only the runtime knows."""
    async with scene(tmp_path) as it:
        before = it.placement(0)
        it.note(0)
        await it.wait(PATIENCE)
        request, _ = await it.call()
        it.executor.decide(it.change(0, "8-11"))
        assert len(it.answers.take()) == 1
        it.executor.decide(it.change(0, str(before.cpus)))
        it.peer.respond(request)
        await it.wait(PATIENCE)
        request, (again,) = await it.call()
        assert again.linux.resources.cpu.cpus == str(before.cpus)
        it.peer.respond(request)
        await it.executor.messages.flush(it.link)


async def test_shares_are_not_forgotten_for_a_newer_change(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.executor.decide({it.ids[0]: replace(it.placement(0), shares=77)})
        it.executor.decide(it.change(0, "8-11"))
        (update,) = it.answers.take()
        assert update.linux.resources.cpu.shares.value == 77
        assert update.linux.resources.cpu.cpus == "8-11"


async def test_a_response_that_comes_too_late_takes_nothing_along(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.note(0)
        stopped = Clock(now=lambda: 0.0)
        call = Call(method="StopContainer", came=0, received=0, deadline=1, clock=stopped)
        call.answered = True
        it.answers.request = call
        assert it.answers.take() == []
        it.answers.request = None
        assert len(it.answers.take()) == 1


async def test_a_runtime_that_cannot_be_called_is_told_by_responses_only() -> None:
    """It calls us over gRPC: no session is connected."""
    time = FakeTime()
    engine = Engine(nodes.machine(), nodes.settings())
    container = nodes.container(100, 200)
    engine.handle(Created(container=container))
    node = Node(engine)
    executor = Executor(node, None, clock=time.clock)
    session = Session(RecordingPlugin(), PluginIdentity(name="a", index="01"), clock=time.clock)
    running = asyncio.create_task(executor.run(RuntimeLink(session)), name="delivery")
    placement = node.view.placement(container.id)
    assert placement is not None
    executor.decide({container.id: placement})
    for _ in range(3):
        await until(lambda: bool(time.sleepers))
        time.advance(PATIENCE)
        await idle()
    assert not running.done()
    assert len(Answers(executor).take()) == 1
    running.cancel()


async def test_those_who_are_left_behind_run_anywhere(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.executor.widen()
        leaving = asyncio.create_task(it.executor.messages.leave(it.link, 10.0))
        request, updates = await it.call()
        assert [u.container_id for u in updates] == it.ids
        for update in updates:
            assert update.linux.resources.cpu.cpus == "0-15"
            assert update.linux.resources.cpu.mems == "0-3"
        # from now on nobody is told anything else, whatever is decided
        it.executor.decide(it.change(0, "8-11"))
        assert {u.linux.resources.cpu.cpus for u in it.answers.take()} == {"0-15"}
        it.register(1, cpus="8-11")
        assert [u.linux.resources.cpu.cpus for u in it.answers.take()] == ["0-15"] * 3
        it.peer.respond(request)
        await until(lambda: leaving in it.time.sleepers)
        it.time.advance(1)
        assert await leaving


async def test_leaving_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.executor.widen()
        leaving = asyncio.create_task(it.executor.messages.leave(it.link, 10.0))
        await it.call()
        it.time.advance(10.0)
        assert not await leaving


@asynccontextmanager
async def deserted(tmp_path: Path) -> AsyncIterator[tuple[Executor, RuntimeLink, FakeTime]]:
    """Yield the telling of a container, and a session without anyone at the other end."""
    time, engine = FakeTime(), Engine(nodes.machine(), nodes.settings())
    engine.handle(Created(container=nodes.container(1000)))
    session = Session(RecordingPlugin(), PluginIdentity(name="a", index="01"), clock=time.clock)
    running = asyncio.create_task(session.run(str(tmp_path / "none.sock")))
    await session.missing.wait()
    yield Executor(Node(engine), None, clock=time.clock), RuntimeLink(session), time
    running.cancel()


async def test_nobody_waits_for_a_runtime_that_is_not_there(tmp_path: Path) -> None:
    async with deserted(tmp_path) as (executor, link, _):
        await executor.widen()
        assert not await executor.messages.leave(link, 10.0), "though no time passes"


async def test_a_runtime_that_goes_while_it_is_told_is_not_waited_for(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.executor.widen()
        leaving = asyncio.create_task(it.executor.messages.leave(it.link, 10.0))
        await it.call()
        (tmp_path / "nri.sock").unlink()
        it.peer.close()
        await until(lambda: any(t.get_name() == "session" for t in it.time.sleepers))
        assert not leaving.done(), "it may be back in a second"
        it.time.advance(1.0)
        assert not await leaving


async def test_a_runtime_that_calls_us_has_its_time_though_there_is_no_session(
    tmp_path: Path,
) -> None:
    async with deserted(tmp_path) as (executor, link, time):
        await executor.widen()
        leaving = asyncio.create_task(executor.messages.leave(link, 10.0, called=True))
        await idle()
        assert len(Answers(executor).take()) == 1
        await until(lambda: leaving in time.sleepers)
        time.advance(1.0)
        assert await leaving


async def test_with_nobody_to_be_told_leaving_takes_no_time(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for each in it.ids:
            it.handle(Stopped(container_id=each))
        await it.executor.widen()
        assert await it.executor.messages.leave(it.link, 10.0)
