"""Two sockets of four CPUs; a PCI bus with a disk on each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.kubelet import guaranteed
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective
from tests.guest.inside.scene import Scene, full_name

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


def given(path: str) -> dict[str, Any]:
    """Return what gives a container the device file."""
    return {"devices": [{"container_path": path, "host_path": path, "permissions": "rw"}]}


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[dict[int, Path]]:
    """A file system on each disk, mounted on the host."""
    mounted = {node: tmp_path / f"volume-{node}" for node in NODES}
    for node, folder in mounted.items():
        folder.mkdir()
        subprocess.run(["busybox", "mke2fs", disk(node)], check=True, capture_output=True)
        subprocess.run(["busybox", "mount", "-t", "ext2", disk(node), folder], check=True)
    yield mounted
    for folder in mounted.values():
        subprocess.run(["busybox", "umount", folder], check=True)


def test_a_disk_pulls_its_container_to_its_node_where_it_stays(scene: Scene) -> None:
    pod = scene.kubelet.run_pod("disks", {f"disk-{node}": guaranteed(1000) for node in NODES})
    for node, cpus in NODES.items():
        container = kernel.start(pod, f"disk-{node}", **given(disk(node)))
        here = kernel.effective(container)
        assert CPUSet.parse(here.cpus) <= CPUSet.parse(cpus)
        assert here.mems == str(node)
        assert "hint" in (scene.explain(full_name(container)).decided_by or "")
    before = scene.settle()
    scene.daemon.kill()
    scene.daemon.start()
    assert scene.settle() == before


def test_a_volume_pulls_its_container_to_the_node_of_its_disk(
    scene: Scene, volumes: dict[int, Path]
) -> None:
    pod = scene.kubelet.run_pod("volumes", {f"volume-{node}": guaranteed(1000) for node in NODES})
    for node, folder in volumes.items():
        mount = {"container_path": "/data", "host_path": str(folder)}
        here = kernel.effective(kernel.start(pod, f"volume-{node}", mounts=[mount]))
        assert CPUSet.parse(here.cpus) <= CPUSet.parse(NODES[node])
        assert here.mems == str(node)
    scene.settle()
    pod.delete()  # so that its volumes can be unmounted


def test_a_strict_hint_that_cannot_be_met_refuses_nothing_else(scene: Scene) -> None:
    strict = {"strict.topologyhints.resource-policy.nri.io/container.strict": "true"}
    asked = {"full": guaranteed(4000), "strict": guaranteed(2000)}
    pod = scene.kubelet.run_pod("both", asked, annotations=strict)
    full = kernel.start(pod, "full")
    with pytest.raises(grpc.RpcError, match="hint"):
        pod.create("strict", **given(disk(1)))
    scene.settle()
    assert kernel.effective(full) == Effective(cpus="4-7", mems="1")
