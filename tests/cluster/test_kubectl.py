"""`kubectl nri-policy` with a real kubectl, for an author whose rights are granted one by one.

No kubelet runs in the cluster: what is executed there gets as far as the API server's call to the
node. What comes back is seen on a server that executes commands itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.control_plane import ADMIN, ControlPlane
from tests.cluster.exec_server import serving
from tests.cluster.installation import CONFIGS, PODS
from tests.support.daemon import pod, served
from tests.support.patience import HANGS

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


def complaint(config: Path, home: Path, *asked: str) -> str:
    """Ask `explain`, which fails here, and return what kubectl and the plugin say."""
    command = [sys.executable, "-c", PLUGIN, "explain", *asked, "--kubeconfig", str(config)]
    environment = os.environ | {"HOME": str(home)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=HANGS
    )
    assert done.returncode == 1
    return done.stderr


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
        return complaint(config, tmp_path, "default/web")

    def until(text: str) -> None:
        """Ask until this is said: rights come into force by themselves."""
        cluster.until(lambda: text in ask(), text)

    until('cannot get resource "pods" in API group "" in the namespace "default"')
    bound = ("create", "rolebinding", "author", "--serviceaccount=default:author")
    cluster.kubectl("create", "role", "author", "--verb=get", "--resource=pods")
    cluster.kubectl(*bound, "--role=author")
    until('cannot list resource "pods" in API group "" in the namespace "kube-system"')
    role = tmp_path / "role.json"
    role.write_text(json.dumps(documented_role()))
    cluster.kubectl("apply", "-f", str(role))
    cluster.kubectl("-n", "kube-system", *bound, "--role=nri-policy-ask")
    until("no preferred addresses found")  # the node is asked, and has none in this cluster


def test_a_deployment_stands_for_one_of_its_pods_that_run(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    labels = {"app": "web"}
    cluster.asked("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    for namespace in ("shop", "kube-system"):
        path = ACCOUNTS.replace("/default/", f"/{namespace}/")
        cluster.ask("POST", path, {"metadata": {"name": "default"}})
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "m", "image": "x"}]},
    }
    deployment = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    cluster.asked("POST", "/apis/apps/v1/namespaces/shop/deployments", deployment)
    pods = PODS.replace("kube-system", "shop")
    cluster.asked("POST", pods, {**template, "metadata": {"name": "web-1", "labels": labels}})
    running(cluster, "web-2", "shop", **labels)
    running(cluster, "web-3", "shop", **labels)
    running(cluster, "web-other", "shop", app="other")
    running(cluster, "nri-policy-shop", "kube-system", **{"app.kubernetes.io/name": "nri-policy"})
    said = complaint(cluster.kubeconfig(ADMIN), tmp_path, "-n", "shop", "deploy/web")
    assert "deploy/web has 3 pods; this is about web-2" in said
    assert "no preferred addresses found" in said, "the node is asked, and has none in this cluster"
    said = complaint(cluster.kubeconfig(ADMIN), tmp_path, "-n", "shop", "deploy/wbe")
    assert 'deployments.apps "wbe" not found' in said


async def test_a_real_kubectl_brings_the_answer(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        web = pod("web", "2", namespace="shop")
        large = pod("large", "99", namespace="shop")
        assert await node.start(web) == []

        def program(name: str, command: list[str]) -> list[str]:
            assert name == "nri-policy-x7k2p"
            at = command.index("nri-policy")
            python = [sys.executable, "-m", "nri_policy.cli"]
            return [
                *command[:at],
                *python,
                *command[at + 1 :],
                "--control-socket",
                str(node.socket),
            ]

        daemon = {
            "metadata": {
                "name": "nri-policy-x7k2p",
                "namespace": "kube-system",
                "labels": {"app.kubernetes.io/name": "nri-policy"},
            },
            "spec": {"nodeName": "node-a", "containers": [{"name": "nri-policy"}]},
        }
        pods = {
            "shop": {name: _there(each) for name, each in (("web", web), ("large", large))},
            "kube-system": {"nri-policy-x7k2p": _there(daemon)},
        }
        with serving(tmp_path, pods, program) as config:

            async def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
                command = [sys.executable, "-c", PLUGIN, *arguments, "--kubeconfig", str(config)]
                environment = os.environ | {"HOME": str(tmp_path)}
                return await asyncio.to_thread(
                    subprocess.run, command, env=environment, capture_output=True, text=True
                )

            done = await ask("explain", "shop/web")
            assert "shop/web/main: placed on NUMA node #" in done.stdout
            assert (done.returncode, done.stderr) == (0, "")
            done = await ask("what-if", "shop/large")
            assert "shop/large would be refused" in done.stdout
            assert (done.returncode, done.stderr) == (1, "")


def _there(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a pod that runs on node-a."""
    spec = {**manifest["spec"], "nodeName": "node-a"}
    head = {"apiVersion": "v1", "kind": "Pod"}
    return {**head, **manifest, "spec": spec, "status": {"phase": "Running"}}
