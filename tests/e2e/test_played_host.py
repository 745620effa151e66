"""On a played machine of two sockets, four NUMA nodes and 16 CPUs: ten pods come, two go.

Every expectation follows by hand from spec placement.md: pools N0 to N3 (CPUs 4k to 4k+3), S0, S1
and root have the ids 0, 1, 3, 4, 2, 5, 6; 750m reserve CPU 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import ResourceRequirements
from tests.e2e.cgroup import CpusetFiles
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed, resources
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually

MEMORY = 32 << 20  # requested and limited alike: then memory has no say in the choice of the pool


def burstable(milli_cpu: int, milli_cpu_limit: int) -> ResourceRequirements:
    return resources(
        milli_cpu=milli_cpu, milli_cpu_limit=milli_cpu_limit, memory=MEMORY, memory_limit=MEMORY
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A pod that comes (with resources) or goes, and which cpusets change by that, how."""

    pod: str
    resources: ResourceRequirements | None = None
    namespace: str = "default"
    #: pod -> its cpuset.cpus and cpuset.mems from now on
    changes: dict[str, tuple[str, str]]


STEPS = [
    # N0 has three CPUs to give, the others four: the lowest of these.
    Step(pod="p0", resources=guaranteed(1000), changes={"p0": ("4", "1")}),
    Step(pod="p1", resources=guaranteed(2000), changes={"p1": ("8-9", "2")}),
    Step(pod="p2", resources=guaranteed(3000), changes={"p2": ("12-14", "3")}),
    # Reserved: the root pool, so all of the memory.
    Step(
        pod="p3",
        resources=burstable(100, 200),
        namespace="kube-system",
        changes={"p3": ("0", "0-3")},
    ),
    # N0 and N1 have 3000m each.
    Step(pod="p4", resources=BEST_EFFORT, changes={"p4": ("1-3", "0")}),
    # No node has four; S1 has three; in S0 whole cores come first, and p4 keeps a CPU.
    Step(
        pod="p5", resources=guaranteed(4000), changes={"p5": ("2-3,6-7", "0-1"), "p4": ("1", "0")}
    ),
    # 1000m are left on N0, N1 and N3, 2000m on N2.
    Step(pod="p6", resources=guaranteed(500), changes={"p6": ("10-11", "2")}),
    # Only N2 has 1500m, by now, among the nodes.
    Step(pod="p7", resources=burstable(1200, 1500), changes={"p7": ("10-11", "2")}),
    # One exclusive CPU and 500m: a CPU of N1 can be cut (p4 needs that of N0, p6 and p7 those of
    # N2), and S1 would have 2000m for 2200m.
    Step(pod="p8", resources=guaranteed(1500), changes={"p8": ("1,5", "0-1")}),
    # N1 is empty, N0 has 500m (p8's share is S0's), N3 1000m.
    Step(pod="p9", resources=BEST_EFFORT, changes={"p9": ("15", "3")}),
    Step(pod="p5", changes={"p4": ("1-3", "0"), "p8": ("1-3,5-7", "0-1")}),
    Step(pod="p2", changes={"p9": ("12-15", "3")}),
]


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Nobody makes way: each step is about the rules of picking alone."""
    return {**settings, "makeWay": {"movers": 0}}


@pytest.mark.usefixtures("daemon")
def test_ten_pods_are_placed_as_the_rules_say(stage: Kubelet, runtime: Runtime) -> None:
    containers: dict[str, Container] = {}
    expected: dict[str, CpusetFiles] = {}

    def placed() -> dict[str, CpusetFiles]:
        return {pod: runtime.played(container.id) for pod, container in containers.items()}

    for step in STEPS:
        earlier = len(runtime.recorded())
        if step.resources is None:
            containers.pop(step.pod).pod.delete()
            del expected[step.pod]
        else:
            containers[step.pod] = stage.run(step.pod, step.resources, namespace=step.namespace)
        for pod, (cpus, mems) in step.changes.items():
            expected[pod] = CpusetFiles(cpus=CPUSet.parse(cpus), mems=CPUSet.parse(mems))
        assert eventually(placed, lambda now: now == expected) == expected, f"after {step}"
        told = {call.container for call in runtime.recorded()[earlier:]}
        touched = {pod for pod, container in containers.items() if container.id in told}
        assert touched == step.changes.keys(), f"after {step}"
