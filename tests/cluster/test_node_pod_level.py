"""Pods with resources as a whole (KEP-2837) on a real node: by their objects, and by estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.node import Node, pod
from tests.e2e.cgroup import Amounts
from tests.e2e.daemon import Daemon
from tools.control_plane import OLDEST

HARDWARE = "package:2 numa:2 core:4 pu:2"
MIB = 1 << 20
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/nri-policy"
ACCOUNT = "system:serviceaccount:kube-system:nri-policy"
WHOLE = {"cpu": "4", "memory": "512Mi"}
CONTAINERS: dict[str, dict[str, Any]] = {
    "log": {},
    "main": {"limits": {"cpu": "2", "memory": "128Mi"}},
    "mesh": {"requests": {"cpu": "100m"}},
}


@pytest.fixture(params=["read", "not read", "forbidden"])
def source(request: pytest.FixtureRequest, node: Node) -> Iterator[str]:
    """Whether the daemon reads pods: it does, its settings say no, or it lacks the right."""
    if request.param != "forbidden":
        yield request.param
        return
    role = node.cluster.asked("GET", ROLE)
    less = [rule for rule in role["rules"] if rule["resources"] != ["pods"]]
    try:
        change_rules(node, less, allowed=False)
        yield request.param
    finally:
        change_rules(node, role["rules"], allowed=True)


def change_rules(node: Node, rules: list[Any], *, allowed: bool) -> None:
    """Change what the daemon may do, and wait until that is whether it may read pods."""
    node.cluster.asked("PATCH", ROLE, {"rules": rules}, content="application/merge-patch+json")
    attributes = {"verb": "get", "resource": "pods", "namespace": "default", "name": "shop"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }

    def may() -> bool:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(node.cluster.asked("POST", path, review)["status"]["allowed"])

    node.cluster.until(lambda: may() == allowed, "the API server knows of it")


@pytest.fixture
def settings(source: str) -> dict[str, Any]:
    specs = "off" if source == "not read" else "auto"
    return {"reservedResources": {"cpu": 1}, "agent": {"podSpecs": specs}}


def whole(name: str, resources: Mapping[str, Any], containers: Mapping[str, Any]) -> dict[str, Any]:
    return pod(name, containers, resources=resources)


def test_containers_have_what_they_ask_for_and_not_what_their_pod_has(
    node: Node, daemon: Daemon, source: str
) -> None:
    node.start(whole("shop", {"limits": WHOLE, "requests": WHOLE}, CONTAINERS))

    def found() -> dict[str, tuple[int, int]]:
        amounts = {name: node.amounts("shop", name) for name in CONTAINERS}
        return {name: (each.quota, each.memory) for name, each in amounts.items()}

    # the kubelet shows the pod's limits; one that is known late has CPUs of its own at first
    limits = {"main": (-1, 128 * MIB), "log": (400_000, 512 * MIB), "mesh": (400_000, 512 * MIB)}
    node.cluster.until(lambda: found() == limits, "they have what they share")
    held = {name: daemon.containers()[f"default/shop/{name}"] for name in CONTAINERS}
    asked = {name: (each["exclusive"], each["shared_milli"]) for name, each in held.items()}
    main = node.cpuset("shop", "main").cpus
    assert len(main) == 2
    assert asked == {"main": (str(main), 0), "log": ("", 0), "mesh": ("", 100)}
    for name in ("log", "mesh"):
        assert not node.cpuset("shop", name).cpus & main
    said = daemon.ask("explain", "default/shop/log").stdout
    assert ("by the pod's object" if source == "read" else "by estimate") in said
    assert daemon.counted("event=pod-unknown") == (1 if source == "forbidden" else 0)


def test_a_container_that_shows_nothing_is_known_by_its_pod_alone(
    node: Node, daemon: Daemon, source: str
) -> None:
    resources = {"limits": {"cpu": "3", "memory": "256Mi"}}
    node.start(whole("shop", resources, {"log": {}}))
    held = daemon.containers()["default/shop/log"]
    cpus = node.cpuset("shop", "log").cpus
    assert held["exclusive"] == ("" if source == "read" else str(cpus))


def test_a_burstable_container_without_a_request_has_none(node: Node, daemon: Daemon) -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}
    node.start(whole("shop", resources, {"log": {}}))
    assert node.amounts("shop", "log").quota == 300_000
    assert daemon.containers()["default/shop/log"]["shared_milli"] == 0


def test_a_pod_that_only_requests_limits_nobody(node: Node, daemon: Daemon) -> None:
    node.start(whole("shop", {"requests": {"cpu": "2"}}, {"log": {}, "own": CONTAINERS["mesh"]}))
    assert node.amounts("shop", "log") == Amounts(shares=2, quota=-1, memory=9223372036854771712)
    held = daemon.containers()
    assert held["default/shop/log"]["shared_milli"] == 0
    assert held["default/shop/own"]["shared_milli"] == 100


def test_a_pod_as_a_whole_is_resized_and_nobody_is_moved_by_it_or_by_a_restart(
    node: Node, daemon: Daemon
) -> None:
    if node.release == OLDEST:
        pytest.skip("this release does not resize pods with resources as a whole")
    node.start(whole("shop", {"limits": WHOLE, "requests": WHOLE}, CONTAINERS))

    def holdings() -> dict[str, tuple[str, int]]:
        return {
            name: (each["exclusive"], each["shared_milli"])
            for name, each in daemon.containers().items()
            if name.startswith("default/shop/")
        }

    before = holdings()
    more = {"cpu": "6", "memory": "1Gi"}
    node.cluster.asked(
        "PATCH",
        "/api/v1/namespaces/default/pods/shop/resize",
        {"spec": {"resources": {"requests": more, "limits": more}}},
        content="application/strategic-merge-patch+json",
    )
    node.cluster.until(
        lambda: node.amounts("shop", "log").quota == 600_000, "the pod's limit is the container's"
    )
    node.cluster.until(
        lambda: node.amounts("shop", "log").memory == 1024 * MIB, "so is that of its memory"
    )
    assert holdings() == before
    daemon.stop()
    daemon.start()
    assert holdings() == before
