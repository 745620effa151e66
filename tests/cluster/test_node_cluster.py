"""What the cluster's side makes of a real node: its scheduler, and groups, to running processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.foundation.cpuset import CPUSet
from tests.cluster.installation import CONFIGS
from tests.cluster.node import NAME, Node, pod
from tests.cluster.schedulers import configuration
from tests.cluster.shop import (
    ACCOUNT,
    GATE,
    GROUPS,
    HOSTNAME,
    JOBS,
    LEASE,
    SCHEDULER,
    SETTINGS,
    SHOP,
)
from tests.e2e import cgroup, image
from tests.e2e.daemon import Daemon
from tests.support.exchanges import NRT
from tools.control_plane import SCHEDULER_PLUGINS

HARDWARE = "package:2 numa:2 core:4"  # 16 CPUs, 4 on each NUMA node
MORE_PROGRAMS = ("kube-scheduler",)
PUBLISHED = "event=nrt-published"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reservedResources": {"cpu": 1}, "alignment": "numa"}


@pytest.fixture(scope="module")
def scheduler(node: Node) -> None:
    """A scheduler, with the plugin that reads topology objects where the release has that."""
    reads = node.release in SCHEDULER_PLUGINS
    node.cluster.start_scheduler(configuration(0) if reads else SCHEDULER)


def unbound(name: str, cpu: str) -> dict[str, Any]:
    """Return a Guaranteed pod of one container that a scheduler has to bind."""
    made = pod(name, {"main": {"limits": {"cpu": cpu, "memory": "64Mi"}}})
    del made["spec"]["nodeName"]
    return made


@pytest.mark.usefixtures("scheduler")
def test_a_scheduler_that_reads_our_object_binds_what_a_numa_node_has_room_for(
    node: Node, daemon: Daemon
) -> None:
    """The node has as many CPUs left as the large pod asks for, but nowhere together."""
    if node.release not in SCHEDULER_PLUGINS:
        pytest.skip(f"no scheduler of Kubernetes {node.release} reads NodeResourceTopology")
    daemon.await_line(PUBLISHED)
    names = [f"own-{number}" for number in range(4)]
    for name in names:
        before = node.cluster.asked("GET", f"{NRT}/{NAME}")["zones"]
        node.start(unbound(name, "2"))
        node.cluster.until(
            lambda before=before: node.cluster.asked("GET", f"{NRT}/{NAME}")["zones"] != before,
            "the object says what is left",
        )
    node.create(unbound("large", "4"))

    def said() -> str:
        conditions = node.pod("large")["status"].get("conditions", [])
        return " ".join(each.get("message", "") for each in conditions)

    def waits() -> bool:
        if (
            "nodeName" in node.pod("large")["spec"]
        ):  # by what was left before the last of the others
            node.delete("large")
            node.create(unbound("large", "4"))
        return "cannot align" in said()

    node.cluster.until(waits, "the scheduler says why it waits")
    for name in names:
        node.delete(name)
    node.until_ready("large")
    cpus = node.cpuset("large", "main").cpus
    assert node.machine.hardware is not None
    lists = (node.machine.hardware / "sys/devices/system/node").glob("node*/cpulist")
    assert any(cpus == CPUSet.parse(each.read_text()) for each in lists)


@contextmanager
def placing(node: Node, folder: Path) -> Iterator[Path]:
    """Run the service that places groups, with the rights that it is given; yield its log."""
    token = node.cluster.asked("POST", ACCOUNT, {"spec": {"audiences": ["https://test"]}})
    config, log = folder / "placement.yaml", folder / "service.log"
    levels = {"topologies": [{"name": "default", "levels": [HOSTNAME]}]}
    config.write_text(yaml.safe_dump(SETTINGS | {"spec": levels}))
    arguments = ["cluster", "run", "--groups", "--port", "0", "--lease", LEASE]
    kubeconfig = node.cluster.kubeconfig(str(token["status"]["token"]))
    files = ["--kubeconfig", str(kubeconfig), "--settings", str(config)]
    command = [sys.executable, "-m", "nri_policy.cli", *arguments, *files]
    with log.open("wb") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            yield log
        finally:
            process.kill()


@pytest.fixture(scope="module")
def _groups(node: Node) -> None:
    """What the service needs of the cluster, and a namespace that has it."""
    for kind in ("placement-groups-crd.yaml", "settings-crd.yaml"):
        node.cluster.kubectl("apply", "-f", str(CONFIGS / "cluster" / kind))
    node.cluster.kubectl("apply", "-k", str(CONFIGS / "kustomize" / "cluster-groups"))
    new = {"metadata": {"name": "shop", "labels": {"placement.nri/groups": "enabled"}}}
    node.cluster.asked("POST", "/api/v1/namespaces", new)
    accounts = f"{SHOP}/serviceaccounts/default"
    node.cluster.until(lambda: node.cluster.ask("GET", accounts).status == 200, "pods can be made")


def job(name: str, pods: int) -> dict[str, Any]:
    """Return a Job whose pods have to be on one node."""
    made = unbound(name, "2")
    made["spec"] |= {"schedulingGates": [{"name": GATE}], "restartPolicy": "Never"}
    annotations = {"kueue.x-k8s.io/podset-required-topology": HOSTNAME}
    template = {"metadata": {"annotations": annotations}, "spec": made["spec"]}
    counts = {"parallelism": pods, "completions": pods}
    return {"metadata": {"name": name}, "spec": {**counts, "template": template}}


@pytest.mark.usefixtures("scheduler", "_groups")
def test_a_group_ends_as_running_processes_and_one_without_room_waits_whole(
    node: Node, daemon: Daemon, tmp_path: Path
) -> None:
    def pods(name: str) -> list[dict[str, Any]]:
        path = f"{SHOP}/pods?labelSelector=job-name%3D{name}"
        found: list[dict[str, Any]] = node.cluster.asked("GET", path)["items"]
        return found

    def state(name: str) -> str:
        answer = node.cluster.ask("GET", f"{GROUPS}/job-{name}")
        status = answer.body.get("status", {}) if answer.status == 200 else {}
        return str(status.get("state", ""))

    with placing(node, tmp_path) as log:
        node.cluster.asked("POST", JOBS, job("fits", 3))
        node.cluster.until(lambda: len(pods("fits")) == 3, "the Job has its pods")
        names = [each["metadata"]["name"] for each in pods("fits")]
        for name in names:
            node.until_ready(name, namespace="shop")

        def has_cpus() -> bool:
            cpus = [node.cpuset(name, "main", namespace="shop").cpus for name in names]
            return [len(each) for each in cpus] == [2, 2, 2] and len(CPUSet.union(cpus)) == 6

        def commands() -> list[list[str]]:
            cgroups = [node.cgroup_of(name, "main", namespace="shop") for name in names]
            pids = [pid for each in cgroups for pid in cgroup.processes(each)]
            return [Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] for pid in pids]

        node.cluster.until(has_cpus, "each has two CPUs of its own")
        # a container counts as started a moment before runc's process becomes the container's own
        running = [list(image.FOREVER)] * 3
        node.cluster.until(lambda: commands() == running, "each runs its program")
        node.cluster.asked("POST", JOBS, job("large", 9))
        node.cluster.until(lambda: state("large") == "Unplaceable", "there is no room for all")
        assert not any("nodeName" in each["spec"] for each in pods("large"))
        for name in ("fits", "large"):
            node.cluster.asked("DELETE", f"{JOBS}/{name}", {"propagationPolicy": "Background"})
        node.cluster.until(
            lambda: not node.cluster.asked("GET", f"{SHOP}/pods")["items"], "their pods are gone"
        )
    assert "Traceback" not in log.read_text()
    node.cluster.until(
        lambda: not any(name.startswith("shop/") for name in daemon.containers()), "so says it"
    )
