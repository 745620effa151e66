"""Two sockets of four CPUs; a PCI bus with a disk on each."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.interrupts import Interrupts, read_interrupts
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.files import KernelFiles
from nri_policy.tuning.interrupts import item_of
from nri_policy.tuning.irqbalance import list_sockets, read_banned
from nri_policy.tuning.items import Item
from nri_policy.tuning.protocol import SOCKET, Tunable, TunerError, ask
from tests.e2e.daemon import PROGRAM
from tests.e2e.kubelet import guaranteed
from tests.e2e.process import Process
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective
from tests.guest.inside.partition_tree import settled
from tests.guest.inside.scene import Scene, full_name

NODES = {0: "0-3", 1: "4-7"}


def disk(node: int) -> str:
    """Return the device file of the disk that is on the bus of the NUMA node."""
    return f"/dev/{_block(node).name}"


def _block(node: int) -> Path:
    for block in Path("/sys/class/block").glob("nvme*n1"):
        # the buses of nodes have bridges of their own
        if "/pci0000:00/" not in str(_function(block)) and _node(_function(block)) == node:
            return block
    raise LookupError(f"no disk on node {node}")


def _function(block: Path) -> Path:
    return Path(os.path.realpath(block / "device" / "device"))


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


@contextmanager
def tuner(folder: Path) -> Iterator[Process]:
    """Run the tuner with its journal in the folder; it is killed at the end."""
    process = Process([str(PROGRAM), "tuner", "--journal-dir", str(folder)], os.environ)
    try:
        eventually(_answers, bool, every=0.25)
        yield process
    finally:
        process.kill()


def _answers() -> bool:
    try:
        ask(SOCKET)
    except TunerError:  # its socket is not there yet, or its killed predecessor's is
        return False
    return True


def tunables() -> dict[Item, Tunable]:
    return {each.item: each for each in ask(SOCKET).tunables}


def interrupts() -> Interrupts:
    return read_interrupts(Path("/"))


def test_the_interrupts_of_its_disk_are_handled_on_the_container_s_cpus(
    scene: Scene, tmp_path: Path
) -> None:
    """All but those of the queues that the kernel manages; the tuner is killed meanwhile."""
    before = interrupts()
    folder = str(_function(_block(1)))[1:]
    disks = read_interrupts(Path("/"), [folder]).of_devices[folder]
    names = {each.number: each.name for each in before.each}
    (admin,) = (number for number in disks if names.get(number, "").endswith("q0"))
    key = "irq-affinity.resource-policy.nri.io/container.main"
    text = {key: "{devices: ['*'], mask: ['*']}"}
    pod = scene.kubelet.run_pod("own", {"main": guaranteed(2000)}, annotations=text)
    with tuner(tmp_path):
        container = kernel.start(pod, "main", **given(disk(1)))
        cpus = kernel.effective(container).cpus
        found = eventually(tunables, bool, every=0.25)
        assert found[item_of(admin)].found == cpus
        for number in disks - {admin} & names.keys():
            each = found[item_of(number)]
            assert each.state is ItemState.UNSUPPORTED
            assert each.why.startswith("not movable")
        for other in interrupts().each:
            item = found.get(item_of(other.number))
            if other.number not in disks and item is not None and item.state is ItemState.OK:
                assert not other.affinity & CPUSet.parse(cpus), other
        assert interrupts() != before
    with tuner(tmp_path):
        assert tunables()[item_of(admin)].original is not None
        pod.delete()
        eventually(tunables, lambda left: not left, every=0.25)
    assert interrupts() == before


@contextmanager
def balancing() -> Iterator[tuple[Process, str]]:
    """Run irqbalance; yield also its process id, by its socket."""
    Path("/run/irqbalance").mkdir(exist_ok=True)
    process = Process(["irqbalance", "--foreground", "--interval", "1"], os.environ)
    try:
        (id_,) = eventually(lambda: [*list_sockets(Path("/"))], bool, every=0.25)
        yield process, id_
    finally:
        process.kill()


def _admin(names: Mapping[int, str], node: int) -> int:
    """Return the one interrupt of a disk that the kernel does not manage."""
    folder = str(_function(_block(node)))[1:]
    own = read_interrupts(Path("/"), [folder]).of_devices[folder]
    (admin,) = (number for number in own if names.get(number, "").endswith("q0"))
    return admin


def test_irqbalance_moves_the_interrupts_of_other_disks_only(scene: Scene, tmp_path: Path) -> None:
    files, names = KernelFiles(Path("/")), {each.number: each.name for each in interrupts().each}
    set_, other = _admin(names, 1), item_of(_admin(names, 0))
    key = "irq-affinity.resource-policy.nri.io/container.main"
    with balancing() as (balancer, id_), tuner(tmp_path):
        pod = scene.kubelet.run_pod(
            "own", {"main": guaranteed(2000)}, annotations={key: f"{{claim: [{set_}]}}"}
        )
        cpus = kernel.effective(kernel.start(pod, "main")).cpus
        eventually(tunables, bool, every=0.25)
        assert read_banned(Path("/"), id_) == str(set_)
        for _ in range(3):
            files.write(other, "0-7")
            balancer.send(signal.SIGHUP)  # it looks at all anew
            eventually(lambda: files.read(other), lambda found: found != "0-7", every=0.25)
            assert files.read(item_of(set_)) == cpus
        assert tunables()[item_of(set_)].state is ItemState.OK
        pod.delete()
        eventually(tunables, lambda left: not left, every=0.25)
        assert read_banned(Path("/"), id_) == ""


READS = 500  # of a disk, by processes on all CPUs
TIMER = "LOC"


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Have a process of the host on each CPU that reads the disk all the time."""
    read = f"while :; do busybox dd if={path} of=/dev/null bs=4k count=64 iflag=direct; done"
    readers = [
        subprocess.Popen(
            ["busybox", "taskset", f"{1 << cpu:x}", "busybox", "sh", "-c", f"{read} 2>/dev/null"],
            start_new_session=True,
        )
        for cpu in CPUSet.parse(f"{NODES[0]},{NODES[1]}")
    ]
    try:
        yield
    finally:
        for each in readers:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def handled(cpus: CPUSet) -> Counter[str]:
    """Return how many interrupts CPUs have handled, by the first word of their line."""
    head, *rows = Path("/proc/interrupts").read_text().splitlines()
    columns = [int(name.removeprefix("CPU")) for name in head.split()]
    found = Counter[str]()
    for name, *counts in (row.split() for row in rows):
        if len(counts) >= len(columns):  # not ERR and MIS, which have one number
            each = dict(zip(columns, map(int, counts[: len(columns)]), strict=True))
            found[name.removesuffix(":")] = sum(each[cpu] for cpu in cpus)
    return found


