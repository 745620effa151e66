"""Limits of disks on a kernel with cgroup v2 alone; the disks come after their containers.

QEMU plugs a virtio disk in; a loop device is there from the start, and is given its file later.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware.disks import Disk, disks_of
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import CGROUPS
from tests.guest.inside.scene import SETTINGS, Scene, pods

KEY = "blockioclass.resource-policy.nri.io/container."
VIRTIO, LOOP = "vda", "loop0"
DISKS = [VIRTIO, LOOP]
RATE = 1 << 20  # bytes a second
LIMITS = {"ThrottleWriteBps": "1Mi", "ThrottleReadBps": "1Mi"}
MODULES = Path("modules")  # of the kernel
PORTS = Path("/sys/class/virtio-ports")
TRIES = 10  # a machine that stands still for a moment writes slower


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    classes = {disk: [{"Devices": [f"/dev/{disk}"], **LIMITS}] for disk in DISKS}
    return {**SETTINGS, "control": {"blockio": {"enable": True, "classes": classes}}}


@pytest.fixture(scope="module")
def limited(runtime: Runtime, daemon: Daemon) -> Iterator[Scene]:
    """One pod of three containers: one for each disk, and `free`, which is in no class."""
    with pods(runtime) as kubelet:
        scene = Scene(kubelet=kubelet, daemon=daemon)
        asked = dict.fromkeys([*DISKS, "free"], BEST_EFFORT)
        scene.run_all("pod", asked, {KEY + disk: disk for disk in DISKS})
        yield scene


def plug_in(disk: str, folder: Path) -> None:
    """Give the machine a disk."""
    if disk == VIRTIO:
        load("virtio_blk")
        (port,) = (each for each in PORTS.iterdir() if (each / "name").read_text() == "monitor\n")
        Path("/dev", port.name).write_text("device_add virtio-blk-pci,drive=late,bus=free\n")
    else:
        load("loop")
        file = folder / "file"
        with file.open("wb") as opened:
            opened.truncate(16 << 20)
        subprocess.run(["busybox", "losetup", f"/dev/{disk}", file], check=True)


def load(module: str) -> None:
    """Load a module of the kernel."""
    subprocess.run(["busybox", "insmod", MODULES / f"{module}.ko"], check=True)


def number(name: str) -> str:
    """Return a disk's numbers, as the kernel writes them."""
    (disk,) = (disk for disk in disks() if disk.name == name)
    return disk.number


def disks() -> tuple[Disk, ...]:
    """Return the machine's disks."""
    return disks_of(Path("/"))


def of(scene: Scene, name: str) -> Container:
    """Return a container by its name."""
    (container,) = (each for each in scene.containers() if each.name == name)
    return container


def limits(container: Container) -> str:
    """Return the container's io.max."""
    return (CGROUPS / container.cgroup.strip("/") / "io.max").read_text()


def rate(container: Container, disk: str, megabytes: int) -> float:
    """Return how fast a process of the container writes to a disk: bytes a second."""
    procs = CGROUPS / container.cgroup.strip("/") / "cgroup.procs"
    dd = f"busybox dd if=/dev/zero bs=64k count={megabytes * 16}"
    script = f"echo $$ > {procs} && exec busybox time -f %e {dd}"
    # opened out here: in the container's cgroup no process may open devices of others
    opened = os.open(f"/dev/{disk}", os.O_WRONLY | os.O_DIRECT)
    try:
        command = ["busybox", "sh", "-c", script]
        done = subprocess.run(command, check=False, stdout=opened, stderr=subprocess.PIPE)
    finally:
        os.close(opened)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    return (megabytes << 20) / float(said.split()[-1])


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_comes_later_is_limited(limited: Scene, disk: str, tmp_path: Path) -> None:
    assert disk not in {each.name for each in disks()}
    (item,) = limited.explain(f"pod/{disk}").classes or ()
    lacking = f"block I/O class {disk}: no disk is /dev/{disk}"
    assert (item.state, item.wanted) == ("unsupported", lacking)
    assert not limits(of(limited, disk))
    plug_in(disk, tmp_path)
    found = eventually(lambda: limits(of(limited, disk)), bool, every=0.25)
    assert found == f"{number(disk)} rbps={RATE} wbps={RATE} riops=max wiops=max\n"
    assert not limits(of(limited, "free"))
    assert not limited.audit().drifts
    assert [each.state for each in limited.explain(f"pod/{disk}").classes or ()] == ["ok"]


@pytest.mark.parametrize("disk", DISKS)
def test_a_container_writes_as_fast_as_its_limit_lets_it(limited: Scene, disk: str) -> None:
    rates = (rate(of(limited, disk), disk, 2) for _ in range(TRIES))
    assert any(each == pytest.approx(RATE, rel=0.2) for each in rates)
    # the disk is faster than that
    assert any(rate(of(limited, "free"), disk, 16) > 2 * RATE for _ in range(TRIES))


def test_a_limit_that_somebody_lifts_is_drift(limited: Scene) -> None:
    file = CGROUPS / of(limited, VIRTIO).cgroup.strip("/") / "io.max"
    file.write_text(f"{number(VIRTIO)} rbps=max wbps=max")
    drifts = eventually(lambda: limited.audit().drifts, bool, every=1)
    assert [(each.container, each.what) for each in drifts] == [(f"default/pod/{VIRTIO}", "io")]


def test_a_disk_that_is_there_is_limited_from_the_start(limited: Scene) -> None:
    pod = limited.kubelet.run_pod("new", {"main": BEST_EFFORT}, annotations={KEY + "main": LOOP})
    assert number(LOOP) in limits(kernel.start(pod))
