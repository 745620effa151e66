"""Writing cpusets to this host's real cgroups, those below a container's included."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_policy.audit.cgroup import Cgroups
from nri_policy.delivery.cpuset_files import MOST_BELOW, Change, Confined
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.inotify import Inotify
from tests.e2e import cgroup as cgroups
from tests.support.patience import HANGS

NAME = f"nri-policy-test-{os.getpid()}"


@pytest.fixture
def top() -> Iterator[Path]:
    """A cgroup of our own with CPUs 0-1, in whichever version this host has."""
    mount = cgroups.cpuset_hierarchy()
    if os.geteuid() != 0 or mount is None:
        pytest.skip("cgroups need root and the cpuset controller")
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("CPUs 0 and 1 are needed")
    folder = Path(mount) / NAME
    make(folder, "0-1")
    yield folder
    for each in sorted(folder.rglob("*"), reverse=True):
        if each.is_dir():
            each.rmdir()
    folder.rmdir()


def make(folder: Path, cpus: str) -> Path:
    folder.mkdir()
    mems = folder.parent / "cpuset.mems"
    if mems.read_text().strip():  # version 1 begins with none of either
        (folder / "cpuset.mems").write_text(mems.read_text())
    (folder / "cpuset.cpus").write_text(cpus)
    return folder


def cpus_of(folder: Path) -> str:
    return (folder / "cpuset.cpus").read_text().strip()


def nested_matters(top: Path) -> bool:
    """Whether this is version 1, where the cgroups below are a matter of their own."""
    return not (top / "cgroup.controllers").exists()


def run(program: str, *arguments: str) -> None:
    subprocess.run(["sh", "-c", program, *arguments], check=True)


def confine(cpus: str, change: Change) -> Confined:
    done = Cgroups(Path("/")).confine({f"/{NAME}": CPUSet.parse(cpus)}, change)
    return done[f"/{NAME}"]


def test_a_cgroup_moves_to_quite_other_cpus_with_all_below_it(top: Path) -> None:
    (top / "cpuset.cpus").write_text("1")
    child = make(top / "child", "1")
    grandchild = make(child / "grandchild", "1")
    assert confine("0", Change.LEAVE) == Confined(cpus=CPUSet([0]), written=True)
    assert cpus_of(top) == "0"
    if nested_matters(top):
        assert (cpus_of(child), cpus_of(grandchild)) == ("0", "0")


def test_a_cgroup_below_keeps_its_own_part_or_has_all_again(top: Path) -> None:
    whole, part = make(top / "whole", "0-1"), make(top / "part", "1")
    assert confine("1", Change.LEAVE).cpus == CPUSet([1])
    if nested_matters(top):
        assert (cpus_of(whole), cpus_of(part)) == ("1", "1")
    assert confine("0-1", Change.WHOLE).cpus == CPUSet([0, 1])
    if nested_matters(top):
        # `part` had all CPUs at that time, so it looks like `whole`
        assert (cpus_of(whole), cpus_of(part)) == ("0-1", "0-1")


def test_a_container_with_too_many_cgroups_below_is_left_to_the_runtime(top: Path) -> None:
    if not nested_matters(top):
        pytest.skip("on version 2 what is below follows by itself")
    for number in range(MOST_BELOW + 1):
        make(top / f"child{number}", "0-1")
    done = confine("0", Change.LEAVE)
    assert done.cpus == CPUSet([0, 1])
    assert "busy" in done.error


def test_a_probe_changes_nothing(top: Path) -> None:
    assert confine("", Change.REWRITE) == Confined(cpus=CPUSet([0, 1]), written=True)
    assert cpus_of(top) == "0-1"


@pytest.mark.parametrize(
    "program",
    [
        'echo 1 > "/$1"',
        'unshare --mount sh -c "echo 1 > /$1"',
        'd=$(mktemp -d) && mount --bind "$0" "$d" && echo 1 > "$d/cpuset.cpus"; umount "$d"',
    ],
    ids=["", "in another mount namespace", "through another mount"],
)
async def test_the_kernel_tells_of_a_cpuset_that_another_process_writes(
    top: Path, program: str
) -> None:
    (file,) = Cgroups(Path("/")).cpuset_files([f"/{NAME}"], [])
    changed = asyncio.Event()
    with Inotify(changed.set) as inotify:
        inotify.watch([file])
        assert cpus_of(top) == "0-1"
        run(program, str(top), file.removeprefix("/"))
        await asyncio.wait_for(changed.wait(), HANGS)
    assert cpus_of(top) == "1"
