"""What the token of the cluster's service can do, and what it cannot, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import CONFIGS
from tests.support.exchanges import MERGE, Answered

Object = dict[str, Any]

BY_KEY = "application/strategic-merge-patch+json"
GATE, OTHER = "placement.nri/group", "example.com/other"
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/nri-policy-cluster/token"
PODS = "/api/v1/namespaces/shop/pods"
GROUPS = "/apis/placement.nri/v1alpha1/namespaces/shop/placementgroups"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "Preempted", "message": "m"}
READY = {"type": "Ready", "status": "True"}


class Service:
    """A control plane with what we ship for groups, and the service's token."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        for kind in ("placement-groups-crd.yaml", "settings-crd.yaml"):
            cluster.kubectl("apply", "-f", str(CONFIGS / "cluster" / kind))
        cluster.kubectl("apply", "-k", str(CONFIGS / "kustomize" / "cluster-groups"))
        cluster.asked("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        account = {"metadata": {"name": "default"}}
        cluster.asked("POST", "/api/v1/namespaces/shop/serviceaccounts", account)
        answer = cluster.asked("POST", ACCOUNT, {"spec": {"audiences": ["https://test"]}})
        self._token = str(answer["status"]["token"])
        self._made = 0

    def pod(self, *, gated: bool, node: str = "", group: bool = True) -> str:
        """A pod as it waits, or as it is on a node; return its name."""
        self._made += 1
        name = f"p{self._made}"
        spec: Object = {"containers": [{"name": "c", "image": "x"}], "nodeSelector": {"a": "b"}}
        if gated:
            spec["schedulingGates"] = [{"name": GATE}, {"name": OTHER}]
        if node:
            spec["nodeName"] = node
        annotations = {"example.com/own": "1"} | ({GATE: "g"} if group else {})
        metadata = {"name": name, "annotations": annotations, "finalizers": ["example.com/f"]}
        self.cluster.asked("POST", PODS, {"metadata": metadata, "spec": spec})
        if node:
            status = {"phase": "Running", "podIP": "10.1.0.1", "conditions": [READY]}
            self.patch_as_admin(f"{PODS}/{name}/status", {"status": status})
        return name

    def patch_as_admin(self, path: str, patch: Object) -> None:
        self.cluster.asked("PATCH", path, patch, content=BY_KEY)

    def ask(self, method: str, path: str, body: Any = None, content: str = MERGE) -> Answered:
        """Ask as the service does; a new object comes as JSON."""
        content = "application/json" if method in ("POST", "DELETE") else content
        return self.cluster.ask(method, path, body, content=content, token=self._token)

    def change(self, name: str, patch: Object, part: str = "") -> Answered:
        """Try a patch of a pod; an image in it is that of the pod's container."""
        content = BY_KEY if "conditions" in patch.get("status", {}) else MERGE
        if "image" in patch.get("spec", {}):
            (container,) = self.cluster.asked("GET", f"{PODS}/{name}")["spec"]["containers"]
            patch = {**patch, "spec": {"containers": [container | patch["spec"]]}}
        return self.ask("PATCH", f"{PODS}/{name}{part}?dryRun=All", patch, content)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    require("kube-apiserver", "kubectl")
    with ControlPlane(tmp_path_factory.mktemp("rights")) as cluster:
        made = Service(cluster)
        enforced(made)
        yield made


def enforced(service: Service) -> None:
    """Wait until each policy is enforced: the API server takes them in one by one."""
    gated, bare = service.pod(gated=True), service.pod(gated=False, group=False)
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node"}}
    lease = {"metadata": {"name": "other"}, "spec": {}}
    label = {"metadata": {"labels": {"a": "b"}}}
    group = {**GROUP, "spec": {"podSets": [], "priority": 7}}
    conditions: list[tuple[str, Any]] = [
        ("pods", lambda: service.change(gated, label)),
        (
            "the status of pods",
            lambda: service.change(bare, {"status": {"phase": "Failed"}}, STATUS),
        ),
        ("deletion", lambda: service.ask("DELETE", f"{PODS}/{bare}?dryRun=All")),
        ("events", lambda: service.ask("POST", f"{EVENTS}?dryRun=All", event)),
        ("leases", lambda: service.ask("POST", f"{LEASES}?dryRun=All", lease)),
        ("groups", lambda: service.cluster.ask("POST", f"{GROUPS}?dryRun=All", group)),
    ]
    for what, ask in conditions:
        service.cluster.until(lambda ask=ask: ask().status in {403, 422}, f"{what} are protected")


STATUS = "/status"
EVENTS = "/api/v1/namespaces/shop/events"
GROUP: Object = {
    "apiVersion": "placement.nri/v1alpha1",
    "kind": "PlacementGroup",
    "metadata": {"name": "g"},
}


def denied(answer: Answered, text: str = "") -> bool:
    """Whether it is a policy of ours, or RBAC, that forbids it."""
    return answer.status == 403 and text in answer.body["message"]


OPENED: Object = {
    "metadata": {"annotations": {GATE: "g", "placement.nri/zone": "node-1"}},
    "spec": {"schedulingGates": [{"name": OTHER}], "nodeSelector": {"kubernetes.io/hostname": "h"}},
}
IMAGE = {"image": "evil"}
TOLERATION = {"key": "x", "operator": "Exists"}


def test_a_gated_pod_is_let_go(service: Service) -> None:
    answer = service.change(service.pod(gated=True, group=False), OPENED)
    assert answer.status == 200, answer
    assert answer.body["spec"]["schedulingGates"] == [{"name": OTHER}]
    assert answer.body["spec"]["nodeSelector"] == {"a": "b", "kubernetes.io/hostname": "h"}


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"spec": {"tolerations": [TOLERATION]}}, "nothing of a pod's spec"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "nothing of a pod's spec"),
        ({"spec": {"schedulingGates": None}}, "no gate but its own"),
        ({"spec": {"schedulingGates": [{"name": GATE}]}}, "no gate but its own"),
        ({"metadata": {"labels": {"a": "b"}}}, "no labels, finalizers and owners"),
        ({"metadata": {"finalizers": None}}, "no labels, finalizers and owners"),
        ({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p",
                                            "uid": "u"}]}}, "no labels, finalizers and owners"),
        ({"metadata": {"annotations": {"example.com/own": "2"}}}, "no annotations but those"),
        ({"metadata": {"annotations": {"example.com/own": None}}}, "no annotations but those"),
        ({"metadata": {"annotations": {"example.com/new": "2"}}}, "no annotations but those"),
    ],
)  # fmt: skip
def test_of_a_gated_pod_nothing_else_is_changed(service: Service, patch: Object, text: str) -> None:
    opened = {**OPENED, "spec": OPENED["spec"] | patch.get("spec", {})}
    annotations = OPENED["metadata"]["annotations"]
    metadata = patch.get("metadata", {})
    annotations = annotations | metadata.get("annotations", {})
    opened["metadata"] = {**metadata, "annotations": annotations}
    answer = service.change(service.pod(gated=True), opened)
    assert denied(answer, text), answer


