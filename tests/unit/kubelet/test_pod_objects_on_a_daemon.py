"""What a daemon makes of pods' objects, between an API server and a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.pod_reader import PodReader
from nri_policy.kubelet.pod_objects import PodObjects
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.plugin.sources import Sources
from nri_policy.settings import PodSpecs, Settings
from nri_policy.workload.amounts import AmountSource
from tests.support.apiserver import APIServer, Request
from tests.support.daemon import Served, served
from tests.support.patience import HANGS
from tests.support.pod_level import CONTAINERS, WHOLE

LONELY: dict[str, Any] = {"log": {}}  # nothing shows that it has its pod's amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A daemon and the API server that it asks about pods."""

    node: Served
    server: APIServer

    async def start(
        self, name: str, containers: Mapping[str, Any], *, whole: Any = WHOLE
    ) -> list[str]:
        """Run a pod; return the errors."""
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "containers": [
                    {"name": each, "image": "x", "resources": its}
                    for each, its in containers.items()
                ],
                **({} if whole is None else {"resources": whole}),
            },
        }
        await self.server.resources.put("pods", manifest)
        return await self.node.start(manifest)

    def held(self, name: str) -> tuple[int, int, AmountSource]:
        """Return exclusive CPUs, shared milli-CPU, and from what it is known."""
        placed = self.node.daemon.node.view.by_name()[f"default/{name}"]
        return len(placed.grant.exclusive), placed.grant.shared, placed.request.steering.source

    def gets(self) -> int:
        return sum("/pods/" in each.path for each in self.server.requests)

    async def until(self, name: str, held: tuple[int, int, AmountSource]) -> None:
        async with asyncio.timeout(HANGS):
            while self.held(name) != held:  # noqa: ASYNC110 - of the server's answers
                await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster(folder: Path, *, patient: bool = True, **spec: Any) -> AsyncIterator[Cluster]:
    async def sleep(_seconds: float) -> None:
        if patient:  # answers are waited for, however slow this machine is
            await asyncio.Event().wait()

    async with APIServer(folder) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        objects = PodObjects(PodReader(client), clock=Clock(sleep=sleep))
        async with served(folder, sources=Sources(objects=objects), **spec) as node:
            objects.late = node.daemon.events.describe
            yield Cluster(node=node, server=server)
        await objects.close()
        await client.close()


async def test_containers_get_what_their_pod_s_object_says(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        assert not await them.start("shop", CONTAINERS)
        assert {name: them.held(f"shop/{name}") for name in CONTAINERS} == {
            "log": (0, 0, AmountSource.OBJECT),
            "main": (2, 0, AmountSource.OBJECT),
            "mesh": (0, 100, AmountSource.OBJECT),
        }
        assert not await them.start("plain", {"main": CONTAINERS["main"]}, whole=None)
        assert them.held("plain/main") == (2, 0, AmountSource.OBJECT)
        assert them.gets() == 2


async def test_an_answer_that_comes_late_gives_cpus_back(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def hold(request: Request) -> None:
        if "/pods/" in request.path:
            await go_on.wait()

    async with cluster(tmp_path, patient=False) as them:
        them.server.before = hold
        assert not await them.start("shop", LONELY)
        assert them.held("shop/log") == (4, 0, AmountSource.ESTIMATE)
        go_on.set()
        await them.until("shop/log", (0, 0, AmountSource.OBJECT))
        placed = them.node.daemon.node.view.by_name()["default/shop/log"]
        assert any("its pod's object says" in note for note in placed.explanation.notes)


async def test_who_runs_already_is_asked_about_once_and_then_stays_known(tmp_path: Path) -> None:
    async with cluster(tmp_path, agent={"podSpecs": "off"}) as them:
        assert not await them.start("shop", LONELY)
        assert (them.held("shop/log"), them.gets()) == ((4, 0, AmountSource.ESTIMATE), 0)
        await them.node.daemon.events.reconfigure(settings=_settings(them))
        for _ in range(2):
            before = them.node.runtime.synchronizations
            them.node.daemon._session.reconnect()
            await them.node.runtime.synchronized(after=before)
            await them.until("shop/log", (0, 0, AmountSource.OBJECT))
        assert them.gets() == 1


async def test_after_a_resize_the_object_is_read_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        assert not await them.start("shop", CONTAINERS)
        (pod,) = them.node.runtime.pods
        more = Amounts(cpu=3000)
        await them.node.runtime.resize(pod, "main", ResourceChange(requests=more, limits=more))
        assert them.held("shop/main") == (3, 0, AmountSource.OBJECT)
        assert them.gets() == 1
        (main,) = (each for each in pod.containers if each.name == "main")
        await them.node.runtime.delete_container(main)
        await them.node.runtime.create_container(pod, "main")
        # the object on this server is the old one: it does not fit what the kubelet asks for
        assert them.held("shop/main") == (3, 0, AmountSource.ESTIMATE)
        assert them.gets() == 2


def _settings(them: Cluster) -> Settings:
    """Return the settings in force, but for whether pods are read."""
    settings = them.node.daemon.node.view.layout.settings
    return replace(settings, agent=replace(settings.agent, pod_specs=PodSpecs.AUTO))
