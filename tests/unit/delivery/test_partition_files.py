"""The order in which partitions are written, on files with the kernel's rules (Linux 6.12)."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from nri_policy.delivery.cgroup_tree import FolderTree
from nri_policy.delivery.partition_files import (
    EXCLUSIVE,
    PARTITION,
    PartitionOutcome,
    Settled,
    ancestors,
    settle,
)
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import ExclusivePartitions
from nri_policy.simulation.cpusets import CpusetTree

A, B = "pods/a/one", "pods/b/one"
SIDE = "pods/a/side"


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def root(text: str) -> Partition:
    return Partition(kind=ExclusivePartitions.ROOT, cpus=cpus(text))


class Kernel:
    """The kernel's files of cgroups, with the writes that they got."""

    def __init__(self, **cpusets: str) -> None:
        self.cpusets = CpusetTree(CPUSet(range(8)))
        self.paths = dict[str, None]()
        self.log: list[str] = []
        self.broken = ""  # a write that fails
        for name, own in cpusets.items():
            path = name.replace("_", "/")
            for each in (*ancestors(path), path):
                if not self.cpusets.has(each):
                    self.cpusets.make(each)
                self.paths[each] = None
            self.cpusets.write(path, "cpuset.cpus", own)
            self.cpusets.enter(path, len(self.paths))

    def read(self, path: str, name: str) -> str | None:
        return self.cpusets.read(path, name) if self.cpusets.has(path) else None

    def write(self, path: str, name: str, text: str) -> None:
        self.log.append(f"{path} {name.rpartition('.')[2]} {text}".rstrip())
        if self.log[-1] == self.broken:
            raise OSError(errno.EBUSY, "")
        self.cpusets.write(path, name, text)

    def children(self, path: str) -> Collection[str]:
        return self.cpusets.children(path)

    def remove(self, path: str) -> None:
        self.cpusets.leave(path)
        self.cpusets.remove(path)
        del self.paths[path]

    def effective(self, path: str) -> str:
        return self.cpusets.read(path, "cpuset.cpus.effective")

    def files(self) -> dict[tuple[str, str], str]:
        """Return the files of all cgroups."""
        names = (EXCLUSIVE, PARTITION, "cpuset.cpus", "cpuset.cpus.effective")
        return {
            (path, name): self.cpusets.read(path, name) for path in self.paths for name in names
        }

    def exclusive(self) -> dict[str, str]:
        """Return the files of exclusive CPUs that name any."""
        return {path: text for path in self.paths if (text := self.cpusets.read(path, EXCLUSIVE))}


def held(settled: Settled) -> dict[str, str]:
    """Return the CPUs of valid partitions."""
    return {
        each: str(outcome.held.cpus)
        for each, outcome in settled.outcomes.items()
        if outcome.held is not None
    }


def test_the_cgroups_above_have_the_cpus_first_and_the_partition_is_last() -> None:
    kernel = Kernel(pods_a_one="2-3")
    assert held(settle(kernel, {A: root("2-3")}, ())) == {A: "2-3"}
    assert kernel.log == [
        "pods exclusive 2-3",
        "pods/a exclusive 2-3",
        "pods/a/one exclusive 2-3",
        "pods/a/one partition root",
    ]
    kernel.log.clear()
    settle(kernel, {A: root("2-3")}, ())
    assert kernel.log == [], "nothing is written again"


def test_a_partition_that_shrinks_gives_up_before_those_above_and_grows_after_them() -> None:
    kernel = Kernel(pods_a_one="2-5")
    settle(kernel, {A: root("2-3")}, ())
    kernel.log.clear()
    settle(kernel, {A: root("2-5")}, ())
    assert kernel.log == [f"{each} exclusive 2-5" for each in ("pods", "pods/a", A)]
    kernel.log.clear()
    settle(kernel, {A: root("2")}, ())
    assert kernel.log == [f"{each} exclusive 2" for each in (A, "pods/a", "pods")]
    assert kernel.read(A, PARTITION) == "root", "valid all the time"


