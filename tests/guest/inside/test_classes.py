"""Limits of disks and scheduling classes on a kernel with cgroup v2 alone."""

from __future__ import annotations

import os
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
    classes = {"slow": [{"Devices": [f"/dev/{spare()[0].name}"], **LIMITS}]}
    return SETTINGS | {"control": {"blockio": {"enable": True, "classes": classes}}}


def limits(container: Container) -> str:
    """Return the container's io.max."""
    return (CGROUPS / container.cgroup.strip("/") / "io.max").read_text()


def test_limits_are_in_the_cgroup(scene: Scene) -> None:
    first, _ = spare()
    slow = scene.run("slow", BEST_EFFORT, annotations={KEY: "slow"})
    free = scene.run("free", BEST_EFFORT)
    assert limits(slow) == f"{first.number} rbps={RATE} wbps={RATE} riops=max wiops=max\n"
    assert limits(free) == ""


def test_a_limit_that_somebody_lifts_is_drift(scene: Scene) -> None:
    first, _ = spare()
    slow = scene.run("slow", BEST_EFFORT, annotations={KEY: "slow"})
    file = CGROUPS / slow.cgroup.strip("/") / "io.max"
    file.write_text(f"{first.number} rbps=max wbps=max")
    drifts = eventually(lambda: scene.audit().drifts, bool, 60, every=1)
    assert [(each.container, each.what) for each in drifts] == [("default/slow/main", "io")]


@pytest.mark.parametrize("policy", [os.SCHED_FIFO, os.SCHED_RR])
def test_this_kernel_has_realtime_for_containers(policy: int, scene: Scene) -> None:
    """What the daemon takes for granted where it finds no real-time groups."""
    web = scene.run("web", BEST_EFFORT)
    os.sched_setscheduler(web.pid(), policy, os.sched_param(10))
    assert os.sched_getscheduler(web.pid()) == policy
