"""What the runtime says of a cgroup never leads out of the hierarchy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.audit.deviations import CpusetState, DeviationKind, KernelState, Target, compare
from nri_policy.foundation.cpuset import CPUSet

PARTS = st.sampled_from(["/", "..", ".", ":", "-", ".slice", "a", "kubepods", "\0", "\n", "é"])
SETS = st.builds(CPUSet, st.sets(st.integers(0, 20)))


@given(st.text() | st.lists(PARTS, max_size=12).map("".join))
def test_a_cgroup_is_a_folder_below_the_mount_point_or_none(text: str) -> None:
    folder = folder_of(text)
    if folder is not None:
        parts = folder.split("/")
        assert all(part not in ("", ".", "..") for part in parts)


@given(SETS, st.builds(CpusetState, written=SETS, effective=SETS), st.lists(SETS, max_size=4))
def test_drift_is_what_differs_and_nothing_else(
    cpus: CPUSet, seen: CpusetState, threads: list[CPUSet]
) -> None:
    decided = Target(container_id="", name="", cgroup="", cpus=cpus, mems=CPUSet())
    nothing = CpusetState(written=CPUSet(), effective=CPUSet([0]))
    observed = KernelState(cpus=seen, mems=nothing, threads=dict(enumerate(threads)))
    found = {each.kind: each for each in compare(decided, observed)}
    assert DeviationKind.MEMS not in found
    assert (DeviationKind.CPUS in found) == (bool(cpus) and set(seen.effective) != set(cpus))
    astray = [each for each in threads if set(each) - set(cpus) and set(each) - set(seen.effective)]
    assert (DeviationKind.THREADS in found) == (bool(cpus) and bool(astray))
    if DeviationKind.CPUS in found:
        assert found[DeviationKind.CPUS].curable == (seen.written != cpus)
