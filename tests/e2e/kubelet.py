"""A kubelet over CRI: pods and containers with the cgroups, labels and numbers that it gives them.

What the kubelet sets follows spec nri.md section 7 (Kubernetes 1.36). Pods use the host's network,
so that no CNI is needed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from nri_policy.cpuset import CPUSet
from tests.e2e import cgroup, image
from tests.e2e.waiting import eventually

#: Messages and stubs of cri.proto, made by grpcio-tools on import: they have no static types.
messages: Any
services: Any
messages, services = grpc.protos_and_services("tests/e2e/cri.proto")

NAMESPACES = {"network": messages.NODE, "pid": messages.CONTAINER}
PERIOD = 100_000  # microseconds

# gRPC itself retries the connection while the runtime is down: soon rather than after seconds.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Requests and limits of a container as in its pod's specification; 0 stands for none."""

    milli_cpu: int = 0
    milli_cpu_limit: int = 0
    memory: int = 0  # bytes
    memory_limit: int = 0  # bytes


BEST_EFFORT = Resources()


def guaranteed(milli_cpu: int, memory: int = 32 << 20) -> Resources:
    """Return resources whose requests are their limits."""
    return Resources(
        milli_cpu=milli_cpu, milli_cpu_limit=milli_cpu, memory=memory, memory_limit=memory
    )


class Kubelet:
    """The kubelet of one runtime; *handler* names the OCI runtime of all its pods.

    *scope* is what the runtime puts before the id of a container to name its cgroup. Any one call
    may take so many *seconds*.
    """

    def __init__(
        self,
        socket: Path,
        cgroup_root: str,
        handler: str,
        *,
        scope: str = "",
        seconds: float = 60,
    ) -> None:
        self._seconds = seconds
        self.cgroup_root = cgroup_root
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
        containers: Mapping[str, Resources],
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

    def run(self, name: str, resources: Resources, **pod: Any) -> Container:
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
    containers: Mapping[str, Resources]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    id: str = ""
    created: list[Container] = field(default_factory=list)

    @property
    def cgroup_parent(self) -> str:
        """The pod's cgroup by the cgroupfs driver."""
        qos = _qos(self.containers.values())
        level = "" if qos == "guaranteed" else f"/{qos}"
        return f"{self.kubelet.cgroup_root}/kubepods{level}/pod{self.uid}"

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
        resources = self.containers[name]
        container_id = self.kubelet.call(
            "CreateContainer",
            pod_sandbox_id=self.id,
            sandbox_config=self._config(),
            config={
                "metadata": {"name": name},
                "image": {"image": image.NAME, "user_specified_image": image.NAME},
                "command": image.FOREVER,
                "labels": self._labels() | {"io.kubernetes.container.name": name},
                "annotations": {
                    "io.kubernetes.container.hash": f"{hash(resources) & 0xFFFFFFFF:x}",
                    "io.kubernetes.container.restartCount": "0",
                    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
                    "io.kubernetes.container.terminationMessagePolicy": "File",
                    "io.kubernetes.pod.terminationGracePeriod": "30",
                }
                | dict(annotations or {}),
                "linux": {
                    "resources": _linux(resources)
                    | {"oom_score_adj": _oom_score_adj(resources, self.containers.values())},
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

    def _labels(self) -> dict[str, str]:
        return {
            "io.kubernetes.pod.name": self.name,
            "io.kubernetes.pod.namespace": self.namespace,
            "io.kubernetes.pod.uid": self.uid,
        }

    def _config(self) -> dict[str, Any]:
        return {
            "metadata": {"name": self.name, "uid": self.uid, "namespace": self.namespace},
            "labels": self._labels() | dict(self.labels),
            "annotations": {"kubernetes.io/config.source": "api"} | dict(self.annotations),
            "linux": {
                "cgroup_parent": self.cgroup_parent,
                "security_context": {"namespace_options": NAMESPACES},
                "resources": _linux(_sum(self.containers.values())),
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
        """Where the runtime puts it, with the cgroupfs driver."""
        return f"{self.pod.cgroup_parent}/{self.pod.kubelet.scope}{self.id}"

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

    def update(self, resources: Resources) -> None:
        """Resize it in place."""
        self.pod.kubelet.call(
            "UpdateContainerResources", container_id=self.id, linux=_linux(resources)
        )

    def stop(self) -> None:
        """Stop it without grace: its process would not listen."""
        self.pod.kubelet.call("StopContainer", container_id=self.id, timeout=0)

    def remove(self) -> None:
        """Stop and remove it."""
        self.stop()
        self.pod.kubelet.call("RemoveContainer", container_id=self.id)
        self.pod.created.remove(self)


def _linux(resources: Resources) -> dict[str, int]:
    """Return the fields of LinuxContainerResources; a quota of 0 means none."""
    quota = resources.milli_cpu_limit * PERIOD // 1000
    return {
        "cpu_period": PERIOD,
        "cpu_quota": max(1000, quota) if quota else 0,
        "cpu_shares": max(2, min(262_144, resources.milli_cpu * 1024 // 1000)),
        "memory_limit_in_bytes": resources.memory_limit,
    }


def _qos(containers: Iterable[Resources]) -> str:
    """Return the QoS class of a pod, as the kubelet names it in cgroups."""
    alone = list(containers)
    if all(each == BEST_EFFORT for each in alone):
        return "besteffort"
    if all(
        0 < each.milli_cpu == each.milli_cpu_limit and 0 < each.memory == each.memory_limit
        for each in alone
    ):
        return "guaranteed"
    return "burstable"


def _oom_score_adj(resources: Resources, pod: Iterable[Resources]) -> int:
    """Return how soon a container goes, but no later than we: a small host lets nobody lower it."""
    qos = _qos(pod)
    capacity = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    score = {
        "guaranteed": -997,
        "burstable": max(3, min(999, 1000 - 1000 * resources.memory // capacity)),
        "besteffort": 1000,
    }
    return max(score[qos], int(Path("/proc/self/oom_score_adj").read_text()))


def _sum(containers: Iterable[Resources]) -> Resources:
    """Return a pod's resources: limits only where every container has one."""
    alone = list(containers)
    cpu_limits = [each.milli_cpu_limit for each in alone]
    memory_limits = [each.memory_limit for each in alone]
    return Resources(
        milli_cpu=sum(each.milli_cpu for each in alone),
        milli_cpu_limit=sum(cpu_limits) if all(cpu_limits) else 0,
        memory=sum(each.memory for each in alone),
        memory_limit=sum(memory_limits) if all(memory_limits) else 0,
    )
