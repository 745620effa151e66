"""A cluster of two racks with what we ship, and `cluster run --groups` as it is installed.

The service has the rights of its ServiceAccount, and the gate comes from the
MutatingAdmissionPolicy that we ship.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.installation import CONFIGS, register
from tests.support.exchanges import MERGE

Object = dict[str, Any]

RACKS = {"r0": ("a", "b", "c"), "r1": ("d", "e", "f")}
NODES = [name for names in RACKS.values() for name in names]
RACK, HOSTNAME = "example.com/rack", "kubernetes.io/hostname"
INDEX = "batch.kubernetes.io/job-completion-index"
GATE = "placement.nri/group"
SHOP = "/api/v1/namespaces/shop"
JOBS = "/apis/batch/v1/namespaces/shop/jobs"
GROUPS = "/apis/placement.nri/v1alpha1/namespaces/shop/placementgroups"
LEASE = "kube-system/nri-policy-cluster"
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/nri-policy-cluster/token"
ANNOTATIONS = {"kueue.x-k8s.io/podset-required-topology": RACK}
# 1.34 has the kind as a beta that is off by default
MUTATING = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)
SCHEDULER: Object = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "podInitialBackoffSeconds": 1,
    "podMaxBackoffSeconds": 1,
}
SETTINGS: Object = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "ClusterPlacement",
    "metadata": {"name": "default"},
    "spec": {"topologies": [{"name": "default", "levels": [RACK, HOSTNAME]}]},
}


class Shop:
    """A cluster of two racks with what we ship, and the namespace `shop` for groups."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        folder = cluster.folder
        for kind in ("placement-groups-crd.yaml", "settings-crd.yaml"):
            cluster.kubectl("apply", "-f", str(CONFIGS / "cluster" / kind))
        groups = CONFIGS / "kustomize" / "cluster-groups"
        cluster.kubectl("apply", "-k", str(groups))
        policy = (groups / "gate-policy.yaml").read_text()
        beta = folder / "gate-policy.yaml"
        stable = "admissionregistration.k8s.io/v1"
        beta.write_text(policy.replace(f"{stable}\n", f"{stable}beta1\n"))
        cluster.kubectl("apply", "-f", str(beta))
        labels = {"placement.nri/groups": "enabled"}
        new = {"metadata": {"name": "shop", "labels": labels}}
        cluster.asked("POST", "/api/v1/namespaces", new)
        for namespace in ("shop", "default"):
            account = {"metadata": {"name": "default"}}
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            cluster.asked("POST", path, account)
        for rack, names in RACKS.items():
            for name in names:
                amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
                register(cluster, name, capacity=amounts, allocatable=amounts)
                patch = {"metadata": {"labels": {RACK: rack}}}
                cluster.asked("PATCH", f"/api/v1/nodes/{name}", patch, content=MERGE)
        answer = cluster.asked("POST", ACCOUNT, {"spec": {"audiences": ["https://test"]}})
        self.kubeconfig = cluster.kubeconfig(str(answer["status"]["token"]))
        self.settings = folder / "placement.yaml"
        self.write_settings()
        self.log = folder / "service.log"

    def write_settings(self, **spec: Any) -> None:
        """Write the service's settings, which it reads when it starts."""
        settings = {**SETTINGS, "spec": SETTINGS["spec"] | spec}
        self.settings.write_text(yaml.safe_dump(settings))

    @contextmanager
    def service(
        self, *more: str, program: str = "nri_policy.cli", lease: str = LEASE, log: str = "service"
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run the service, which is killed at the end if it has not ended by then."""
        arguments = ["cluster", "run", "--groups", "--port", "0", *more]
        arguments += ["--lease", lease] if lease else []
        files = ["--kubeconfig", str(self.kubeconfig), "--settings", str(self.settings)]
        command = [sys.executable, "-m", program, *arguments, *files]
        path = self.log.with_name(f"{log}.log")
        with path.open("ab") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                yield process
            finally:
                process.kill()

    def submit(self, job: str, pods: int, *, cpu: str = "2") -> None:
        """Make a Job and its pods, as the Job controller would."""
        container = {
            "name": "c",
            "image": "x",
            "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}},
        }
        spec = {"restartPolicy": "Never", "containers": [container]}
        template = {"metadata": {"annotations": ANNOTATIONS}, "spec": spec}
        new = {
            "metadata": {"name": job},
            "spec": {
                "parallelism": pods,
                "completions": pods,
                "completionMode": "Indexed",
                "template": template,
            },
        }
        self.cluster.asked("POST", JOBS, new)
        for index in range(pods):
            self.make_pod(job, index)

    def make_pod(self, job: str, index: int, name: str = "") -> None:
        """Make a pod of a Job, by its template."""
        made = self.cluster.asked("GET", f"{JOBS}/{job}")
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job,
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        metadata = {
            "name": name or f"{job}-{index}",
            "labels": {INDEX: str(index)},
            "annotations": ANNOTATIONS,
            "ownerReferences": [owner],
        }
        new = {"metadata": metadata, "spec": made["spec"]["template"]["spec"]}
        found = self.cluster.asked("POST", f"{SHOP}/pods", new)
        assert found["spec"]["schedulingGates"] == [{"name": GATE}], "the policy sets the gate"

    def pods(self, job: str) -> list[Object]:
        items = self.cluster.asked("GET", f"{SHOP}/pods")["items"]
        return sorted(
            (
                each
                for each in items
                if any(one["name"] == job for one in each["metadata"]["ownerReferences"])
                and "deletionTimestamp" not in each["metadata"]
            ),
            key=lambda each: int(each["metadata"]["labels"][INDEX]),
        )

    def hosts(self, job: str) -> list[str]:
        """Where the scheduler has bound a Job's pods, by index; empty for those that wait."""
        return [each["spec"].get("nodeName", "") for each in self.pods(job)]

    def status(self, job: str) -> Object:
        answer = self.cluster.ask("GET", f"{GROUPS}/job-{job}")
        return answer.body.get("status", {}) if answer.status == 200 else {}

    def until_state(self, job: str, state: str) -> Object:
        self.cluster.until(lambda: self.status(job).get("state") == state, f"{job} is {state}")
        return self.status(job)

    def until_bound(self, job: str) -> list[str]:
        """Wait until all pods of a Job are bound; return where they are."""
        self.cluster.until(lambda: all(self.hosts(job)), f"the pods of {job} are bound")
        return self.hosts(job)

    def finish(self, job: str) -> None:
        """Delete a Job and what it owns, as the garbage collector would."""
        now = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        for each in self.pods(job):
            self.cluster.asked("DELETE", f"{SHOP}/pods/{each['metadata']['name']}", now)
        self.cluster.asked("DELETE", f"{JOBS}/{job}", now)
        self.cluster.asked("DELETE", f"{GROUPS}/job-{job}")
