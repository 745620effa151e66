"""A real node waits for its daemon: pods come when that is ready, and not while it is away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.installation import install_readiness
from tests.cluster.node import NAME, Node, pod
from tests.cluster.shop import ACCOUNT, LEASE, SCHEDULER
from tests.support.exchanges import MERGE

HARDWARE = "package:2 numa:2 core:4"
MORE_PROGRAMS = ("kube-scheduler",)
TAINT = {"key": "nri-policy.io/not-ready", "effect": "NoSchedule"}


@pytest.fixture
def settings() -> dict[str, Any]:
    readiness = {"taint": True, "condition": True, "whileAway": True}
    return {"reservedResources": {"cpu": 1}, "readiness": readiness}


def taints(node: Node) -> list[str]:
    found = node.cluster.asked("GET", f"/api/v1/nodes/{NAME}")["spec"].get("taints", [])
    return [each["key"] for each in found]


def condition(node: Node) -> str:
    conditions = node.cluster.asked("GET", f"/api/v1/nodes/{NAME}")["status"]["conditions"]
    return next((each["status"] for each in conditions if each["type"] == "NRIPolicyReady"), "")


def unbound(name: str) -> dict[str, Any]:
    made = pod(name, {"main": {"limits": {"cpu": "2", "memory": "64Mi"}}})
    del made["spec"]["nodeName"]
    return made


def untolerated(node: Node, name: str) -> bool:
    """Whether the scheduler says that a taint keeps a pod off; newer ones do not name it."""
    conditions = node.pod(name)["status"].get("conditions", [])
    return any("untolerated taint" in each.get("message", "") for each in conditions)


@contextmanager
def service(node: Node, folder: Path) -> Iterator[None]:
    """Run the service with the rights that it is given."""
    token = node.cluster.asked("POST", ACCOUNT, {"spec": {"audiences": ["https://test"]}})
    kubeconfig = node.cluster.kubeconfig(str(token["status"]["token"]))
    arguments = ["cluster", "run", "--readiness", "--port", "0", "--lease", LEASE]
    command = [sys.executable, "-m", "nri_policy.cli", *arguments, "--kubeconfig", str(kubeconfig)]
    with (
        (folder / "service.log").open("wb") as output,
        subprocess.Popen(command, stderr=output) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def test_pods_come_when_the_daemon_is_ready_and_not_while_it_is_away(
    node: Node, settings: dict[str, Any], tmp_path: Path
) -> None:
    install_readiness(node.cluster)
    patch = {"spec": {"taints": [TAINT]}}
    node.cluster.asked("PATCH", f"/api/v1/nodes/{NAME}", patch, content=MERGE)
    node.cluster.start_scheduler(SCHEDULER)
    node.create(unbound("first"))
    node.cluster.until(lambda: untolerated(node, "first"), "the pod waits")
    daemon = node.daemon(tmp_path, settings)
    try:
        daemon.start()
        node.until_ready("first")
        assert TAINT["key"] not in taints(node)
        node.cluster.until(lambda: condition(node) == "True", "the condition is true")
        # Where the daemon had to register anew meanwhile, the runtime tells the container after.
        node.cluster.until(
            lambda: len(node.cpuset("first", "main").cpus) == 2, "the pod has its CPUs"
        )
        daemon.kill()
        with service(node, tmp_path):
            node.cluster.until(lambda: taints(node) == [TAINT["key"]], "the taint is back")
            node.cluster.until(lambda: condition(node) == "Unknown", "so is the condition")
            assert "deletionTimestamp" not in node.pod("first")["metadata"], "nobody is evicted"
            node.create(unbound("second"))
            node.cluster.until(lambda: untolerated(node, "second"), "the pod waits")
            daemon.start()
            node.until_ready("second")
            node.cluster.until(lambda: condition(node) == "True", "the condition is true")
            assert taints(node) == []
        daemon.stop()
    finally:
        node.clear()
        daemon.close()
