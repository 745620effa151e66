"""The policy behind a service: what is answered late is decided in its turn, and told then."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from nri_policy.delivery import survey
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.record import Phase
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import kind
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nri.service import LATE, PluginService
from nri_policy.nri.session import Session
from nri_policy.nri.versions import Events
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.cpuset_requests import SHOWN, CpusetRequests
from nri_policy.plugin.creations import PATIENCE, Creations
from nri_policy.plugin.decisions import log_decision
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.policy_plugin import PolicyPlugin
from nri_policy.plugin.runtime_link import RuntimeLink
from nri_policy.plugin.sources import Sources
from nri_policy.proto import nri_pb2 as pb
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.workload.pod import shares_of
from tests.support import nodes
from tests.unit.nri.peer import FakeTime

BUDGET = 2.0  # seconds


class Stage:
    """A policy, asked over one service."""

    def __init__(self, folder: Path, *, cgroups: HostCgroups | None = None, **spec: Any) -> None:
        self.engine = Engine(nodes.machine(), nodes.settings(**spec))
        self.node = Node(self.engine)
        self.executor = Executor(self.node, cgroups, clock=Clock(date=lambda: 0.0))
        self.synchronized = 0
        sources = Sources(cgroups=cgroups)
        components = PluginComponents(self.node, Exposure(folder), self.executor, sources=sources)
        self.answers = components.answers
        self.plugin = PolicyPlugin(components, synchronized=self._synchronized)
        self.time = FakeTime()
        self.service = PluginService(self.plugin, self.node.turn, self.time.clock)

    def _synchronized(self) -> None:
        self.synchronized += 1

    def ask(self, method: str, request: Message) -> asyncio.Task[bytes]:
        """Ask, in a task of its own."""
        return asyncio.create_task(
            self.service.answer(
                method,
                request.SerializeToString(),
                budget=BUDGET,
            )
        )

    async def answer(self, method: str, request: Message) -> Any:
        """Return the answer while nobody has the turn."""
        return _response(method, await self.ask(method, request))

    async def late(self, method: str, request: Message) -> Any:
        """Return the answer while somebody else has the turn."""
        assert self.node._turn.locked()
        asking = self.ask(method, request)
        await self.time.asleep.wait()
        self.time.asleep.clear()
        self.time.advance(LATE * BUDGET)
        return _response(method, await asking)

    async def create(self, *made: tuple[pb.PodSandbox, pb.Container]) -> None:
        for pod, container in made:
            await self.answer(
                "CreateContainer", pb.CreateContainerRequest(pod=pod, container=container)
            )

    def updated(self) -> dict[str, str]:
        """Return what is told with the next response: cpusets by container."""
        return {
            update.container_id: update.linux.resources.cpu.cpus for update in self.answers.take()
        }

    async def settle(self) -> None:
        """Wait until all earlier waiters for the turn have had it."""
        async with self.node.turn:
            pass


def _response(method: str, payload: bytes) -> Message:
    declared = pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name[method]
    return GetMessageClass(declared.output_type).FromString(payload)


def _about(method: str, pod: pb.PodSandbox, container: pb.Container) -> Message:
    """Return a request of *method*'s."""
    declared = pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name[method]
    return GetMessageClass(declared.input_type)(pod=pod, container=container)


def _texts(folder: str) -> list[str]:
    return [file.read_text() for file in Path(folder).iterdir()]


def made(
    name: str, milli: int, *, namespace: str = "default", annotation: str = ""
) -> tuple[pb.PodSandbox, pb.Container]:
    """Return a Guaranteed pod of one container."""
    pod = pb.PodSandbox(id=f"pod-{name}", uid=name, name=name, namespace=namespace)
    pod.linux.cgroup_parent = f"/kubepods/pod{name}"
    key, _, value = annotation.partition("=")
    if key:
        pod.annotations[f"{key}.resource-policy.nri.io/pod"] = value
    container = pb.Container(id=name, pod_sandbox_id=pod.id, name="main")
    container.linux.resources.CopyFrom(amounts(milli))
    return pod, container


