"""Limits of disks and scheduling classes on a kernel with cgroup v2 alone.

The classes are for the disk that is there, and for the one that comes later: an NVMe drive that is
taken out and put back as who plugs one in does. A write of ten megabytes at one a second takes ten.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware.disks import Disk, disks_of
from tests.e2e.kubelet import BEST_EFFORT, Container
from tests.e2e.waiting import eventually
from tests.guest.inside.kernel import CGROUPS
from tests.guest.inside.scene import SETTINGS, Scene

KEY = "blockioclass.resource-policy.nri.io/pod"
RATE = 1 << 20  # bytes a second
MEGABYTES = 10
LIMITS = {"ThrottleWriteBps": "1Mi", "ThrottleReadBps": "1Mi"}


def spare() -> list[Disk]:
    """Return the two disks that nobody needs: their buses have bridges of their own."""
    disks = [disk for disk in disks_of(Path("/")) if disk.name.endswith("n1")]
    return [disk for disk in disks if "/pci0000:00/" not in str(function(disk))]


def function(disk: Disk) -> Path:
    """Return the PCI function of a disk's controller."""
    return Path(os.path.realpath(f"/sys/class/block/{disk.name}/device/device"))


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    classes = {
        name: [{"Devices": [f"/dev/{disk.name}"], **LIMITS}]
        for name, disk in zip(("slow", "later"), spare(), strict=True)
    }
    return SETTINGS | {"control": {"blockio": {"enable": True, "classes": classes}}}


def limits(container: Container) -> str:
    """Return the container's io.max."""
    return (CGROUPS / container.cgroup.strip("/") / "io.max").read_text()


def seconds_to_write(container: Container, disk: Disk) -> float:
    """Return how long a process of the container takes to write past the page cache."""
    write = f"dd if=/dev/zero of=/dev/{disk.name} bs=64k count={MEGABYTES * 16} oflag=direct"
    procs = CGROUPS / container.cgroup.strip("/") / "cgroup.procs"
    script = f"echo $$ > {procs}; exec busybox {write}"
    began = time.monotonic()
    subprocess.run(["busybox", "sh", "-c", script], check=True, capture_output=True)
    return time.monotonic() - began


def test_writes_are_as_fast_as_the_class_says(scene: Scene) -> None:
    first, _ = spare()
    slow = scene.run("slow", BEST_EFFORT, annotations={KEY: "slow"})
    free = scene.run("free", BEST_EFFORT)
    assert limits(slow) == f"{first.number} rbps={RATE} wbps={RATE} riops=max wiops=max\n"
    assert limits(free) == ""
    assert seconds_to_write(slow, first) == pytest.approx(MEGABYTES, rel=0.2)
    assert seconds_to_write(free, first) < MEGABYTES / 2
    assert not scene.audit().drifts


def test_a_limit_that_somebody_lifts_is_drift(scene: Scene) -> None:
    first, _ = spare()
    slow = scene.run("slow", BEST_EFFORT, annotations={KEY: "slow"})
    file = CGROUPS / slow.cgroup.strip("/") / "io.max"
    file.write_text(f"{first.number} rbps=max wbps=max")
    drifts = eventually(lambda: scene.audit().drifts, bool, 60, every=1)
    assert [(each.container, each.what) for each in drifts] == [("default/slow/main", "io")]


def test_a_disk_that_is_plugged_in_later_is_limited_too(scene: Scene) -> None:
    _, second = spare()
    (function(second) / "remove").write_text("1")
    try:
        assert len(spare()) == 1
        later = scene.run("later", BEST_EFFORT, annotations={KEY: "later"})
        assert limits(later) == ""
        explained = scene.explain("later/main").classes
        assert explained is not None
        assert [each.state for each in explained] == ["unsupported"]
    finally:
        Path("/sys/bus/pci/rescan").write_text("1")
        eventually(lambda: len(spare()), lambda count: count == 2, 60, every=0.5)
    _, second = spare()
    line = f"{second.number} rbps={RATE} wbps={RATE} riops=max wiops=max\n"
    assert eventually(lambda: limits(later), lambda found: found == line, 120, every=1) == line


@pytest.mark.parametrize("policy", [os.SCHED_FIFO, os.SCHED_RR])
def test_this_kernel_has_realtime_for_containers(policy: int, scene: Scene) -> None:
    """What the daemon takes for granted where it finds no real-time groups."""
    web = scene.run("web", BEST_EFFORT)
    os.sched_setscheduler(web.pid(), policy, os.sched_param(10))
    assert os.sched_getscheduler(web.pid()) == policy
