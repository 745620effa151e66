"""Claims as hints of a daemon, between a kubelet, an API server and a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_policy.dra.claimed_devices import ClaimedDevices
from nri_policy.dra.slices import Slices
from nri_policy.foundation.clock import Clock
from nri_policy.hardware.locality import Locator
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.pod_reader import PodReader
from nri_policy.kubelet.pod_resources import Assignments
from nri_policy.plugin.sources import Sources
from nri_policy.proto.podresources_pb2 import (
    ClaimResource,
    ContainerResources,
    DynamicResource,
    PodResources,
)
from tests.support import nodes, resources
from tests.support.apiserver import APIServer, Request
from tests.support.daemon import Served, served
from tests.support.resources import claim, result, slice_
from tests.unit.kubelet.kubelet import Kubelet, serving

STRICT = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
SPREAD = {"pick-resources-by-hints.resource-policy.nri.io/pod": "true"}
NODES = {f"gpu-{number}": {"resource.kubernetes.io/numaNode": number} for number in range(4)}
TWO = claim("gpus", result("a", "gpu-1"), result("b", "gpu-3"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A daemon, the API server that it asks, and its kubelet."""

    node: Served
    server: APIServer
    kubelet: Kubelet

    async def start(
        self,
        name: str,
        uses: Mapping[str, list[dict[str, str]]],
        *,
        annotations: Mapping[str, str] | None = None,
        cpu: int = 1,
    ) -> list[str]:
        """Run a pod of containers that use the claim `gpus`; return the errors."""
        uid = f"uid-{name}"
        await self.server.resources.put(
            "pods", resources.pod(name, {"own": "gpus"}, {**uses}, uid=uid)
        )
        entries = [
            ClaimResource(driver_name="gpu.example.com", pool_name="node-a", device_name=device)
            for device in ("gpu-1", "gpu-3")
        ]
        listed = DynamicResource(
            claim_name="gpus", claim_namespace="default", claim_resources=entries
        )
        self.kubelet.pods.append(
            PodResources(
                name=name,
                namespace="default",
                containers=[
                    # as the kubelet: all devices of the claim, whatever is requested
                    ContainerResources(name=each, dynamic_resources=[listed] if used else [])
                    for each, used in uses.items()
                ],
            )
        )
        limits = {"limits": {"cpu": cpu, "memory": "1Mi"}}
        manifest: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "uid": uid, "annotations": {**(annotations or {})}},
            "spec": {"containers": [{"name": each, "resources": limits} for each in uses]},
        }
        return await self.node.start(manifest)

    def pool(self, name: str) -> str:
        """Return the pool of `pod/container`."""
        view = self.node.daemon.node.view
        placed = view.by_name()[f"default/{name}"]
        return view.layout.tree.pools[placed.grant.pool].name

    def exclusive(self, name: str) -> str:
        return str(self.node.daemon.node.view.by_name()[f"default/{name}"].grant.exclusive)


@asynccontextmanager
async def cluster(folder: Path, **spec: Any) -> AsyncIterator[Cluster]:
    kubelet = Kubelet()
    async with APIServer(folder) as server, serving(kubelet, folder / "kubelet.sock"):
        await server.resources.put("resourceslices", slice_("own", NODES))
        await server.resources.put("resourceclaims", TWO)
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        slices = Slices(client, "node-a")
        # answers are waited for, however slow this machine is
        async with Assignments(
            folder / "kubelet.sock", clock=Clock(sleep=_for_ever)
        ) as assignments:
            claims = ClaimedDevices(client, PodReader(client), slices, assignments.has_claims)
            following = asyncio.create_task(slices.run(lambda: True))
            sources = Sources(
                locator=Locator(folder, nodes.machine()), assignments=assignments, claims=claims
            )
            agent = {"podResourceAPI": True}
            async with served(folder, sources=sources, **{"agent": agent, **spec}) as node:
                yield Cluster(node=node, server=server, kubelet=kubelet)
            await claims.close()
        following.cancel()
        await asyncio.wait({following})
        await client.close()


async def _for_ever(seconds: float) -> None:
    del seconds
    await asyncio.Event().wait()


async def test_two_containers_of_one_claim_are_each_beside_its_own_device(tmp_path: Path) -> None:
    uses = {"c0": [{"name": "own", "request": "a"}], "c1": [{"name": "own", "request": "b"}]}
    async with cluster(tmp_path) as them:
        assert not await them.start("web", {**uses, "c2": []}, annotations=STRICT)
        assert [them.pool(f"web/c{i}") for i in range(2)] == ["NUMA node #1", "NUMA node #3"]
        placed = them.node.daemon.node.view.by_name()
        (hint,) = placed["default/web/c0"].request.steering.hints
        assert (hint.source, hint.device) == ("claim:gpu.example.com", "gpu-1 (claim gpus)")
        assert not placed["default/web/c2"].request.steering.hints
        assert not them.server.writes()


async def test_exclusive_cpus_are_spread_over_the_devices_of_a_claim(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        uses = {"c0": [{"name": "own"}]}
        assert not await them.start("web", uses, annotations=SPREAD, cpu=2)
        assert them.exclusive("web/c0") == "4,12"


async def test_a_strict_hint_refuses_where_there_is_no_room_beside_the_device(
    tmp_path: Path,
) -> None:
    uses = {"c0": [{"name": "own", "request": "a"}]}
    async with cluster(tmp_path) as them:
        assert not await them.start("first", uses, cpu=4, annotations=STRICT)
        assert them.pool("first/c0") == "NUMA node #1"
        (error,) = await them.start("second", uses, cpu=4, annotations=STRICT)
        assert "claim:gpu.example.com" in error


async def test_pods_that_run_already_have_their_devices_from_the_start(tmp_path: Path) -> None:
    uses = {"c0": [{"name": "own", "request": "b"}]}
    async with cluster(tmp_path) as them:
        assert not await them.start("web", uses)
        before = them.node.runtime.synchronizations
        them.node.daemon._session.reconnect()
        await them.node.runtime.synchronized(after=before)
        (hint,) = them.node.daemon.node.view.by_name()["default/web/c0"].request.steering.hints
        assert hint.device == "gpu-3 (claim gpus)"


async def test_without_the_setting_nobody_is_asked(tmp_path: Path) -> None:
    async with cluster(tmp_path, agent={"podResourceAPI": False}) as them:
        assert not await them.start("web", {"c0": [{"name": "own"}]})
        assert not them.node.daemon.node.view.by_name()["default/web/c0"].request.steering.hints
        assert not _asked(them.server.requests)


async def test_pods_without_claims_cost_the_api_server_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as them:
        assert not await them.start("web", {"c0": []})
        assert not _asked(them.server.requests)


def _asked(requests: list[Request]) -> list[str]:
    return [each.path for each in requests if not each.path.endswith("/resourceslices")]
