"""A cluster whose Jobs and Deployments live: Kubernetes' controllers and scheduler, our service.

The Job, Deployment and garbage collector controllers are Kubernetes' own, and so is kube-scheduler;
the kubelets are played, and make nodes not ready.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import OK
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import CONFIGS
from tests.cluster.shop import (
    GROUPS,
    JOBS,
    MUTATING,
    NODES,
    RACK,
    SCHEDULER,
    SHOP,
    Shop,
)
from tests.support.exchanges import MERGE
from tests.support.zone_reports import zone_report

Object = dict[str, Any]

CONTROLLERS = ("job-controller", "garbage-collector-controller", "deployment-controller",
               "replicaset-controller", "statefulset-controller")  # fmt: skip
REPORTS = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
DEPLOYMENTS = "/apis/apps/v1/namespaces/shop/deployments"
GATES = [{"name": "placement.nri/group"}]
# also how long the API server waits at its end for requests that do not end
SHORT = ("--request-timeout=15s",)
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
BY_KEY = "application/strategic-merge-patch+json"
ENDED = ("Succeeded", "Failed")


class Kubelets:
    """Run what is bound, and end what is deleted, until they are stopped."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            answer = self._cluster.ask("GET", f"{SHOP}/pods")
            for pod in answer.body["items"] if answer.status == 200 else ():
                self._handle(pod)

    def _handle(self, pod: Object) -> None:
        phase = pod["status"].get("phase")
        if "deletionTimestamp" in pod["metadata"]:
            if phase not in ENDED:
                self._write(pod, {"phase": "Failed"})
            self._cluster.ask("DELETE", _path(pod), {"gracePeriodSeconds": 0})
        elif "nodeName" in pod["spec"] and phase == "Pending":
            ready = {"type": "Ready", "status": "True"}
            self._write(pod, {"phase": "Running", "conditions": [ready]})

    def _write(self, pod: Object, status: Object) -> None:
        """Write the status of a pod, unless somebody else has changed it since it was listed."""
        listed = {"resourceVersion": pod["metadata"]["resourceVersion"]}
        patch = {"metadata": listed, "status": status}
        self._cluster.ask("PATCH", f"{_path(pod)}/status", patch, content=BY_KEY)


def _path(pod: Object) -> str:
    return f"{SHOP}/pods/{pod['metadata']['name']}"


