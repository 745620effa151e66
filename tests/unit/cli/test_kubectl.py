"""`kubectl nri-policy`, with a kubectl whose cluster is a file and whose nodes run here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nri_policy.cli.kubectl import main
from nri_policy.kube.why import WHY
from tests.support.daemon import pod, served

KUBECTL = Path(__file__).parents[2] / "support" / "kubectl.py"
ALL = ["get pods shop", "list pods kube-system", "create pods/exec kube-system"]
MORE = ["list pods shop"]  # for a workload


def placed(manifest: dict[str, Any], node: str = "") -> dict[str, Any]:
    """Return a pod as the API server has it."""
    more = {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {**manifest["spec"], "nodeName": node, "schedulerName": "default-scheduler"}
    return {
        **manifest,
        "metadata": {**manifest["metadata"], **more},
        "spec": spec,
        "status": {"phase": "Running" if node else "Pending"},
    }


def daemon(node: str, name: str = "nri-policy") -> dict[str, Any]:
    """Return the pod of a DaemonSet of that *name* on a node."""
    labels = {"app.kubernetes.io/name": name}
    return {
        "metadata": {"name": f"{name}-{node}", "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "metrics"}, {"name": name}]},
        "status": {"phase": "Running"},
    }


@dataclass(kw_only=True)
class Author:
    """A pod author at a shell, with kubectl and the plugin."""

    folder: Path
    pods: dict[str, dict[str, Any]]
    sockets: dict[str, str] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=lambda: [*ALL, *MORE])

    def asks(self, *arguments: str) -> Result:
        """Run `kubectl nri-policy`; what is executed elsewhere prints on our own stdout."""
        runner = CliRunner(env=self._environment())
        return runner.invoke(main, arguments, prog_name="kubectl nri-policy")

    def _environment(self) -> dict[str, str]:
        selector = {"matchLabels": {"app": "web"}}
        state = {
            "pods": self.pods,
            "sockets": self.sockets,
            "allowed": self.allowed,
            "workloads": {"web": {"spec": {"selector": selector}}},
        }
        cluster = self.folder / "cluster.json"
        cluster.write_text(json.dumps(state))
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        kubectl = programs / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} {KUBECTL} "$@"\n')
        kubectl.chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "KUBECTL_CLUSTER": str(cluster), "COLUMNS": "140"}


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Author]:
    """Yield the author of the pods in namespace shop, of which one runs and one does not yet."""
    async with served(folder) as node:
        web = pod("web", "2", namespace="shop")
        web["metadata"]["labels"] = {"app": "web"}
        assert await node.start(web) == []
        waiting = pod("waiting", "99", namespace="shop")
        waiting["metadata"]["labels"] = {"app": "waiting"}
        pods = {
            "shop": {"web": placed(web, "node-a"), "waiting": placed(waiting)},
            "kube-system": {"nri-policy-node-a": daemon("node-a")},
        }
        yield Author(folder=folder, pods=pods, sockets={"nri-policy-node-a": str(node.socket)})


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["explain", "shop/web", "--context", "test"], 0, "web/main: placed on NUMA node"),
        (["explain", "-n", "shop", "web/main", "-o", "json"], 0, '"container": "shop/web/main"'),
        (["what-if", "shop/web"], 0, "shop/web would fit"),
        (["what-if", "shop/waiting", "--node", "node-a"], 1, "shop/waiting would be refused"),
        (["containers", "shop/web"], 0, "shop/web/main"),
        (["containers", "-n", "shop", "deploy/web", "-o", "json"], 0, '"shop/web/main": {'),
        (["explain", "-n", "shop", "deploy/web"], 0, "shop/web/main: placed on NUMA node"),
        (["pools", "shop/web"], 0, "NUMA node #1"),
        (["status", "--node", "node-a"], 0, "containerd 2.1.9"),
        (["history", "shop/web", "--since", "1h"], 0, "NUMA node #1"),
        (["history", "--node", "node-a", "shop/web", "-o", "json"], 0, '"shop/web/main"'),
        (["history", "--node", "node-a", "-o", "json"], 0, '"event": "synchronized"'),
        (["history", "shop/web", "--until", "1h"], 0, "Nothing is recorded of that; "),
    ],
)
async def test_the_daemon_on_the_pods_node_answers(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    async with cluster(tmp_path) as author:
        done = await asyncio.to_thread(author.asks, *arguments)
    said = capfd.readouterr().out
    assert text in said, done.output
    assert (done.exit_code, done.stderr) == (code, ""), "what kubectl adds is of no use"


@pytest.mark.parametrize("command", ["history", "explain"])
async def test_a_node_is_asked_about_a_pod_that_is_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    async with cluster(tmp_path) as author:
        del author.pods["shop"]["web"]
        asked = (command, "shop/web", "--node", "node-a", "-o", "json")
        done = await asyncio.to_thread(author.asks, *asked)
    assert '"shop/web/main"' in capfd.readouterr().out, done.output
    assert done.exit_code == 0


PEER = "nri-resource-policy-topology-aware"


async def test_the_daemon_answers_in_the_pod_of_nri_plugins_daemonset(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as author:
        pods, sockets = author.pods["kube-system"], author.sockets
        pods[f"{PEER}-node-a"] = daemon("node-a", PEER)
        ours = await asyncio.to_thread(author.asks, "explain", "shop/web")
        assert (ours.exit_code, ours.stderr) == (0, ""), "ours comes first"
        del pods["nri-policy-node-a"]
        before = await asyncio.to_thread(author.asks, "explain", "shop/web")
        assert (before.exit_code, before.stderr.count("\n")) == (1, 2)
        assert f"the image of pod {PEER}-node-a is still that of nri-plugins" in before.stderr
        sockets[f"{PEER}-node-a"] = sockets.pop("nri-policy-node-a")
        capfd.readouterr()
        after = await asyncio.to_thread(author.asks, "explain", "shop/web")
    assert "web/main: placed on NUMA node" in capfd.readouterr().out
    assert (after.exit_code, after.stderr) == (0, "")


@pytest.fixture
def india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the author into a time zone."""
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("india")
async def test_times_are_of_the_authors_clock(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as author:
        await asyncio.to_thread(author.asks, "history", "shop/web")
    assert "+05:30\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["explain", "shop/none"], 1, 'Error from server (NotFound): pods "none" not found'),
        (["explain", "shop/waiting"], 1, "pod shop/waiting is on no node yet"),
        (["explain", "a/b/c/d"], 2, "a/b/c/d is not [NAMESPACE/]POD, NAMESPACE/POD/CONTAINER, or"),
        (["explain", "-n", "shop", "sts/web"], 1, 'doesn\'t have a resource type "sts"'),
        (["explain"], 2, "name a pod, NAMESPACE/POD"),
        (["explain", "--node", "node-a"], 2, "name a pod, NAMESPACE/POD"),
        (["pools", "shop/web", "--node", "node-b"], 3, "no pod of nri-policy runs on node node-b"),
        (["pools", "shop/web", "--context", "no"], 1, 'context "no" does not exist'),
        (["what-if", "--node", "node-a"], 2, "name a pod, NAMESPACE/POD, or manifests by -f"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    web, waiting = (pod(name, "2", namespace="shop") for name in ("web", "waiting"))
    pods = {"shop": {"web": placed(web, "node-a"), "waiting": placed(waiting)}}
    done = Author(folder=tmp_path, pods=pods).asks(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith("kubectl nri-policy")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ALL)
def test_rights_that_are_missing_are_named(tmp_path: Path, missing: str) -> None:
    web = placed(pod("web", "2", namespace="shop"), "node-a")
    pods = {"shop": {"web": web}, "kube-system": {"nri-policy-node-a": daemon("node-a")}}
    author = Author(folder=tmp_path, pods=pods, allowed=[each for each in ALL if each != missing])
    done = author.asks("explain", "shop/web")
    verb, resource, _ = missing.split()
    assert done.exit_code == 1
    assert f'cannot {verb} resource "{resource}"' in done.stderr
    assert "docs/kubernetes.md, From kubectl" in done.stderr


def explained(folder: Path, allowed: list[str]) -> Author:
    """Return the author of a pod that has been explained by annotation."""
    web = placed(pod("web", "2", namespace="shop"), "node-a")
    web["metadata"]["annotations"] = {WHY: "main: placed on NUMA node #1\n  CPUs: 4-5\x1b[2J"}
    pods = {"shop": {"web": web}, "kube-system": {"nri-policy-node-a": daemon("node-a")}}
    return Author(folder=folder, pods=pods, allowed=allowed)


def test_without_rights_on_the_daemon_the_pods_annotation_is_shown(tmp_path: Path) -> None:
    done = explained(tmp_path, ["get pods shop"]).asks("explain", "shop/web")
    assert done.exit_code == 0, done.output
    assert done.stdout == "main: placed on NUMA node #1\n  CPUs: 4-5\\x1b[2J\n"
    assert "from the pod's annotation placement.nri/why" in done.stderr


def test_options_are_for_the_daemon_and_so_is_a_pod_without_the_annotation(tmp_path: Path) -> None:
    author = explained(tmp_path, ["get pods shop"])
    assert "(Forbidden)" in author.asks("explain", "shop/web", "-o", "json").stderr
    del author.pods["shop"]["web"]["metadata"]["annotations"]
    assert "(Forbidden)" in author.asks("explain", "shop/web").stderr


def test_whoever_may_ask_the_daemon_does_not_get_the_annotation(tmp_path: Path) -> None:
    done = explained(tmp_path, ALL).asks("explain", "shop/web")
    assert "placement.nri/why" not in done.output
    assert "executable file not found" in done.stderr, "it was asked, and does not run here"


@pytest.mark.parametrize("name", sorted(main.commands))
def test_the_help_says_where_the_options_are_that_are_passed_on(name: str) -> None:
    done = CliRunner().invoke(main, [name, "--help"])
    assert f"are passed on to `nri-policy {name}`" in " ".join(done.stdout.split())
