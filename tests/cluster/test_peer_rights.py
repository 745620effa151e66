"""With the rights that nri-plugins' chart gives its DaemonSet, where only the image is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nri_policy.doctor.access import access_to
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.nrt.cluster_object import ClusterSink
from nri_policy.settings_sources.kubernetes import Kubernetes
from nri_policy.settings_sources.policy_objects import PolicyObject
from tests.cluster.control_plane import ControlPlane
from tests.cluster.installation import daemon_token
from tests.support.exchanges import MERGE, NRT, SETTINGS
from tests.unit.nrt.test_cluster_object import topology

ACCOUNT = "nri-resource-policy-topology-aware"
ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CLUSTER_RULES = (
    ("", "nodes", "get watch"),
    ("", "nodes/status", "get patch update"),
    ("topology.node.k8s.io", "noderesourcetopologies", "create get list update delete"),
)
RULES = (
    ("config.nri", "topologyawarepolicies", "get list watch"),
    ("config.nri", "topologyawarepolicies/status", "get update patch"),
)


def grant(cluster: ControlPlane) -> str:
    """Give an account those rights; return its token."""
    cluster.asked("POST", ACCOUNTS, {"metadata": {"name": ACCOUNT}})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system"}
    for kind, where, rules in (
        ("ClusterRole", RBAC, CLUSTER_RULES),
        ("Role", f"{RBAC}/namespaces/kube-system", RULES),
    ):
        granted = [
            {"apiGroups": [group], "resources": [resource], "verbs": verbs.split()}
            for group, resource, verbs in rules
        ]
        named = {"metadata": {"name": ACCOUNT}}
        cluster.asked("POST", f"{where}/{kind.lower()}s", {**named, "rules": granted})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": ACCOUNT}
        binding = {**named, "roleRef": role, "subjects": [subject]}
        cluster.asked("POST", f"{where}/{kind.lower()}bindings", binding)
    asked = {"spec": {"audiences": ["https://test"]}}
    answer = cluster.asked("POST", f"{ACCOUNTS}/{ACCOUNT}/token", asked)
    return str(answer["status"]["token"])


@pytest.fixture(scope="module")
def peer(cluster: ControlPlane) -> Path:
    """Return the kubeconfig of an account with those rights."""
    token = grant(cluster)

    def counts() -> bool:
        return cluster.ask("GET", f"{NRT}/node-a", token=token).status == 404

    cluster.until(counts, "the rights count")
    return cluster.kubeconfig(token)


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Client]:
    connect = access(kubeconfig)
    assert connect is not None
    client = Client(connect)
    try:
        yield client
    finally:
        await client.close()


async def asked(cluster: ControlPlane, method: str, path: str, *body: Any, **more: str) -> Any:
    return await asyncio.to_thread(cluster.asked, method, path, *body, **more)


async def test_the_topology_is_written_and_what_others_have_written_stays(
    cluster: ControlPlane, peer: Path
) -> None:
    ask = partial(asked, cluster)
    theirs = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "node-a", "labels": {"example.com/of": "others"}},
        "zones": [{"name": "socket #0", "type": "package"}],
    }
    await ask("POST", f"{NRT}?fieldManager={ACCOUNT}", theirs)
    first, second = await topology(), await topology(alignment="numa")
    async with connected(peer) as client:
        sink = ClusterSink(client, "node-a")
        written = await sink.put(first, fresh=True)
        found = await ask("GET", f"{NRT}/node-a")
        assert (written.version, written.rivals) == ("v1alpha2", ())
        assert found["zones"] == first["zones"]
        assert found["metadata"]["labels"]["example.com/of"] == "others"
        (owner,) = found["metadata"]["ownerReferences"]
        assert owner["name"] == "node-a"

        # another client changes the object, then deletes it
        note = {"metadata": {"annotations": {"example.com/seen": "yes"}}}
        await ask("PATCH", f"{NRT}/node-a", note, content=MERGE)
        await sink.put(second, fresh=False)
        found = await ask("GET", f"{NRT}/node-a")
        assert found["attributes"] == second["attributes"]
        assert found["metadata"]["annotations"] == {"example.com/seen": "yes"}
        await ask("DELETE", f"{NRT}/node-a")
        await sink.put(first, fresh=False)
        assert (await ask("GET", f"{NRT}/node-a"))["zones"] == first["zones"]

    token = await asyncio.to_thread(daemon_token, cluster, "node-a")
    async with connected(cluster.kubeconfig(token)) as client:
        own = ClusterSink(client, "node-a")
        assert (await own.put(second, fresh=True)).rivals == (), "it has been us"
        await own.remove()
    async with connected(peer) as client:
        sink = ClusterSink(client, "node-a")
        await sink.put(first, fresh=True)
        await sink.remove()
    assert (await asyncio.to_thread(cluster.ask, "GET", f"{NRT}/node-a")).status == 404


async def test_settings_and_group_are_read_and_their_status_is_written(
    cluster: ControlPlane, peer: Path
) -> None:
    ask = partial(asked, cluster)
    labels = {"metadata": {"labels": {"example.com/group": "telco"}}}
    await ask("PATCH", "/api/v1/nodes/node-a", labels, content=MERGE)
    head = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
    spec = {"reservedResources": {"cpu": "750m"}}
    await ask("POST", SETTINGS, {**head, "metadata": {"name": "group.telco"}, "spec": spec})
    said: list[PolicyObject | None] = []
    async with connected(peer) as client:
        objects = Kubernetes(client, "kube-system", "example.com/group")
        assert await objects.group("node-a") == "telco"
        heard = asyncio.Event()

        def hear(policy: PolicyObject | None) -> None:
            said.append(policy)
            heard.set()

        following = asyncio.create_task(objects.follow("group.telco", hear))
        await heard.wait()
        following.cancel()
        await asyncio.wait({following})
        assert said[0] is not None
        assert said[0].spec == spec
        status = {"status": "Success", "generation": 1, "timestamp": "2026-11-26T09:00:00Z"}
        await objects.set_status("group.telco", "node-a", status)
    found = await ask("GET", f"{SETTINGS}/group.telco")
    assert found["status"]["nodes"]["node-a"]["status"] == "Success"


def test_doctor_names_the_rights_that_are_missing(peer: Path) -> None:
    found = access_to(peer, "node-a")
    assert found is not None
    assert found.trouble is None
    assert found.denied == (
        "create events",
        "get resourceslices",
        "list resourceslices",
        "watch resourceslices",
        "get resourceclaims",
        "get pods",
    )