def test_what_an_earlier_life_kept_for_one_that_is_gone_is_looked_for() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_b_one="4-5")
    settle(kernel, {A: root("2-3")}, ())
    kernel.remove(A)  # the cgroup of its pod stays
    kernel.cpusets.write(B, "cpuset.cpus", "2-3")
    wanted = {B: root("2-3")}
    assert held(settle(kernel, wanted, ())) == {}
    assert held(settle(kernel, wanted, None)) == {B: "2-3"}
    assert kernel.exclusive() == {"pods": "2-3", "pods/b": "2-3", B: "2-3"}


def test_what_a_container_makes_below_itself_is_its_own() -> None:
    kernel = Kernel(pods_a_one="2-3")
    settle(kernel, {A: root("2-3")}, ())
    kernel.cpusets.make(f"{A}/inner")
    kernel.cpusets.write(f"{A}/inner", EXCLUSIVE, "3")
    settle(kernel, {A: root("2-3")}, None)
    assert kernel.read(f"{A}/inner", EXCLUSIVE) == "3"


def test_other_partitions_are_left_as_they_are_and_keep_their_cpus_above() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_b_one="4-5")
    settle(kernel, {A: root("2-3")}, ())
    kernel.log.clear()
    assert held(settle(kernel, {B: root("4-5")}, (), {A: cpus("2-3")})) == {B: "4-5"}
    assert kernel.log[:2] == ["pods exclusive 2-5", "pods/b exclusive 4-5"]
    assert not any(each.startswith("pods/a") for each in kernel.log)
    settle(kernel, {B: None}, (), {A: cpus("2-3")})
    assert kernel.exclusive() == {"pods": "2-3", "pods/a": "2-3", A: "2-3"}


def test_a_partition_that_is_not_the_daemons_is_left_alone() -> None:
    kernel = Kernel(pods_a_one="2-3", others_one="", others_deep_own="6")
    for path in ("others", "others/deep", "others/deep/own"):
        kernel.cpusets.write(path, EXCLUSIVE, "6")
    kernel.cpusets.write("others/deep/own", PARTITION, "root")
    settle(kernel, {A: root("2-3")}, None)
    assert kernel.cpusets.read("others/deep/own", PARTITION) == "root"


def test_the_cgroups_below_one_are_its_folders(tmp_path: Path) -> None:
    (tmp_path / "pods" / "a").mkdir(parents=True)
    (tmp_path / "pods" / EXCLUSIVE).touch()
    top = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        tree = FolderTree(top)
        assert [*tree.children("pods")] == ["a"]
        assert [*tree.children("gone")] == []
    finally:
        os.close(top)


def test_of_two_that_exchange_cpus_both_give_up_first() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_b_one="4-5")
    before = settle(kernel, {A: root("2-3"), B: root("4-5")}, ())
    assert held(before) == {A: "2-3", B: "4-5"}
    assert held(settle(kernel, {A: root("4-5"), B: root("2-3")}, ())) == {A: "4-5", B: "2-3"}
    assert kernel.exclusive() == {
        "pods": "2-5",
        "pods/a": "4-5",
        A: "4-5",
        "pods/b": "2-3",
        B: "2-3",
    }


def test_the_end_of_a_partition_leaves_all_files_as_before() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_b_one="4-5")
    before = kernel.files()
    settled = settle(kernel, {A: root("2-3"), B: root("4-5")}, ())
    assert {*settled.above} == {"pods", "pods/a", "pods/b"}
    settled = settle(kernel, {A: None, B: None}, ())
    assert kernel.files() == before
    assert not settled.above


def test_what_is_kept_for_one_that_is_gone_is_taken_out() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_b_one="4-5")
    above = settle(kernel, {A: root("2-3"), B: root("4-5")}, ()).above
    kernel.remove(A)
    settled = settle(kernel, {B: root("4-5")}, above)
    assert kernel.exclusive() == {"pods": "4-5", "pods/b": "4-5", B: "4-5"}
    assert {*settled.above} == {"pods", "pods/b"}


