"""What the Node says of the daemon, on a real API server: the rights, and the two that write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nri_policy.cluster.service.node_health import PERIOD, NodeHealth
from nri_policy.daemon.node_readiness import NodeReadiness
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.readiness import CONDITION, NAMESPACE, SILENT, TAINT
from nri_policy.settings import Readiness as Wanted
from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import daemon_token, install_readiness, register
from tests.support.exchanges import MERGE, Answered
from tools.control_plane import RELEASES

Object = dict[str, Any]

BY_KEY = "application/strategic-merge-patch+json"
NODES = "/api/v1/nodes"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
SERVICE = "/api/v1/namespaces/kube-system/serviceaccounts/nri-policy-cluster/token"
OURS = {"key": TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.com/other", "effect": "NoSchedule"}
EVICTING = {"key": TAINT, "effect": "NoExecute"}
READY = {"type": "Ready", "status": "True", "reason": "test", "message": ""}
CONDITION_TRUE = {"type": CONDITION, "status": "True", "reason": "Ready", "message": "m"}
LARGE = [
    {"names": [f"registry.example/{'x' * 100}{n}@sha256:1"], "sizeBytes": n} for n in range(50)
]


class Nodes:
    """A control plane with our manifests, two Nodes, and the tokens of a daemon and the service."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        install_readiness(cluster)
        for node in ("node-a", "node-b"):
            register(cluster, node, images=LARGE, addresses=[{"type": "Hostname", "address": node}])
        self.daemon = daemon_token(cluster, "node-a")
        answer = cluster.asked("POST", SERVICE, {"spec": {"audiences": ["https://test"]}})
        self.service = str(answer["status"]["token"])
        for token, node, taints in (
            (self.daemon, "node-b", []),
            (self.service, "node-a", [OTHER]),
        ):
            self.taint("node-b", OURS)
            cluster.until(
                lambda t=token, n=node, x=taints: self.change(t, n, taints=x).status == 403,
                "taints are protected",
            )
            cluster.until(
                lambda t=token: (
                    self.status(t, "node-b", conditions=[READY | {"status": "False"}]).status == 403
                ),
                "conditions are protected",
            )
        lease = {"metadata": {"name": "node-b"}, "spec": {}}
        cluster.until(
            lambda: self.ask(self.daemon, "POST", f"{LEASES}?dryRun=All", lease).status == 403,
            "Leases are protected",
        )

    def ask(
        self, token: str, method: str, path: str, body: Any = None, content: str = MERGE
    ) -> Answered:
        content = "application/json" if method in ("POST", "DELETE") else content
        return self.cluster.ask(method, path, body, content=content, token=token)

    def change(self, token: str, node: str, **spec: Any) -> Answered:
        """Try a patch of a Node's spec."""
        return self.ask(token, "PATCH", f"{NODES}/{node}?dryRun=All", {"spec": spec})

    def status(self, token: str, node: str, **status: Any) -> Answered:
        """Try a patch of a Node's status."""
        path = f"{NODES}/{node}/status?dryRun=All"
        return self.ask(token, "PATCH", path, {"status": status}, BY_KEY)

    def taint(self, node: str, *taints: Object) -> None:
        """Set a Node's taints, as the admin."""
        patch = {"spec": {"taints": [*taints] or None}}
        self.cluster.asked("PATCH", f"{NODES}/{node}", patch, content=MERGE)

    def node(self, name: str) -> Object:
        found: Object = self.cluster.asked("GET", f"{NODES}/{name}")
        return found

    def taints(self, name: str) -> list[Object]:
        """Return the Node's taints, without the times at which they were set."""
        found = self.node(name)["spec"].get("taints", [])
        return [{key: each[key] for key in ("key", "effect")} for each in found]

    def condition(self, name: str) -> Object:
        found: Object = next(
            (c for c in self.node(name)["status"]["conditions"] if c["type"] == CONDITION), {}
        )
        return found


@pytest.fixture(scope="module", params=RELEASES)
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    require("kube-apiserver", "kubectl", release=request.param)
    with ControlPlane(
        tmp_path_factory.mktemp("readiness"), release=request.param, nodes=["node-a", "node-b"]
    ) as cluster:
        yield Nodes(cluster)


def denied(answer: Answered, text: str = "") -> bool:
    return answer.status == 403 and text in answer.body["message"]