def test_the_image_of_a_gated_pod_stays(service: Service) -> None:
    """It is changed while the pod is let go, and without that."""
    pod = service.pod(gated=True)
    assert denied(service.change(pod, {"spec": IMAGE}), "may open no gate but its own")
    (container,) = service.cluster.asked("GET", f"{PODS}/{pod}")["spec"]["containers"]
    spec = OPENED["spec"] | {"containers": [container | IMAGE]}
    assert denied(service.change(pod, {**OPENED, "spec": spec}), "nothing of a pod's spec")


@pytest.mark.parametrize("node", ["", "node-a"])
@pytest.mark.parametrize(
    "patch",
    [
        {"spec": IMAGE},
        {"spec": {"tolerations": [TOLERATION]}},
        {"metadata": {"annotations": {GATE: "g"}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"finalizers": None}},
    ],
)
def test_a_pod_without_the_gate_is_not_changed(service: Service, node: str, patch: Object) -> None:
    pod = service.pod(gated=False, node=node)
    assert denied(service.change(pod, patch), "but those that wait behind its gate")


def failed(**more: Any) -> Object:
    """Return the status that is written to an ungated pod of a failed host."""
    conditions = {"conditions": [DISRUPTED]}
    return {
        "status": {"phase": "Failed", "reason": "NodeFailed", "message": "m"} | conditions | more
    }