def handled_beside_reads(cpus: CPUSet) -> tuple[int, int]:
    """Return how many interrupts of devices and of the timer CPUs handle during `READS` reads."""
    every = CPUSet.parse(f"{NODES[0]},{NODES[1]}")
    first, before = _of_devices(handled(every)), handled(cpus)
    eventually(lambda: _of_devices(handled(every)) - first, lambda reads: reads >= READS)
    more = handled(cpus) - before
    return _of_devices(more), more[TIMER]


def _of_devices(counts: Counter[str]) -> int:
    return sum(count for name, count in counts.items() if name.isdecimal())


def test_a_latency_critical_pod_handles_no_interrupts_of_devices(
    scene: Scene, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The recipe, beside an owner without partition and annotation on the same machine."""
    quiet = {
        "exclusive-partition.resource-policy.nri.io/pod": "isolated",
        "irq-affinity.resource-policy.nri.io/pod": "isolate",
    }
    with tuner(tmp_path), reading(disk(0)):
        plain = scene.run("plain", guaranteed(1000))
        disturbed = handled_beside_reads(plain.cpus())
        pod = scene.kubelet.run_pod("quiet", {"main": guaranteed(1000)}, annotations=quiet)
        own = kernel.start(pod, "main")
        settled(own, "isolated")
        eventually(tunables, bool, every=0.25)
        left = handled_beside_reads(own.cpus())
        record_property("devices and timer, disturbed", disturbed)
        record_property("devices and timer, quiet", left)
        assert disturbed[0]
        assert not left[0]
        assert left[1] < disturbed[1]
        pod.delete()
        eventually(tunables, lambda found: not found, every=0.25)
