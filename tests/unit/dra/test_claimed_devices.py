"""Which devices a container has, by the API server's pod and claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.dra.claimed_devices import ClaimedDevices
from nri_policy.dra.slices import Slices
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.pod_reader import PodReader
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.claim import DRIVER
from nri_policy.workload.pod import Pod
from tests.support import resources
from tests.support.apiserver import Answer, APIServer
from tests.support.patience import HANGS
from tests.support.resources import claim, result, slice_

from .waiting import until


def pod(name: str = "web", *, uid: str = "", sandbox: str = "s1") -> Pod:
    return Pod(
        id=sandbox,
        uid=uid or f"uid-{name}",
        name=name,
        namespace="default",
        qos=QoS.GUARANTEED,
        labels={},
        annotations={},
    )


NODES = {f"gpu-{number}": {"resource.kubernetes.io/numaNode": number} for number in range(4)}


class Asking:
    """Claims of an API server; the kubelet says that every pod but *without* has some."""

    def __init__(self, server: APIServer, client: Client) -> None:
        self.server = server
        self.without: set[str] = set()
        self.slices = Slices(client, "node-a")
        self.claims = ClaimedDevices(client, PodReader(client), self.slices, self._has_claims)

    async def _has_claims(self, asked: Pod) -> bool:
        return asked.name not in self.without

    async def put(self, *claims: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
        await self.server.resources.put("pods", pod)
        for each in claims:
            await self.server.resources.put("resourceclaims", each)

    async def found(self, asked: Pod, *containers: str) -> list[dict[str, int | None]]:
        """Ask about a pod; return the nodes of each container's devices, by name."""
        self.claims.ask(asked)
        await self.answered(asked)
        return [
            {device.name: device.node for device in self.claims.devices(asked, each)}
            for each in containers
        ]

    async def answered(self, *asked: Pod) -> None:
        if tasks := self.claims.pending(asked):
            await asyncio.wait(tasks, timeout=HANGS)

    def gets(self) -> list[str]:
        return [r.path for r in self.server.requests if not r.path.endswith("resourceslices")]


@asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[Asking]:
    async with APIServer(folder) as server:
        await server.resources.put("resourceslices", slice_("own", NODES))
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        made = Asking(server, client)
        following = asyncio.create_task(made.slices.run(lambda: True))
        await made.slices.settled.wait()
        try:
            yield made
        finally:
            following.cancel()
            await made.claims.close()
            await asyncio.wait({following})
            await client.close()


async def test_two_containers_of_one_claim_have_the_devices_of_their_own_requests(
    tmp_path: Path,
) -> None:
    both = claim("gpus", result("a", "gpu-0"), result("b", "gpu-3"))
    uses = {
        "c0": [{"name": "own", "request": "a"}],
        "c1": [{"name": "own", "request": "b"}],
        "all": [{"name": "own"}],
        "none": [],
    }
    async with asking(tmp_path) as them:
        await them.put(both, pod=resources.pod("web", {"own": "gpus"}, uses))
        assert await them.found(pod(), "c0", "c1", "all", "none", "unknown") == [
            {"gpu-0": 0},
            {"gpu-3": 3},
            {"gpu-0": 0, "gpu-3": 3},
            {},
            {},
        ]
        (device,) = them.claims.devices(pod(), "c0")
        assert (device.claim, device.driver) == ("gpus", "gpu.example.com")


async def test_several_devices_of_one_request_are_all_its_containers(tmp_path: Path) -> None:
    two = claim("gpus", result("a", "gpu-0"), result("a", "gpu-1"), result("b", "gpu-2"))
    uses = {"c0": [{"name": "own", "request": "a"}]}
    async with asking(tmp_path) as them:
        await them.put(two, pod=resources.pod("web", {"own": "gpus"}, uses))
        assert await them.found(pod(), "c0") == [{"gpu-0": 0, "gpu-1": 1}]


