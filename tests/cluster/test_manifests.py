"""What our manifests grant and forbid on a real API server, and what their removal leaves."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.installation import CONFIGS, daemon_token

NRT = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
SETTINGS = "/apis/config.nri/v1alpha1/namespaces/kube-system/topologyawarepolicies"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def topology(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node, "labels": {"app.kubernetes.io/managed-by": "nri-policy"}},
        "zones": [],
    }


def said(node: str, status: str = "Success") -> dict[str, Any]:
    about = {"status": status, "generation": 1, "timestamp": "2026-01-01T00:00:00Z"}
    return {"status": {"nodes": {node: about}}}


def test_a_daemon_writes_the_topology_of_its_own_node_alone(cluster: ControlPlane) -> None:
    token = daemon_token(cluster, "node-a")

    def publish(node: str) -> Any:
        path = f"{NRT}/{node}?fieldManager=nri-policy"
        return cluster.ask("PATCH", path, topology(node), content=APPLY, token=token)

    assert publish("node-a").status == 201
    answer = publish("node-b")
    assert answer.status == 403
    assert answer.body["reason"] == "Forbidden"
    assert "node 'node-a' may not write the topology of 'node-b'" in answer.body["message"]
    assert cluster.ask("DELETE", f"{NRT}/node-a", token=token).status == 200


def test_a_daemon_writes_the_status_of_its_own_node_alone(cluster: ControlPlane) -> None:
    new = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
    spec = {"reservedResources": {"cpu": 1}}
    cluster.asked("POST", SETTINGS, {**new, "metadata": {"name": "default"}, "spec": spec})
    tokens = {node: daemon_token(cluster, node) for node in ("node-a", "node-b")}

    def write(node: str, patch: dict[str, Any]) -> int:
        path = f"{SETTINGS}/default/status"
        answer = cluster.ask("PATCH", path, patch, content=MERGE, token=tokens[node])
        assert answer.status == 200 or answer.body["reason"] == "Forbidden"
        return answer.status

    assert write("node-a", said("node-a")) == 200
    assert write("node-b", said("node-b")) == 200
    assert write("node-a", said("node-a", "Failure")) == 200
    assert write("node-a", said("node-b", "Failure")) == 403
    assert write("node-a", said("node-c")) == 403
    assert write("node-a", {"status": {"nodes": {"node-b": None}}}) == 403
    assert write("node-a", {"status": {"nodes": None}}) == 403
    assert write("node-a", {"status": {"nodes": {"node-a": None}}}) == 200
    left = cluster.asked("GET", f"{SETTINGS}/default")["status"]["nodes"]
    assert {*left} == {"node-b"}


def test_a_daemon_writes_events_in_its_own_name_from_its_own_node_alone(
    cluster: ControlPlane,
) -> None:
    token = daemon_token(cluster, "node-a")
    ours = {"component": "nri-policy", "host": "node-a"}

    def write(kind: str = "Pod", name: str = "p", source: Any = ours, **more: str) -> Any:
        namespace = "default" if kind == "Node" else "kube-system"
        about = {"kind": kind, "name": name} | ({"namespace": namespace} if kind != "Node" else {})
        event = {"metadata": {"generateName": "e."}, "involvedObject": about, "source": source}
        path = f"/api/v1/namespaces/{namespace}/events"
        answer = cluster.ask("POST", path, event | more, token=token)
        assert answer.status == 201 or answer.body["reason"] == "Forbidden", answer
        return answer.status

    assert write() == 201
    assert write("ResourceClaim") == 201
    assert write("Node", "node-a") == 201
    assert write(reportingComponent="nri-policy", reportingInstance="node-a") == 201
    assert write("Node", "node-b") == 403
    assert write("Secret") == 403
    assert write(source={**ours, "host": "node-b"}) == 403
    assert write(source={**ours, "component": "kubelet"}) == 403
    assert write(source=None) == 403
    assert write(reportingComponent="kubelet", reportingInstance="node-a") == 403
    assert write(reportingComponent="nri-policy", reportingInstance="node-b") == 403


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/nodes", None),
        ("GET", NRT, None),
        ("GET", "/api/v1/pods", None),
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a", None),
        ("GET", "/api/v1/namespaces/kube-system/secrets", None),
        ("GET", "/apis/config.nri/v1alpha1/topologyawarepolicies", None),
        ("GET", SETTINGS.replace("kube-system", "default"), None),
        ("GET", f"{SETTINGS}/default", None),
        ("PATCH", f"{SETTINGS}/default", {"spec": {"pinCPU": False}}),
        ("DELETE", f"{SETTINGS}/default", None),
        ("PATCH", "/api/v1/nodes/node-a", {"metadata": {"labels": {"a": "b"}}}),
    ],
)
def test_nothing_else_is_granted(
    cluster: ControlPlane, method: str, path: str, body: dict[str, Any] | None
) -> None:
    token = daemon_token(cluster, "node-a")
    answer = cluster.ask(method, path, body, content=MERGE, token=token)
    assert answer.status == 403, answer


def objects(cluster: ControlPlane) -> set[str]:
    """Return all that could be ours, by kind and name."""
    kinds = (
        "serviceaccounts,configmaps,daemonsets,roles,rolebindings,clusterroles,"
        "clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
        "noderesourcetopologies"
    )
    names = cluster.kubectl("get", kinds, "--all-namespaces", "-o", "name").split()
    return {name for name in names if "nri" in name or "topolog" in name}


def removal() -> tuple[list[list[str]], list[list[str]]]:
    """Return the commands that the documentation has for a removal, by kustomize and by helm."""
    page = (CONFIGS.parent / "docs" / "kubernetes.md").read_text()
    section = page[page.index("## Removal") :]
    *before, last = section.split("```")[1].strip().splitlines()
    kustomize, _, helm = last.partition("# or: ")
    assert [line.split()[0] for line in (*before, kustomize, helm)] == [*["kubectl"] * 3, "helm"]
    # no controllers run here that would take the daemons' pods away
    first = [[w for w in line.split() if not w.startswith("--cascade")] for line in before]
    words = [str(CONFIGS / w[8:]) if w.startswith("configs/") else w for w in kustomize.split()]
    return [*first, words], [*first, helm.split()]


def test_removal_in_the_documented_order_leaves_nothing(cluster: ControlPlane) -> None:
    token = daemon_token(cluster, "node-a")
    path = f"{NRT}/node-a?fieldManager=nri-policy"
    cluster.asked("PATCH", path, topology("node-a"), content=APPLY, token=token)
    cluster.asked("POST", NRT, {**topology("elsewhere"), "metadata": {"name": "elsewhere"}})
    assert objects(cluster)
    for words in removal()[0]:
        cluster.run(*words)
    assert objects(cluster) == {"noderesourcetopology.topology.node.k8s.io/elsewhere"}, "not ours"


def test_helm_installs_the_same_and_removes_it(bare: ControlPlane) -> None:
    helm = shutil.which("helm", path=".venv/bin") or pytest.skip("needs helm: make kubernetes")
    chart = str(CONFIGS / "helm" / "nri-policy")
    before = objects(bare)
    image = "image.repository=nri-policy"
    bare.run(helm, "install", "nri-policy", chart, "-n", "kube-system", "--set", image)
    assert "daemonset.apps/nri-policy" in objects(bare)
    assert "rolebinding.rbac.authorization.k8s.io/nri-policy" in objects(bare)
    values = ("--set", image, "--set", "enableNRI=true")
    bare.run(helm, "upgrade", "nri-policy", chart, "-n", "kube-system", *values)
    path = f"{NRT}/node-a?fieldManager=nri-policy"
    token = daemon_token(bare, "node-a")
    bare.asked("PATCH", path, topology("node-a"), content=APPLY, token=token)
    for program, *words in removal()[1]:
        bare.run(helm if program == "helm" else program, *words)
    assert objects(bare) == before
