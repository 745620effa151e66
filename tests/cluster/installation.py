"""What our manifests install on a cluster, and who a node and its daemon are to its API server."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import yaml

from tests.cluster.control_plane import ControlPlane, kubelet
from tests.e2e import image
from tests.support.exchanges import MERGE, NRT, SETTINGS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
KINDS = [str(CONFIGS / "kubernetes" / name) for name in ("crd.yaml", "settings-crd.yaml")]
PODS = "/api/v1/namespaces/kube-system/pods"
EVENTS = "/api/v1/namespaces/kube-system/events"


def install(cluster: ControlPlane, node: str) -> None:
    """Apply our manifests, and wait until a daemon on *node* may do no more than it should."""
    cluster.kubectl("apply", *(part for kind in KINDS for part in ("-f", kind)))
    cluster.kubectl("apply", "-k", str(CONFIGS / "kubernetes"))
    _enforced(cluster, node)


def install_readiness(cluster: ControlPlane) -> None:
    """Apply both sides with their components for readiness."""
    both = kustomization(cluster, ["kubernetes", "cluster"], ["readiness", "cluster-readiness"])
    cluster.kubectl("apply", "-k", both)


def install_dra(cluster: ControlPlane) -> None:
    """Apply the node's side with its component for DRA."""
    cluster.kubectl("apply", "-k", kustomization(cluster, ["kubernetes"], ["dra"]))


def install_explanations(cluster: ControlPlane) -> None:
    """Apply the node's side with its component for explanations in pods."""
    cluster.kubectl("apply", "-k", kustomization(cluster, ["kubernetes"], ["explanations"]))


def kustomization(cluster: ControlPlane, sides: list[str], components: list[str]) -> str:
    """Return the folder of a kustomization of *sides* with *components*, as a user's would be."""
    folder = cluster.folder / "kustomization"
    folder.mkdir(exist_ok=True)
    root = os.path.relpath(CONFIGS, folder.resolve())
    document = {
        "resources": [f"{root}/{each}" for each in sides],
        "components": [f"{root}/kustomize/{each}" for each in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return str(folder)


def register(cluster: ControlPlane, node: str, **status: object) -> str:
    """Register a node as its kubelet does; return its uid."""
    new = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    labels = {"kubernetes.io/hostname": node, "kubernetes.io/os": "linux"}
    new["metadata"] = {"name": node, "labels": labels}
    made = cluster.asked("POST", "/api/v1/nodes", new, token=kubelet(node))
    ready = {"type": "Ready", "status": "True", "reason": "test", "message": ""}
    patch = {"status": {"conditions": [ready], **status}}
    merge = "application/merge-patch+json"
    cluster.asked("PATCH", f"/api/v1/nodes/{node}/status", patch, content=merge)
    untainted = {"spec": {"taints": None}}
    cluster.asked("PATCH", f"/api/v1/nodes/{node}", untainted, content=merge)
    return str(made["metadata"]["uid"])


def daemon_token(cluster: ControlPlane, node: str) -> str:
    """Return a token as the kubelet of *node* gives it to the daemon's pod."""
    pod = {
        "metadata": {"generateName": "nri-policy-", "namespace": "kube-system"},
        "spec": {
            "serviceAccountName": "nri-policy",
            "nodeName": node,
            "containers": [{"name": "nri-policy", "image": image.NAME}],
        },
    }
    made = cluster.asked("POST", PODS, pod)["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": made["name"], "uid": made["uid"]}
    answer = cluster.asked(
        "POST",
        "/api/v1/namespaces/kube-system/serviceaccounts/nri-policy/token",
        {"spec": {"audiences": ["https://test"], "boundObjectRef": bound}},
    )
    return str(answer["status"]["token"])


def _enforced(cluster: ControlPlane, node: str) -> None:
    """Wait until the API server enforces our admission policies: it takes each in by itself."""
    token = daemon_token(cluster, node)
    topology = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "nobody"},
        "zones": [],
    }
    policy = {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "TopologyAwarePolicy",
        "metadata": {"name": "node.nobody"},
        "spec": {"reservedResources": {"cpu": 1}},
    }
    event = {"metadata": {"generateName": "e."}, "involvedObject": {"kind": "Secret"}}
    cluster.asked("POST", SETTINGS, policy)
    status = {"status": {"nodes": {"nobody": {"status": "Success"}}}}
    writes = (
        ("POST", NRT, topology, "application/json"),
        ("PATCH", f"{SETTINGS}/node.nobody/status", status, MERGE),
        ("POST", EVENTS, event, "application/json"),
    )

    def refused(method: str, path: str, body: object, content: str) -> bool:
        answer = cluster.ask(method, f"{path}?dryRun=All", body, content=content, token=token)
        return answer.status in {403, 422}

    for each in writes:
        cluster.until(partial(refused, *each), f"the admission policy for {each[1]} is enforced")
    cluster.asked("DELETE", f"{SETTINGS}/node.nobody")
