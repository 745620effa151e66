"""Which memory nodes a pool offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Distances, Machine, MemoryKind
from nri_policy.pools.tree import build
from nri_policy.pools.zone import Zones
from tests import nodes

DRAM, PMEM, HBM = MemoryKind.DRAM, MemoryKind.PMEM, MemoryKind.HBM

# nodes 0-3 with CPUs; then memory-only ones: which, says the tree
TIERS = "package:2(pmem=8GiB) numa:2(hbm=1GiB) core:2"


def offer(machine: Machine, name: str, *kinds: MemoryKind) -> str:
    tree = build(machine, machine.online)
    (pool,) = [pool for pool in tree.pools if pool.name == name]
    return str(Zones(machine, tree).offer(pool, frozenset(kinds)))


def near(machine: Machine, name: str, kind: MemoryKind) -> str:
    tree = build(machine, machine.online)
    (pool,) = [pool for pool in tree.pools if pool.name == name]
    return str(pool.memory[kind])


@pytest.mark.parametrize("name", ["NUMA node #0", "NUMA node #3", "socket #1", "root"])
@pytest.mark.parametrize("kinds", [(DRAM,), (PMEM,), (HBM,), (DRAM, PMEM), (DRAM, PMEM, HBM)])
def test_a_pool_offers_its_own_nodes_of_the_wanted_kinds(
    name: str, kinds: tuple[MemoryKind, ...]
) -> None:
    machine = nodes.machine(TIERS)
    normal = replace(machine, nodes=tuple(replace(n, normal=True) for n in machine.nodes))
    expected = CPUSet.union(CPUSet.parse(near(normal, name, kind)) for kind in kinds)
    assert offer(normal, name, *kinds) == str(expected)


def test_kinds_that_the_machine_does_not_have_are_left_out() -> None:
    machine = nodes.machine(nodes.SMALL)
    assert offer(machine, "NUMA node #2", DRAM, PMEM) == "2"
    assert offer(machine, "NUMA node #2", PMEM) == "2", "none is left: dram"
    tree = build(machine, machine.online)
    assert Zones(machine, tree).has(frozenset({DRAM, HBM}))
    assert not Zones(machine, tree).has(frozenset({PMEM, HBM}))


def test_a_kind_that_is_missing_in_the_pool_comes_from_the_nearest_nodes() -> None:
    machine = nodes.machine("package:1 numa:2 core:1")
    far = tuple(
        replace(machine.nodes[0], id=i, cpus=EMPTY, kind=PMEM, nearest=CPUSet([0])) for i in (2, 3)
    )
    rows = ((10, 20, 17, 28), (20, 10, 28, 28), (17, 28, 10, 40), (28, 28, 40, 10))
    distances = Distances(nodes=(0, 1, 2, 3), matrix=rows)
    machine = replace(machine, nodes=(*machine.nodes, *far), distances=distances)
    assert offer(machine, "NUMA node #0", PMEM) == "2-3", "its own"
    assert offer(machine, "NUMA node #1", PMEM) == "2-3", "equally near"
    rows = ((10, 20, 17, 28), (20, 10, 28, 30), (17, 28, 10, 40), (28, 30, 40, 10))
    machine = replace(machine, distances=Distances(nodes=(0, 1, 2, 3), matrix=rows))
    assert offer(machine, "NUMA node #1", DRAM, PMEM) == "1-2"


def test_a_zone_has_memory_that_the_kernel_can_use() -> None:
    """A process cannot start on movable memory alone."""
    machine = nodes.machine(TIERS)
    movable = replace(
        machine,
        nodes=tuple(replace(node, normal=bool(node.cpus)) for node in machine.nodes),
    )
    own = CPUSet.parse(near(movable, "NUMA node #2", HBM))
    assert offer(movable, "NUMA node #2", HBM) == str(own | CPUSet([2]))
    assert offer(movable, "NUMA node #2", HBM, DRAM) == str(own | CPUSet([2]))


def test_device_memory_is_never_offered_be_it_the_nearest_normal() -> None:
    machine = nodes.machine("package:1 numa:2(hbm=1GiB) core:1")
    kinds = {0: (DRAM, True), 1: (DRAM, True), 2: (HBM, False), 3: (MemoryKind.DEVICE, True)}
    made = tuple(
        replace(node, kind=kinds[node.id][0], normal=kinds[node.id][1]) for node in machine.nodes
    )
    rows = ((10, 20, 17, 28), (20, 10, 28, 17), (17, 28, 10, 11), (28, 17, 11, 10))
    distances = Distances(nodes=(0, 1, 2, 3), matrix=rows)
    machine = replace(machine, nodes=made, distances=distances)
    assert offer(machine, "NUMA node #0", HBM) == "0,2"


def test_without_dram_the_offer_is_what_there_is() -> None:
    machine = nodes.machine("package:2 numa:1(memory=0,0 pmem=8GiB) l3:1 core:2")
    assert offer(machine, "socket #1", DRAM) == "3"
    assert offer(machine, "root", DRAM, PMEM) == "2-3"


def test_without_memory_the_offer_is_empty() -> None:
    machine = nodes.machine("package:2 numa:1(memory=0) core:2")
    assert offer(machine, "socket #1", DRAM) == ""
