"""Node 0 has CPUs 0-3, node 1 4-7; boot left 6 and 7 offline, and met no memory of nodes 2 and 3.

That was added later, and is movable only: node 2 near to node 0, node 3 near to node 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective, comes_to, run

SMALL = guaranteed(1000, 64 << 20)
PMEM = {"memory-type.resource-policy.nri.io": "pmem"}
OWN_MEMORY = {"memory.preserve.resource-policy.nri.io": "true"}


def test_nothing_can_start_on_movable_memory_alone(kubelet: Kubelet) -> None:
    pod = kubelet.run_pod("alone", {"main": SMALL}, annotations=OWN_MEMORY)
    container = pod.create("main", linux={"resources": {"cpuset_mems": "2"}})
    with pytest.raises(grpc.RpcError):
        container.start()
    said = kernel.log()
    assert "Unsupported (movable nodes only) cpuset" in said
    assert "page allocation failure" in said  # of a process that would write to a pipe


def test_movable_memory_comes_with_the_nearest_that_the_kernel_can_use(kubelet: Kubelet) -> None:
    container = run(kubelet, "pmem", SMALL, annotations=PMEM)
    here = kernel.effective(container)
    assert here.mems == ("1,3" if int(here.cpus) >= 4 else "0,2")


def test_who_wants_movable_memory_strictly_is_refused(kubelet: Kubelet) -> None:
    strict = {"strict.topologyhints.resource-policy.nri.io": "true"}
    pod = kubelet.run_pod("strict", {"main": SMALL}, annotations=PMEM | strict)
    with pytest.raises(grpc.RpcError, match="movable only"):
        pod.create("main")


def test_a_cold_start_on_movable_memory_has_dram_from_the_start(kubelet: Kubelet) -> None:
    cold = {"cold-start.resource-policy.nri.io/pod": "duration: 5s"}
    here = kernel.effective(run(kubelet, "cold", SMALL, annotations=cold))
    assert here.mems in {"0,2", "1,3"}


@pytest.fixture
def memory_for_the_kernel() -> Iterator[None]:
    """Processes leave 50 MiB of each memory node to the kernel, as on a node of 50 GiB.

    On nodes as small as these they leave it half a megabyte. Page tables cannot be on a movable
    node: where nothing is free beside it, the kernel kills a process.
    """
    setting = Path("/proc/sys/vm/watermark_scale_factor")  # in 1/10,000 of a node
    before = setting.read_text()
    setting.write_text("1000")
    yield
    setting.write_text(before)


@pytest.mark.usefixtures("memory_for_the_kernel")
def test_pages_that_the_near_node_cannot_hold_are_on_the_movable_one(kubelet: Kubelet) -> None:
    pod = kubelet.run_pod("large", {"main": guaranteed(1000, 600 << 20)})
    container = kernel.start(pod, command=kernel.touching(450))
    zone = {int(node) for node in kernel.effective(container).mems.split(",")}
    assert zone in ({0, 2}, {1, 3})
    assert set(kernel.pages(container, at_least=450 << 20)) == zone


def test_a_cpu_that_boot_left_offline_is_shared_while_it_is_online(kubelet: Kubelet) -> None:
    wide = run(kubelet, "wide", guaranteed(3000))
    assert kernel.effective(wide) == Effective(cpus="1-3", mems="0,2")
    shared = run(kubelet, "shared", BEST_EFFORT)
    assert kernel.effective(shared).cpus == "4-5"
    switch = Path("/sys/devices/system/cpu/cpu6/online")
    switch.write_text("1")
    try:
        comes_to(shared, "4-6")
    finally:
        switch.write_text("0")
    comes_to(shared, "4-5")
    assert kernel.effective(wide).cpus == "1-3"