def amounts(milli: int) -> pb.LinuxResources:
    resources = pb.LinuxResources()
    resources.cpu.shares.value = shares_of(milli)
    resources.cpu.quota.value = 100 * milli
    resources.cpu.period.value = 100_000
    return resources


async def test_observers_of_a_decision_are_called_right_after_its_answer(tmp_path: Path) -> None:
    stage, order = Stage(tmp_path), list[str]()
    stage.node.add_observers(lambda event, *_: order.append(kind(event)))
    pod, container = made("first", 1000)
    stage.service.begin(
        "CreateContainer",
        pb.CreateContainerRequest(pod=pod, container=container).SerializeToString(),
        came=0.0,
        received=0.0,
        budget=BUDGET,
        to=lambda _: order.append("answer"),
    )
    assert order == ["answer", "created"]


async def test_any_request_says_that_the_runtime_has_handled_all_answers_before(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    await stage.create(made("one", 1000))
    (pod, _), state = made("two", 1000), stage.executor.state
    flight = state.records["one"].in_flight
    assert flight is not None
    assert flight.request == state.requests
    await stage.answer("RunPodSandbox", pb.RunPodSandboxRequest(pod=pod))
    assert flight.request < state.requests
    assert stage.answers.request is None, "it has ended"


@pytest.mark.parametrize(("nri", "warned"), [("v0.6.0", True), ("v0.6.1", False)])
async def test_a_runtime_that_can_hang_when_we_register_is_warned_of(
    nri: str, *, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = pb.ConfigureRequest(
        runtime_name="containerd", runtime_version="1.7.20", NRI_version=nri
    )
    await Stage(tmp_path).answer("Configure", request)
    assert ("old-runtime" in [each.msg for each in caplog.records]) is warned


@pytest.mark.parametrize(
    ("runtime", "version", "placed"), [("containerd", "2.1.9", False), ("cri-o", "1.34.0", True)]
)
async def test_a_created_container_of_a_pod_without_a_process_has_ended_where_pods_show_one(
    runtime: str, version: str, *, placed: bool, tmp_path: Path
) -> None:
    host = EmbeddedRuntime(tmp_path / "nri.sock", online_cpus=EMPTY, memory_nodes=EMPTY)
    stage = Stage(tmp_path, cgroups=SimulatedCgroups(host))
    configure = pb.ConfigureRequest(runtime_name=runtime, runtime_version=version)
    await stage.answer("Configure", configure)
    pod, container = made("created", 1000)
    container.state = pb.CONTAINER_CREATED
    await stage.answer("Synchronize", pb.SynchronizeRequest(pods=[pod], containers=[container]))
    assert ("created" in stage.node.view.placed) is placed


async def test_a_refusal_is_logged_with_the_name_of_its_container(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path)
    fits, large = made("fits", 1000), made("large", 99_000)
    await stage.create(fits)
    async with stage.node.turn:
        with pytest.raises(CallRefused, match="99 exclusive CPUs"):
            await stage.plugin.create_container(*large)
        with pytest.raises(CallRefused, match="98 exclusive CPUs"):
            await stage.plugin.update_container(*fits, amounts(98_000))
    found = [(vars(each)["container"], vars(each)["reason"]) for each in caplog.records]
    assert [name for name, _ in found] == ["default/large/main", "default/fits/main"]
    assert "98 exclusive CPUs" in found[1][1]


async def test_a_container_finds_its_resources_when_it_starts(tmp_path: Path) -> None:
    """Its folder is there to be mounted before: the creation waits for no file."""
    stage, (pod, container) = Stage(tmp_path), made("one", 1000)
    request = pb.CreateContainerRequest(pod=pod, container=container)
    answer = await stage.answer("CreateContainer", request)
    (mount,) = answer.adjust.mounts
    assert _texts(mount.source) == []
    start = pb.StartContainerRequest(pod=pod, container=container)
    await stage.answer("StartContainer", start)
    (text,) = _texts(mount.source)
    assert f'EXCLUSIVE_CPUS="{stage.engine.state.placed["one"].grant.exclusive}"' in text


async def test_a_removal_is_an_event_only_where_the_stop_was_missed(tmp_path: Path) -> None:
    stage, events = Stage(tmp_path), list[str]()
    stage.node.add_observers(lambda event, _outcome, _view: events.append(kind(event)))
    for missed in (False, True):
        pod, container = made("one", 1000)
        await stage.answer("RunPodSandbox", pb.RunPodSandboxRequest(pod=pod))
        await stage.create((pod, container))
        if not missed:
            stop = pb.StopContainerRequest(pod=pod, container=container)
            await stage.answer("StopContainer", stop)
            await stage.answer("StopPodSandbox", pb.StopPodSandboxRequest(pod=pod))
        events.clear()
        removal = pb.RemoveContainerRequest(pod=pod, container=container)
        await stage.answer("RemoveContainer", removal)
        await stage.answer("RemovePodSandbox", pb.RemovePodSandboxRequest(pod=pod))
        assert events == (["stopped", "pod-stopped"] if missed else [])
        assert not stage.node.view.placed


@pytest.mark.parametrize("method", ["StartContainer", "PostStartContainer"])
@pytest.mark.parametrize("known", [True, False], ids=["removed", "never heard of"])
async def test_an_event_about_a_container_that_is_gone_does_not_book_it(
    method: str, known: bool, tmp_path: Path
) -> None:
    stage, (pod, container) = Stage(tmp_path), made("gone", 2000)
    if known:
        await stage.create((pod, container))
        for each in ("StopContainer", "RemoveContainer"):
            await stage.answer(each, _about(each, pod, container))
    container.state = pb.CONTAINER_STOPPED
    await stage.answer(method, _about(method, pod, container))
    await stage.answer("PostUpdateContainer", _about("PostUpdateContainer", pod, container))
    assert not stage.node.view.placed
    assert not stage.node.view.pods, "nor its pod"
    assert not stage.executor.state.busy
    assert stage.engine.state.supply.free_cpus() == stage.engine.layout.capacity.sharable


@pytest.mark.parametrize("method", ["StartContainer", "PostStartContainer"])
@pytest.mark.parametrize(
    "seen",
    [
        (["pod"], 0, False),
        (["pod", "container"], 0, True),
        ([], 0, True),
        (["pod"], 4711, True),
    ],
    ids=["no process", "a process", "cgroups out of sight", "a process elsewhere"],
)
async def test_a_container_in_no_book_that_starts_shows_a_process_where_its_pod_does(
    method: str, seen: tuple[list[str], int, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living, pid, booked = seen
    monkeypatch.setattr(survey, "MAX_SURVEY", 20.0)
    runtime = EmbeddedRuntime(tmp_path / "nri.sock", online_cpus=EMPTY, memory_nodes=EMPTY)
    cgroups = SimulatedCgroups(runtime)
    monkeypatch.setattr(cgroups, "processes", lambda path: [1] if path in living else [])
    stage, (pod, container) = Stage(tmp_path, cgroups=cgroups), made("missed", 2000)
    pod.linux.cgroups_path, container.linux.cgroups_path = "pod", "container"
    container.pid = pid
    await stage.answer(method, _about(method, pod, container))
    assert ("missed" in stage.node.view.placed) is booked


async def test_creations_that_fail_after_the_answer_are_counted_until_one_does_not(
    tmp_path: Path,
) -> None:
    """As where two plugins set the same: the runtime refuses what both have answered."""
    stage = Stage(tmp_path)
    creations = stage.plugin._components.creations
    for name, end in (("a", "StopContainer"), ("b", "RemoveContainer"), ("a", "StopContainer")):
        pod, container = made(name, 1000)
        await stage.create((pod, container))
        await stage.answer(end, _about(end, pod, container))
    assert creations.failed == {"default/a", "default/b"}
    pod, container = made("good", 1000)
    await stage.create((pod, container))
    for method in ("StartContainer", "StopContainer"):
        await stage.answer(method, _about(method, pod, container))
    assert creations.failed == set()


@pytest.mark.parametrize("end", ["StopContainer", "RemoveContainer"])
async def test_a_container_that_ends_before_its_start_was_created_all_the_same(
    end: str, tmp_path: Path
) -> None:
    stage, (pod, container) = Stage(tmp_path), made("a", 1000)
    await stage.create((pod, container))
    container.state = pb.CONTAINER_CREATED
    for method in (end, "RemoveContainer"):
        await stage.answer(method, _about(method, pod, container))
    assert stage.plugin._components.creations.failed == set()


def test_a_creation_of_which_nothing_is_heard_has_failed_after_a_while() -> None:
    """As on CRI-O."""
    time = FakeTime()
    creations = Creations(time.clock)
    for name in ("slow", "lost"):
        creations.answered(pb.PodSandbox(namespace="default", name=name), name)
    assert creations.failed == set()
    creations.created("slow")
    assert creations.failed == set()
    time.advance(PATIENCE)
    assert creations.failed == {"default/lost"}


async def test_a_container_for_which_there_is_no_time_waits_on_cpus_that_are_nobodys_own(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    await stage.create(made("first", 2000))
    (own,) = stage.engine.state.placed.values()
    pod, container = made("late", 1000)
    async with stage.node.turn:
        answer = await stage.late(
            "CreateContainer", pb.CreateContainerRequest(pod=pod, container=container)
        )
        cpu = answer.adjust.linux.resources.cpu
        assert cpu.cpus == str(stage.engine.state.supply.free_cpus())
        assert not own.grant.exclusive & stage.engine.state.supply.free_cpus()
        assert not cpu.mems
        assert not cpu.HasField("shares")
        assert not answer.update
    await stage.settle()
    late = stage.engine.state.placed["late"]
    (update,) = stage.answers.take()
    assert update.container_id == "late"
    assert update.linux.resources.cpu.cpus == str(late.grant.exclusive)
    assert update.linux.resources.cpu.mems == str(late.grant.mems)
    assert update.linux.resources.cpu.shares.value == shares_of(1000)
    assert stage.plugin.late_answers == {"CreateContainer": 1}


@pytest.mark.parametrize(
    ("container", "cpus"),
    [
        (made("a", 1000, namespace="kube-system"), "0"),
        (made("a", 1000, annotation="cpu.preserve=true"), ""),
        (made("a", 1000, annotation="cpu.preserve=nonsense"), "1-15"),
        (made("a", 2000, annotation="hide-hyperthreads=true"), "1-2,4,6,8,10,12,14"),
    ],
)
async def test_what_is_certain_of_a_container_holds_before_its_decision(
    container: tuple[pb.PodSandbox, pb.Container], cpus: str, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    request = pb.CreateContainerRequest(pod=container[0], container=container[1])
    async with stage.node.turn:
        answer = await stage.late("CreateContainer", request)
    assert answer.adjust.linux.resources.cpu.cpus == cpus


async def test_no_answer_waits_for_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stage = Stage(tmp_path)
    stage.node.add_observers(log_decision)
    async with stage.node.turn:
        await stage.plugin.create_container(*made("a", 1000))
    assert "event=placed" not in caplog.text
    await asyncio.sleep(0)
    assert "event=placed container=default/a/main" in caplog.text


async def test_nothing_is_pinned_that_settings_leave_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, pinCPU=False)
    pod, container = made("a", 1000)
    async with stage.node.turn:
        answer = await stage.late(
            "CreateContainer", pb.CreateContainerRequest(pod=pod, container=container)
        )
    assert not answer.adjust.linux.resources.cpu.cpus


async def test_another_agent_that_asks_for_cpus_is_named_and_the_decision_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path)
    problems = stage.plugin._components.cpuset_requests.problems
    pod, container = made("p", 1000)
    await stage.create((pod, container))
    decided = stage.engine.state.placed["p"].grant.own
    same = amounts(1000)
    same.cpu.cpus = str(decided)
    request = pb.UpdateContainerRequest(pod=pod, container=container)
    for asked in (amounts(1000), same):
        request.linux_resources.CopyFrom(asked)
        await stage.answer("UpdateContainer", request)
    assert [*problems()] == []
    request.linux_resources.cpu.cpus = "0-3"
    answered = await stage.answer("UpdateContainer", request)
    assert answered.update[0].linux.resources.cpu.cpus == str(decided)
    said = f"another agent asked for CPUs 0-3 for default/p/main, which has {decided} instead"
    (problem,) = problems()
    assert problem.startswith(said)
    pod, container = made("q", 1000)
    container.linux.resources.cpu.cpus = "0-1"
    await stage.create((pod, container))
    (problem,) = problems()
    assert problem.startswith("another agent asked for CPUs 0-1 for default/q/main")
    assert caplog.text.count("cpuset-replaced") == 1, "once an hour"


def test_a_request_for_other_cpus_is_shown_for_an_hour_and_odd_texts_are_not() -> None:
    at = 0.0
    requests = CpusetRequests(Clock(now=lambda: at))
    for odd in ("", "x", "1-0"):
        requests.note("default/p/c", odd, CPUSet([1]))
    requests.note("default/p/c", "0-1", EMPTY)  # the decision leaves it alone
    assert [*requests.problems()] == []
    requests.note("default/p/c", "0-1", CPUSet([1]))
    at = SHOWN - 1
    assert len([*requests.problems()]) == 1
    at = SHOWN
    assert [*requests.problems()] == []


async def test_a_late_resize_leaves_the_cpuset_and_is_made_up_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    pod, container = made("a", 1000)
    await stage.create((pod, container))
    before = stage.engine.state.placed["a"].grant
    request = pb.UpdateContainerRequest(pod=pod, container=container, linux_resources=amounts(3000))
    async with stage.node.turn:
        (own,) = (await stage.late("UpdateContainer", request)).update
        assert own.container_id == "a"
        assert own.linux.resources.cpu.cpus == str(before.exclusive)
        assert own.linux.resources.cpu.mems == str(before.mems)
    await stage.settle()
    after = stage.engine.state.placed["a"].grant
    assert len(after.exclusive) == 3
    assert stage.updated() == {"a": str(after.exclusive)}


async def test_what_comes_after_a_late_request_is_decided_after_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    pod, container = made("a", 1000)
    async with stage.node.turn:
        for method in ("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer"):
            answer = await stage.late(method, _about(method, pod, container))
            assert method == "CreateContainer" or not answer.ByteSize()
    await stage.settle()
    assert not stage.engine.state.placed
    assert stage.engine.state.supply.free_cpus() == stage.engine.layout.capacity.sharable
    assert stage.plugin.late_answers.total() == 4


async def test_a_late_synchronize_is_answered_without_updates_and_told_later(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    await stage.answer("Configure", pb.ConfigureRequest(NRI_version="v0.12.2"))
    parts = [made("a", 1000), made("b", 2000)]
    async with stage.node.turn:
        for pod, container in parts:
            container.state = pb.CONTAINER_RUNNING
            more = pod.name == "a"
            request = pb.SynchronizeRequest(pods=[pod], containers=[container], more=more)
            answer = await stage.late("Synchronize", request)
            assert answer == pb.SynchronizeResponse(more=more)
        assert stage.synchronized == 0
    await stage.settle()
    assert stage.synchronized == 1
    assert stage.service.synchronized
    assert stage.service.trouble is None
    placed = stage.engine.state.placed
    assert stage.updated() == {each: str(placed[each].grant.exclusive) for each in ("a", "b")}


async def test_a_late_configure_subscribes_all_the_same(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    request = pb.ConfigureRequest(NRI_version="v0.12.2")
    async with stage.node.turn:
        answer = await stage.late("Configure", request)
    assert answer == await stage.answer("Configure", request)
    assert answer.events


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (made("late", 4000), "no pool has room for 4 exclusive CPUs"),
        (made("late", 4000, annotation="cpu.preserve=nonsense"), "annotation cpu.preserve"),
        (made("late", 1000, annotation="cpu.preserve=nonsense"), "annotation cpu.preserve"),
    ],
    ids=["no room", "no room and nonsense", "nonsense"],
)
async def test_a_late_container_that_would_be_refused_gets_a_place_all_the_same(
    late: tuple[pb.PodSandbox, pb.Container], why: str, tmp_path: Path
) -> None:
    """It runs already; out of the books its CPUs could become somebody else's own."""
    stage = Stage(tmp_path)
    await stage.create(made("large", 14_000))
    request = pb.CreateContainerRequest(pod=late[0], container=late[1])
    async with stage.node.turn:
        answer = await stage.late("CreateContainer", request)
        assert answer.adjust.linux.resources.cpu.cpus == "1"
    await stage.settle()
    placed = stage.engine.state.placed["late"]
    assert any(why in note for note in placed.explanation.notes), "explain says so"
    assert stage.updated() == {"late": "1"}
    with pytest.raises(CallRefused, match="no pool has room"):
        await stage.create(made("next", 1000))
    await stage.answer("StopContainer", pb.StopContainerRequest(pod=late[0], container=late[1]))
    await stage.create(made("next", 1000))


async def test_a_resize_that_is_late_while_we_leave_does_not_pin_who_runs_anywhere(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    pod, container = made("a", 1000)
    await stage.create((pod, container))
    session = Session(stage.plugin, PluginIdentity(name="a", index="01"))
    await stage.executor.widen()
    leaving = asyncio.create_task(stage.executor.messages.leave(RuntimeLink(session), 10.0))
    await asyncio.sleep(0)
    request = pb.UpdateContainerRequest(pod=pod, container=container, linux_resources=amounts(3000))
    async with stage.node.turn:
        (own,) = (await stage.late("UpdateContainer", request)).update
        assert own.linux.resources.cpu.cpus == "0-15"
    await stage.settle()
    assert stage.updated() == {"a": "0-15"}
    leaving.cancel()


async def test_a_container_that_ends_before_its_start_is_reported_holds_nothing(
    tmp_path: Path,
) -> None:
    """containerd reports the end of a short process before it says that the start has ended."""
    stage = Stage(tmp_path)
    both = pod, container = made("short", 1000)
    await stage.create(both)
    running = pb.Container()
    running.CopyFrom(container)
    running.state = pb.CONTAINER_RUNNING
    async with stage.node.turn:
        for _ in range(2):  # it may be started again
            await stage.plugin.start_container(*both)
            assert stage.engine.state.placed
            await stage.plugin.stop_container(pod, running)
            await stage.plugin.post_start_container(*both)
            assert not stage.engine.state.placed
        await stage.plugin.start_container(*both)
        await stage.plugin.post_start_container(*both)
        assert stage.engine.state.placed


def shown(folder: Path) -> SimulatedCgroups:
    """Return cgroups that can be read."""
    empty = EmbeddedRuntime(folder / "nri.sock", online_cpus=EMPTY, memory_nodes=EMPTY)
    return SimulatedCgroups(empty)


async def test_the_end_of_a_start_is_asked_for_where_no_cgroup_can_show_it(tmp_path: Path) -> None:
    asked = pb.ConfigureRequest(NRI_version="v0.12.2")
    sees, stage = Stage(tmp_path, cgroups=shown(tmp_path)), Stage(tmp_path)
    both = Events.POST_CREATE_CONTAINER | Events.POST_START_CONTAINER
    assert (await sees.answer("Configure", asked)).events & both == 0
    assert (await stage.answer("Configure", asked)).events & both == Events.POST_START_CONTAINER
    sees.executor.state.blind = True
    assert (await sees.answer("Configure", asked)).events & both == Events.POST_START_CONTAINER
    assert sees.executor.state.hears_starts


async def test_the_resize_of_a_container_that_started_is_not_in_force_before_it_ends(
    tmp_path: Path,
) -> None:
    """Though no look has found yet that the container runs."""
    stage, (pod, container) = Stage(tmp_path, cgroups=shown(tmp_path)), made("a", 1000)
    await stage.answer("Configure", pb.ConfigureRequest())
    await stage.create((pod, container))
    await stage.answer("StartContainer", _about("StartContainer", pod, container))
    assert stage.executor.state.phase("a") is Phase.STARTING
    resize = pb.UpdateContainerRequest(pod=pod, container=container, linux_resources=amounts(3000))
    await stage.answer("UpdateContainer", resize)
    assert "a" in stage.node.view.resizing
    assert stage.executor.state.phase("a") is Phase.UPDATING
