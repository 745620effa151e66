"""The image of nri-plugins' DaemonSet is replaced on a real node, and set back (docs/migration.md).

The DaemonSet is the one of their chart. Each of the two images has an entrypoint and nothing else:
the node's folders with the programs and their libraries are mounted from the start.
The node's pods have no network, and it has no Services: the pod has the node's, and the address of
the API server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from nri_policy.daemon.paths import PEER_RUN, PEER_STATE
from nri_policy.foundation.cpuset import CPUSet
from tests.cluster.node import CONTROLLERS, Node, pod
from tests.cluster.shop import SCHEDULER
from tests.cluster.test_peer_rights import ACCOUNT, grant
from tests.e2e import image, packages
from tests.e2e.cgroup import CpusetFiles
from tests.e2e.daemon import PROGRAM
from tests.e2e.test_peer_pod import ARGUMENTS, HEAD, IMAGE
from tests.support.exchanges import SETTINGS
from tools import nri_plugins

HARDWARE = "package:2 numa:2 core:2 pu:2"
MORE_PROGRAMS = ("kube-scheduler",)
NAME = "nri-resource-policy-topology-aware"  # of the DaemonSet, its container, and its account
DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
THEIRS, OURS = "localhost/nri-plugins:e2e", "localhost/nri-policy:e2e"
PLUGIN = [sys.executable, "-c", "from nri_policy.cli.kubectl import plugin; plugin()"]


def daemon_set(node: Node, programs: set[Path]) -> dict[str, Any]:
    """Return the DaemonSet; the folders of *programs* are mounted as well."""
    hardware = node.machine.hardware
    assert hardware is not None
    api_server = urlsplit(node.cluster.server)
    mounts = {
        PEER_STATE: (PEER_STATE, False),
        # by the manifest at /var/run, which is a link to /run in our image
        PEER_RUN: (Path("/var") / PEER_RUN.relative_to("/"), False),
        Path("/host/sys"): (hardware / "sys", False),
        Path("/host/proc"): (Path("/proc"), False),
        # not its folder, where the test's runtime also has its containers' files
        Path("/var/run/nri/nri.sock"): (node.runtime.nri_socket, True),
        Path("/var/lib/kubelet/pod-resources"): (Path("/var/lib/kubelet/pod-resources"), True),
        **{path: (path, True) for path in programs},
    }
    container = {
        "name": NAME,
        "image": THEIRS,
        "args": [*ARGUMENTS],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "KUBERNETES_SERVICE_HOST", "value": str(api_server.hostname)},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(api_server.port)},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        "volumeMounts": [
            {"name": f"volume-{number}", "mountPath": str(at), "readOnly": read_only}
            for number, (at, (_, read_only)) in enumerate(mounts.items())
        ],
    }
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": "test"}
    return {
        "metadata": {"name": NAME},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": ACCOUNT,
                    "hostNetwork": True,
                    "containers": [container],
                    "volumes": [
                        {"name": f"volume-{number}", "hostPath": {"path": str(path)}}
                        for number, (path, _) in enumerate(mounts.values())
                    ],
                },
            },
        },
    }


def guaranteed(cpu: str) -> dict[str, Any]:
    return {"limits": {"cpu": cpu, "memory": "64Mi"}}


def await_synchronized(node: Node) -> None:
    """Wait until the DaemonSet has rolled out, and nri-plugins takes part.

    It may lose the connection while it synchronizes, and end: then it is not up any more.
    """
    await_rollout(node)
    of = f"daemonset/{NAME}"
    up = ("exec", of, "--", "/bin/busybox", "echo", "up")
    node.cluster.until(
        lambda: (
            "<= Synchronize" in kubectl(node, "logs", of, check=False)
            and "up" in kubectl(node, *up, check=False).split()
        ),
        "nri-plugins takes part",
    )


def await_rollout(node: Node) -> None:
    kubectl(node, "rollout", "status", f"daemonset/{NAME}")


def set_image(node: Node, name: str) -> None:
    kubectl(node, "set", "image", f"daemonset/{NAME}", f"{NAME}={name}")


def kubectl(node: Node, *arguments: str, check: bool = True) -> str:
    return node.cluster.kubectl("-n", "kube-system", *arguments, check=check)


def ask(node: Node, *command: str) -> Any:
    """Return what `kubectl nri-policy` prints; {} where nobody answers."""
    said = node.cluster.run(*PLUGIN, *command, "--node", node.name, "-o", "json", check=False)
    return json.loads(said) if said.startswith("{") else {}


def test_containers_keep_their_cpus_when_the_image_is_replaced_and_run_on_when_it_is_set_back(
    node: Node, tmp_path: Path
) -> None:
    program = nri_plugins.at_hand()
    if program is None:
        pytest.skip("nri-plugins is not built: `python3 -m tools.nri_plugins` builds it")
    for name, entrypoint in ((THEIRS, program), (OURS, PROGRAM)):
        archive = tmp_path / "image.tar"
        image.write(packages.busybox(), archive, name=name, entrypoint=[str(entrypoint)])
        node.runtime.load(archive, name)
    cluster = node.cluster
    cluster.asked("DELETE", f"{DAEMON_SETS}/nri-policy")  # that of our own manifests
    # nri-plugins watches from now on: Debian's etcd does not say that what is cached is of now
    cluster.stop("kube-apiserver")
    cluster.start_api_server("--watch-cache=false")
    cluster.stop("kube-controller-manager")
    cluster.start_controllers(*CONTROLLERS, "daemonset-controller")
    cluster.start_scheduler(SCHEDULER)
    grant(cluster)
    spec = {"reservedResources": {"cpu": "750m"}, "pinCPU": True, "pinMemory": True}
    cluster.asked("POST", SETTINGS, {**HEAD, "spec": spec})
    programs = {path for path in IMAGE if path.exists()} | {program.parent}
    cluster.asked("POST", DAEMON_SETS, daemon_set(node, programs))
    await_synchronized(node)

    node.start(
        pod("own", {"main": guaranteed("2")}),
        pod("one", {"main": guaranteed("1")}),
        pod("shared", {"main": {"requests": {"cpu": "500m"}}}),
        pod("rest", {"main": {}}),
    )
    first = ("own", "one", "shared", "rest")

    def cpusets() -> dict[str, CpusetFiles]:
        return {each: node.cpuset(each, "main") for each in first}

    had, ids = cpusets(), {each: node.ids(each) for each in first}
    assert [len(had[each].cpus) for each in ("own", "one")] == [2, 1]

    set_image(node, OURS)
    await_rollout(node)
    cluster.until(lambda: ask(node, "status").get("synchronized"), "nri-policy takes part")
    assert cpusets() == had
    known = ask(node, "containers")
    for each in ("own", "one"):
        assert known[f"default/{each}/main"]["exclusive"] == str(had[each].cpus)
    node.start(pod("late", {"main": guaranteed("2")}))
    own = [had["own"].cpus, had["one"].cpus, node.cpuset("late", "main").cpus]
    assert len(CPUSet.union(own)) == 5, "nobody has the CPUs of another"

    set_image(node, THEIRS)
    await_synchronized(node)
    node.start(pod("last", {"main": guaranteed("1")}))
    assert {each: node.ids(each) for each in first} == ids, "none was started again"
    assert all(node.running(each) for each in (*first, "late"))
