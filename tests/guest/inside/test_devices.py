"""Two sockets of four CPUs; a PCI bus with a disk on each."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from tests.e2e.kubelet import Kubelet, guaranteed
from tests.guest.inside import kernel

NODES = {0: "0-3", 1: "4-7"}


def disk(node: int) -> str:
    """Return the device file of the disk that is on the bus of the NUMA node."""
    for block in Path("/sys/class/block").glob("nvme*n1"):
        function = Path(os.path.realpath(block / "device" / "device"))
        # the buses of nodes have bridges of their own
        if "/pci0000:00/" not in str(function) and _node(function) == node:
            return f"/dev/{block.name}"
    raise LookupError(f"no disk on node {node}")


def _node(function: Path) -> int:
    return int((function / "numa_node").read_text())


def test_a_disk_pulls_its_container_to_its_node(kubelet: Kubelet) -> None:
    for node, cpus in NODES.items():
        path = disk(node)
        device = {"container_path": path, "host_path": path, "permissions": "rw"}
        pod = kubelet.run_pod(f"disk-{node}", {"main": guaranteed(1000)})
        here = kernel.effective(kernel.start(pod, devices=[device]))
        first, last = map(int, cpus.split("-"))
        assert first <= int(here.cpus) <= last
        assert here.mems == str(node)


def test_a_strict_hint_that_cannot_be_met_refuses_nothing_else(kubelet: Kubelet) -> None:
    path = disk(1)
    device = {"container_path": path, "host_path": path, "permissions": "rw"}
    strict = {"strict.topologyhints.resource-policy.nri.io": "true"}
    full = kernel.run(kubelet, "full", guaranteed(4000))
    assert kernel.effective(full).cpus == "4-7"
    pod = kubelet.run_pod("strict", {"main": guaranteed(2000)}, annotations=strict)
    with pytest.raises(grpc.RpcError, match="hint"):
        pod.create("main", devices=[device])
    assert kernel.effective(full).cpus == "4-7"