def test_a_pod_of_a_group_that_is_on_no_node_is_failed(service: Service) -> None:
    answer = service.change(service.pod(gated=False), failed(), STATUS)
    assert answer.status == 200, answer
    assert answer.body["status"]["phase"] == "Failed"


def test_a_pod_of_a_group_is_marked_as_disrupted_and_deleted(service: Service) -> None:
    pod = service.pod(gated=False, node="node-a")
    path = f"{PODS}/{pod}"
    assert denied(service.ask("DELETE", path), "without the condition DisruptionTarget")
    patch = {"status": {"conditions": [DISRUPTED]}}
    answer = service.ask("PATCH", f"{path}/status", patch, BY_KEY)
    assert answer.status == 200, answer
    assert {each["type"] for each in answer.body["status"]["conditions"]} == {
        "Ready",
        "DisruptionTarget",
    }
    assert service.ask("DELETE", path).status == 200


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        (failed(), "fail no pod that is on a node"),
        (failed(phase="Succeeded"), "fail no pod that is on a node"),
        ({"status": {"podIP": "10.6.6.6", "podIPs": [{"ip": "10.6.6.6"}]}}, "nothing of"),
        ({"status": {"hostIP": "10.6.6.6", "hostIPs": [{"ip": "10.6.6.6"}]}}, "nothing of"),
        ({"status": {"nominatedNodeName": "x"}}, "nothing of"),
        ({"status": {"containerStatuses": [
            {"name": "c", "image": "x", "imageID": "", "ready": True, "restartCount": 0,
             "containerID": "x://1"}]}}, "nothing of"),
        ({"status": {"conditions": [READY | {"status": "False"}]}}, "no condition of a pod"),
        ({"status": {"conditions": [READY | {"type": "x/y"}]}}, "no condition of a pod"),
        ({"metadata": {"labels": {"a": "b"}}}, "no metadata together with"),
        ({"metadata": {"annotations": {"a": "b"}}}, "no metadata together with"),
        ({"metadata": {"finalizers": ["example.com/g"]}}, "no metadata together with"),
    ],
)  # fmt: skip
def test_of_the_status_of_a_pod_on_a_node_nothing_else_is_written(
    service: Service, patch: Object, text: str
) -> None:
    pod = service.pod(gated=False, node="node-a")
    answer = service.change(pod, patch, STATUS)
    assert denied(answer, text), answer


@pytest.mark.parametrize("patch", [failed(), {"status": {"conditions": [DISRUPTED]}}])
@pytest.mark.parametrize("node", ["", "node-a"])
def test_pods_of_no_group_are_left_alone(service: Service, node: str, patch: Object) -> None:
    pod = service.pod(gated=False, node=node, group=False)
    assert denied(service.change(pod, patch, STATUS), "but those of its groups")
    service.patch_as_admin(f"{PODS}/{pod}/status", {"status": {"conditions": [DISRUPTED]}})
    assert denied(service.ask("DELETE", f"{PODS}/{pod}"), "no pod but those of its groups")


def test_it_writes_events_of_its_own_and_no_others(service: Service) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "shop"}
    source = {"component": "nri-policy-cluster"}

    def write(namespace: str = "shop", **more: Any) -> Answered:
        event = {"metadata": {"generateName": "e."}, "involvedObject": about, "source": source}
        return service.ask("POST", f"/api/v1/namespaces/{namespace}/events", event | more)

    assert write().status == 201
    assert denied(write(source={"component": "kubelet"}), "no Events but its own")
    assert denied(write(source=None), "no Events but its own")
    assert write(reportingComponent="nri-policy-cluster", reportingInstance="a").status == 201
    assert denied(write(reportingComponent="kubelet"), "no Events but its own")
    node = {"kind": "Node", "name": "n"}
    assert denied(write("default", involvedObject=node), "no Events but its own")


