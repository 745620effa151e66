"""No shared container is confined to a few CPUs of a node that has more; spec placement.md §1.9."""

from __future__ import annotations

import random

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.tree import numa_cpus
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

MACHINES = (
    "numa:1 package:16 core:1",
    "package:8 core:2",
    "numa:2 package:4 core:3 pu:2",
    "package:2 numa:1 l3:4 core:2 pu:2",
    "package:2 numa:2 l3:2 core:1",
    "package:1 die:2 l3:3 core:4",
    "package:2 numa:4 core:1 pu:2",
    "package:1 numa:1 l3:8 core:1 pu:2 siblings=apart",
)
CLASSES = (
    (QoS.BEST_EFFORT, (0,)),
    (QoS.BURSTABLE, (10, 100, 900)),
    (QoS.GUARANTEED, (200, 500)),
)
EVENTS = 12


def cores(machine: Machine, cpus: CPUSet) -> int:
    return sum(not core.cpus.isdisjoint(cpus) for core in machine.cores)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spec", MACHINES)
def test_a_shared_container_has_four_cores_or_its_node_less_what_others_have_alone(
    spec: str, seed: int
) -> None:
    rng = random.Random(seed)
    driver = EngineDriver(spec)
    layout = driver.engine.layout
    shared = []
    for _ in range(EVENTS):
        qos, amounts = rng.choice(CLASSES)
        shared.append(nodes.container(rng.choice(amounts), qos=qos))
        driver.create(shared[-1])
        if rng.random() < 0.2:
            driver.create(nodes.container(1000))
    free = driver.engine.state.supply.free_cpus()
    for each in shared:
        cpus = CPUSet.parse(driver.cpus(each))
        pool = layout.tree.pools[driver.grant(each).pool]
        around = [own for own in numa_cpus(layout.machine).values() if not own.isdisjoint(cpus)]
        least = min(4, *(cores(layout.machine, own) for own in around))
        assert cpus == pool.cpus & free
        assert cores(layout.machine, pool.cpus) >= least, (pool.name, str(cpus))
