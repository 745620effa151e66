"""What OCI runtimes are given of classes: by each containerd, for a host that has what they take.

That host has cgroup v2 with limits of disks, and a kernel that refuses nothing: runc hears none of
what is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware import synthetic
from tests.e2e.conftest import NEWEST
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet
from tests.e2e.runtime import Recorded, Runtime
from tests.e2e.waiting import eventually

SCHEDULING = "scheduling-class.resource-policy.nri.io/pod"
BLOCKIO = "blockioclass.resource-policy.nri.io/pod"
CLASSES: list[dict[str, Any]] = [
    {"name": "background", "policy": "batch", "nice": 10, "ioClass": "be", "ioPriority": 7},
    {"name": "realtime", "policy": "fifo", "priority": 10, "flags": ["reset-on-fork"]},
    {"name": "quiet", "ioClass": "idle"},
]
DUE = {
    "name": "due",
    "policy": "deadline",
    "flags": ["reset-on-fork"],
    "runtime": "1ms",
    "deadline": "10ms",
}
LIMIT = {"ThrottleWriteBps": "1M"}
SDA, SDB = (f"8:{minor} rbps=max wbps=1000000 riops=max wiops=max" for minor in (0, 16))
UEVENTS = Path("/sys/class/block")


@pytest.fixture
def settings() -> dict[str, Any]:
    classes = {
        "slow": [{"Devices": ["/dev/sda"], **LIMIT}],
        "late": [{"Devices": ["/dev/disk/by-id/late"], **LIMIT}],
        "light": [{"Weight": 10}],
    }
    return {
        "reservedResources": {"cpu": "750m"},
        "schedulingClasses": [*CLASSES, DUE],
        "control": {"blockio": {"enable": True, "classes": classes}},
    }


@pytest.fixture
def host_root(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    root.mkdir()
    synthetic.write("package:2 numa:2 core:2 pu:2", root)
    cgroups = root / "sys/fs/cgroup"
    (cgroups / "kubepods").mkdir(parents=True)
    (cgroups / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (cgroups / "kubepods/io.weight").write_text("default 100\n")
    attach(root, "sda", "8:0")
    return root


def attach(root: Path, name: str, number: str, *links: str) -> None:
    """Put a disk into the host; `bfq` is its scheduler, and *links* are what udev calls it."""
    records = root / "run/udev/data"
    records.mkdir(parents=True, exist_ok=True)
    (records / f"b{number}").write_text("".join(f"S:{link}\n" for link in links))
    folder = root / "sys/class/block" / name
    (folder / "queue").mkdir(parents=True)
    (folder / "queue/scheduler").write_text("none [bfq]\n")
    (folder / "size").write_text("1024\n")
    (folder / "dev").write_text(f"{number}\n")


def given(runtime: Runtime, container: Container) -> list[Recorded]:
    """Return all that the OCI runtime was given for a container, in order."""
    return [each for each in runtime.recorded() if each.container == container.id]


def run(stage: Kubelet, name: str, **annotations: str) -> Container:
    keys: Mapping[str, str] = {"scheduling": SCHEDULING, "blockio": BLOCKIO}
    return stage.run(
        name, BEST_EFFORT, annotations={keys[kind]: value for kind, value in annotations.items()}
    )


@pytest.mark.parametrize("runtime", [NEWEST], indirect=True)
def test_the_newest_runtime_passes_scheduling_classes_on(
    daemon: Daemon, stage: Kubelet, runtime: Runtime
) -> None:
    expected = {
        "background": (
            {"policy": "SCHED_BATCH", "nice": 10},
            {"class": "IOPRIO_CLASS_BE", "priority": 7},
        ),
        "realtime": (
            {"policy": "SCHED_FIFO", "priority": 10, "flags": ["SCHED_FLAG_RESET_ON_FORK"]},
            None,
        ),
        "quiet": (None, {"class": "IOPRIO_CLASS_IDLE", "priority": 0}),
    }
    del daemon
    for name, (scheduler, io_priority) in expected.items():
        (created, *updates) = given(runtime, run(stage, name, scheduling=name))
        assert (created.scheduler, created.io_priority) == (scheduler, io_priority)
        assert not any(each.scheduler or each.io_priority for each in updates)
    (created, *_) = given(runtime, stage.run("plain", BEST_EFFORT))
    assert (created.scheduler, created.io_priority, created.unified) == (None, None, {})
    preserve = {"cpu.preserve.resource-policy.nri.io/pod": "true", SCHEDULING: "due"}
    (created, *_) = given(runtime, stage.run("due", BEST_EFFORT, annotations=preserve))
    assert created.scheduler == {
        "policy": "SCHED_DEADLINE",
        "flags": ["SCHED_FLAG_RESET_ON_FORK"],
        "runtime": 1_000_000,
        "deadline": 10_000_000,
        "period": 10_000_000,
    }, "nanoseconds"


@pytest.mark.parametrize("runtime", ["trixie", "forky", NEWEST], indirect=True)
def test_limits_of_disks_go_with_the_creation_and_follow_to_a_disk_that_comes(
    daemon: Daemon, stage: Kubelet, runtime: Runtime, host_root: Path
) -> None:
    slow, late = run(stage, "slow", blockio="slow"), run(stage, "late", blockio="late")
    light = run(stage, "light", blockio="light")
    assert given(runtime, slow)[0].unified == {"io.max": SDA}
    assert given(runtime, light)[0].unified == {"io.weight": "default 1"}
    assert not any(each.unified for each in given(runtime, late))
    attach(host_root, "sdb", "8:16", "disk/by-id/late")
    with suppress(OSError, StopIteration):  # else the daemon looks within a minute
        # the kernel sends an event of some disk, as it does for a new one
        (next(UEVENTS.iterdir()) / "uevent").write_text("change")
    told = eventually(
        lambda: daemon.ask("explain", "late/main", "-o", "json").stdout,
        lambda text: "no disk is" not in text,
    )
    if "would lose what the kubelet has set" in told:  # of an old runtime
        assert stage.pods[0].kubelet.version().startswith("1.7.")
        assert not any(each.unified for each in given(runtime, late))
        return
    found = eventually(
        lambda: [each.unified for each in given(runtime, late) if each.unified], bool
    )
    assert found[0] == {"io.max": SDB}
    assert given(runtime, slow)[-1].unified in ({"io.max": SDA}, {})
