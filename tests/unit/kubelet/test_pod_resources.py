from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from nri_policy.foundation import on_demand
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet import pod_resources_client
from nri_policy.kubelet.pod_resources import DEADLINE, PATIENCE, Assignments
from nri_policy.kubelet.pod_resources_client import BACKOFF, PodResourcesClient
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.proto.podresources_pb2 import DynamicResource, GetPodResourcesResponse
from nri_policy.workload.pod import Pod
from tests.support.patience import HANGS

from .kubelet import Kubelet, entry, resources, serving

GPU, NIC = "example.com/gpu", "example.com/nic"


class Time:
    """Sleeps that last until `ring` is called for their length, now or before."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._over: dict[float, asyncio.Event] = {}

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self._over.setdefault(seconds, asyncio.Event()).wait()

    def ring(self, seconds: float) -> None:
        self._over.setdefault(seconds, asyncio.Event()).set()


def pod(name: str = "web", *, uid: str = "", sandbox: str = "", namespace: str = "default") -> Pod:
    return Pod(
        id=sandbox or f"sandbox-{uid or name}",
        uid=uid or f"uid-{name}",
        name=name,
        namespace=namespace,
        qos=QoS.GUARANTEED,
        labels={},
        annotations={},
    )


@asynccontextmanager
async def asking(kubelet: Any, path: Path, time: Time | None = None) -> AsyncIterator[Assignments]:
    time = time or Time()
    async with (
        serving(kubelet, path / "k"),
        Assignments(path / "k", clock=Clock(sleep=time.sleep)) as them,
    ):
        yield them


def places(**nodes: str) -> dict[str, CPUSet]:
    return {device: CPUSet.parse(text) for device, text in nodes.items()}


def sets(*lists: str) -> tuple[CPUSet, ...]:
    return tuple(map(CPUSet.parse, lists))


def near(assigned: Mapping[str, Mapping[str, CPUSet]]) -> dict[str, tuple[CPUSet, ...]]:
    """Return the nodes of each device of each resource, whatever its id."""
    return {resource: tuple(devices.values()) for resource, devices in assigned.items()}


async def test_each_device_of_a_resource_has_its_own_nodes(tmp_path: Path) -> None:
    kubelet = Kubelet(
        [
            resources("web", entry(GPU, "a", 0), entry(GPU, "b", 3), entry(NIC, "eth1", 1)),
            resources("db", entry(GPU, "c", 2)),
        ]
    )
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod())
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {
            GPU: places(a="0", b="3"),
            NIC: places(eth1="1"),
        }
        assert assignments.devices(pod(), "other") == {}
        assert assignments.devices(pod("db"), "c0") == {}, "nobody asked"
    assert kubelet.calls == ["Get"]


async def test_a_device_on_two_nodes_comes_twice_and_is_one(tmp_path: Path) -> None:
    kubelet = Kubelet([resources("web", entry(GPU, "a", 0), entry(GPU, "a", 1))])
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod())
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {GPU: places(a="0-1")}


async def test_no_topology_is_an_unknown_place_and_no_node_can_be_any_number(
    tmp_path: Path,
) -> None:
    odd = [entry(GPU, "a"), entry(GPU, "b", -1), entry(GPU, "c", 1 << 60), entry(GPU, "d", 0)]
    async with asking(Kubelet([resources("web", *odd)]), tmp_path) as assignments:
        assignments.ask(pod())
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {GPU: places(a="", b="", c="", d="0")}


async def test_whether_the_cpu_manager_is_on_is_known_of_a_kubelet_that_answers(
    tmp_path: Path,
) -> None:
    kubelet = Kubelet()
    async with asking(kubelet, tmp_path) as assignments:
        assert await assignments.manages_cpus() is False
        kubelet.managed = CPUSet.parse("2-15")
        assert await assignments.manages_cpus() is True
        kubelet.failures["GetAllocatableResources"] = [(grpc.StatusCode.UNAVAILABLE, "away")]
        assert await assignments.manages_cpus() is None


async def test_a_pod_has_claims_if_a_container_has_a_claimed_device(tmp_path: Path) -> None:
    kubelet = Kubelet([resources("web", entry(GPU, "a", 0)), resources("db")])
    claimed = DynamicResource(claim_name="gpus", claim_namespace="default")
    kubelet.pods[1].containers[0].dynamic_resources.append(claimed)
    kubelet.open.clear()
    async with asking(kubelet, tmp_path) as assignments:
        for name in ("web", "db"):
            assignments.ask(pod(name))
        waiting = [asyncio.ensure_future(assignments.has_claims(pod(n))) for n in ("web", "db")]
        await kubelet.called.wait()
        assert not any(each.done() for each in waiting), "it is not known yet"
        kubelet.open.set()
        assert await asyncio.gather(*waiting) == [False, True]
        assert not await assignments.has_claims(pod("unknown"))
        assert near(assignments.devices(pod(), "c0")) == {GPU: sets("0")}


async def test_what_else_is_on_its_way_is_waited_for_within_the_same_bound(tmp_path: Path) -> None:
    kubelet, time, more = Kubelet([resources("web")]), Time(), asyncio.Event()
    async with asking(kubelet, tmp_path, time) as assignments:
        other = asyncio.create_task(more.wait())
        assignments.ask(pod())
        waiting = asyncio.ensure_future(assignments.ready([pod()], [other]))
        await assignments.has_claims(pod())
        await asyncio.sleep(0)
        assert not waiting.done()
        more.set()
        await waiting
        more.clear()
        endless = asyncio.create_task(more.wait())
        time.ring(PATIENCE)
        await assignments.ready([pod()], [endless])
        assert not endless.done()
        endless.cancel()


async def test_a_pod_of_the_same_name_in_another_namespace_is_another_pod(tmp_path: Path) -> None:
    kubelet = Kubelet(
        [resources("web", entry(GPU, "a", 0)), resources("web", entry(GPU, "b", 1), namespace="x")]
    )
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod(namespace="x"))
        await assignments.ready([pod(namespace="x")])
        assert near(assignments.devices(pod(namespace="x"), "c0")) == {GPU: sets("1")}


async def test_pods_that_run_already_are_all_in_one_list(tmp_path: Path) -> None:
    kubelet = Kubelet([resources(f"p{i}", entry(GPU, f"{i}", i)) for i in range(4)])
    pods = [pod(f"p{i}") for i in range(4)]
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod("gone"))
        assignments.ask_all(pods)
        await assignments.ready(pods)
        found = [near(assignments.devices(each, "c0")) for each in pods]
        assert found == [{GPU: sets(str(i))} for i in range(4)]
        assert assignments.devices(pod("gone"), "c0") == {}
    assert kubelet.calls.count("List") == 1


async def test_where_get_is_off_a_list_answers_and_get_is_not_tried_again(tmp_path: Path) -> None:
    kubelet = Kubelet([resources("a", entry(GPU, "1", 1)), resources("b", entry(GPU, "2", 2))])
    kubelet.get = False
    async with asking(kubelet, tmp_path) as assignments:
        for name, node in (("a", "1"), ("b", "2")):
            assignments.ask(pod(name))
            await assignments.ready([pod(name)])
            assert near(assignments.devices(pod(name), "c0")) == {GPU: sets(node)}
        assert kubelet.calls == ["Get", "List", "List"]
        kubelet.get = True  # a new kubelet, and with it a new synchronisation
        assignments.ask_all([])
        assignments.ask(pod("a"))
        await assignments.ready([pod("a")])
        assert kubelet.calls[3:].count("Get") == 1


async def test_a_kubelet_that_does_not_know_the_pod_is_no_kubelet_without_get(
    tmp_path: Path,
) -> None:
    kubelet = Kubelet()
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod("a"))
        await assignments.ready([pod("a")])
        assert assignments.devices(pod("a"), "c0") == {}
        kubelet.pods = [resources("b", entry(GPU, "1", 1))]
        assignments.ask(pod("b"))
        await assignments.ready([pod("b")])
        assert near(assignments.devices(pod("b"), "c0")) == {GPU: sets("1")}
    assert kubelet.calls == ["Get", "List", "Get"]


async def test_an_old_kubelet_without_get_at_all(tmp_path: Path) -> None:
    kubelet = Kubelet([resources("web", entry(GPU, "a", 1))])
    kubelet.failures["Get"] = [(grpc.StatusCode.UNIMPLEMENTED, "unknown method Get")]
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod())
        await assignments.ready([pod()])
        assert near(assignments.devices(pod(), "c0")) == {GPU: sets("1")}


async def test_many_pods_that_start_at_once_share_lists(tmp_path: Path) -> None:
    kubelet = Kubelet([resources(f"p{i}", entry(GPU, f"{i}", i % 4)) for i in range(50)])
    kubelet.get = False
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod("p0"))
        await assignments.ready([pod("p0")])
        pods = [pod(f"p{i}") for i in range(50)]
        for each in pods:
            assignments.ask(each)
        await assignments.ready(pods)
        assert near(assignments.devices(pods[49], "c0")) == {GPU: sets("1")}
    assert kubelet.calls.count("List") == 3, "one before, one under way, one for all who came then"


async def test_a_list_that_began_before_the_question_is_not_its_answer(tmp_path: Path) -> None:
    kubelet = Kubelet([resources("a", entry(GPU, "1", 1))])
    kubelet.get = False
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(pod("a"))
        await assignments.ready([pod("a")])
        kubelet.open.clear()
        kubelet.called.clear()
        assignments.ask(pod("a"))
        await kubelet.called.wait()
        kubelet.pods.append(resources("b", entry(GPU, "2", 2)))
        assignments.ask(pod("b"))
        kubelet.open.set()
        await assignments.ready([pod("b")])
        assert near(assignments.devices(pod("b"), "c0")) == {GPU: sets("2")}


async def test_a_rejected_call_is_tried_once_more_after_a_pause(tmp_path: Path) -> None:
    kubelet, time = Kubelet([resources("web", entry(GPU, "a", 1))]), Time()
    rejected = grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"
    async with asking(kubelet, tmp_path, time) as assignments:
        time.ring(BACKOFF)
        kubelet.failures["Get"] = [rejected]
        assignments.ask(pod())
        await settled(assignments)
        assert near(assignments.devices(pod(), "c0")) == {GPU: sets("1")}
        assert time.slept.count(BACKOFF) == 1
        kubelet.failures["Get"] = [rejected, rejected]
        assignments.ask(pod("b"))
        await settled(assignments)
        assert assignments.devices(pod("b"), "c0") == {}
    assert kubelet.calls == ["Get"] * 4


async def test_without_a_kubelet_there_is_no_answer_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "k"
    async with Assignments(path, clock=Clock(sleep=Time().sleep)) as assignments:
        assignments.ask(pod())
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {}
        assert "code=UNAVAILABLE" in caplog.text


async def test_nobody_connects_to_the_kubelet_before_the_first_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    channel = grpc.aio.insecure_channel

    def insecure_channel(target: str, **options: Any) -> grpc.aio.Channel:
        opened.append(target)
        return channel(target, **options)

    monkeypatch.setattr(grpc.aio, "insecure_channel", insecure_channel)
    async with Assignments(tmp_path / "k", clock=Clock(sleep=Time().sleep)) as assignments:
        await asyncio.sleep(0)
        assert opened == []
        assignments.ask(pod())
        await settled(assignments)
        assignments.ask(pod())
        await settled(assignments)
    assert opened == [f"unix:{tmp_path / 'k'}"]


async def test_nobody_waits_for_long_for_a_kubelet_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet, time = Kubelet([resources("web", entry(GPU, "a", 1))]), Time()
    kubelet.open.clear()
    async with asking(kubelet, tmp_path, time) as assignments:
        assignments.ask(pod())
        time.ring(PATIENCE)
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {}, "not yet"
        time.ring(DEADLINE)
        await settled(assignments)
        assert f"no answer within {DEADLINE:g} s" in caplog.text
        kubelet.open.set()
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {}, "not any more"


async def test_an_answer_that_comes_late_is_there_for_the_next_container(tmp_path: Path) -> None:
    kubelet, time = Kubelet([resources("web", entry(GPU, "a", 1))]), Time()
    kubelet.open.clear()
    async with asking(kubelet, tmp_path, time) as assignments:
        assignments.ask(pod())
        time.ring(PATIENCE)
        await assignments.ready([pod()])
        kubelet.open.set()
        await settled(assignments)
        assert near(assignments.devices(pod(), "c0")) == {GPU: sets("1")}


async def test_what_is_said_of_a_predecessor_is_not_believed_of_its_namesake(
    tmp_path: Path,
) -> None:
    old, new = pod("db-0", uid="old"), pod("db-0", uid="new")
    kubelet = Kubelet([resources("db-0", entry(GPU, "a", 0))])
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(old)
        await assignments.ready([old])
        assignments.ask(new)
        await settled(assignments)
        assert assignments.devices(new, "c0") == {}, "these are the old pod's"
        assert assignments.devices(old, "c0") == {}, "it makes no more containers"
        kubelet.pods = [resources("db-0", entry(GPU, "b", 3))]
        await assignments.ready([new])
        assert near(assignments.devices(new, "c0")) == {GPU: sets("3")}


async def test_devices_of_a_predecessor_that_has_gone_may_be_its_namesakes(tmp_path: Path) -> None:
    old, new = pod("db-0", uid="old"), pod("db-0", uid="new")
    kubelet = Kubelet([resources("db-0", entry(GPU, "a", 0))])
    async with asking(kubelet, tmp_path) as assignments:
        assignments.ask(old)
        await assignments.ready([old])
        assignments.ask(new)
        await settled(assignments)
        assignments.forget(old)
        await assignments.ready([new])
        assert near(assignments.devices(new, "c0")) == {GPU: sets("0")}
        assignments.forget(new)
        assert assignments.devices(new, "c0") == {}


async def test_a_new_sandbox_of_a_pod_outlives_the_old_one(tmp_path: Path) -> None:
    first, second = pod(sandbox="s1"), pod(sandbox="s2")
    async with asking(Kubelet([resources("web", entry(GPU, "a", 0))]), tmp_path) as assignments:
        assignments.ask(first)
        assignments.ask(second)
        await assignments.ready([second])
        assignments.forget(first)
        assert near(assignments.devices(replace(second), "c0")) == {GPU: sets("0")}
        assignments.forget(pod("never-heard-of"))


async def test_an_answer_about_another_pod_is_none(tmp_path: Path) -> None:
    class Confused(Kubelet):
        async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802 - the API's
            del request, context
            return GetPodResourcesResponse(pod_resources=resources("db", entry(GPU, "a", 0)))

    async with asking(Confused(), tmp_path) as assignments:
        assignments.ask(pod("web"))
        await assignments.ready([pod("web")])
        assert assignments.devices(pod("web"), "c0") == {}


async def test_of_two_namesakes_in_a_list_the_one_with_devices_counts_but_not_of_two_such(
    tmp_path: Path,
) -> None:
    kubelet = Kubelet(
        [
            resources("a"),
            resources("a", entry(GPU, "1", 1)),
            resources("a"),
            resources("b", entry(GPU, "2", 2)),
            resources("b", entry(GPU, "3", 3)),
            resources("b", entry(GPU, "4", 0)),
        ]
    )
    async with asking(kubelet, tmp_path) as assignments:
        pods = [pod("a"), pod("b")]
        assignments.ask_all(pods)
        await assignments.ready(pods)
        assert near(assignments.devices(pods[0], "c0")) == {GPU: sets("1")}
        assert assignments.devices(pods[1], "c0") == {}


async def test_answers_may_have_16_mib_and_more_is_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = resources("web", *(entry(GPU, f"{i:x<120}", i % 4) for i in range(60_000)))
    assert 8 << 20 < wide.ByteSize() < 16 << 20
    kubelet, time = Kubelet([wide]), Time()
    time.ring(BACKOFF)
    async with asking(kubelet, tmp_path, time) as assignments:
        assignments.ask(pod())
        await settled(assignments)
        assert len(assignments.devices(pod(), "c0")[GPU]) == 60_000
        kubelet.pods = [wide, wide]
        assignments.ask_all([pod()])
        await settled(assignments)
        assert assignments.devices(pod(), "c0") == {}
        assert "code=RESOURCE_EXHAUSTED" in caplog.text


async def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    kubelet = Kubelet()
    kubelet.open.clear()
    async with serving(kubelet, tmp_path / "k"):
        async with Assignments(tmp_path / "k", clock=Clock(sleep=Time().sleep)) as assignments:
            assignments.ask(pod("a"))
            await kubelet.called.wait()
            assignments.ask(pod("b"))  # this one has not even begun
        assert assignments._tasks == set()


async def settled(assignments: Assignments) -> None:
    """Wait until no question is under way."""
    while assignments._tasks:
        await asyncio.wait(assignments._tasks)


async def test_the_connection_ends_when_nobody_uses_it_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: asyncio.Queue[None] = asyncio.Queue()

    class Counted(PodResourcesClient):
        async def close(self) -> None:
            await super().close()
            closed.put_nowait(None)

    monkeypatch.setattr(pod_resources_client, "PodResourcesClient", Counted)
    monkeypatch.setattr(on_demand, "LINGER", 0.0)
    kubelet = Kubelet([resources("web", entry(GPU, "a", 0))])
    async with asking(kubelet, tmp_path) as assignments:
        for _ in range(2):
            assignments.ask(pod())
            await assignments.ready([pod()])
            assert assignments.devices(pod(), "c0") == {GPU: places(a="0")}
            await asyncio.wait_for(closed.get(), HANGS)
    assert closed.empty(), "there was none any more"


async def test_without_threads_the_kubelet_is_not_asked_and_the_next_time_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(errno.EAGAIN, "no more threads can be started")

    kubelet = Kubelet([resources("web", entry(GPU, "a", 0))])
    async with asking(kubelet, tmp_path) as assignments:
        with monkeypatch.context() as patch:
            patch.setattr(pod_resources_client, "require_threads", refuse)
            assert await assignments.allocatable() is None
        assert [record.reason for record in caplog.records] == [  # type: ignore[attr-defined]
            "'no more threads can be started'"
        ]
        assignments.ask(pod())
        await assignments.ready([pod()])
        assert assignments.devices(pod(), "c0") == {GPU: places(a="0")}
