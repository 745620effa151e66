"""A whole cluster of one node: control plane, containerd, a real kubelet.

All of it runs as processes of this host, in the network and with the folders of a `Machine`. Where
the machine's hardware is a played one, the containers' cpusets are recorded instead of applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import synthetic
from tests.cluster.control_plane import ControlPlane, kubelet
from tests.cluster.installation import daemon_token
from tests.cluster.machine import ADDRESS, Machine
from tests.e2e import cgroup, image
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.packages import Programs, programs, programs_in
from tests.e2e.runtime import Recorded
from tools import debs, runtimes
from tools.control_plane import KUBERNETES, OLDEST, program

NAME = "node-a"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubelet", "kubectl")
#: Those of the controller manager that pods need to come and go.
CONTROLLERS = (
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "job-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "resourceclaim-controller",
)


class Node:
    """The kubelet and the containerd of a cluster's one node."""

    def __init__(
        self, machine: Machine, cluster: ControlPlane, runtime: Containerd, release: str
    ) -> None:
        self.name = NAME
        self.release = release
        self.machine = machine
        self.cluster = cluster
        self.runtime = runtime
        self.manifests = machine.folder / "manifests"  # of static pods
        self._access: Path | None = None  # the daemon's kubeconfig

    def daemon(self, folder: Path, settings: Mapping[str, Any]) -> Daemon:
        """Return a daemon of the node, as its pod would run it; not started yet."""
        if self._access is None:
            self._access = self.cluster.kubeconfig(daemon_token(self.cluster, self.name))
            # a container that starts just when the daemon registers can lose what it is told, and
            # has it register again in the midst of the test
            self._await_all("kube-system")
        return Daemon(
            folder,
            settings=settings,
            host_root=self.machine.hardware or Path("/"),
            nri_socket=self.runtime.nri_socket,
            inside=self.machine.inside,
            kubeconfig=self._access,
            node_name=self.name,
        )

    def _await_all(self, namespace: str) -> None:
        """Wait until all pods that a namespace has on the node are ready."""
        path = f"/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName={self.name}"
        for each in self.cluster.asked("GET", path)["items"]:
            self.until_ready(each["metadata"]["name"], namespace=namespace)

    # ---- pods

    def create(self, *manifests: Mapping[str, Any]) -> None:
        """Create pods; their images are there already."""
        for manifest in manifests:
            namespace = manifest["metadata"].get("namespace", "default")
            path = f"/api/v1/namespaces/{namespace}/pods"
            self.cluster.asked("POST", path, manifest)

    def start(self, *manifests: Mapping[str, Any]) -> None:
        """Create pods, and wait until all their containers run."""
        self.create(*manifests)
        for manifest in manifests:
            metadata = manifest["metadata"]
            self.until_ready(metadata["name"], namespace=metadata.get("namespace", "default"))

    def pod(self, name: str, *, namespace: str = "default") -> dict[str, Any]:
        """Return a pod's object, {} where there is none."""
        answer = self.cluster.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return answer.body if answer.status == 200 else {}

    def until_ready(self, name: str, *, namespace: str = "default") -> None:
        """Wait until all containers of a pod run, or have ended well as its first ones do."""

        def is_ready() -> bool:
            return _has(self.pod(name, namespace=namespace), "Ready")

        self.cluster.until(is_ready, f"pod {name} is ready")

    def delete(self, name: str, *, namespace: str = "default") -> None:
        """Delete a pod, and wait until the kubelet has."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.cluster.asked("DELETE", path, {"gracePeriodSeconds": 1})
        self.cluster.until(lambda: not self.pod(name, namespace=namespace), f"pod {name} is gone")

    def resize(self, name: str, containers: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask for other resources of a pod's containers, in place."""
        changed = [{"name": each, "resources": its} for each, its in containers.items()]
        self.cluster.asked(
            "PATCH",
            f"/api/v1/namespaces/default/pods/{name}/resize",
            {"spec": {"containers": changed}},
            content="application/strategic-merge-patch+json",
        )

    def until_resized(self, name: str) -> None:
        """Wait until the kubelet has resized all containers of a pod, as its status says."""

        def is_resized() -> bool:
            pod = self.pod(name)
            in_force = {each["name"]: each for each in pod["status"]["containerStatuses"]}
            return all(
                _same(in_force[each["name"]].get("resources", {}), each["resources"])
                for each in pod["spec"]["containers"]
            ) and not any(
                each["type"].startswith("PodResize") for each in pod["status"]["conditions"]
            )

        self.cluster.until(is_resized, f"{name} is resized")

    def start_static(self, manifest: Mapping[str, Any]) -> str:
        """Start a static pod, wait until all its containers run, and return its name."""
        name = manifest["metadata"]["name"]
        (self.manifests / f"{name}.json").write_text(json.dumps(manifest))
        self.until_ready(f"{name}-{self.name}")
        return f"{name}-{self.name}"

    def clear(self) -> None:
        """Delete all static pods, and all pods of the default namespace."""
        path = "/api/v1/namespaces/default/pods"

        def left() -> list[str]:
            return [each["metadata"]["name"] for each in self.cluster.asked("GET", path)["items"]]

        for manifest in self.manifests.iterdir():
            manifest.unlink()
            name = f"{manifest.stem}-{self.name}"  # the kubelet would make a deleted one again
            self.cluster.until(lambda name=name: name not in left(), f"{name} is gone")
        self.cluster.asked("DELETE", path, {"gracePeriodSeconds": 1})
        self.cluster.until(lambda: not left(), "no pods are left")

    def ids(self, name: str, *, namespace: str = "default") -> dict[str, str]:
        """Return the ids of a pod's containers, by their names."""
        status = self.pod(name, namespace=namespace).get("status", {})
        return {
            each["name"]: each["containerID"].partition("://")[2]
            for part in ("initContainerStatuses", "containerStatuses")
            for each in status.get(part, [])
            if "containerID" in each
        }

    def running(self, name: str) -> set[str]:
        """Return the names of a pod's containers that run."""
        status = self.pod(name).get("status", {})
        return {
            each["name"]
            for part in ("initContainerStatuses", "containerStatuses")
            for each in status.get(part, [])
            if "running" in each["state"]
        }

    def cgroup_of_pod(self, name: str, *, namespace: str = "default") -> str:
        """Return the cgroup of a pod."""
        pod = self.pod(name, namespace=namespace)
        qos = pod["status"]["qosClass"].lower()
        above = "kubepods" if qos == "guaranteed" else f"kubepods/{qos}"
        return f"{self.runtime.cgroup_root}/{above}/pod{pod['metadata']['uid']}"

    def cgroup_of(self, name: str, container: str, *, namespace: str = "default") -> str:
        """Return the cgroup of a container."""
        ids = self.ids(name, namespace=namespace)
        return f"{self.cgroup_of_pod(name, namespace=namespace)}/{ids[container]}"

    def amounts(self, name: str, container: str) -> cgroup.Amounts:
        """Return the shares, the quota and the limit of the memory that a container has."""
        return cgroup.amounts(self.cgroup_of(name, container))

    def cpuset(
        self, name: str, container: str, *, namespace: str = "default"
    ) -> cgroup.CpusetFiles:
        """Return the cpuset that a container has, or was to have on hardware that is played."""
        if self.machine.hardware:
            return self.runtime.played(self.ids(name, namespace=namespace)[container])
        return cgroup.cpuset(self.cgroup_of(name, container, namespace=namespace))

    def calls(self, name: str, container: str) -> list[Recorded]:
        """Return the requests to the runtime about a container on simulated hardware."""
        own = self.ids(name)[container]
        return [each for each in self.runtime.recorded() if each.container == own]

    # ---- the kubelet

    def start_kubelet(self, **more: Any) -> None:
        """Start the kubelet, with *more* in its configuration; wait until its node is ready."""
        config = self.machine.folder / "kubelet.json"
        config.write_text(json.dumps({**self._configuration(), **more}))
        self.cluster.start(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={self.cluster.kubeconfig(kubelet(self.name))}",
            f"--hostname-override={self.name}",
            f"--node-ip={ADDRESS}",
            "--v=2",
            inside=self.machine.inside,
        )
        self.cluster.until(self._is_ready, "the node is ready")

    def kill_kubelet(self) -> None:
        """End the kubelet without notice; its pods go on."""
        self.cluster.stop("kubelet")

    def _is_ready(self) -> bool:
        answer = self.cluster.ask("GET", f"/api/v1/nodes/{self.name}")
        if answer.status != 200:
            return False
        return _has(answer.body, "Ready") and "taints" not in answer.body["spec"]

    def _configuration(self) -> dict[str, Any]:
        """Return a KubeletConfiguration: nothing outside the machine, nothing ever evicted."""
        self.manifests.mkdir(exist_ok=True)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.runtime.cgroup_root,
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
            "enforceNodeAllocatable": [],
            "evictionHard": dict.fromkeys(
                ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"),
                "0%",
            ),
            "failCgroupV1": False,
            "fileCheckFrequency": "1s",
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "podLogsDir": "/var/log/pods",
            "readOnlyPort": 0,
            "resolvConf": "",
            "staticPodPath": str(self.manifests),
            "syncFrequency": "10s",  # after which a pod whose claim failed is tried again
            "volumeStatsAggPeriod": "1s",
        }