def test_a_daemon_takes_its_taint_away_and_no_other(nodes: Nodes) -> None:
    nodes.taint("node-a", OTHER, OURS, EVICTING)
    token = nodes.daemon
    assert nodes.change(token, "node-a", taints=[OTHER, EVICTING]).status == 200
    for taints in ([OURS, EVICTING], [OTHER, OURS], [], None):
        assert denied(nodes.change(token, "node-a", taints=taints), "no taint but"), taints
    more = [OTHER, EVICTING, {"key": "x", "effect": "NoSchedule"}]
    assert denied(nodes.change(token, "node-a", taints=more), "no taint but")
    nodes.taint("node-a")
    assert denied(nodes.change(token, "node-a", taints=[OURS]), "only take its taint away")


def test_a_daemon_changes_nothing_else_of_its_node(nodes: Nodes) -> None:
    for spec in ({"unschedulable": True}, {"podCIDR": "10.6.0.0/24"}, {"providerID": "x://1"}):
        answer = nodes.change(nodes.daemon, "node-a", **spec)
        assert denied(answer, "nothing of a Node's spec"), answer
    for metadata in (
        {"labels": {"a": "b"}},
        {"labels": {"kubernetes.io/os": None}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["example.com/f"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]},
    ):
        for part in ("", "/status"):
            path = f"{NODES}/node-a{part}?dryRun=All"
            answer = nodes.ask(nodes.daemon, "PATCH", path, {"metadata": metadata})
            assert denied(answer, "no metadata"), (metadata, part, answer)


def test_a_daemon_writes_its_condition_and_nothing_else_of_the_status(nodes: Nodes) -> None:
    token = nodes.daemon
    assert nodes.status(token, "node-a", conditions=[CONDITION_TRUE]).status == 200
    for conditions in (
        [READY | {"status": "False"}],
        [CONDITION_TRUE, {"type": "Other", "status": "True"}],
        [{"$patch": "delete", "type": "Ready"}],
        [{"$patch": "replace"}, CONDITION_TRUE],
    ):
        answer = nodes.status(token, "node-a", conditions=conditions)
        assert denied(answer, "no condition"), answer
    for status in (
        {"capacity": {"cpu": "999"}},
        {"allocatable": {"cpu": "999"}},
        {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]},
        {"nodeInfo": {"kubeletVersion": "v9"}},
        {"images": None},
        {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
        {"volumesInUse": ["x"]},
    ):
        assert denied(nodes.status(token, "node-a", **status), "nothing of a Node's status"), status


def test_a_daemon_does_nothing_to_another_node(nodes: Nodes) -> None:
    nodes.taint("node-b", OURS)
    assert denied(nodes.change(nodes.daemon, "node-b", taints=None), "may not change the Node")
    answer = nodes.status(nodes.daemon, "node-b", conditions=[CONDITION_TRUE])
    assert denied(answer, "may not change the Node 'node-b'")
    for method, path, body in (
        ("POST", LEASES, {"metadata": {"name": "node-b"}, "spec": {}}),
        ("DELETE", f"{LEASES}/node-b", None),
        ("PATCH", f"{LEASES}/node-b", {"spec": {"holderIdentity": "x"}}),
    ):
        if method != "POST":
            lease = {"metadata": {"name": "node-b"}, "spec": {}}
            nodes.cluster.ask("POST", LEASES, lease)
        assert denied(nodes.ask(nodes.daemon, method, path, body), "may not write the Lease")
    nodes.cluster.asked("DELETE", f"{LEASES}/node-b")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{NODES}/node-a"),
        ("DELETE", f"{NODES}/node-a"),
        ("POST", NODES),
        ("GET", NODES),
        ("GET", f"{LEASES}/node-a"),
        ("GET", LEASES),
        ("POST", LEASES.replace(NAMESPACE, "kube-system")),
        ("POST", LEASES.replace(NAMESPACE, "kube-node-lease")),
        ("DELETE", f"/api/v1/namespaces/{NAMESPACE}"),
    ],
)
def test_a_daemon_has_no_other_verbs(nodes: Nodes, method: str, path: str) -> None:
    kind = "Lease" if "leases" in path else "Node"
    version = "coordination.k8s.io/v1" if kind == "Lease" else "v1"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "node-a"}}
    answer = nodes.cluster.ask(
        method, path, body if method in {"POST", "PUT"} else None, token=nodes.daemon
    )
    assert answer.status == 403, answer


