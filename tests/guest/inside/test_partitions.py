"""Owners whose CPUs the kernel keeps all others off: sharers and busy processes of the host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup
from tests.e2e.kubelet import BEST_EFFORT, Container, guaranteed
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.partition_tree import EXCLUSIVE, PARTITION, above, cleared, read, settled
from tests.guest.inside.scene import SETTINGS, Scene, near

STARTS = 2
KIND, LAST_CPU, STATE = "root", 38, 2  # the latter two: fields of /proc/PID/stat, from 0


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return SETTINGS | {"exclusivePartitions": KIND}


def own_cpus(owner: Container) -> CPUSet:
    """Return the CPUs that the kernel gives an owner."""
    return CPUSet.parse(kernel.effective(owner).cpus)


@contextmanager
def busy() -> Iterator[int]:
    """Yield a process of the host that computes all the time."""
    with subprocess.Popen(["busybox", "sh", "-c", "while :; do :; done"]) as started:
        try:
            yield started.pid
        finally:
            started.kill()


def strangers(pids: list[int], cpus: CPUSet) -> list[str]:
    """Return which of the processes run on these CPUs, or may."""
    found = []
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        running = fields[STATE - 2] == "R" and int(fields[LAST_CPU - 2]) in cpus
        if running or not cgroup.allowed(pid).cpus.isdisjoint(cpus):
            found.append(f"{pid} on {fields[LAST_CPU - 2]}")
    return found


def started_beside(scene: Scene, pids: list[int], kind: str) -> int:
    """Start an owner; return how often one of the processes was seen on its CPUs from then on.

    That is, from when it is a partition: on a slow machine the start does not wait for that.
    """
    owner = scene.run("owner", guaranteed(2000), annotations=near("shared"))
    cpus = owner.cpus()
    assert eventually(lambda: read(owner.cgroup, PARTITION), kind.__eq__) == kind
    seen = sum(len(strangers(pids, cpus)) for _ in range(3))
    owner.pod.delete()
    return seen


def test_no_other_process_is_on_the_cpus_of_a_partition(scene: Scene) -> None:
    shared = scene.run("shared", BEST_EFFORT)
    with busy() as pid:
        pids = [pid, shared.pid()]
        for _ in range(STARTS):
            assert started_beside(scene, pids, KIND) == 0
        scene.daemon.reload(SETTINGS)
        try:
            assert started_beside(scene, pids, "member") > 0, "this test could not see one"
        finally:
            scene.daemon.reload(SETTINGS | {"exclusivePartitions": KIND})


def test_an_owner_grows_shrinks_and_goes(scene: Scene) -> None:
    scene.run("shared", BEST_EFFORT)
    owner = scene.run("owner", guaranteed(2000), annotations=near("shared"))
    for size in (3, 1, 2):
        owner.update(guaranteed(size * 1000, (32 << 20) + size * 4096))
        scene.settle()
        assert len(own_cpus(owner)) == size
        settled(owner, KIND)
    owner.pod.delete()
    cleared()
    scene.settle()


@pytest.mark.parametrize("writes", [1, 3])
def test_a_half_made_partition_is_completed_after_a_crash(scene: Scene, writes: int) -> None:
    """The daemon was killed after so many of the four writes."""
    owner = scene.run("owner", guaranteed(2000))
    path = owner.cgroup.strip("/")
    folders = [*above(path), path]
    scene.daemon.kill()
    cgroup.write(path, PARTITION, "member")
    for each in reversed(folders[writes:]):
        cgroup.write(each, EXCLUSIVE, "")
    scene.daemon.start()
    settled(owner, KIND)
    scene.settle()


def test_what_a_dead_owner_left_is_no_hindrance(scene: Scene) -> None:
    owner = scene.run("owner", guaranteed(2000))
    cpus = owner.cpus()
    scene.daemon.kill()
    owner.pod.delete()
    scene.daemon.start()
    again = scene.run("again", guaranteed(2000))
    assert again.cpus() == cpus
    settled(again, KIND)