def containerd_for(release: str) -> Programs:
    """Return a containerd as old as a Kubernetes, and a runc that knows seccomp, as sandboxes need.

    If that containerd is not built, another one; raises DebsError if no package can be fetched.
    """
    runc = debs.fetch("runc") / "usr/sbin/runc"
    newest = runtimes.containerd(runtimes.NEWEST_CONTAINERD) if release != OLDEST else None
    built = newest or runtimes.containerd()
    return programs("forky") if built is None else programs_in(built, runc)


@contextmanager
def one_node(
    folder: Path, archive: Path, *, hardware: str = "", release: str = KUBERNETES
) -> Iterator[Node]:
    """Yield a ready node, with the image of *archive*, that ends with all its pods.

    *hardware* is played (in the notation of `hardware.synthetic`); else it has the host's.
    Raises DebsError where containerd, runc or etcd cannot be fetched.
    """
    containerd = containerd_for(release)
    program("etcd")  # to be fetched from here: the machine has no network
    root = folder / "hardware" if hardware else None
    if root is not None:
        synthetic.write(hardware, root)
        _link_cpus(root / "sys/devices/system/node")
    with Machine(folder, root) as machine, machine.network():
        runtime = Containerd(
            containerd, handler="played" if hardware else "runc", inside=machine.inside
        )
        try:
            _provide_network(runtime.folder / "cni")
            cgroup.make(runtime.cgroup_root)
            # the kubelet would give a new one all CPUs of the played hardware
            cgroup.make(f"{runtime.cgroup_root}/kubepods")
            runtime.start()
            runtime.load(archive)
            with ControlPlane(folder, nodes=[NAME], release=release) as cluster:
                cluster.start_controllers(*CONTROLLERS)
                node = Node(machine, cluster, runtime, release)
                node.start_kubelet()
                yield node
        finally:
            runtime.close()


