"""A daemon, a runtime and an API server together: what is placed is soon to be seen."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.control.client import connected
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kube.client import PATIENCE, Client
from nri_policy.kube.connection import access
from nri_policy.nrt import publisher
from nri_policy.nrt.cluster_object import ClusterSink
from nri_policy.nrt.fingerprint import fingerprint, pod_hash
from nri_policy.nrt.numaplacement import encode
from nri_policy.nrt.topology_file import TopologyFile
from nri_policy.plugin.sources import Sources
from nri_policy.proto.nri_pb2 import LinuxCPU, LinuxResources
from nri_policy.report import StatusReport, plain
from nri_policy.workload.pod import Pod
from tests.support import nodes
from tests.support.apiserver import APIServer
from tests.support.daemon import Served, pod, served
from tests.support.topology_twin import Twin


@asynccontextmanager
async def published(
    folder: Path, patience: float = PATIENCE, **spec: Any
) -> AsyncIterator[tuple[Served, APIServer]]:
    """Yield a daemon that publishes to an API server, whose node is called as the daemon thinks."""
    async with (
        APIServer(folder, node="node-a") as server,
        served(folder, **spec) as node,
    ):
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect, patience=patience)
        cluster = ClusterSink(client, "node-a")
        try:
            async with node.daemon.topology.publishing(
                [cluster, TopologyFile(folder / "nrt.json")]
            ):
                await server.until(lambda: bool(server.objects))
                yield node, server
        finally:
            await client.close()


def exclusive(server: APIServer, pool: str) -> str:
    (zone,) = (zone for zone in server.topology["zones"] if zone["name"] == pool)
    return next((a["value"] for a in zone["attributes"] if a["name"] == "exclusive cpuset"), "")


def attribute(server: APIServer, name: str) -> str | None:
    found = {each["name"]: each["value"] for each in server.topology["attributes"]}
    return found.get(name)


async def test_an_allocation_is_visible_at_the_next_write(tmp_path: Path) -> None:
    async with published(tmp_path) as (node, server):
        await node.start(pod("own", "2"))
        await server.until(lambda: exclusive(server, "NUMA node #1") == "4-5")
        Twin(node.daemon.node.view).check(server.topology["zones"])
        await node.runtime.delete_pod(node.runtime.pod("own"))
        await server.until(lambda: exclusive(server, "NUMA node #1") == "")


def counted(server: APIServer) -> str | None:
    return attribute(server, "nodeTopologyPodsFingerprint")


async def test_the_fingerprint_counts_guaranteed_pods_from_a_start_to_their_end(
    tmp_path: Path,
) -> None:
    """A scheduler does not count pods that are pending or have ended."""
    async with published(tmp_path) as (node, server):
        assert attribute(server, "nodeTopologyPodsFingerprintMethod") == "with-exclusive-resources"
        await node.runtime.run_pod(pod("pending", "1"))
        await node.start(pod("own", "1"), pod("burstable", "1", shared=True), pod("idle"))
        one = fingerprint([("default", "own")])
        await server.until(lambda: counted(server) == one)
        await node.runtime.stop_container(node.runtime.container("own/main"))
        await node.start(pod("late", "1"))
        both = fingerprint([("default", "own"), ("default", "late")])
        await server.until(lambda: counted(server) == both)  # one that crashed is running still
        await node.runtime.stop_pod(node.runtime.pod("own"))
        await server.until(lambda: counted(server) == fingerprint([("default", "late")]))


def left(server: APIServer) -> list[str]:
    """Return the CPUs that NUMA zones have left."""
    zones = [zone for zone in server.topology["zones"] if zone["type"] == "Node"]
    return [str(zone["resources"][0]["available"]) for zone in zones]


async def test_what_a_pod_asks_for_is_set_aside_from_its_sandbox_on(tmp_path: Path) -> None:
    """An image may take long to come; meanwhile schedulers are not to give its place away."""
    two = {"limits": {"cpu": "1", "memory": "1Mi"}}
    async with published(tmp_path, alignment="numa") as (node, server):
        idle = left(server)
        assert idle == ["3", "4", "4", "4"]
        manifest = pod("own", "3")
        manifest["spec"]["containers"] = [{"name": n, "resources": two} for n in ("a", "b")]
        sandbox = await node.runtime.run_pod(manifest)
        await node.runtime.run_pod(pod("burstable", "1", shared=True))
        await node.runtime.run_pod(pod("system", "1", namespace="kube-system"))
        await server.until(lambda: left(server) == ["3", "2", "4", "4"])
        one = await node.runtime.create_container(sandbox, "a")
        await node.runtime.start_container(one)
        await server.until(lambda: exclusive(server, "NUMA node #1") == "4")
        assert left(server) == ["3", "3", "3", "4"], "the other one's is still set aside"
        await node.runtime.stop_container(one)
        await server.until(lambda: left(server) == ["3", "2", "4", "4"])  # it is started again
        await node.runtime.stop_pod(sandbox)
        await server.until(lambda: left(server) == idle)


async def test_the_pods_whose_requests_are_in_the_numbers_are_listed(tmp_path: Path) -> None:
    """A pod that is set aside is listed before it starts; one without room as a whole is not."""

    def listed() -> set[str]:
        found = attribute(server, "nri-policy/pods")
        assert found is not None, "a node without pods lists none"
        return {*found.split()}

    def hashes(*names: str) -> set[str]:
        return {f"{pod_hash('default', name):016x}" for name in names}

    async with published(tmp_path, alignment="numa") as (node, server):
        assert listed() == set()
        own = await node.runtime.run_pod(pod("own", "3"))
        await node.runtime.run_pod(pod("too-large", "7"))
        await server.until(lambda: listed() == hashes("own"))
        await node.start(pod("burstable", "1", shared=True), pod("idle"))
        await server.until(lambda: listed() == hashes("own", "burstable"))
        await node.runtime.stop_pod(own)
        await server.until(lambda: listed() == hashes("burstable"))


async def test_the_nodes_of_containers_are_shown_where_the_settings_say_so(tmp_path: Path) -> None:
    metadata = "topology.node.k8s.io/numaplacement-metadata"
    wanted = {"numaPlacement": True}
    async with published(tmp_path, alignment="numa", agent=wanted) as (node, server):
        await server.until(lambda: attribute(server, metadata) is not None)
        await node.start(pod("a", "2"), pod("b", "2"))
        before = await node.daemon.topology.feed.read()
        swapped = {name: 3 - number for name, number in (before.numa_nodes or {}).items()}
        assert not before.equals(replace(before, numa_nodes=swapped))
        expected = encode({("default", "a", "main"): 1, ("default", "b", "main"): 2}, 4)
        await server.until(lambda: attribute(server, metadata) == expected.metadata)
        vectors = {
            zone["name"]: each["value"]
            for zone in server.topology["zones"]
            for each in zone.get("attributes", [])
            if each["name"] == "topology.node.k8s.io/numaplacement-vector"
        }
        assert vectors == {f"node-{key}": text for key, text in expected.vectors.items()}
    folder = tmp_path / "off"
    folder.mkdir()
    async with published(folder, alignment="numa") as (_, server):
        assert attribute(server, metadata) is None


async def test_what_a_resized_pod_asks_for_is_set_aside_as_its_sandbox_says(
    tmp_path: Path,
) -> None:
    """A kubelet tells of a pod that grows before its containers, of one that shrinks after them."""
    async with published(tmp_path, version="2.3.0", alignment="numa") as (node, server):
        await node.start(pod("own", "1"))
        sandbox, container = node.runtime.pod("own"), node.runtime.container("own/main")
        await server.until(lambda: left(server) == ["3", "3", "4", "4"])
        three = LinuxResources(cpu=LinuxCPU(shares={"value": 3072}, quota={"value": 300_000}))
        await node.runtime.update_pod(sandbox, three)
        await server.until(lambda: left(server) == ["3", "3", "2", "4"])  # wherever two have room
        await node.runtime.update_container(container, three)
        await server.until(lambda: exclusive(server, "NUMA node #1") == "4,6-7")
        assert left(server) == ["3", "1", "4", "4"], "it is not taken off twice"
        await node.runtime.stop_container(container)
        await server.until(lambda: exclusive(server, "NUMA node #1") == "4-6")
        assert left(server) == ["3", "1", "4", "4"], "it is started again, as large as it was"


async def test_a_new_daemon_knows_what_is_to_come(tmp_path: Path) -> None:
    async with served(tmp_path, alignment="numa") as node:
        await node.runtime.run_pod(pod("own", "3"))
        before = node.runtime.synchronizations
        node.daemon._session.reconnect()
        await node.runtime.synchronized(after=before)
        topology: Any = plain(await node.daemon.topology.document())
        assert [zone["resources"][0]["available"] for zone in topology["zones"][:4]] == [
            *("3", "1", "4", "4")
        ]


async def test_pods_with_devices_are_counted_where_the_kubelet_is_asked(tmp_path: Path) -> None:
    class Devices:
        def ask(self, pod: Pod) -> None: ...

        def ask_all(self, pods: Iterable[Pod]) -> None: ...

        async def ready(
            self, pods: Iterable[Pod], others: Any = (), *, seconds: float = 0.0
        ) -> None: ...

        def forget(self, pod: Pod) -> None: ...

        def devices(self, pod: Pod, container: str) -> Mapping[str, Mapping[str, CPUSet]]:
            del container
            return {"example.com/gpu": {"gpu-0": CPUSet([1])}} if pod.name == "gpu" else {}

        def owners(self, pod: Pod) -> tuple[str, ...]:
            del pod
            return ()

    sources = Sources(assignments=Devices())
    for asked, expected in ((True, [("default", "gpu")]), (False, [])):
        folder = tmp_path / str(asked)
        folder.mkdir()
        async with served(folder, sources=sources, agent={"podResourceAPI": asked}) as node:
            await node.start(pod("gpu", "1", shared=True), pod("none", "1", shared=True))
            pods = node.daemon.node.view.pods.values()
            assert [(each.namespace, each.name) for each in pods if each.counted] == expected


@pytest.mark.parametrize(
    ("name", "version"), [("containerd", "1.7.24"), ("containerd", "2.2.7"), ("cri-o", "1.36.0")]
)
async def test_a_new_daemon_knows_the_pods_that_run_and_not_those_that_have_stopped(
    tmp_path: Path, name: str, version: str
) -> None:
    """A pod that has completed stays listed for as long as its object exists."""
    async with served(tmp_path, name=name, version=version) as node:
        await node.start(pod("runs", "1"), pod("crashed", "1"))
        await node.runtime.stop_container(node.runtime.container("crashed/main"))
        await node.runtime.run_pod(pod("pending", "1"))
        await node.start(pod("stopped", "1"))
        stopped = node.runtime.pod("stopped")
        await node.runtime.stop_pod(stopped)
        if name == "cri-o":
            stopped.message.linux.ClearField("namespaces")
        before = node.runtime.synchronizations
        node.daemon._session.reconnect()
        await node.runtime.synchronized(after=before)
        topology: Any = plain(await node.daemon.topology.document())
    attributes = {each["name"]: each["value"] for each in topology["attributes"]}
    assert attributes["nodeTopologyPodsFingerprint"] == fingerprint(
        [("default", "runs"), ("default", "crashed")]
    )
    pods = node.daemon.node.view.pods.values()
    assert {each.name for each in pods if each.whole} == {"runs", "crashed", "pending"}


async def test_placements_go_on_while_the_server_is_away_and_it_is_told_the_latest(
    tmp_path: Path,
) -> None:
    async with published(tmp_path) as (node, server):
        await server.stop()
        seen = len(server.requests)
        for number in range(8):
            assert await node.start(pod(f"own-{number}", "1")) == []
        while not node.daemon.topology.publications[0].trouble:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        assert node.daemon.topology.publications[0].phase == "failing"
        await server.start()
        await server.until(lambda: any(r.method == "PATCH" for r in server.requests[seen:]))
        first = next(r for r in server.requests[seen:] if r.method == "PATCH")
        Twin(node.daemon.node.view).check(first.body["zones"])


async def test_status_tells_where_and_how_it_is_published(tmp_path: Path) -> None:
    async with published(tmp_path) as (node, server):
        server.forbidden = {"patch"}
        await node.start(pod("own", "2"))
        await server.until(lambda: len(server.writes()) > 1)
        await asyncio.to_thread(_status, node.socket)  # what is on its way is through by now
        status = await asyncio.to_thread(_status, node.socket)
    (cluster, file) = status.publications
    assert (cluster.to, cluster.phase, cluster.trouble) == ("the cluster", "failing", "forbidden")
    assert "rbac.yaml" in cluster.error
    assert (file.to, file.phase) == (str(tmp_path / "nrt.json"), "published")


def _status(control: Path) -> StatusReport:
    with connected(control) as client:
        return client.status()


async def test_the_file_says_the_same_as_the_cluster(tmp_path: Path) -> None:
    async with published(tmp_path) as (node, server):
        await node.start(pod("own", "2"))
        await server.until(lambda: exclusive(server, "NUMA node #1") == "4-5")
        topology = node.daemon.topology
        while topology.publications[1].generation != topology.feed.generation:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert node.daemon.topology.publications[1].to == str(tmp_path / "nrt.json")
        assert '"4-5"' in await asyncio.to_thread((tmp_path / "nrt.json").read_text)


@pytest.mark.parametrize("on_exit", ["keep", "widen"])
async def test_what_is_left_at_the_end_is_marked_or_gone(tmp_path: Path, on_exit: str) -> None:
    async with published(tmp_path) as (node, server):
        await node.daemon.events.reconfigure(settings=nodes.settings(onExit=on_exit))
        assert attribute(server, "nri-policy/stopped") is None
    if on_exit == "keep":
        assert attribute(server, "nri-policy/stopped") == "true"
        assert '"nri-policy/stopped"' in (tmp_path / "nrt.json").read_text()
    else:
        assert server.objects == {}
        assert not (tmp_path / "nrt.json").exists()


async def test_a_server_that_does_not_answer_holds_up_neither_the_runtime_nor_the_end_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "LAST_WRITE_TIMEOUT", 0.01)
    async with published(tmp_path, patience=math.inf) as (node, server):
        server.before = lambda _: asyncio.Event().wait()
        assert await node.start(pod("own", "2")) == []
