"""Pods with resources as a whole (KEP-2837), as a kubelet shows them and as their objects say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nri_policy.kubelet import runtimespec
from nri_policy.kubelet.manifest_pods import pod_requirements
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.pod import PodManifest, read_pod
from nri_policy.plugin.convert import container_of
from nri_policy.workload.pod import Container
from nri_policy.workload.requirements import PodRequirements

MIB = 1 << 20
KUBELET = Kubelet(memory_capacity=64 << 30)
_AMOUNTS = {"cpu": 4, "memory": "512Mi"}
WHOLE = {"requests": _AMOUNTS, "limits": _AMOUNTS}
#: The containers of a pod of `WHOLE`.
CONTAINERS: dict[str, dict[str, Any]] = {
    "log": {},
    "main": {"limits": {"cpu": 2, "memory": "128Mi"}},
    "mesh": {"requests": {"cpu": "100m"}},
}


def manifest(
    containers: Mapping[str, Any] = CONTAINERS, whole: Any = WHOLE, *, name: str = "shop"
) -> PodManifest:
    """Return a pod."""
    listed = [{"name": each, "resources": its} for each, its in containers.items()]
    spec = {"containers": listed} | ({} if whole is None else {"resources": whole})
    metadata = {"name": name, "uid": f"uid-{name}"}
    return read_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def shown(pod: PodManifest) -> dict[str, Container]:
    """Return a pod's containers as a runtime tells a plugin of them at their creation."""
    sandbox = KUBELET.sandbox(pod, seen="")
    sandbox.id = pod.metadata.name
    found = {}
    for number, each in enumerate(pod.spec.every_container, 1):
        message = KUBELET.container(pod, each)
        message.id = f"{pod.metadata.name}-{each.name}"
        message.created_at = number
        runtimespec.complete_container(message, sandbox, runtime="containerd", image="")
        found[each.name] = container_of(sandbox, message)
    return found


def said(pod: PodManifest) -> PodRequirements:
    """Return what the object of a pod says."""
    return pod_requirements(pod.spec)
