"""Two sockets of two nodes; the kernel was told to keep CPUs 4-7, which are node 1, for nobody."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective, run

CPUS = Path("/sys/devices/system/cpu")
REQUIRED = {"require-isolated-cpus.resource-policy.nri.io": "true"}


def kernels(name: str) -> CPUSet:
    """Return the CPUs that the kernel names so."""
    return CPUSet.parse((CPUS / name).read_text())


def test_isolated_cpus_are_those_that_the_kernel_keeps_free_of_itself(kubelet: Kubelet) -> None:
    containers = [
        run(kubelet, f"own-{number}", guaranteed(2000), annotations=REQUIRED) for number in range(2)
    ]
    theirs = CPUSet.union(CPUSet.parse(kernel.effective(each).cpus) for each in containers)
    assert theirs == kernels("isolated") == kernels("nohz_full")
    assert theirs == CPUSet.parse((kernel.CGROUPS / "cpuset.cpus.isolated").read_text())


def test_an_isolated_cpu_that_goes_offline_is_replaced_by_another(kubelet: Kubelet) -> None:
    container = run(kubelet, "own", guaranteed(1000), annotations=REQUIRED)
    lost = kernel.effective(container).cpus
    switch = CPUS / f"cpu{lost}" / "online"
    switch.write_text("0")
    try:
        others = kernels("isolated") - CPUSet.parse(lost)  # it is in there still
        assert len(others) == 3
        # offline, all of its cpuset is lost: until the daemon answers, the kernel lets it run
        # wherever its parent may
        eventually(
            lambda: CPUSet.parse(kernel.effective(container).cpus),
            lambda cpus: len(cpus) == 1 and cpus <= others,
        )
        assert CPUSet.parse(kernel.effective(container).cpus) <= others
    finally:
        switch.write_text("1")


def test_isolated_cpus_are_their_containers_own_and_nobody_elses(kubelet: Kubelet) -> None:
    one = run(kubelet, "one", guaranteed(1000))
    two = run(kubelet, "two", guaranteed(2000), annotations=REQUIRED)
    shared = [run(kubelet, f"shared-{number}", BEST_EFFORT) for number in range(2)]
    own = [kernel.effective(each) for each in (one, two)]
    assert {each.mems for each in own} == {"1"}
    assert sorted(each.cpus for each in own) == ["4", "6-7"]
    assert {kernel.effective(each).cpus for each in shared} <= {"1-3", "8-11", "12-15"}


def test_a_container_that_requires_more_isolated_cpus_than_there_are_is_refused(
    kubelet: Kubelet,
) -> None:
    pod = kubelet.run_pod("many", {"main": guaranteed(6000)}, annotations=REQUIRED)
    with pytest.raises(grpc.RpcError, match="isolated"):
        pod.create("main")


def test_many_ordinary_cpus_are_not_isolated_ones(kubelet: Kubelet) -> None:
    plain = run(kubelet, "plain", guaranteed(4000))
    assert kernel.effective(plain) in (
        Effective(cpus="8-11", mems="2"),
        Effective(cpus="12-15", mems="3"),
    )