def test_it_has_one_lease(service: Service) -> None:
    def lease(name: str) -> Object:
        return {"metadata": {"name": name}, "spec": {"holderIdentity": "x"}}

    path = f"{LEASES}/nri-policy-cluster"
    assert service.ask("POST", LEASES, lease("nri-policy-cluster")).status == 201
    assert service.ask("PATCH", path, {"spec": {"holderIdentity": "y"}}).status == 200
    assert denied(service.ask("POST", LEASES, lease("kube-scheduler")), "no Lease but its own")
    service.cluster.asked("POST", LEASES, lease("kube-controller-manager"))
    other = f"{LEASES}/kube-controller-manager"
    assert denied(service.ask("PATCH", other, {"spec": {"holderIdentity": "x"}}))
    assert denied(service.ask("POST", LEASES.replace("kube-system", "shop"), lease("x")))


def test_the_priority_of_a_group_is_written_by_the_service_alone(service: Service) -> None:
    def group(name: str, **spec: Any) -> Object:
        return {**GROUP, "metadata": {"name": name}, "spec": {"podSets": [], **spec}}

    admin = service.cluster
    refused = admin.ask("POST", GROUPS, group("bold", priority=2147483647))
    assert refused.status == 422
    assert "that of the group's pods" in refused.body["message"]
    assert admin.ask("POST", GROUPS, group("null", priority=None)).status == 201
    assert admin.ask("POST", GROUPS, group("zero", priority=0)).status == 201
    assert admin.ask("POST", GROUPS, group("plain")).status == 201
    path = f"{GROUPS}/plain"
    assert admin.ask("PATCH", path, {"spec": {"priority": 9}}, content=MERGE).status == 422
    assert service.ask("PATCH", path, {"spec": {"priority": 9}}).status == 200
    label = {"metadata": {"labels": {"a": "b"}}}
    assert admin.ask("PATCH", path, label, content=MERGE).status == 200
    assert admin.ask("PATCH", path, {"spec": {"priority": 8}}, content=MERGE).status == 422
    assert service.ask("POST", GROUPS, group("own", priority=5)).status == 201


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/namespaces/kube-system/secrets", None),
        ("POST", PODS, {"metadata": {"name": "x"}, "spec": {"containers": [IMAGE]}}),
        ("DELETE", PODS, None),
        ("PATCH", "/api/v1/nodes/node-a", {"metadata": {"labels": {"a": "b"}}}),
        ("POST", "/api/v1/namespaces/shop/pods/p1/exec?command=sh", None),
        ("POST", "/api/v1/namespaces/shop/pods/p1/binding", {
            "metadata": {"name": "p1"}, "target": {"kind": "Node", "name": "node-a"}}),
        ("POST", "/api/v1/namespaces/shop/pods/p1/eviction", {"metadata": {"name": "p1"}}),
        ("PATCH", "/api/v1/namespaces/shop/pods/p1/ephemeralcontainers", {"spec": {}}),
        ("PATCH", "/api/v1/namespaces/shop/pods/p1/resize", {"spec": {}}),
        ("DELETE", f"{GROUPS}/plain", None),
        ("DELETE", f"{LEASES}/nri-policy-cluster", None),
        ("PATCH", "/apis/batch/v1/namespaces/shop/jobs/j", {"spec": {"suspend": True}}),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "x"}}),
    ],
)  # fmt: skip
def test_nothing_else_is_granted(service: Service, method: str, path: str, body: Any) -> None:
    answer = service.ask(method, path, body)
    assert denied(answer, 'User "system:serviceaccount:kube-system:nri-policy-cluster" cannot'), (
        answer
    )


def test_with_a_bind_verb_it_may_bind(service: Service) -> None:
    service.cluster.kubectl("apply", "-f", str(CONFIGS / "cluster" / "bind.yaml"))
    pod = service.pod(gated=False)
    binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "node-a"}}

    def bind() -> int:
        return service.ask("POST", f"{PODS}/{pod}/binding?dryRun=All", binding).status

    service.cluster.until(lambda: bind() == 201, "it may bind")
    service.cluster.kubectl("delete", "-f", str(CONFIGS / "cluster" / "bind.yaml"))
