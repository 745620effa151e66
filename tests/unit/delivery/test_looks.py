"""What is written to cgroups, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from nri_policy.delivery.cpuset_checks import CpusetCheck, enforce
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.engine.grant import Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources


@dataclass
class Files:
    """Cgroups by name, and what was written to them."""

    cpus: dict[str, str]
    failing: str = ""
    written: list[tuple[str, str]] = field(default_factory=list)

    def resources(self, cgroup: str) -> Resources | None:
        return Resources(cpus=self.cpus[cgroup]) if cgroup in self.cpus else None

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        return {each: self._confine(each, cpus, change) for each, cpus in wanted.items()}

    def processes(self, cgroup: str) -> Collection[int]:
        raise AssertionError(cgroup)

    def kept_by_systemd(self, cgroup: str) -> bool:  # noqa: ARG002 - the signature
        return False

    def _confine(self, cgroup: str, wanted: CPUSet, change: Change) -> Confined:
        now = CPUSet.parse(self.cpus[cgroup])
        if cgroup == self.failing:
            return Confined(cpus=now, error="Device or resource busy")
        target = change.target(now, wanted)
        self.written.append((cgroup, str(target)))
        return Confined(cpus=target, written=True)


def case(cgroup: str, wanted: str, *, own: str = "", lost: bool = False) -> CpusetCheck:
    return CpusetCheck(
        container_id=cgroup,
        placement=Placement(cpus=CPUSet.parse(wanted), mems=EMPTY, shares=None, cause=""),
        own=CPUSet.parse(own),
        lost=lost,
        settled=not lost,
    )


def written(files: Files, *cases: CpusetCheck, taken: str) -> list[tuple[str, str]]:
    paths = {each.container_id: each.container_id for each in cases}
    enforce(cast("HostCgroups", files), paths, cases, CPUSet.parse(taken), EMPTY)
    return files.written


def test_who_is_on_a_cpu_of_somebody_elses_own_leaves_it_at_once() -> None:
    files = Files({"a": "1-3", "b": "1-3"})
    assert written(files, case("a", "2-3"), case("b", "1", own="1"), taken="1") == [("a", "2-3")]


def test_what_harms_nobody_is_left_to_the_runtime() -> None:
    files = Files({"more": "1", "less": "1-3", "right": "1-2"})
    cases = case("more", "1-3"), case("less", "1-2"), case("right", "1-2"), case("away", "1")
    assert written(files, *cases, taken="0") == []


def test_what_the_runtime_has_lost_is_set_and_nobody_gets_more_before_the_others_have_left() -> (
    None
):
    files = Files({"more": "1", "moved": "4", "less": "1-3"})
    cases = [case(name, cpus, lost=True) for name, cpus in (("more", "1-4"), ("moved", "5"))]
    assert written(files, *cases, case("less", "1", lost=True), taken="") == [
        ("moved", "5"),
        ("less", "1"),
        ("more", "1-4"),
    ]


def test_nobody_gets_what_another_cannot_be_made_to_leave() -> None:
    files = Files({"more": "1", "other": "4", "stays": "1-3"}, failing="stays")
    stays = case("stays", "1", lost=True)
    more, other = case("more", "1-3", lost=True), case("other", "4-5", lost=True)
    assert written(files, more, other, stays, taken="") == [("other", "4-5")]
    assert (stays.error, stays.written) == ("Device or resource busy", False)
    assert stays.cpus == CPUSet.parse("1-3")
