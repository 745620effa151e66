"""What the kubelet requests from a container runtime for a pod, from its manifest.

Owns the kubelet's arithmetic and naming: cgroup parents, CPU shares and quota, OOM scores, labels
and annotations, as NRI messages. Must not know what a runtime adds to them (runtimespec).
The formulas are those of kubelet 1.36 (pkg/kubelet/cm, pkg/kubelet/kuberuntime, pkg/kubelet/qos).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from nri_policy.manifests.pod import ContainerManifest, PodManifest, Volume
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.manifests.resources import Amounts
from nri_policy.proto import nri_pb2 as nri

QUOTA_PERIOD = 100_000  # microseconds
MIN_QUOTA = 1000  # microseconds
MIN_SHARES, MAX_SHARES = 2, 262_144

_HUGEPAGES = "hugepages-"
_OBJECT_VOLUMES = {"config_map": "configmap", "downward_api": "downward-api"}


class Kubelet(Struct, frozen=True, kw_only=True):
    """The kubelet of one node, with the facts that influence its requests."""

    memory_capacity: int = 64 << 30  # bytes
    cgroup_driver: Literal["systemd", "cgroupfs"] = "systemd"
    hugepage_sizes: tuple[str, ...] = ("2MB", "1GB")  # as the hugetlb controller names them

    def sandbox(self, pod: PodManifest, *, seen: str) -> nri.PodSandbox:
        """Return the sandbox of *pod*, first seen at the time *seen* (RFC 3339)."""
        return nri.PodSandbox(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            uid=pod.metadata.uid,
            runtime_handler=pod.spec.runtime_class_name,
            labels=pod.metadata.labels | _pod_labels(pod),
            annotations=pod.metadata.annotations
            | {"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": seen},
            linux=nri.LinuxPodSandbox(
                cgroup_parent=self.cgroup_parent(pod),
                pod_resources=self.pod_resources(pod),
                pod_overhead=self.pod_overhead(pod),
            ),
        )

    def container(
        self, pod: PodManifest, container: ContainerManifest, *, attempt: int = 0
    ) -> nri.Container:
        """Return the kubelet's request to create *container*, after *attempt* earlier ones."""
        message = nri.Container(
            name=container.name,
            labels=_pod_labels(pod) | {"io.kubernetes.container.name": container.name},
            annotations={
                "io.kubernetes.container.hash": _hash(container),
                "io.kubernetes.container.restartCount": str(attempt),
                "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
                "io.kubernetes.container.terminationMessagePolicy": "File",
                "io.kubernetes.pod.terminationGracePeriod": str(
                    pod.spec.termination_grace_period_seconds
                ),
            },
            args=[*container.command, *container.args],
            env=[f"{variable.name}={variable.value}" for variable in container.env],
            mounts=_mounts(pod, container),
            linux=nri.LinuxContainer(resources=self.resources(pod, container)),
        )
        message.linux.resources.unified["memory.oom.group"] = "1"  # default since 1.28, cgroup v2
        message.linux.oom_score_adj.value = self.oom_score_adj(pod, container)
        return message

    def resources(self, pod: PodManifest, container: ContainerManifest) -> nri.LinuxResources:
        """Return a container's resources as the kubelet passes them; 0 means no limit.

        A container without a limit has the pod-level limit, if any, and one without a request the
        shares of its limit (KEP-2837).
        """
        limits = Amounts({name: pod.spec.limit(container, name) for name in ("cpu", "memory")})
        message = _cpu_and_memory(container.resources.requests, limits)
        sizes = dict.fromkeys(self.hugepage_sizes, 0) | {
            _page_size(name): amount
            for name, amount in container.resources.limits.items()
            if name.startswith(_HUGEPAGES)
        }
        message.hugepage_limits.extend(
            nri.HugepageLimit(page_size=size, limit=limit) for size, limit in sizes.items()
        )
        return message

    def pod_resources(self, pod: PodManifest) -> nri.LinuxResources:
        """Return the resources of *pod*: the pod-level ones, else the sum of its containers."""
        requests, limits = pod.spec.total("requests"), pod.spec.total("limits")
        if (whole := pod.spec.resources) is not None:
            requests = Amounts(requests | whole.requests)
            limits = Amounts(limits | whole.limits)
        return _cpu_and_memory(requests, limits)

    def pod_overhead(self, pod: PodManifest) -> nri.LinuxResources | None:
        """Return the overhead of the runtime class of *pod*; None if it has none."""
        overhead = pod.spec.overhead
        return _cpu_and_memory(overhead, overhead) if overhead else None

    def cgroup_parent(self, pod: PodManifest) -> str:
        """Return the cgroup of *pod* in the form of the node's cgroup driver."""
        classes = {QoS.BURSTABLE: "burstable", QoS.BEST_EFFORT: "besteffort"}
        parts = ["kubepods", *([classes[pod.qos]] if pod.qos in classes else [])]
        if self.cgroup_driver == "cgroupfs":
            return "/" + "/".join([*parts, f"pod{pod.metadata.uid}"])
        parts.append("pod" + pod.metadata.uid.replace("-", "_"))
        return "".join(f"/{'-'.join(parts[: i + 1])}.slice" for i in range(len(parts)))

    def oom_score_adj(self, pod: PodManifest, container: ContainerManifest) -> int:
        """Return the OOM score adjustment of *container*."""
        if pod.qos is QoS.GUARANTEED or pod.spec.priority_class_name == "system-node-critical":
            return -997
        if pod.qos is QoS.BEST_EFFORT:
            return 1000
        request = container.resources.requests.get("memory", 0)
        if container.sidecar:  # must not be killed before the containers that it serves
            request = max(
                request,
                min(main.resources.requests.get("memory", 0) for main in pod.spec.containers),
            )
        request += _rest_of_memory(pod)
        # the machine's memory may be unknown
        return max(3, min(1000 - 1000 * request // max(1, self.memory_capacity), 999))


def cpu_shares(milli_cpu: int) -> int:
    """Return the CPU shares of a request."""
    return max(MIN_SHARES, min(milli_cpu * 1024 // 1000, MAX_SHARES))


def cpu_quota(milli_cpu: int) -> int:
    """Return the CFS quota of a limit, in microseconds per QUOTA_PERIOD; 0 for no limit."""
    return milli_cpu and max(MIN_QUOTA, milli_cpu * QUOTA_PERIOD // 1000)


def _cpu_and_memory(requests: Amounts, limits: Amounts) -> nri.LinuxResources:
    message = nri.LinuxResources()
    message.cpu.shares.value = cpu_shares(requests.get("cpu", limits.get("cpu", 0)))
    message.cpu.quota.value = cpu_quota(limits.get("cpu", 0))
    message.cpu.period.value = QUOTA_PERIOD
    message.memory.limit.value = limits.get("memory", 0)
    return message


def _rest_of_memory(pod: PodManifest) -> int:
    """Return a container's share of the pod-level memory request beyond the containers' sum."""
    if pod.spec.resources is None:
        return 0
    rest = pod.spec.resources.requests.get("memory", 0) - pod.spec.total("requests").get(
        "memory", 0
    )
    return max(0, rest) // len(pod.spec.every_container)


def _page_size(resource: str) -> str:
    """Return `2MB` for `hugepages-2Mi`: the name in the hugetlb controller."""
    return resource.removeprefix(_HUGEPAGES).replace("i", "B")


def _pod_labels(pod: PodManifest) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.metadata.name,
        "io.kubernetes.pod.namespace": pod.metadata.namespace,
        "io.kubernetes.pod.uid": pod.metadata.uid,
    }


def _hash(container: ContainerManifest) -> str:
    text = json.dumps(msgspec.to_builtins(container), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _mounts(pod: PodManifest, container: ContainerManifest) -> Iterable[nri.Mount]:
    sources = {volume.name: _source(pod, volume) for volume in pod.spec.volumes}
    for mount in container.volume_mounts:
        yield nri.Mount(
            destination=mount.mount_path,
            type="bind",
            source=sources[mount.name],
            options=["rbind", "rprivate", "ro" if mount.read_only else "rw"],
        )


def _source(pod: PodManifest, volume: Volume) -> str:
    """Return the path of a volume on the host (pkg/volume's plugin names; CSI's mounts)."""
    if volume.host_path:
        return volume.host_path.path
    kind, name = "empty-dir", volume.name
    if volume.persistent_volume_claim:
        kind, name = "csi", f"{volume.persistent_volume_claim.claim_name}/mount"
    for objects in ("config_map", "secret", "projected", "downward_api"):
        if getattr(volume, objects) is not None:
            kind = _OBJECT_VOLUMES.get(objects, objects)
    return f"/var/lib/kubelet/pods/{pod.metadata.uid}/volumes/kubernetes.io~{kind}/{name}"
