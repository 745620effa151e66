"""A daemon that is a DRA driver, between a kubelet, an API server and a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_policy.dra.resource_slice import CPU, slice_name, values_in
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.events import ClusterEvent
from nri_policy.settings import Settings
from nri_policy.workload.claim import DRIVER
from tests.support import nodes, resources
from tests.support.apiserver import APIServer
from tests.support.daemon import Served, pod, served
from tests.support.dra_kubelet import DRAKubelet
from tests.support.resources import claim

from .waiting import until

GATES = resources.DEFAULT_GATES | {"DRAConsumableCapacity"}


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A daemon with its driver, the API server and the kubelet."""

    node: Served
    server: APIServer
    kubelet: DRAKubelet
    settings: Settings
    events: list[ClusterEvent]

    async def allocate(
        self,
        name: str,
        *results: Mapping[str, Any],
        pods: tuple[str, ...] = ("uid-web",),
        **status: Any,
    ) -> dict[str, Any]:
        """Make a claim that the scheduler has allocated and reserved; return it."""
        made = claim(name, *results)
        reserved = [{"resource": "pods", "name": each, "uid": each} for each in pods]
        made["metadata"]["uid"] = f"uid-{name}"
        said = {**made["status"], "reservedFor": reserved, **status}
        made["status"] = {key: each for key, each in said.items() if each is not None}
        await self.server.resources.put("resourceclaims", made)
        return made

    async def start(self, name: str, env: list[dict[str, str]], cpu: str = "") -> list[str]:
        """Run a pod of one container with these variables; return the errors."""
        made = pod(name, cpu)
        made["metadata"]["uid"] = f"uid-{name}"
        made["spec"]["containers"][0]["env"] = env
        return await self.node.start(made)

    async def end(self, name: str) -> None:
        """Stop a pod, and have its claims given back, as the kubelet does."""
        await self.node.runtime.stop_pod(self.node.runtime.pod(name))
        await self.kubelet.unprepare(f"uid-{name}")

    def cpus(self, name: str) -> str:
        view = self.node.daemon.node.view
        return str(view.sent[view.by_name()[f"default/{name}/main"].container.id][0])

    @property
    def slice(self) -> dict[str, Any] | None:
        return self.server.resources.one("resourceslices", slice_name("node-a"))

    @property
    def values(self) -> dict[str, int]:
        """The CPUs that are published, by device."""
        assert self.slice is not None
        return values_in(self.slice)

    async def publishes(self, **values: int) -> None:
        await until(lambda: self.slice is not None and self.values == values)

    async def reconfigure(self, **spec: Any) -> None:
        await self.node.daemon.events.reconfigure(settings=nodes.settings(**spec))


def cpu(device: str, amount: str = "2", request: str = "cpu", **more: Any) -> dict[str, Any]:
    """Return an allocation of ours."""
    own = {"request": request, "driver": DRIVER, "pool": "node-a", "device": device}
    return {**own, "consumedCapacity": {CPU: amount}, "shareID": f"share-{device}", **more}


@asynccontextmanager
async def cluster(
    folder: Path, *, gates: frozenset[str] = GATES, registers: bool = True, **spec: Any
) -> AsyncIterator[Cluster]:
    async with APIServer(folder) as server:
        server.components = ("dra",)
        server.resources.gates = gates
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        dra = {"dra": {"enabled": True}}
        events: list[ClusterEvent] = []
        settings = {**dra, **spec}
        async with served(folder, client=client, record=events.append, **settings) as node:
            kubelet = DRAKubelet(folder)
            running = asyncio.create_task(node.daemon.claim_driver.run())
            if registers:
                await kubelet.register()
            yield Cluster(
                node=node,
                server=server,
                kubelet=kubelet,
                settings=nodes.settings(**dra),
                events=events,
            )
            running.cancel()
            await asyncio.wait({running})
        await client.close()


def as_it_ran(name: str, env: list[dict[str, str]]) -> dict[str, Any]:
    """Return a pod that was started before the daemon comes."""
    made = pod(name)
    made["metadata"]["uid"] = f"uid-{name}"
    made["spec"]["containers"][0]["env"] = env
    return made
