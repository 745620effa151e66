"""Node 0 has CPUs 0-3 and memory, node 1 only CPUs 4-7, node 2, near to it, only memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.kubelet import Kubelet, guaranteed
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {"reservedResources": {"cpu": "cpuset:0"}, "memoryKinds": {"2": "dram"}}


def test_cpus_without_memory_of_their_own_have_their_pages_on_the_nearest(kubelet: Kubelet) -> None:
    pod = kubelet.run_pod("all-four", {"main": guaranteed(4000, 64 << 20)})
    container = kernel.start(pod, command=kernel.touching(16))
    # by spec placement.md §1 they count with node 0 too, and the kernel goes by distance
    assert kernel.effective(container) == Effective(cpus="4-7", mems="0,2")
    assert set(kernel.pages(container, at_least=16 << 20)) == {2}


def test_memory_near_to_other_cpus_is_not_given(kubelet: Kubelet) -> None:
    kernel.run(kubelet, "all-four", guaranteed(4000, 64 << 20))
    other = kernel.run(kubelet, "other", guaranteed(3000, 64 << 20))
    assert kernel.effective(other) == Effective(cpus="1-3", mems="0")