async def test_a_container_names_the_request_of_alternatives_and_has_the_chosen_one(
    tmp_path: Path,
) -> None:
    """Of a prioritized list the result has `request/subrequest`."""
    chosen = claim("gpus", result("gpu/big", "gpu-1"), result("gpu-spare/any", "gpu-2"))
    uses = {"c0": [{"name": "own", "request": "gpu"}]}
    async with asking(tmp_path) as them:
        await them.put(chosen, pod=resources.pod("web", {"own": "gpus"}, uses))
        assert await them.found(pod(), "c0") == [{"gpu-1": 1}]


async def test_a_device_that_is_only_administered_is_none(tmp_path: Path) -> None:
    every = claim("gpus", *(result("gpu", each, adminAccess=True) for each in NODES))
    uses = {"c0": [{"name": "own"}]}
    async with asking(tmp_path) as them:
        await them.put(every, pod=resources.pod("web", {"own": "gpus"}, uses))
        assert await them.found(pod(), "c0") == [{}]


async def test_several_shares_of_a_device_are_one_device(tmp_path: Path) -> None:
    shares = [
        result("gpu", "gpu-2", shareID=f"{number}", consumedCapacity={"memory": "1Gi"})
        for number in range(2)
    ]
    uses = {"c0": [{"name": "own"}, {"name": "more"}]}
    async with asking(tmp_path) as them:
        them.server.resources.gates |= {"DRAConsumableCapacity"}
        claims = claim("gpus", *shares), claim("again", shares[0])
        await them.put(*claims, pod=resources.pod("web", {"own": "gpus", "more": "again"}, uses))
        assert await them.found(pod(), "c0") == [{"gpu-2": 2}]
        assert len(them.claims.devices(pod(), "c0")) == 1


async def test_an_extended_resource_is_the_containers_that_asked_for_it(tmp_path: Path) -> None:
    """The claim is the whole pod's (KEP-5004); its status says which request is whose."""
    extended = {
        "resourceClaimName": "extended",
        "requestMappings": [
            {"containerName": "c1", "resourceName": "x/gpu", "requestName": "container-1-request-0"}
        ],
    }
    made = claim(
        "extended",
        result("container-0-request-0", "gpu-0"),
        result("container-1-request-0", "gpu-1"),
    )
    async with asking(tmp_path) as them:
        web = resources.pod("web", {}, {"c0": [], "c1": []}, extendedResourceClaimStatus=extended)
        await them.put(made, pod=web)
        assert await them.found(pod(), "c0", "c1") == [{}, {"gpu-1": 1}]


async def test_devices_of_no_slice_of_this_node_are_left_out(tmp_path: Path) -> None:
    """Their slices belong to all nodes or another node, or no longer exist."""
    made = claim(
        "gpus",
        result("a", "fabric-0", pool="everywhere"),
        result("a", "gpu-0", pool="node-b"),
        result("a", "gpu-0", driver="nic.example.com"),
        result("a", "gpu-9"),
        result("a", "gpu-3"),
    )
    everywhere = slice_("everywhere", {"fabric-0": {"numaNode": 0}}, pool="everywhere")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    uses = {"c0": [{"name": "own"}]}
    async with asking(tmp_path) as them:
        await them.server.resources.put("resourceslices", everywhere)
        await them.put(made, pod=resources.pod("web", {"own": "gpus"}, uses))
        assert await them.found(pod(), "c0") == [{"gpu-3": 3}]
        await them.server.resources.delete("resourceslices", "own")
        await until(lambda: not them.claims.devices(pod(), "c0"))


async def test_our_own_devices_are_no_hints(tmp_path: Path) -> None:
    both = claim("gpus", result("a", "gpu-0"), result("b", "numa1", driver=DRIVER))
    own = slice_("ours", {"numa1": {"resource.kubernetes.io/numaNode": 1}}, driver=DRIVER)
    async with asking(tmp_path) as them:
        await them.server.resources.put("resourceslices", own)
        await until(lambda: them.slices.where(DRIVER, "node-a", "numa1") is not None)
        await them.put(both, pod=resources.pod("web", {"own": "gpus"}, {"c0": [{"name": "own"}]}))
        assert await them.found(pod(), "c0") == [{"gpu-0": 0}]