class Cluster:
    """Two racks of three nodes of 4 CPUs, with Kubernetes' controllers and our service's rights."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.api = shop.cluster
        self._set_priority_class("urgent", 1000)
        deployment = ("deployment", "nri-policy-cluster", "--namespace", "kube-system")
        self.api.kubectl("delete", *deployment)  # the service is a process here

    def _set_priority_class(self, name: str, value: int) -> None:
        new = {"metadata": {"name": name}, "value": value}
        self.api.asked("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", new)

    def template(self, cpu: int, memory: str = "", **spec: Any) -> Object:
        amounts = {"cpu": str(cpu)} | ({"memory": memory} if memory else {})
        resources = {"requests": amounts, "limits": amounts}
        container = {"name": "c", "image": "x", "resources": resources}
        annotations = {"kueue.x-k8s.io/podset-required-topology": RACK}
        return {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [container], "schedulingGates": GATES, **spec},
        }

    def submit(
        self,
        name: str,
        pods: int,
        *,
        cpu: int = 2,
        memory: str = "",
        priority: str = "",
        **job: Any,
    ) -> None:
        """A Job; its pods are made by the Job controller. With *memory* they are Guaranteed."""
        template = self.template(cpu, memory, restartPolicy="Never")
        if priority:
            template["spec"]["priorityClassName"] = priority
        spec = {"parallelism": pods, "completions": pods, "template": template, **job}
        self.api.asked("POST", JOBS, {"metadata": {"name": name}, "spec": spec})

    def patch_job(self, name: str, **spec: Any) -> None:
        self.api.asked("PATCH", f"{JOBS}/{name}", {"spec": spec}, content=MERGE)

    def job(self, name: str) -> Object:
        found: Object = self.api.asked("GET", f"{JOBS}/{name}")
        return found

    def delete(self, path: str) -> None:
        body = {"propagationPolicy": "Background"}
        self.api.asked("DELETE", path, body)

    def delete_job(self, name: str) -> None:
        self.delete(f"{JOBS}/{name}")

    def pod(self, name: str) -> str:
        """A pod of no group, without a gate; return its name."""
        spec = self.template(1)["spec"] | {"schedulingGates": None}
        self.api.asked("POST", f"{SHOP}/pods", {"metadata": {"name": name}, "spec": spec})
        return name

    def node_of(self, pod: str) -> str:
        """Where a pod is bound to; empty for nowhere."""
        found: str = self.api.asked("GET", f"{SHOP}/pods/{pod}")["spec"].get("nodeName", "")
        return found

    def evict(self, pod: str) -> None:
        """Delete a pod as Kubernetes does with those of a node that is not ready."""
        path, status = f"{SHOP}/pods/{pod}", {"status": {"conditions": [DISRUPTED]}}
        self.api.asked("PATCH", f"{path}/status", status, content=BY_KEY)
        self.delete(path)

    def succeed(self, job: str) -> None:
        """Have all pods of a Job end, as their kubelet writes it."""
        for pod in self.pods("job-name", job):
            path = f"{SHOP}/pods/{pod['metadata']['name']}/status"
            done = {"status": {"phase": "Succeeded"}}
            self.api.asked("PATCH", path, done, content=MERGE)

    def pods(self, label: str, value: str) -> list[Object]:
        path = f"{SHOP}/pods?labelSelector={label}%3D{value}"
        return [
            each
            for each in self.api.asked("GET", path)["items"]
            if "deletionTimestamp" not in each["metadata"]
            and each["status"].get("phase") not in ENDED
        ]

    def running(self, job: str) -> int:
        pods = self.pods("job-name", job)
        return sum("nodeName" in each["spec"] for each in pods)

    def until_running(self, job: str, pods: int) -> None:
        self.api.until(lambda: self.running(job) == pods, f"{pods} pods of {job} run")

    def let_go(self, job: str) -> int:
        """How many pods of a Job have no gate any more."""
        pods = self.pods("job-name", job)
        return sum(not each["spec"].get("schedulingGates") for each in pods)

    def hosts(self, group: str) -> Counter[str]:
        """The places that a group has, by host."""
        answer = self.api.ask("GET", f"{GROUPS}/{group}")
        status = answer.body.get("status", {}) if answer.status == 200 else {}
        domains = [one for each in status.get("assignments", ()) for one in each.get("domains", ())]
        found = Counter[str]()
        for one in domains:
            found[one["values"][-1]] += one["count"]
        return found

    def places(self, group: str) -> int:
        return self.hosts(group).total()

    def reasons(self, about: str) -> Counter[str]:
        events = self.api.asked("GET", f"{SHOP}/events")["items"]
        return Counter(each["reason"] for each in events if each["involvedObject"]["name"] == about)

    def set_ready(self, ready: bool, *nodes: str) -> None:
        """Have these nodes be ready or not; all without a name."""
        for node in nodes or NODES:
            condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "t"}
            patch = {"status": {"conditions": [condition]}}
            self.api.asked("PATCH", f"/api/v1/nodes/{node}/status", patch, content=MERGE)

    @contextmanager
    def aligned(self) -> Iterator[None]:
        """Have all nodes align pods, with two zones of 2 CPUs of which one is free."""
        self.api.kubectl("apply", "-f", str(CONFIGS / "kubernetes" / "crd.yaml"))
        self.api.until(lambda: self.api.ask("GET", REPORTS).status == OK, "reports can be written")
        for name in NODES:
            self.api.asked("POST", REPORTS, _report(name, 1, 1))
        yield
        for name in NODES:
            self.api.asked("DELETE", f"{REPORTS}/{name}")

    def report(self, node: str, *free: int) -> None:
        """Have a node that aligns pods report how many CPUs are free in its zones."""
        self.api.asked("PATCH", f"{REPORTS}/{node}", _report(node, *free), content=MERGE)

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """Begin with the usual settings, and delete at the end what a test has made."""
        self.shop.write_settings()
        yield
        self.set_ready(True)
        self.clear()

    def clear(self) -> None:
        """Delete all Jobs and Deployments, and wait until their pods and groups are gone."""
        for path in (JOBS, DEPLOYMENTS):
            for each in self.api.asked("GET", path)["items"]:
                self.delete(f"{path}/{each['metadata']['name']}")
        self.api.until(lambda: not self.api.asked("GET", f"{SHOP}/pods")["items"], "pods go")
        self.api.until(lambda: not self.api.asked("GET", GROUPS)["items"], "groups go")

    def said_no_error(self) -> bool:
        return "Traceback" not in self.shop.log.read_text()


def _report(node: str, *free: int) -> Object:
    return zone_report(node, *free, cpus=2, memory="4Gi")


@contextmanager
def living(folder: Path) -> Iterator[Cluster]:
    """Run such a cluster in a folder; skip where its programs are not at hand."""
    require("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
    with ControlPlane(folder, nodes=NODES, api_server=[*MUTATING, *SHORT]) as plane:
        made = Cluster(Shop(plane))
        plane.start_scheduler(SCHEDULER)
        plane.start_controllers(*CONTROLLERS)
        with Kubelets(plane):
            yield made
