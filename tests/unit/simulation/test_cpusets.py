"""The fake cpusets do what the real kernel did, in every recorded scene."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.cpusets import (
    CPUS,
    EFFECTIVE,
    EXCLUSIVE,
    ISOLATED,
    PARTITION,
    CpusetTree,
)
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.guest import partitions
from tests.guest.fake_cgroups import FakeCgroups
from tests.support import nodes
from tests.unit.simulation.scripted import pod

RECORDING = partitions.parse(partitions.RECORDING.read_text())
ALL = partitions.MACHINES["plain"] | partitions.AT_BOOT


def test_every_scene_is_recorded() -> None:
    assert RECORDING.keys() == ALL.keys()


@pytest.mark.parametrize("name", ALL)
def test_the_fake_does_what_the_kernel_did(name: str) -> None:
    isolated = partitions.BOOT_ISOLATED if name in partitions.AT_BOOT else CPUSet()
    assert partitions.play(FakeCgroups(isolated), ALL[name]) == RECORDING[name]


def refused(cpusets: CpusetTree, path: str, name: str, text: str) -> int | None:
    with pytest.raises(OSError, match="Errno") as caught:
        cpusets.write(path, name, text)
    return caught.value.errno


def test_files_that_are_not_there_or_cannot_be_written() -> None:
    cpusets = CpusetTree(CPUSet(range(4)))
    cpusets.make("pods")
    assert refused(cpusets, ".", CPUS, "0") == errno.EACCES
    assert refused(cpusets, "pods", EFFECTIVE, "0") == errno.EACCES
    assert refused(cpusets, "other", CPUS, "0") == errno.ENOENT
    for path, name in ((".", CPUS), ("pods", ISOLATED), ("other", EFFECTIVE)):
        with pytest.raises(FileNotFoundError):
            cpusets.read(path, name)
    with pytest.raises(FileExistsError):
        cpusets.make("pods")


def test_a_cgroup_with_others_below_it_cannot_be_removed() -> None:
    cpusets = CpusetTree(CPUSet(range(4)))
    cpusets.make("pods")
    cpusets.make("pods/a")
    cpusets.enter("pods/a", 1)
    for path in ("pods", "pods/a"):
        with pytest.raises(OSError, match="busy"):
            cpusets.remove(path)
    cpusets.leave("pods/a")
    cpusets.remove("pods/a")
    assert not cpusets.has("pods/a")


async def test_simulated_containers_have_these_files(tmp_path: Path) -> None:
    machine = nodes.machine("package:1 numa:1(memory=4GiB) core:4 pu:1")
    runtime = EmbeddedRuntime(
        tmp_path / "nri.sock", online_cpus=machine.online, memory_nodes=CPUSet([0])
    )
    async with runtime:
        cgroups = SimulatedCgroups(runtime)
        pods = [await runtime.start_pod(pod(name)) for name in ("owner", "other")]
        owner, other = (each.containers[0] for each in pods)
        paths = [folder_of(each.message.linux.cgroups_path) or "" for each in (owner, other)]
        parts = paths[0].split("/")
        assert cgroups.read(paths[0], EFFECTIVE) == "0-3"
        owner.write_cpus(CPUSet([2, 3]), cause="a test")
        for depth in range(1, len(parts) + 1):
            cgroups.write("/".join(parts[:depth]), EXCLUSIVE, "2-3")
        cgroups.write(paths[0], PARTITION, "root")
        assert [cgroups.read(each, EFFECTIVE) for each in paths] == ["2-3", "0-1"]
        other.write_cpus(CPUSet([1, 2]), cause="a late write")
        observed = cgroups.observe(other.id, paths[1], turn=0)
        assert observed is not None
        assert observed.cpus.effective == CPUSet([1])
        await runtime.delete_pod(pods[0])
        assert cgroups.read(paths[0], PARTITION) is None
        assert cgroups.read("/".join(parts[:-1]), EXCLUSIVE) is None
        assert cgroups.read(paths[1], EFFECTIVE) == "1-2"
        runtime.machine.online_cpus = CPUSet([0, 1, 3])
        assert cgroups.read(paths[1], EFFECTIVE) == "1"
