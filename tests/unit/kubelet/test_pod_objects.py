"""Requests of containers read from pod objects: when they are fetched, awaited, or late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.pod_reader import PodReader
from nri_policy.kubelet.pod_objects import PATIENCE, PodObjects, read_object
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Pod
from nri_policy.workload.requirements import PodRequirements, Requirements
from tests.support.apiserver import Answer, APIServer, Request
from tests.support.patience import HANGS

MAIN = Requirements(
    cpu_request=2000, cpu_limit=2000, memory_request=128 << 20, memory_limit=128 << 20
)
AMOUNTS = {"cpu": "2", "memory": "128Mi"}


def pod(name: str = "web", *, uid: str = "", qos: QoS = QoS.GUARANTEED) -> Pod:
    return Pod(
        id=f"s-{name}",
        uid=uid or f"uid-{name}",
        name=name,
        namespace="default",
        qos=qos,
        labels={},
        annotations={},
    )


def object_(name: str = "web", **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "x", "resources": {"requests": AMOUNTS, "limits": AMOUNTS}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [main, {"name": "log", "image": "x"}]} | spec,
    }


class Asking:
    """Pods' objects of an API server, with a clock and a patience that the test moves."""

    def __init__(self, server: APIServer, client: Client) -> None:
        self.server = server
        self.time = 5000.0
        self.waits: list[float] = []
        self.patient = True
        self.late: list[tuple[str, PodRequirements]] = []
        self.objects = PodObjects(
            PodReader(client), clock=Clock(now=lambda: self.time, sleep=self._sleep)
        )
        self.objects.late = self._told

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.patient:
            await asyncio.sleep(HANGS)

    async def _told(self, asked: Pod, said: PodRequirements) -> None:
        self.late.append((asked.name, said))

    def gets(self) -> int:
        return sum("/pods/" in each.path for each in self.server.requests)

    async def found(self, asked: Pod) -> PodRequirements | None:
        await self.objects.ready(asked)
        return self.objects.of(asked)


@asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[Asking]:
    async with APIServer(folder) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        made = Asking(server, client)
        try:
            yield made
        finally:
            await made.objects.close()
            await client.close()


def test_an_object_says_what_each_container_asks_for_and_whether_its_pod_has_any_as_a_whole() -> (
    None
):
    plain = read_object(object_())
    assert plain == PodRequirements(
        containers={"main": MAIN, "log": Requirements()}, pod_level=False
    )
    assert read_object(object_(resources={"limits": AMOUNTS})).pod_level
    assert not read_object(object_(resources={})).pod_level
    first = {"name": "first", "resources": {"requests": {"cpu": "100m"}}}
    both = read_object(object_(initContainers=[first]))
    assert both.containers["first"] == Requirements(cpu_request=100)


@pytest.mark.parametrize(
    "broken",
    [{}, {"spec": {}}, object_(containers=[{"name": "c", "resources": {"limits": {"cpu": "x"}}}])],
)
def test_an_object_that_makes_no_sense_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_object(broken)


async def test_a_pod_is_asked_about_once_and_kept_for_its_life(tmp_path: Path) -> None:
    async with asking(tmp_path) as them:
        await them.server.resources.put("pods", object_())
        them.objects.ask(pod())
        for _ in range(3):
            found = await them.found(pod())
            assert found is not None
            assert found.containers["main"] == MAIN
        assert them.gets() == 1
        assert them.late == []
        them.objects.forget(pod().id)
        await them.found(pod())
        assert them.gets() == 2


async def test_who_requests_nothing_is_not_asked_about(tmp_path: Path) -> None:
    async with asking(tmp_path) as them:
        assert await them.found(pod(qos=QoS.BEST_EFFORT)) is None
        assert (them.gets(), them.waits) == (0, [])


async def test_a_namesake_is_not_taken_for_it_but_a_static_pod_s_object_is(tmp_path: Path) -> None:
    async with asking(tmp_path) as them:
        await them.server.resources.put("pods", object_())
        assert await them.found(pod(uid="another")) is None
        mirror = object_("static")
        mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0123abcd"}
        await them.server.resources.put("pods", mirror)
        assert await them.found(pod("static", uid="0123abcd")) is not None


async def test_a_slow_server_is_waited_for_once_and_what_it_says_then_is_told(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as them:
        go_on = asyncio.Event()

        async def hold(request: Request) -> None:
            if "/pods/" in request.path:
                await go_on.wait()

        them.server.before = hold
        them.patient = False
        for name in ("web", "db"):
            await them.server.resources.put("pods", object_(name))
            assert await them.found(pod(name)) is None
            assert await them.found(pod(name)) is None
        assert them.waits == [PATIENCE], "nobody else waits for a server that is slow"
        go_on.set()
        async with asyncio.timeout(HANGS):
            while len(them.late) < 2:  # noqa: ASYNC110 - of the server's answers
                await asyncio.sleep(0.005)
        assert {name for name, _ in them.late} == {"web", "db"}
        assert {said.containers["main"] for _, said in them.late} == {MAIN}


async def test_who_may_not_read_pods_does_not_ask_again_for_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"kind": "Status", "code": 403, "message": "not you", "reason": "Forbidden"}
    async with asking(tmp_path) as them:
        await them.server.resources.put("pods", object_())
        them.server.disturb = lambda _: Answer(status=403, body=body)
        for _ in range(3):
            assert await them.found(pod()) is None
        assert them.gets() == 1
        assert not them.objects.readable
        (record,) = caplog.records
        assert "rbac.yaml" in vars(record)["reason"]
        them.server.disturb = lambda _: None
        them.time += 3599
        assert await them.found(pod()) is None
        them.time += 1
        assert await them.found(pod()) is not None


async def test_a_pod_that_is_gone_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(tmp_path) as them:
        assert await them.found(pod()) is None
    assert not caplog.records
