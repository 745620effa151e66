"""Explanations in pods on a real API server: what a daemon's token may write, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_policy.control.decision_log import DecisionLog
from nri_policy.daemon.pod_explanations import SETTLE, PodExplanations
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.why import WHY
from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import daemon_token, install_explanations, register
from tests.support.daemon import pod, served
from tests.support.exchanges import MERGE, Answered
from tools.control_plane import RELEASES

Object = dict[str, Any]

PODS = "/api/v1/namespaces/shop/pods"


class Shop:
    """A control plane with our manifests, and the token of a daemon on node-a."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        self._made = 0
        install_explanations(cluster)
        for node in ("node-a", "node-b"):
            register(cluster, node)
        cluster.asked("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        account = {"metadata": {"name": "default"}}
        cluster.asked("POST", "/api/v1/namespaces/shop/serviceaccounts", account)
        self.token = daemon_token(cluster, "node-a")
        elsewhere = self.pod("node-b")
        cluster.until(lambda: self.explain(elsewhere, "x").status == 403, "pods are protected")

    def pod(self, node: str, name: str = "") -> Object:
        """Create a pod on a node; return its metadata."""
        self._made += 1
        spec: Object = {"containers": [{"name": "c", "image": "x"}]}
        if node:
            spec["nodeName"] = node
        metadata = {
            "name": name or f"p{self._made}",
            "labels": {"app": "web"},
            "annotations": {"example.com/own": "1"},
            "finalizers": ["example.com/f"],
        }
        made = self.cluster.asked("POST", PODS, {"metadata": metadata, "spec": spec})
        found: Object = made["metadata"]
        return found

    def change(self, target: Object, patch: Object, content: str = MERGE) -> Answered:
        path = f"{PODS}/{target['name']}"
        return self.cluster.ask("PATCH", path, patch, content=content, token=self.token)

    def explain(self, target: Object, text: str | None) -> Answered:
        """Try the daemon's patch."""
        metadata = {"uid": target["uid"], "annotations": {WHY: text}}
        return self.change(target, {"metadata": metadata})

    def annotations(self, name: str) -> dict[str, str]:
        found: Object = self.cluster.asked("GET", f"{PODS}/{name}")["metadata"]
        return dict(found["annotations"])


@pytest.fixture(scope="module", params=RELEASES)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    require("kube-apiserver", "kubectl", release=request.param)
    folder = tmp_path_factory.mktemp("explanations")
    with ControlPlane(folder, release=request.param, nodes=["node-a", "node-b"]) as cluster:
        yield Shop(cluster)


def test_a_daemon_writes_and_removes_the_annotation_of_a_pod_of_its_node(shop: Shop) -> None:
    ours = shop.pod("node-a")
    answer = shop.explain(ours, "main: placed\n  CPUs: 1")
    assert answer.status == 200, answer
    assert shop.annotations(ours["name"]) == {
        "example.com/own": "1",
        WHY: "main: placed\n  CPUs: 1",
    }
    assert shop.explain(ours, "other").status == 200
    assert shop.explain(ours, None).status == 200
    assert shop.annotations(ours["name"]) == {"example.com/own": "1"}


@pytest.mark.parametrize("node", ["node-b", ""])
def test_pods_elsewhere_and_on_no_node_are_not_its_own(shop: Shop, node: str) -> None:
    answer = shop.explain(shop.pod(node), "x")
    assert answer.status == 403
    assert "may not change pods of other nodes" in answer.body["message"]


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"metadata": {"labels": {"app": "evil"}}}, "no metadata of a pod but"),
        ({"metadata": {"labels": {"new": "x"}}}, "no metadata of a pod but"),
        ({"metadata": {"finalizers": None}}, "no metadata of a pod but"),
        ({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p",
                                            "uid": "u"}]}}, "no metadata of a pod but"),
        ({"metadata": {"annotations": {"example.com/own": "2"}}}, "no annotation of a pod but"),
        ({"metadata": {"annotations": {"example.com/own": None}}}, "no annotation of a pod but"),
        ({"metadata": {"annotations": {"placement.nri/zone": "x"}}}, "no annotation of a pod but"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "nothing of a pod's spec"),
        ({"spec": {"containers": [{"name": "c", "image": "evil"}]}}, "nothing of a pod's spec"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("together", [False, True])
def test_it_changes_nothing_else_of_them(
    shop: Shop, patch: Object, text: str, together: bool
) -> None:
    if together:
        metadata = patch.get("metadata", {})
        annotations = {WHY: "x", **metadata.get("annotations", {})}
        patch = {**patch, "metadata": {**metadata, "annotations": annotations}}
    ours = shop.pod("node-a")
    content = "application/strategic-merge-patch+json" if "spec" in patch else MERGE
    answer = shop.change(ours, patch, content)
    assert answer.status == 403, answer
    assert text in answer.body["message"]


def test_it_may_do_nothing_but_that(shop: Shop) -> None:
    path = f"{PODS}/{shop.pod('node-a')['name']}"
    status = {"status": {"phase": "Failed"}}
    for method, where, body in (
        ("PATCH", f"{path}/status", status),
        ("PATCH", f"{path}/ephemeralcontainers", {"spec": {}}),
        ("DELETE", path, None),
        ("POST", PODS, {"metadata": {"name": "x"}, "spec": {}}),
        ("GET", PODS, None),
    ):
        content = MERGE if method == "PATCH" else "application/json"
        answer = shop.cluster.ask(method, where, body, content=content, token=shop.token)
        assert answer.status == 403, (method, where, answer)


def test_a_namesake_of_the_pod_is_left_alone(shop: Shop) -> None:
    ours = shop.pod("node-a")
    answer = shop.explain({**ours, "uid": "00000000-0000-0000-0000-000000000000"}, "x")
    assert answer.status in {409, 422}, answer
    assert WHY not in shop.annotations(ours["name"])


def test_a_pod_author_reads_it_without_rights_on_the_node(shop: Shop) -> None:
    """With a role that lets read pods of the author's namespace, and nothing else."""
    ours = shop.pod("node-a")
    assert shop.explain(ours, "main: placed").status == 200
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author"}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "shop"}
    binding = {"metadata": {"name": "author"}, "roleRef": role, "subjects": [account]}
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop"
    shop.cluster.asked("POST", f"{path}/roles", {"metadata": {"name": "author"}, "rules": rules})
    shop.cluster.asked("POST", f"{path}/rolebindings", binding)
    made = shop.cluster.asked(
        "POST",
        "/api/v1/namespaces/shop/serviceaccounts/default/token",
        {"spec": {"audiences": ["https://test"]}},
    )
    token = str(made["status"]["token"])

    def read(path: str) -> Answered:
        return shop.cluster.ask("GET", path, token=token)

    own = f"{PODS}/{ours['name']}"
    shop.cluster.until(lambda: read(own).status == 200, "the role is known")
    assert read(own).body["metadata"]["annotations"][WHY] == "main: placed"
    assert read("/api/v1/namespaces/kube-system/pods").status == 403


async def test_a_daemon_explains_its_pods(shop: Shop, tmp_path: Path) -> None:
    """With the pods of a simulated runtime, which the API server has by the same names and uids."""
    made = shop.pod("node-a", "web")
    connect = access(shop.cluster.kubeconfig(shop.token))
    assert connect is not None
    client, time = Client(connect), 0.0
    async with served(tmp_path, podExplanations=True) as node:
        writer = PodExplanations(
            client,
            node.daemon.node,
            DecisionLog(),
            clock=Clock(now=lambda: time),
        )
        node.daemon.node.add_observers(writer.observe)
        manifest = pod("web", "2", namespace="shop")
        manifest["metadata"]["uid"] = made["uid"]
        assert await node.start(manifest) == []
        node.daemon.node.catch_up()
        time += SETTLE
        await writer.step()
        assert [*writer.problems()] == []
    await client.close()
    assert shop.annotations("web")[WHY].startswith("main: placed on NUMA node #")
