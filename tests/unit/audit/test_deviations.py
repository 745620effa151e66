from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.audit.deviations import (
    CpusetState,
    Deviation,
    DeviationKind,
    KernelState,
    Target,
    compare,
)
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import ExclusivePartitions

DECIDED = Target(
    container_id="1",
    name="default/pod/main",
    cgroup="/pod/1",
    cpus=CPUSet.parse("2-5"),
    mems=CPUSet.parse("0"),
)


def cpuset(effective: str, written: str | None = None) -> CpusetState:
    text = effective if written is None else written
    return CpusetState(written=CPUSet.parse(text), effective=CPUSet.parse(effective))


def observed(
    cpus: CpusetState | None = None, mems: CpusetState | None = None, **threads: str
) -> KernelState:
    return KernelState(
        cpus=cpus or cpuset("2-5"),
        mems=mems or cpuset("0"),
        threads={int(name[1:]): CPUSet.parse(text) for name, text in threads.items()},
    )


def found(seen: KernelState, decided: Target = DECIDED) -> list[tuple[str, str, bool]]:
    return [(each.kind, str(each.found), each.curable) for each in compare(decided, seen)]


def test_what_is_as_decided_is_no_drift() -> None:
    assert compare(DECIDED, observed(t7="2-5")) == ()


def test_a_thread_that_pins_itself_within_its_cpuset_is_no_drift() -> None:
    assert compare(DECIDED, observed(t7="3", t8="2,5", t9="2-5")) == ()


@pytest.mark.parametrize("cpus", ["2-6", "0-15", "6", "2-4,6"])
def test_a_thread_on_any_other_cpu_is_drift_that_telling_does_not_cure(cpus: str) -> None:
    (deviation,) = compare(DECIDED, observed(t7="2-5", t8=cpus))
    assert deviation == Deviation(
        kind=DeviationKind.THREADS,
        decided=DECIDED.cpus,
        found=CPUSet.parse(cpus),
        reason="threads have left its cgroup",
        curable=False,
        threads=(8,),
    )


@pytest.mark.parametrize("cpus", ["0-15", "2-4", "6-9", "2-4,6"])
def test_a_cgroup_that_was_set_to_other_cpus_is_curable_drift(cpus: str) -> None:
    assert found(observed(cpuset(cpus))) == [("cpus", cpus, True)]


def test_a_cgroup_that_was_never_set_is_curable_drift() -> None:
    assert found(observed(cpuset("0-15", ""))) == [("cpus", "0-15", True)]


def test_what_the_cgroups_above_do_not_give_cannot_be_cured() -> None:
    assert found(observed(cpuset("2-3", "2-5"))) == [("cpus", "2-3", False)]


def test_what_was_set_elsewhere_but_has_the_right_effect_is_no_drift() -> None:
    assert found(observed(cpuset("2-5", "2-9"))) == []


def test_memory_nodes_are_compared_alike() -> None:
    assert found(observed(mems=cpuset("0-1"))) == [("mems", "0-1", True)]
    assert found(observed(cpuset("1"), cpuset("1", "0"))) == [
        ("cpus", "1", True),
        ("mems", "1", False),
    ]


def test_threads_that_follow_a_drifted_cgroup_are_not_told_apart() -> None:
    seen = observed(cpuset("0-9"), t7="0-9", t8="8", t9="10")
    assert found(seen) == [("cpus", "0-9", True), ("threads", "10", False)]


def test_what_is_not_pinned_is_not_looked_at() -> None:
    seen = observed(cpuset("0-15"), cpuset("0-1"), t7="0-15")
    nothing = CPUSet()
    assert found(seen, replace(DECIDED, cpus=nothing)) == [("mems", "0-1", True)]
    assert found(seen, replace(DECIDED, mems=nothing, cpus=nothing)) == []


def test_few_of_many_stray_threads_are_named() -> None:
    many = dict.fromkeys(range(100, 200), CPUSet([9]))
    (deviation,) = compare(DECIDED, replace(observed(), threads=many))
    assert deviation.threads == tuple(range(100, 108))


@pytest.mark.parametrize("state", ["member", "isolated invalid", "root", ""])
def test_a_cgroup_that_is_not_the_partition_decided_is_drift(state: str) -> None:
    isolated = Partition(kind=ExclusivePartitions.ISOLATED, cpus=DECIDED.cpus)
    decided = replace(DECIDED, partition=isolated)
    assert compare(decided, replace(observed(), partition="isolated")) == ()
    (deviation,) = compare(decided, replace(observed(), partition=state))
    assert (deviation.kind, deviation.decided) == (DeviationKind.PARTITION, "isolated")
    assert deviation.found == (state or "no such file")
