"""Two sockets of two nodes; the kernel was told to keep CPUs 4-7, which are node 1, for nobody."""

from __future__ import annotations

import grpc
import pytest

from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective, run

REQUIRED = {"require-isolated-cpus.resource-policy.nri.io": "true"}


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
