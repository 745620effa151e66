"""The daemon beside a real kubelet: from the pod's object to the cgroups of its containers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from tests.cluster.node import NAME, Node, pod
from tests.e2e import image, packages
from tests.e2e.cgroup import Amounts
from tests.e2e.daemon import PROGRAM, Daemon
from tests.support.exchanges import NRT

HARDWARE = "package:2 numa:2 core:8 pu:2 isolated=8-15"
ISOLATED = CPUSet.parse("8-15")
RESERVED = CPUSet.parse("0")
UNLIMITED = 9223372036854771712  # memory.limit_in_bytes without a limit
GIB = 1 << 30
PUBLISHED = "event=nrt-published"
PAGE = (Path(__file__).parents[2] / "docs" / "pods.md").read_text()
EXAMPLE = re.compile(r"^### \d+\. [^\n]*\n(.*?)^Gets [^\n]*\.$", re.DOTALL | re.MULTILINE)
MANIFEST = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reservedResources": {"cpu": 1}, "preferIsolatedCPUs": True, "alignment": "numa"}


def examples() -> list[dict[str, Any]]:
    """Return the pods of docs/pods.md."""
    found = []
    for text in EXAMPLE.findall(PAGE):
        (manifest,) = MANIFEST.findall(text)
        parts = yaml.safe_load(manifest)
        spec = {**parts["spec"], "nodeName": NAME}
        for container in spec["containers"]:
            container["image"] = image.NAME
        found.append({"apiVersion": "v1", "kind": "Pod", **parts, "spec": spec})
    return found


def test_the_pods_of_the_documentation_have_in_their_cgroups_what_it_says(
    node: Node, daemon: Daemon
) -> None:
    del daemon
    pods = examples()
    node.start(*pods)
    names = [
        (each["metadata"]["name"], c["name"]) for each in pods for c in each["spec"]["containers"]
    ]
    amounts = {f"{name}/{container}": node.amounts(name, container) for name, container in names}
    assert amounts == {
        "database/main": Amounts(shares=4096, quota=-1, memory=2 * GIB),
        "web/main": Amounts(shares=512, quota=200_000, memory=GIB // 2),
        "batch/main": Amounts(shares=2, quota=-1, memory=UNLIMITED),
        "ticker/main": Amounts(shares=1024, quota=-1, memory=GIB // 4),
        "packets/main": Amounts(shares=4096, quota=-1, memory=GIB),
        "training/main": Amounts(shares=6144, quota=-1, memory=2 * GIB),
        "server/main": Amounts(shares=3072, quota=-1, memory=GIB),
        "server/proxy": Amounts(shares=256, quota=25_000, memory=GIB // 8),
        "cache/main": Amounts(shares=2048, quota=-1, memory=GIB),
        "agent/main": Amounts(shares=102, quota=-1, memory=UNLIMITED),
        "vm/main": Amounts(shares=2048, quota=200_000, memory=GIB),
    }
    exclusive = {"database/main": 4, "training/main": 6, "server/main": 3, "cache/main": 2}
    isolated = {"packets/main": 4, "ticker/main": 1}
    cpus: dict[str, CPUSet] = {}

    def overlaps() -> list[str]:
        for name, container in names:
            cpus[f"{name}/{container}"] = node.cpuset(name, container).cpus
        return [
            each
            for each in exclusive | isolated
            if cpus[each] & CPUSet.union(other for name, other in cpus.items() if name != each)
        ]

    # the pods come at once, and a container that is being created cannot be told of later ones:
    # its cgroup is written then, but not where the CPUs are played ones
    node.cluster.until(lambda: not overlaps(), "each has its CPUs for itself")
    assert cpus["agent/main"] == RESERVED
    assert cpus["vm/main"] == EMPTY, "nothing was set"
    assert {each: len(cpus[each]) for each in exclusive | isolated} == exclusive | isolated
    assert all(cpus[each] <= ISOLATED for each in isolated)
    assert cpus["cache/main"].isdisjoint(ISOLATED)
    for each in ("web/main", "batch/main", "server/proxy"):
        assert cpus[each] - ISOLATED - RESERVED == cpus[each] != EMPTY


def test_the_owner_of_a_refused_container_reads_why_in_the_pod_s_status(
    node: Node, daemon: Daemon
) -> None:
    large = pod("large", {"main": {"limits": {"cpu": "17", "memory": "64Mi"}}})
    node.create(large)

    def waiting() -> dict[str, str]:
        statuses = node.pod("large")["status"].get("containerStatuses", [{}])
        found: dict[str, str] = statuses[0].get("state", {}).get("waiting", {})
        return found

    node.cluster.until(lambda: waiting().get("reason") == "CreateContainerError", "it is refused")
    assert "17 exclusive CPUs" in waiting()["message"]
    assert daemon.containers()["default/large/main"]["state"] == "error"


@pytest.mark.usefixtures("daemon")
def test_a_container_reads_its_cpus_from_the_file_in_it(node: Node) -> None:
    node.start(pod("own", {"main": {"limits": {"cpu": "2", "memory": "64Mi"}}}))
    command = ("/bin/busybox", "cat", "/.nri-resource-policy/resources.sh")
    said = node.cluster.kubectl("exec", "own", "--", *command)
    assert f'EXCLUSIVE_CPUS="{node.cpuset("own", "main").cpus}"' in said.splitlines()


def test_a_static_pod_is_placed_as_any_other(node: Node, daemon: Daemon) -> None:
    manifest = pod("static", {"main": {"limits": {"cpu": "2", "memory": "64Mi"}}})
    name = node.start_static(manifest)
    assert len(node.cpuset(name, "main").cpus) == 2
    (its,) = [each for each in daemon.containers() if each.startswith("default/static")]
    assert its == f"default/{name}/main"
    node.clear()
    node.cluster.until(
        lambda: not any("static" in name for name in daemon.containers()), "its CPUs are free"
    )


def test_init_containers_give_their_cpus_back_and_sidecars_keep_theirs(
    node: Node, daemon: Daemon
) -> None:
    def one(cpu: str) -> dict[str, Any]:
        return {"image": image.NAME, "resources": {"limits": {"cpu": cpu, "memory": "64Mi"}}}

    first = {"name": "first", **one("8"), "command": ["/bin/busybox", "true"]}
    sidecar = {"name": "sidecar", **one("2"), "restartPolicy": "Always"}
    main = {"main": {"limits": {"cpu": "4", "memory": "64Mi"}}}
    node.start(pod("app", main, initContainers=[first, sidecar]))
    had = {name: node.cpuset("app", name).cpus for name in ("first", "sidecar", "main")}
    assert {name: len(cpus) for name, cpus in had.items()} == {"first": 8, "sidecar": 2, "main": 4}
    assert not had["sidecar"] & had["main"]

    def held() -> dict[str, str]:
        containers = daemon.containers().items()
        return {name: each["exclusive"] for name, each in containers if "/app/" in name}

    kept = {f"default/app/{name}": str(had[name]) for name in ("sidecar", "main")}
    node.cluster.until(lambda: held() == kept, "the first one's are free")


def zones(node: Node) -> dict[str, str]:
    """Return the CPUs that the node's zones have left, by their names."""
    found = node.cluster.asked("GET", f"{NRT}/{NAME}")["zones"]
    return {
        zone["name"]: each["available"]
        for zone in found
        for each in zone["resources"]
        if each["name"] == "cpu" and zone["type"] == "Node"
    }


