"""A kubelet over CRI: pods and containers with the cgroups, labels and numbers that it gives them.

What it sets is the model's, which is held against real kubelets (`nri_policy.kubelet`). Pods use
the host's network, so that no CNI is needed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet import runtime_requests as model
from nri_policy.manifests.pod import ContainerManifest, Metadata, PodManifest, PodSpec
from nri_policy.manifests.resources import Amounts, ResourceRequirements, Texts
from nri_policy.proto import nri_pb2 as nri
from tests.e2e import cgroup, image
from tests.e2e.waiting import eventually
from tests.support.patience import HANGS

#: Messages and stubs of cri.proto, made by grpcio-tools on import: they have no static types.
messages: Any
services: Any
messages, services = grpc.protos_and_services("tests/e2e/cri.proto")

NAMESPACES = {"network": messages.NODE, "pid": messages.CONTAINER}

# gRPC itself retries the connection while the runtime is down: soon rather than after seconds.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


BEST_EFFORT = ResourceRequirements()


def resources(
    *, milli_cpu: int = 0, milli_cpu_limit: int = 0, memory: int = 0, memory_limit: int = 0
) -> ResourceRequirements:
    """Return requests and limits of a container, memory in bytes; 0 stands for none."""
    return ResourceRequirements(
        requests=_without_zeros({"cpu": milli_cpu, "memory": memory}),
        limits=_without_zeros({"cpu": milli_cpu_limit, "memory": memory_limit}),
    )


def guaranteed(milli_cpu: int, memory: int = 32 << 20) -> ResourceRequirements:
    """Return resources whose requests are their limits."""
    return ResourceRequirements(limits=Amounts({"cpu": milli_cpu, "memory": memory}))


class Kubelet:
    """The kubelet of one runtime; *handler* names the OCI runtime of all its pods.

    *scope* is what the runtime puts before the id of a container to name its cgroup; with *systemd*
    that makes them. Any one call may take so many *seconds*.
    """

    def __init__(
        self,
        socket: Path,
        cgroup_root: str,
        handler: str,
        *,
        scope: str = "",
        systemd: bool = False,
        seconds: float = HANGS,
    ) -> None:
        self._seconds = seconds
        self.systemd = systemd
        self.cgroup_root = "" if systemd else cgroup_root  # systemd's slices are named by the model
        self.model = model.Kubelet(
            memory_capacity=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            cgroup_driver="systemd" if systemd else "cgroupfs",
        )
        self.handler = handler
        self.scope = scope
        self.pods: list[Pod] = []
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)
        self._runtime = services.RuntimeServiceStub(self._channel)

    def call(self, method: str, **fields: Any) -> Any:
        """Call the method of CRI's RuntimeService; grpc.RpcError carries the runtime's refusal."""
        request = getattr(messages, f"{method}Request")(**fields)
        return getattr(self._runtime, method)(request, timeout=self._seconds, wait_for_ready=True)

    def pull(self) -> None:
        """Have the runtime pull the image."""
        images = services.ImageServiceStub(self._channel)
        request = messages.PullImageRequest(image={"image": image.NAME})
        images.PullImage(request, timeout=self._seconds, wait_for_ready=True)

    def version(self) -> str:
        """Return the version that the runtime reports."""
        return str(self.call("Version").runtime_version)

    def run_pod(
        self,
        name: str,
        containers: Mapping[str, ResourceRequirements],
        *,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """Run the sandbox of a pod whose containers, by name, are to be created later."""
        pod = Pod(
            kubelet=self,
            name=name,
            namespace=namespace,
            containers=dict(containers),
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
        )
        pod.run()
        self.pods.append(pod)
        return pod

    def run(self, name: str, resources: ResourceRequirements, **pod: Any) -> Container:
        """Run a pod of one container, and start that."""
        container = self.run_pod(name, {"main": resources}, **pod).create("main")
        container.start()
        return container

    def close(self) -> None:
        """Delete all pods that are left, and hang up."""
        for pod in list(self.pods):
            pod.delete()
        self._channel.close()


@dataclass(slots=True, kw_only=True)
class Pod:
    """A pod from its sandbox's start to `delete`."""

    kubelet: Kubelet
    name: str
    namespace: str
    containers: Mapping[str, ResourceRequirements]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    id: str = ""
    created: list[Container] = field(default_factory=list)

    @property
    def manifest(self) -> PodManifest:
        """Its manifest."""
        return PodManifest(
            metadata=Metadata(
                name=self.name,
                namespace=self.namespace,
                uid=self.uid,
                labels=Texts(self.labels),
                annotations=Texts(self.annotations),
            ),
            spec=PodSpec(
                containers=[
                    ContainerManifest(name=name, resources=its)
                    for name, its in self.containers.items()
                ]
            ),
        )

    @property
    def cgroup_parent(self) -> str:
        """The pod's cgroup."""
        return f"{self.kubelet.cgroup_root}{self.kubelet.model.cgroup_parent(self.manifest)}"

    def run(self) -> None:
        """Run the sandbox."""
        self.id = self.kubelet.call(
            "RunPodSandbox", config=self._config(), runtime_handler=self.kubelet.handler
        ).pod_sandbox_id

    def create(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        **config: Any,
    ) -> Container:
        """Create the container that the pod has under the name; *config* overrides the rest."""
        manifest = self.manifest
        asked = self.kubelet.model.container(manifest, manifest.container(name))
        # a small host lets nobody lower it
        own_score = int(Path("/proc/self/oom_score_adj").read_text())
        container_id = self.kubelet.call(
            "CreateContainer",
            pod_sandbox_id=self.id,
            sandbox_config=self._config(),
            config={
                "metadata": {"name": name},
                "image": {"image": image.NAME, "user_specified_image": image.NAME},
                "command": image.FOREVER,
                "labels": dict(asked.labels),
                "annotations": {**asked.annotations, **(annotations or {})},
                "linux": {
                    "resources": _linux(asked.linux.resources)
                    | {"oom_score_adj": max(asked.linux.oom_score_adj.value, own_score)},
                    "security_context": {"namespace_options": NAMESPACES},
                },
            }
            | config,
        ).container_id
        container = Container(pod=self, name=name, id=container_id)
        self.created.append(container)
        return container

    def delete(self) -> None:
        """Stop and remove the containers, then the sandbox."""
        for container in list(self.created):
            container.remove()
        self.kubelet.call("StopPodSandbox", pod_sandbox_id=self.id)
        self.kubelet.call("RemovePodSandbox", pod_sandbox_id=self.id)
        self.kubelet.pods.remove(self)

    def _config(self) -> dict[str, Any]:
        asked = self.kubelet.model.sandbox(self.manifest, seen="")
        return {
            "metadata": {"name": self.name, "uid": self.uid, "namespace": self.namespace},
            "labels": dict(asked.labels),
            "annotations": dict(asked.annotations),
            "linux": {
                "cgroup_parent": self.cgroup_parent,
                "security_context": {"namespace_options": NAMESPACES},
                "resources": _linux(asked.linux.pod_resources),
            },
        }


