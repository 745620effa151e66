"""What a host can do for classes, read from its files and programs."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_policy.nri.versions import Version
from nri_policy.plugin import host_equipment
from nri_policy.plugin.host_equipment import HostEquipment, equipment_of, oci_runtime
from tests.support.clock import SleepingClock
from tests.support.patience import HANGS

NEW, OLD = ("runc", Version(1, 2, 0)), ("runc", Version(1, 1, 15))


def put(root: Path, path: str, text: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text.encode() if isinstance(text, str) else text)


def v2(root: Path) -> Path:
    put(root, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n")
    put(root, "sys/fs/cgroup/system.slice/io.weight", "default 100\n")
    put(root, "sys/fs/cgroup/system.slice/cpuset.cpus", "\n")
    put(root, "sys/fs/cgroup/system.slice/cpuset.cpus.exclusive", "\n")
    return root


def test_a_host_of_today_can_do_all(tmp_path: Path) -> None:
    found = equipment_of(v2(tmp_path), NEW)
    assert found.weights == ("io.weight",)
    reasons = (
        *(found.no_scheduler, found.no_io_priority, found.no_realtime),
        *(found.no_io_limits, found.no_io_updates, found.one_disk, found.no_partition),
    )
    assert reasons == ("",) * 7


def test_the_names_of_interrupts_are_known(tmp_path: Path) -> None:
    put(tmp_path, "proc/interrupts", "      CPU0\n 24:    7  IO-APIC  4-edge  ttyS0\n")
    assert equipment_of(tmp_path, None).interrupts == ((24, "IO-APIC 4-edge ttyS0"),)


def test_an_older_runc_ignores_classes_and_takes_one_disk(tmp_path: Path) -> None:
    found = equipment_of(v2(tmp_path), OLD)
    assert found.no_scheduler == "runtime too old: runc 1.1.15 ignores it, it needs 1.2.0"
    assert found.no_io_priority == found.no_scheduler
    assert found.one_disk
    unknown = equipment_of(tmp_path, None)
    assert not unknown.no_scheduler, "the container's first process will show"
    assert unknown.one_disk, "a wrong guess would limit the wrong disk"


def test_partitions_need_version_2_a_new_kernel_a_delegated_cpuset_and_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = v2(tmp_path) / "sys/fs/cgroup"
    assert not equipment_of(tmp_path, NEW).no_partition
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
        assert equipment_of(tmp_path, NEW).no_partition == "/sys/fs/cgroup is mounted read-only"
    (top / "system.slice/cpuset.cpus.exclusive").unlink()
    assert equipment_of(tmp_path, NEW).no_partition == (
        "kernel too old: cgroups have no cpuset.cpus.exclusive, which Linux 6.7 and newer have"
    )
    (top / "system.slice/cpuset.cpus").unlink()
    assert equipment_of(tmp_path, NEW).no_partition == (
        "cpuset is not delegated: cgroup.subtree_control does not have it"
    )
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "memory\n")
    assert equipment_of(tmp_path, NEW).no_partition == (
        "this host has no cgroup v2 with the cpuset controller"
    )


def test_without_the_io_controller_nothing_can_be_limited(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "hugetlb\n")
    found = equipment_of(tmp_path, NEW)
    assert "no cgroup v2 with the io controller" in found.no_io_limits
    assert found.no_io_updates == found.no_io_limits


@pytest.mark.parametrize(
    ("path", "text", "refused"),
    [
        ("sys/fs/cgroup/cpu/cpu.rt_runtime_us", "950000\n", True),
        ("proc/config.gz", gzip.compress(b"CONFIG_RT_GROUP_SCHED=y\n", mtime=0), True),
        ("boot/config-6.18", "CONFIG_RT_GROUP_SCHED=y\n", True),
        (
            "boot/config-6.18",
            "CONFIG_RT_GROUP_SCHED=y\nCONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED=y\n",
            False,
        ),
        ("boot/config-6.18", "# CONFIG_RT_GROUP_SCHED is not set\n", False),
        ("proc/config.gz", b"no gzip", False),
    ],
)
def test_a_kernel_with_realtime_groups_has_no_realtime(
    path: str, text: str | bytes, refused: bool, tmp_path: Path
) -> None:
    put(v2(tmp_path), path, text)
    put(tmp_path, "proc/sys/kernel/osrelease", "6.18\n")
    assert bool(equipment_of(tmp_path, NEW).no_realtime) is refused


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("runc version 1.1.5+ds1\ncommit: x", ("runc", Version(1, 1, 5))),
        ("runc version 1.3\n", ("runc", Version(1, 3, 0))),
        ("something else", None),
    ],
)
def test_the_oci_runtime_tells_its_version(
    printed: str,
    expected: tuple[str, Version] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "runc"
    program.write_text(f"#!/bin/sh\necho '{printed}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(host_equipment, "_path", lambda: str(tmp_path))
    assert oci_runtime(Path("/")) == expected
    assert oci_runtime(tmp_path) is None, "another host's programs are not run"
    (tmp_path / "crun").symlink_to(program)
    assert oci_runtime(Path("/")) is None, "which of the two pods run by is not known"


def test_a_disk_that_comes_is_seen_when_the_kernel_tells_of_it(tmp_path: Path) -> None:
    notify: list[Callable[[], None]] = []
    changes: list[int] = []

    @contextmanager
    def listen(hear: Callable[[], None]) -> Iterator[bool]:
        notify.append(hear)
        yield True

    async def sleep(seconds: float) -> None:
        if seconds == host_equipment.PERIOD:
            await asyncio.Event().wait()

    async def test() -> None:
        host = HostEquipment(v2(tmp_path), listen=listen, clock=SleepingClock(sleep=sleep))
        seen = asyncio.Event()

        async def changed() -> None:
            changes.append(len(host.latest.disks))
            seen.set()

        running = asyncio.create_task(host.run(changed))
        await asyncio.sleep(0)
        put(tmp_path, "sys/class/block/sda/dev", "8:0\n")
        put(tmp_path, "sys/class/block/sda/size", "1\n")
        notify[0]()
        await asyncio.wait_for(seen.wait(), HANGS)
        notify[0]()
        running.cancel()
        assert [disk.number for disk in host.latest.disks] == ["8:0"]

    asyncio.run(test())
    assert changes == [1]


def test_whether_there_can_be_partitions_is_not_known_before_there_is_a_cgroup(
    tmp_path: Path,
) -> None:
    """It is looked at soon again: the kubelet makes the first one."""
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n")

    @contextmanager
    def listen(_: Callable[[], None]) -> Iterator[bool]:
        yield True

    async def sleep(seconds: float) -> None:
        if seconds != host_equipment.SOON:
            await asyncio.Event().wait()
        v2(tmp_path)

    async def test() -> list[str]:
        host = HostEquipment(tmp_path, listen=listen, clock=SleepingClock(sleep=sleep))
        seen, changed = [host.latest.no_partition], asyncio.Event()

        async def change() -> None:
            seen.append(host.latest.no_partition)
            changed.set()

        running = asyncio.create_task(host.run(change))
        await asyncio.wait_for(changed.wait(), HANGS)
        running.cancel()
        return seen

    unknown = "not known yet: /sys/fs/cgroup has no cgroup whose files would show it"
    assert asyncio.run(test()) == [unknown, ""]