def test_a_cgroup_above_that_cannot_be_written_is_reported_until_it_can() -> None:
    kernel = Kernel(pods_a_one="2-3")
    settle(kernel, {A: root("2-3")}, ())
    kernel.broken = "pods/a exclusive"
    settled = settle(kernel, {A: None}, ())
    busy = "cpuset.cpus.exclusive: Device or resource busy"
    assert settled.above["pods/a"] == busy
    kernel.broken = ""
    assert not settle(kernel, {}, settled.above).above
    assert not any(kernel.exclusive().values())


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("done", range(5))
def test_an_earlier_life_may_have_ended_between_any_two_writes(done: int, *, stays: bool) -> None:
    there = Kernel(pods_a_one="2-3")
    settle(there, {A: root("2-3")}, ())
    kernel = Kernel(pods_a_one="2-3", pods_b_one="4-5")
    for line in there.log[:done]:
        path, what, text = line.split()
        kernel.write(path, f"cpuset.cpus.{what}", text)
    wanted = {A: root("2-3"), B: root("4-5")} if stays else dict.fromkeys((A, B))
    assert held(settle(kernel, wanted, ())) == ({A: "2-3", B: "4-5"} if stays else {})
    assert bool(kernel.exclusive()) is stays


def test_a_sibling_that_overlaps_is_the_reason_and_nothing_is_left() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_a_side="0-3")
    settled = settle(kernel, {A: root("2-3")}, ())
    error = "Cpu list in cpuset.cpus not exclusive"
    assert settled.outcomes[A] == PartitionOutcome(error=error, lost="member was written")
    assert kernel.read(A, PARTITION) == "member"
    assert kernel.read(A, EXCLUSIVE) == ""
    kernel.cpusets.write(SIDE, "cpuset.cpus", "0-1")
    assert held(settle(kernel, {A: root("2-3")}, ())) == {A: "2-3"}


def test_one_that_a_sibling_made_invalid_is_made_again() -> None:
    kernel = Kernel(pods_a_one="2-3", pods_a_side="0-1")
    settle(kernel, {A: root("2-3")}, ())
    kernel.cpusets.write(SIDE, "cpuset.cpus", "0-3")
    assert "invalid" in str(kernel.read(A, PARTITION))
    kernel.cpusets.write(SIDE, "cpuset.cpus", "0-1")
    assert held(settle(kernel, {A: root("2-3")}, ())) == {A: "2-3"}
    assert kernel.effective(A) == "2-3"


@pytest.mark.parametrize("looked_at", [True, False])
def test_one_whose_cpus_were_offline_is_made_again(*, looked_at: bool) -> None:
    kernel = Kernel(pods_a_one="2")
    isolated = Partition(kind=ExclusivePartitions.ISOLATED, cpus=cpus("2"))
    settle(kernel, {A: isolated}, ())
    kernel.cpusets.set_online(cpus("0-1,3-7"))
    if looked_at:
        settle(kernel, {A: isolated}, ())
    kernel.cpusets.set_online(cpus("0-7"))
    assert settle(kernel, {A: isolated}, ()).outcomes[A].held == isolated
    assert kernel.effective(A) == "2"


def test_a_write_that_fails_is_the_reason_of_those_below() -> None:
    kernel = Kernel(pods_a_one="2-3")
    kernel.broken = "pods exclusive 2-3"
    settled = settle(kernel, {A: root("2-3")}, ())
    busy = "cpuset.cpus.exclusive: Device or resource busy"
    assert settled.outcomes[A].error == busy


def test_without_a_cpuset_of_its_own_it_is_none() -> None:
    kernel = Kernel(pods_a_one="")
    settled = settle(kernel, {A: root("2-3")}, ())
    assert settled.outcomes[A].error == "its cpuset is not set"


def test_a_cgroup_that_is_gone_has_no_outcome() -> None:
    assert settle(Kernel(), {A: root("2-3")}, ()).outcomes == {}


def test_the_kind_changes_in_place() -> None:
    kernel = Kernel(pods_a_one="2-3")
    settle(kernel, {A: root("2-3")}, ())
    kernel.log.clear()
    isolated = Partition(kind=ExclusivePartitions.ISOLATED, cpus=cpus("2-3"))
    assert settle(kernel, {A: isolated}, ()).outcomes[A].held == isolated
    assert kernel.log == [f"{A} partition isolated"]
