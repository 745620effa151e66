"""Placement groups on a real API server: `cluster run --groups` as it is installed, to the end.

The Jobs' pods are made and cleaned up by this test; kube-scheduler binds them. The service has the
rights of its ServiceAccount, and the gate comes from the MutatingAdmissionPolicy that we ship.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import CONFIGS, register
from tests.cluster.control_plane import ControlPlane
from tests.support.exchanges import MERGE
from tools.control_plane import is_at_hand

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
        self.settings.write_text(yaml.safe_dump(SETTINGS))
        self.log = folder / "service.log"

    @contextmanager
    def service(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the service, which is killed at the end if it has not ended by then."""
        arguments = ["cluster", "run", "--groups", "--port", "0", "--lease", LEASE]
        files = ["--kubeconfig", str(self.kubeconfig), "--config", str(self.settings)]
        command = [sys.executable, "-m", "nri_policy.cli", *arguments, *files]
        with self.log.open("ab") as log, subprocess.Popen(command, stderr=log) as process:
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


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    for name in ("kube-apiserver", "etcd", "kube-scheduler"):
        if not is_at_hand(name):
            variable = name.upper().replace("-", "_")
            pytest.skip(f"needs {name}: its path in {variable}, or make test-cluster")
    folder = tmp_path_factory.mktemp("groups")
    with ControlPlane(folder, nodes=NODES, api_server=MUTATING) as cluster:
        made = Shop(cluster)
        cluster.start_scheduler(SCHEDULER)
        yield made


def gates(shop: Shop, namespace: str, **metadata: Any) -> list[str]:
    """The gates that a pod would get."""
    spec = {"containers": [{"name": "c", "image": "x"}]}
    new = {"metadata": {"name": "asked", **metadata}, "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    made = shop.cluster.asked("POST", path, new)
    return [each["name"] for each in made["spec"].get("schedulingGates", ())]


def test_who_gets_the_gate(shop: Shop) -> None:
    """Nothing says when a policy is in force: it is asked until it is."""
    shop.cluster.until(lambda: gates(shop, "shop", annotations=ANNOTATIONS), "it is in force")
    assert gates(shop, "shop", annotations=ANNOTATIONS) == [GATE]
    assert gates(shop, "shop", annotations={"placement.nri/group": "g"}) == [GATE]
    assert gates(shop, "shop") == []
    assert gates(shop, "default", annotations=ANNOTATIONS) == []
    managed = {"kueue.x-k8s.io/managed": "true"}
    assert gates(shop, "shop", annotations=ANNOTATIONS, labels=managed) == []


def test_nobody_else_writes_a_status(shop: Shop) -> None:
    """Not even an admin: what is there is taken for promised."""
    new = {
        "apiVersion": "placement.nri/v1alpha1",
        "kind": "PlacementGroup",
        "metadata": {"name": "by-hand"},
        "spec": {"podSets": []},
    }
    shop.cluster.asked("POST", GROUPS, new)
    path, patch = f"{GROUPS}/by-hand/status", {"status": {"state": "Placed"}}

    def refused() -> bool:
        answer = shop.cluster.ask("PATCH", path, patch, content=MERGE)
        return answer.status == 403 and "only nri-policy may write" in answer.body["message"]

    shop.cluster.until(refused, "the status is protected")
    shop.cluster.asked("DELETE", f"{GROUPS}/by-hand")


def test_jobs_come_a_node_fails_and_the_service_is_killed(shop: Shop) -> None:
    cluster = shop.cluster
    stranger = {
        "metadata": {"name": "web", "annotations": {"example.com/ours": "no"}},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    cluster.asked("POST", "/api/v1/namespaces/default/pods", stranger)
    cluster.until(
        lambda: "nodeName" in cluster.asked("GET", "/api/v1/namespaces/default/pods/web")["spec"],
        "the stranger is bound",
    )
    before = cluster.asked("GET", "/api/v1/namespaces/default/pods/web")
    with shop.service():
        shop.submit("one", 4)
        placed = shop.until_bound("one")
        (rack,) = [rack for rack, names in RACKS.items() if {*placed} <= {*names}]
        assert placed == sorted(placed), "ranks are in the order of the assignment"
        assert Counter(Counter(placed).values()) == {2: 2}
        shown = cluster.kubectl("get", "placementgroups", "-n", "shop", "--no-headers").split()
        assert shown[:4] == ["job-one", "Placed", "4", "2"]
        group = cluster.asked("GET", f"{GROUPS}/job-one")
        assert [each["name"] for each in group["metadata"]["ownerReferences"]] == ["one"]
        events = cluster.asked("GET", f"{SHOP}/events")["items"]
        assert ("job-one", "Placed") in {
            (each["involvedObject"]["name"], each["reason"]) for each in events
        }
        shop.submit("other", 5)
        assert {*shop.until_bound("other")} == {*NODES} - {*RACKS[rack]}
    # it was killed; another one goes on, once the Lease is over
    shop.submit("third", 6)
    assert shop.hosts("third") == [""] * 6
    failed = placed[0]
    cluster.asked("DELETE", f"/api/v1/nodes/{failed}")
    with shop.service() as process:
        waits = shop.until_state("third", "Waiting")
        assert "allow" in waits["message"]
        spare = next(iter({*RACKS[rack]} - {*placed}))
        cluster.until(
            lambda: not Counter({failed: 1}) & assigned(shop.status("one")), "it is replaced"
        )
        assert assigned(shop.status("one")) == {placed[2]: 2, spare: 2}
        now = {"gracePeriodSeconds": 0}
        for at in (0, 1):  # as it happens to pods of nodes that are gone
            cluster.asked("DELETE", f"{SHOP}/pods/one-{at}", now)
            shop.make_pod("one", at, f"one-{at}-again")
        cluster.until(lambda: sorted(shop.hosts("one")) == sorted([spare] * 2 + placed[2:]), "")
        shop.finish("other")
        third = shop.until_bound("third")
        assert {*third} == {*NODES} - {*RACKS[rack]}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    said = shop.log.read_text()
    assert "forbidden" not in said.lower(), said
    assert "event=not-" not in said, said
    assert cluster.asked("GET", "/api/v1/namespaces/default/pods/web") == before
    lease = cluster.asked(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/{LEASE.replace('/', '/leases/')}"
    )
    assert not lease["spec"].get("holderIdentity"), "it was let go"


def assigned(status: Object) -> Counter[str]:
    """The pods by host that a status has."""
    return Counter(
        {
            one["values"][-1]: one["count"]
            for each in status.get("assignments", ())
            for one in each["domains"]
        }
    )