def pod(name: str, containers: Mapping[str, Mapping[str, Any]], **spec: Any) -> dict[str, Any]:
    """Return a pod of containers that run until they are killed, with resources by name."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [
                {"name": each, "image": image.NAME, "resources": resources}
                for each, resources in containers.items()
            ],
            "nodeName": NAME,
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


def _same(resources: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether requests and limits are those, but for the limit of CPU.

    Of a container without a quota the kubelet shows the one from before the resize.
    """

    def shown(amounts: Mapping[str, Any], part: str) -> dict[str, Any]:
        left_out = "cpu" if part == "limits" else ""
        return {name: each for name, each in amounts.get(part, {}).items() if name != left_out}

    return all(shown(resources, part) == shown(others, part) for part in ("requests", "limits"))


def _has(found: Any, condition: str) -> bool:
    """Return whether a condition of an object is true."""
    return any(
        (each["type"], each["status"]) == (condition, "True")
        for each in found.get("status", {}).get("conditions", [])
    )


def _link_cpus(nodes: Path) -> None:
    """Link each memory node's folder to its CPUs, whom the kubelet counts there."""
    for node in nodes.glob("node[0-9]*"):
        for cpu in CPUSet.parse((node / "cpulist").read_text()):
            (node / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")


def _provide_network(folder: Path) -> None:
    """Write a CNI plugin that gives every pod a network of its own, without a wire."""
    (folder / "net.d").mkdir(parents=True)
    (folder / "bin").mkdir()
    plugins = {"cniVersion": "1.0.0", "name": "unwired", "plugins": [{"type": "unwired"}]}
    (folder / "net.d" / "unwired.conflist").write_text(json.dumps(plugins))
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.111.1.1/32"}]}
    for name in ("unwired", "loopback"):
        plugin = folder / "bin" / name
        plugin.write_text(f"#!/bin/sh\necho '{json.dumps(result)}'\n")
        plugin.chmod(0o755)