async def test_a_pod_without_claims_costs_no_request(tmp_path: Path) -> None:
    async with asking(tmp_path) as them:
        them.without = {"web"}
        assert await them.found(pod(), "c0") == [{}]
        assert not them.claims.pending([pod()])
        assert them.gets() == []


async def test_a_namesake_is_another_pod(tmp_path: Path) -> None:
    uses = {"c0": [{"name": "own"}]}
    async with asking(tmp_path) as them:
        old = resources.pod("web", {"own": "gpus"}, uses, uid="of-the-old-one")
        await them.put(claim("gpus", result("a", "gpu-0")), pod=old)
        assert await them.found(pod(), "c0") == [{}]
        assert them.gets() == ["/api/v1/namespaces/default/pods/web"]


async def test_what_is_not_answered_is_pending_and_then_known(tmp_path: Path) -> None:
    answered = asyncio.Event()
    uses = {"c0": [{"name": "own"}]}
    async with asking(tmp_path) as them:
        await them.put(
            claim("gpus", result("a", "gpu-0")), pod=resources.pod("web", {"own": "gpus"}, uses)
        )
        them.server.before = lambda _: answered.wait()
        them.claims.ask(pod())
        assert them.claims.pending([pod(), pod(sandbox="unknown")])
        assert them.claims.devices(pod(), "c0") == ()
        answered.set()
        await them.answered(pod())
        assert not them.claims.pending([pod()])
        assert [each.name for each in them.claims.devices(pod(), "c0")] == ["gpu-0"]


async def test_a_pod_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    uses = {"c0": [{"name": "own"}]}
    async with asking(tmp_path) as them:
        await them.put(
            claim("gpus", result("a", "gpu-0")), pod=resources.pod("web", {"own": "gpus"}, uses)
        )
        again = pod(sandbox="s2")
        assert await them.found(again, "c0") == await them.found(pod(), "c0") == [{"gpu-0": 0}]
        them.claims.forget(pod())
        assert them.claims.devices(pod(), "c0") == ()
        assert them.claims.devices(again, "c0"), "its next sandbox is another"
        them.claims.ask_all([pod()])
        await them.answered(pod())
        assert them.claims.devices(again, "c0") == ()
        assert them.claims.devices(pod(), "c0")


async def test_where_slices_cannot_be_had_nobody_is_asked(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server:
        server.resources.versions = set()
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        them = Asking(server, client)
        following = asyncio.create_task(them.slices.run(lambda: True))
        assert await them.found(pod(), "c0") == [{}]
        assert them.gets() == []
        following.cancel()
        await client.close()


@pytest.mark.parametrize("plural", ["pods", "resourceclaims"])
async def test_a_refusal_is_logged_once(
    plural: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = {"kind": "Status", "code": 403, "message": "not you", "reason": "Forbidden"}
    uses = {"c0": [{"name": "own"}]}
    gpus = claim("gpus", result("a", "gpu-0"))
    async with asking(tmp_path) as them:
        for name in ("web", "db"):
            await them.put(gpus, pod=resources.pod(name, {"own": "gpus"}, uses))
        them.server.disturb = lambda request: (
            Answer(status=403, body=refusal) if f"/{plural}/" in request.path else None
        )
        for name in ("web", "db", "web"):
            assert await them.found(pod(name), "c0") == [{}]
        (record,) = caplog.records
        assert vars(record)["pod"] == "default/web"
        assert "rbac.yaml" in vars(record)["reason"]
        them.server.disturb = lambda _: None
        assert await them.found(pod("db"), "c0") == [{"gpu-0": 0}]


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (Answer(status=200, body={"metadata": {"name": "web"}}), 1),
        (Answer(status=200, body="{"), 1),
        (Answer(status=0, raw=b""), 1),
        (Answer(status=404, body={"kind": "Status", "code": 404, "message": "not found"}), 0),
    ],
)
async def test_bad_answers_and_none_are_no_devices(
    answer: Answer, lines: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(tmp_path) as them:
        them.server.disturb = lambda request: answer if "/pods/" in request.path else None
        assert await them.found(pod(), "c0") == [{}]
    assert len(caplog.records) == lines
