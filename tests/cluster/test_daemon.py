"""A daemon on a real cluster: its node, its settings, and an API server that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.nrt.fingerprint import fingerprint
from nri_policy.settings import ReloadResult
from nri_policy.settings_sources.cluster_settings import ClusterSettingsSource
from nri_policy.settings_sources.kubernetes import Kubernetes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.installation import CONFIGS, daemon_token, register
from tests.cluster.played import played
from tests.support import nodes
from tests.support.daemon import pod
from tests.support.exchanges import MERGE, NRT, SETTINGS
from tests.support.patience import HANGS

SMALL = "package:1 numa:2 core:3"


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


def owner(cluster: ControlPlane, node: str) -> str:
    """Return the uid of the Node that the node's object belongs to, "" where it has none."""
    answer = cluster.ask("GET", f"{NRT}/{node}")
    if answer.status != 200:
        return ""
    return str(answer.body["metadata"]["ownerReferences"][0]["uid"])


def uid(cluster: ControlPlane, node: str) -> str:
    return str(cluster.asked("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"])


async def test_a_node_that_is_registered_anew_has_its_topology_again(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    cluster.start_controllers("garbage-collector-controller")
    async with played(cluster, tmp_path / "node-b", "node-b", SMALL, again=True) as here:
        await until(lambda: owner(cluster, "node-b") == uid(cluster, "node-b"))
        await asyncio.to_thread(cluster.asked, "DELETE", "/api/v1/nodes/node-b")
        await until(lambda: owner(cluster, "node-b") == "")
        await here.node.start(pod("own", "1"))
        await until(lambda: here.node.daemon.topology.publications[0].trouble == "no-node")
        new = await asyncio.to_thread(register, cluster, "node-b")
        await until(lambda: owner(cluster, "node-b") == new)
        await asyncio.sleep(3.0)
        assert owner(cluster, "node-b") == new, "the garbage collector lets it be"


async def test_while_the_api_server_is_away_for_a_minute_the_node_goes_on(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    async with played(cluster, tmp_path / "node-a", "node-a", SMALL, again=True) as here:
        await until(lambda: owner(cluster, "node-a"))
        here.pause()
        cluster.stop("kube-apiserver")
        away = asyncio.create_task(asyncio.sleep(60.0))
        assert await here.node.start(pod("own", "1")) == []
        await until(lambda: here.node.daemon.topology.publications[0].trouble == "unreachable")
        await away
        assert await here.node.start(pod("late", "1")) == []
        await asyncio.to_thread(cluster.start_api_server)
        await until(lambda: here.node.daemon.topology.publications[0].phase == "published")
        topology = cluster.asked("GET", f"{NRT}/node-a")
        attributes = {each["name"]: each["value"] for each in topology["attributes"]}
        both = fingerprint([("default", "own"), ("default", "late")])
        assert attributes["nodeTopologyPodsFingerprint"] == both, "the latest state, not the first"


async def test_what_rbac_forbids_is_said_and_done_once_it_is_allowed(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    async with played(cluster, tmp_path / "node-a", "node-a", SMALL, again=True) as here:
        await until(lambda: owner(cluster, "node-a"))
        here.pause()
        cluster.kubectl("delete", "clusterrolebinding", "nri-policy")
        await asyncio.sleep(1.0)  # until the authorizer knows
        assert await here.node.start(pod("own", "1")) == []
        await until(lambda: here.node.daemon.topology.publications[0].trouble == "forbidden")
        error = here.node.daemon.topology.publications[0].error
        assert "system:serviceaccount:kube-system:nri-policy" in error
        assert "rbac.yaml" in error
        cluster.kubectl("apply", "-k", str(CONFIGS / "kubernetes"))
        await until(lambda: here.node.daemon.topology.publications[0].phase == "published")
        zones = cluster.asked("GET", f"{NRT}/node-a")["zones"]
        assert "exclusive cpuset" in str(zones)


async def test_settings_are_followed_and_their_outcome_is_said(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    connect = access(cluster.kubeconfig(daemon_token(cluster, "node-a")))
    assert connect is not None
    client = Client(connect)
    changed = asyncio.Event()
    source = ClusterSettingsSource(
        Kubernetes(client, "kube-system"),
        "node-a",
        kept=tmp_path / "settings.json",
        otherwise=nodes.settings,
        changed=changed.set,
    )
    following = asyncio.create_task(source.run())

    async def loaded() -> Any:
        async with asyncio.timeout(HANGS):
            await changed.wait()
        changed.clear()
        return source.load()

    try:
        assert (await loaded()).origin == "test"
        head = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
        spec = {"reservedResources": {"cpu": 1}, "pinCPU": False}
        new = {**head, "metadata": {"name": "node.node-a"}, "spec": spec}
        cluster.asked("POST", SETTINGS, new)
        assert (await loaded()).pin_cpu is False
        source.report(ReloadResult(accepted=True, origin="", reason="", time=0.0))
        await source.wait_written()
        path = f"{SETTINGS}/node.node-a"
        said = cluster.asked("GET", path)["status"]["nodes"]["node-a"]
        assert (said["status"], said["generation"]) == ("Success", 1)
        cluster.asked("PATCH", path, {"spec": {"pinCPU": True}}, content=MERGE)
        assert (await loaded()).pin_cpu is True
        cluster.asked("DELETE", path)
        assert (await loaded()).origin == "test"
    finally:
        following.cancel()
        await asyncio.wait({following})
        await client.close()