def test_the_service_puts_the_taint_back_and_changes_nothing_else(nodes: Nodes) -> None:
    nodes.taint("node-b", OTHER)
    token = nodes.service
    assert nodes.change(token, "node-b", taints=[OTHER, OURS]).status == 200
    assert denied(nodes.change(token, "node-b", taints=[OURS]), "no taint but")
    assert denied(nodes.change(token, "node-b", taints=[OTHER, EVICTING]), "no taint but")
    nodes.taint("node-b", OTHER, OURS)
    assert denied(nodes.change(token, "node-b", taints=[OTHER]), "only put the taint")
    answer = nodes.change(token, "node-b", taints=[OTHER, OURS], unschedulable=True)
    assert denied(answer, "nothing of a Node's spec")
    assert nodes.status(token, "node-b", conditions=[CONDITION_TRUE]).status == 200
    answer = nodes.status(token, "node-b", conditions=[READY | {"status": "False"}])
    assert denied(answer, "no condition")
    assert denied(
        nodes.status(token, "node-b", capacity={"cpu": "9"}), "nothing of a Node's status"
    )
    for method in ("DELETE", "PATCH"):
        assert nodes.ask(token, method, f"{LEASES}/node-a", {}).status == 403


def client(nodes: Nodes, token: str) -> Client:
    connect = access(nodes.cluster.kubeconfig(token))
    assert connect is not None
    return Client(connect)


async def test_a_node_is_ready_with_its_daemon_marked_without_it_and_ready_again(
    nodes: Nodes,
) -> None:
    """By the two tokens; whatever else is written of the Node stays."""
    nodes.taint("node-a", OTHER, OURS)
    time, missing = [0.0], ["runtime: none is connected"]
    wanted = Wanted(taint=True, condition=True, while_away=True)
    daemon, service = client(nodes, nodes.daemon), client(nodes, nodes.service)

    def clock() -> float:
        return time[0]

    def readiness() -> NodeReadiness:
        return NodeReadiness(
            daemon,
            "node-a",
            wanted=lambda: wanted,
            missing=lambda: missing[0],
            clock=Clock(now=clock),
        )

    first, health = readiness(), NodeHealth(service, lambda: True, Clock(now=clock))
    await first.step()
    assert nodes.taints("node-a") == [OTHER, OURS]
    assert nodes.condition("node-a")["status"] == "False"
    missing[0] = ""
    await first.step()
    assert [*first.problems()] == []
    assert nodes.taints("node-a") == [OTHER]
    assert nodes.condition("node-a")["status"] == "True"
    lease = nodes.cluster.asked("GET", f"{LEASES}/node-a")
    assert lease["metadata"]["ownerReferences"][0]["name"] == "node-a"
    while time[0] < 2 * SILENT:
        time[0] += PERIOD
        await first.step()
        await health.look()
    assert nodes.taints("node-a") == [OTHER]
    before = nodes.node("node-a")["status"]["images"]
    while time[0] < 4 * SILENT:
        time[0] += PERIOD
        await health.look()
    assert nodes.taints("node-a") == [OTHER, OURS]
    assert nodes.condition("node-a")["status"] == "Unknown"
    await readiness().step()
    assert nodes.taints("node-a") == [OTHER]
    assert nodes.condition("node-a")["status"] == "True"
    assert nodes.node("node-a")["status"]["images"] == before
    wanted = Wanted(taint=True)
    time[0] += SILENT
    await first.step()
    assert nodes.cluster.ask("GET", f"{LEASES}/node-a").status == 404
    await daemon.close()
    await service.close()


async def test_a_token_without_the_rights_is_said_to_lack_them(nodes: Nodes) -> None:
    nodes.taint("node-a", OURS)
    nodes.cluster.kubectl("delete", "clusterrolebinding", "nri-policy-readiness")
    daemon = client(nodes, nodes.daemon)
    made = NodeReadiness(
        daemon, "node-a", wanted=lambda: Wanted(taint=True), missing=str, clock=Clock(now=float)
    )

    def patch() -> int:
        return nodes.change(nodes.daemon, "node-a", taints=None).status

    nodes.cluster.until(lambda: patch() == 403, "the rights are gone")
    await made.step()
    assert any("configs/kustomize/readiness" in each for each in made.problems())
    install_readiness(nodes.cluster)
    nodes.cluster.until(lambda: patch() == 200, "the rights are back")
    await daemon.close()