@dataclass(slots=True, kw_only=True)
class Container:
    """A container from its creation to `remove`."""

    pod: Pod
    name: str
    id: str

    @property
    def cgroup(self) -> str:
        """Where the runtime puts it."""
        kubelet = self.pod.kubelet
        unit = ".scope" if kubelet.systemd else ""
        return f"{self.pod.cgroup_parent}/{kubelet.scope}{self.id}{unit}"

    def pid(self) -> int:
        """Return the id of its one process."""
        (pid,) = cgroup.processes(self.cgroup)
        return pid

    def cpus(self) -> CPUSet:
        """Return its CPUs, by its cgroup and by its process, which have to agree."""

        def read() -> set[CPUSet]:
            return {cgroup.cpuset(self.cgroup).cpus, cgroup.allowed(self.pid()).cpus}

        # the kernel changes the cgroup first, then the process
        (cpus,) = eventually(read, lambda found: len(found) == 1)
        return cpus

    def state(self) -> str:
        """Return the state that the runtime reports, by its name in CRI."""
        status = self.pod.kubelet.call("ContainerStatus", container_id=self.id).status
        return str(messages.ContainerState.Name(status.state))

    def start(self) -> None:
        """Start it."""
        self.pod.kubelet.call("StartContainer", container_id=self.id)

    def update(self, resources: ResourceRequirements) -> None:
        """Resize it in place."""
        resized = ContainerManifest(name=self.name, resources=resources)
        self.pod.kubelet.call(
            "UpdateContainerResources",
            container_id=self.id,
            linux=_linux(self.pod.kubelet.model.resources(self.pod.manifest, resized)),
        )

    def stop(self) -> None:
        """Stop it without grace: its process would not listen."""
        self.pod.kubelet.call("StopContainer", container_id=self.id, timeout=0)

    def remove(self) -> None:
        """Stop and remove it."""
        self.stop()
        self.pod.kubelet.call("RemoveContainer", container_id=self.id)
        self.pod.created.remove(self)


def _without_zeros(amounts: Mapping[str, int]) -> Amounts:
    return Amounts({name: amount for name, amount in amounts.items() if amount})


def _linux(asked: nri.LinuxResources) -> dict[str, int]:
    """Return the fields of LinuxContainerResources."""
    return {
        "cpu_period": asked.cpu.period.value,
        "cpu_quota": asked.cpu.quota.value,
        "cpu_shares": asked.cpu.shares.value,
        "memory_limit_in_bytes": asked.memory.limit.value,
    }
