"""`kubectl nri-policy` with a real kubectl, for an author whose rights are granted one by one.

No kubelet runs here: what is executed gets as far as the API server's call to the node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.conftest import CONFIGS, PODS
from tests.cluster.control_plane import ControlPlane

PLUGIN = "from nri_policy.cli.kubectl import plugin; plugin()"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
MERGE = "application/merge-patch+json"


def running(cluster: ControlPlane, name: str, namespace: str, **labels: str) -> None:
    """Make a pod that runs on node-a."""
    new = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": "node-a", "containers": [{"name": "nri-policy", "image": "x"}]},
    }
    path = PODS.replace("kube-system", namespace)
    cluster.asked("POST", path, new)
    phase = {"status": {"phase": "Running"}}
    cluster.asked("PATCH", f"{path}/{name}/status", phase, content=MERGE)


def documented_role() -> dict[str, Any]:
    page = (CONFIGS.parent / "docs" / "kubernetes.md").read_text()
    section = page[page.index("## From kubectl") :]
    role: dict[str, Any] = yaml.safe_load(section.split("```yaml")[1].split("```")[0])
    return role


def test_an_author_may_ask_with_the_rights_that_the_documentation_has(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    for account in ("default", "author"):
        cluster.asked("POST", ACCOUNTS, {"metadata": {"name": account}})
    cluster.ask(
        "POST", ACCOUNTS.replace("/default/", "/kube-system/"), {"metadata": {"name": "default"}}
    )
    running(cluster, "web", "default")
    running(cluster, "nri-policy-x7k2p", "kube-system", **{"app.kubernetes.io/name": "nri-policy"})
    token = cluster.asked("POST", f"{ACCOUNTS}/author/token", {"spec": {}})["status"]["token"]
    config = cluster.kubeconfig(token)

    def ask() -> str:
        command = [
            sys.executable,
            "-c",
            PLUGIN,
            "explain",
            "default/web",
            "--kubeconfig",
            str(config),
        ]
        environment = os.environ | {"HOME": str(tmp_path)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        return done.stderr

    assert 'pods "web" is forbidden' in ask()
    subject = "--serviceaccount=default:author"
    cluster.kubectl("create", "rolebinding", "author", "--clusterrole=view", subject)
    assert 'cannot list resource "pods" in API group "" in the namespace "kube-system"' in ask()
    role = tmp_path / "role.json"
    role.write_text(json.dumps(documented_role()))
    cluster.kubectl("apply", "-f", str(role))
    named = "--role=nri-policy-ask"
    cluster.kubectl("-n", "kube-system", "create", "rolebinding", "author", named, subject)
    said = ask()
    assert "orbidden" not in said
    assert "no preferred addresses found" in said, "the node is asked next"
