"""A virtual machine with a socket for each CPU: two NUMA nodes of four, huge pages on node 1."""

from __future__ import annotations

import signal

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import Amounts, ResourceRequirements
from tests.e2e.kubelet import BEST_EFFORT, guaranteed, resources
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective
from tests.guest.inside.scene import Scene

PAGES = 8
HUGE = ResourceRequirements(
    limits=Amounts({"cpu": 2000, "memory": 32 << 20, "hugepages-2Mi": PAGES << 21})
)


def test_a_container_with_huge_pages_can_touch_all_of_them(scene: Scene) -> None:
    huge = scene.run("huge", HUGE)
    scene.settle()
    assert kernel.effective(huge).mems == "1"
    before = kernel.free_huge_pages(1)
    with kernel.touching_huge_pages(huge, PAGES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "touched\n"
        assert before - kernel.free_huge_pages(1) == PAGES
    # a container on the other node shows what would happen there
    other = scene.run("other", guaranteed(3000))
    scene.settle()
    assert kernel.effective(other) == Effective(cpus="1-3", mems="0")
    with kernel.touching_huge_pages(other, 1) as process:
        assert process.wait() == -signal.SIGBUS


def test_a_container_that_shares_has_all_cpus_of_its_node(scene: Scene) -> None:
    asked = {"none": BEST_EFFORT, "little": resources(milli_cpu=100), "half": guaranteed(500)}
    shared = scene.run_all("shared", asked)
    scene.settle()
    for each in shared:
        assert len(CPUSet.parse(kernel.effective(each).cpus)) >= 3  # one of node 0 is reserved