def test_a_pod_that_has_completed_takes_no_cpus_after_a_restart_of_the_daemon(
    node: Node, daemon: Daemon
) -> None:
    daemon.await_line(PUBLISHED)
    idle = zones(node)
    job = pod("job", {"main": {"limits": {"cpu": "3", "memory": "64Mi"}}}, restartPolicy="Never")
    job["spec"]["containers"][0]["command"] = ["/bin/busybox", "sleep", "2"]
    node.create(job)
    node.cluster.until(lambda: zones(node) != idle, "its CPUs are set aside")
    node.cluster.until(lambda: node.pod("job")["status"]["phase"] == "Succeeded", "it completed")
    node.cluster.until(lambda: zones(node) == idle, "its CPUs are left again")
    deleted = pod("deleted", {"main": {"limits": {"cpu": "2", "memory": "64Mi"}}})
    node.start(deleted)
    node.delete("deleted")
    daemon.stop()
    daemon.start()
    daemon.await_line(PUBLISHED)
    assert zones(node) == idle


def test_kubectl_s_plugin_asks_the_daemon_on_the_pod_s_node(
    node: Node, daemon: Daemon, tmp_path: Path
) -> None:
    """Our program is no busybox image: the daemon's pod runs that of the host, in its root."""
    script = tmp_path / "nri-policy"
    options = f"--control-socket {daemon.control}"
    script.write_text(
        f'#!/bin/busybox sh\nexec /bin/busybox chroot /host {PROGRAM} "$@" {options}\n'
    )
    script.chmod(0o755)
    mounts = {
        "root": ("/", "/host"),
        "program": (str(script), "/bin/nri-policy"),
        "env": (str(packages.busybox()), "/bin/env"),
    }
    stand_in = pod("nri-policy-stand-in", {"nri-policy": {}})
    stand_in["metadata"] |= {
        "namespace": "kube-system",
        "labels": {"app.kubernetes.io/name": "nri-policy"},
    }
    stand_in["spec"]["volumes"] = [
        {"name": name, "hostPath": {"path": path}} for name, (path, _) in mounts.items()
    ]
    stand_in["spec"]["containers"][0]["volumeMounts"] = [
        {"name": name, "mountPath": path} for name, (_, path) in mounts.items()
    ]
    node.start(stand_in, pod("web", {"main": {"limits": {"cpu": "2", "memory": "64Mi"}}}))
    plugin = [sys.executable, "-c", "from nri_policy.cli.kubectl import plugin; plugin()"]
    said = node.cluster.run(*plugin, "explain", "default/web")
    assert "web/main: placed on NUMA node #" in said
    node.delete("nri-policy-stand-in", namespace="kube-system")
