"""Every rule of placement.md §1, on small machines made up or taken in guests of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Cache, Distances, Machine, MemoryKind, MemoryNode, Package
from nri_policy.pools.tree import Pool, PoolTree, build
from nri_policy.settings import Level
from tests.support import nodes

SHARED = Path(
    os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[3].parent / "shared")
).resolve()
CAPTURES = sorted(SHARED.glob("captures/*/*.tar.xz"))
VIRTUAL = "a virtual machine whose sockets are not real; pools begin at the NUMA node"
DRAM, PMEM, HBM = MemoryKind.DRAM, MemoryKind.PMEM, MemoryKind.HBM


def tree_of(machine: Machine | str, available: str | None = None) -> PoolTree:
    if isinstance(machine, str):
        machine = nodes.machine(machine)
    return build(machine, machine.online if available is None else CPUSet.parse(available))


def drawn(tree: PoolTree) -> list[str]:
    """Return the pools as text, from the top down."""

    def lines(pool: Pool) -> list[str]:
        levels = "+".join(pool.levels)
        own = f"{'  ' * pool.depth}{pool.name} [{levels}] {pool.cpus}"
        return [own, *(line for child in pool.children for line in lines(tree.pools[child]))]

    return lines(tree.top)


def memory(pool: Pool) -> dict[str, str]:
    return {kind.value: str(ids) for kind, ids in pool.memory.items() if ids}


def pool_named(tree: PoolTree, name: str) -> Pool:
    (pool,) = [pool for pool in tree.pools if pool.name == name]
    return pool


def with_nodes(machine: Machine, *cpus: str, memory: tuple[int, ...] | None = None) -> Machine:
    """Return *machine* with NUMA nodes of these CPUs."""
    made = tuple(
        replace(
            machine.nodes[0],
            id=index,
            cpus=CPUSet.parse(each),
            memory=4 << 30 if memory is None else memory[index],
            nearest=CPUSet([index]) if each else machine.nodes[0].nearest,
        )
        for index, each in enumerate(cpus)
    )
    return replace(machine, nodes=made)


def check(tree: PoolTree, machine: Machine, available: CPUSet) -> None:
    """Assert what holds of every tree."""
    assert tree.top.cpus == available
    assert tree.top.parent is None
    assert [pool.id for pool in tree.pools] == list(range(len(tree.pools)))
    assert len({pool.name for pool in tree.pools}) == len(tree.pools)
    for pool in tree.pools:
        children = [tree.pools[child] for child in pool.children]
        assert len(children) != 1 or pool.cpus != children[0].cpus
        assert CPUSet.union(child.cpus for child in children) <= pool.cpus
        assert sum(len(child.cpus) for child in children) <= len(pool.cpus)
        assert [child.cpus.lowest for child in children] == sorted(
            child.cpus.lowest for child in children
        )
        assert all(child.parent == pool.id > child.id for child in children)
        assert pool.depth == (0 if pool.parent is None else tree.pools[pool.parent].depth + 1)
        assert pool.levels
        assert list(pool.levels) == [level for level in Level if level in pool.levels]
        if any(node.memory for node in machine.nodes):
            assert CPUSet.union(pool.memory.values()), f"{pool.name} has no memory"


def test_sets_are_nested_and_equal_ones_are_one_pool() -> None:
    assert drawn(tree_of(nodes.SMALL)) == [
        "root [system] 0-15",
        "  socket #0 [package+die] 0-7",
        "    NUMA node #0 [numa+l3cache] 0-3",
        "    NUMA node #1 [numa+l3cache] 4-7",
        "  socket #1 [package+die] 8-15",
        "    NUMA node #2 [numa+l3cache] 8-11",
        "    NUMA node #3 [numa+l3cache] 12-15",
    ]


def test_ids_are_in_post_order() -> None:
    names = [pool.name for pool in tree_of(nodes.SMALL).pools]
    assert names == [
        *("NUMA node #0", "NUMA node #1", "socket #0"),
        *("NUMA node #2", "NUMA node #3", "socket #1"),
        "root",
    ]


def test_siblings_are_in_the_order_of_their_lowest_cpu_not_of_their_ids() -> None:
    machine = with_nodes(nodes.machine("package:1 core:4"), "2-3", "0-1")
    machine = replace(machine, caches=())
    assert drawn(tree_of(machine)) == [
        "socket #0 [system+package+die] 0-3",
        "  NUMA node #1 [numa] 0-1",
        "  NUMA node #0 [numa] 2-3",
    ]


@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        (
            "package:1 core:2",
            ["socket #0 [system+package+die+numa+l3cache] 0-1"],
        ),
        (
            "package:1 die:2 core:4",
            [
                "socket #0 [system+package+numa] 0-7",
                "  die #0/0 [die+l3cache] 0-3",
                "  die #0/1 [die+l3cache] 4-7",
            ],
        ),
        (
            "package:2 die:2 numa:1 l3:2 core:4",
            [
                "root [system] 0-31",
                "  socket #0 [package] 0-15",
                "    NUMA node #0 [die+numa] 0-7",
                "      NUMA node #0/L3 cache #0 [l3cache] 0-3",
                "      NUMA node #0/L3 cache #1 [l3cache] 4-7",
                "    NUMA node #1 [die+numa] 8-15",
                "      NUMA node #1/L3 cache #0 [l3cache] 8-11",
                "      NUMA node #1/L3 cache #1 [l3cache] 12-15",
                "  socket #1 [package] 16-31",
                "    NUMA node #2 [die+numa] 16-23",
                "      NUMA node #2/L3 cache #0 [l3cache] 16-19",
                "      NUMA node #2/L3 cache #1 [l3cache] 20-23",
                "    NUMA node #3 [die+numa] 24-31",
                "      NUMA node #3/L3 cache #0 [l3cache] 24-27",
                "      NUMA node #3/L3 cache #1 [l3cache] 28-31",
            ],
        ),
        (
            "package:3 numa:1 core:2",
            [
                "root [system] 0-5",
                "  socket #0 [package+die+numa+l3cache] 0-1",
                "  socket #1 [package+die+numa+l3cache] 2-3",
                "  socket #2 [package+die+numa+l3cache] 4-5",
            ],
        ),
    ],
)
def test_a_pool_is_named_after_the_first_of_its_levels(spec: str, lines: list[str]) -> None:
    assert drawn(tree_of(spec)) == lines


def test_numa_above_packages_is_a_level_between() -> None:
    """One NUMA node for two of four packages: the order of levels is the sets', not the names'."""
    assert drawn(tree_of("numa:2 package:2 l3:1 core:4")) == [
        "root [system] 0-15",
        "  NUMA node #0 [numa] 0-7",
        "    socket #0 [package+die+l3cache] 0-3",
        "    socket #1 [package+die+l3cache] 4-7",
        "  NUMA node #1 [numa] 8-15",
        "    socket #2 [package+die+l3cache] 8-11",
        "    socket #3 [package+die+l3cache] 12-15",
    ]


@pytest.mark.parametrize(
    ("spec", "pools", "notes"),
    [
        (
            "numa:1 package:16 core:1",
            ["root [system+numa] 0-15"],
            ["16 packages of 1 core: " + VIRTUAL],
        ),
        (
            "numa:2 package:2 core:3 pu:2",
            ["root [system] 0-23", "  NUMA node #0 [numa] 0-11", "  NUMA node #1 [numa] 12-23"],
            ["4 packages of 3 cores: " + VIRTUAL],
        ),
        (
            "package:1 numa:1 l3:4 core:2",
            ["socket #0 [system+package+die+numa] 0-7"],
            ["4 L3 caches of 2 cores: too small for pools: containers share wider ones"],
        ),
        (
            "package:1 die:4 core:2",
            ["socket #0 [system+package+numa] 0-7"],
            ["4 dies of 2 cores: too small for pools: containers share wider ones"],
        ),
        # a NUMA node is a pool, however small
        (
            "package:1 numa:2 core:1",
            ["socket #0 [system+package+die] 0-1", "  NUMA node #0 [numa+l3cache] 0",
            "  NUMA node #1 [numa+l3cache] 1"],
            [],
        ),
    ],
)  # fmt: skip
def test_a_part_of_a_numa_node_with_less_than_four_cores_is_no_pool(
    spec: str, pools: list[str], notes: list[str]
) -> None:
    tree = tree_of(spec)
    assert drawn(tree) == pools
    assert [*tree.notes] == notes


def test_a_cache_that_lost_cores_is_no_pool_and_the_others_keep_their_names() -> None:
    tree = tree_of("package:1 numa:1 l3:3 core:4", "1-11")
    assert drawn(tree) == [
        "socket #0 [system+package+die+numa] 1-11",
        "  socket #0/L3 cache #1 [l3cache] 4-7",
        "  socket #0/L3 cache #2 [l3cache] 8-11",
    ]
    assert tree.notes == (
        "1 L3 cache of 3 cores: too small for pools: containers share wider ones",
    )


def test_only_available_cpus_are_in_the_tree() -> None:
    assert drawn(tree_of(nodes.SMALL, "4-11")) == [
        "root [system] 4-11",
        "  socket #0 [package+die+numa+l3cache] 4-7",
        "  socket #1 [package+die+numa+l3cache] 8-11",
    ]


def test_one_package_left_is_the_top() -> None:
    tree = tree_of(nodes.SMALL, "9-13")
    assert drawn(tree) == [
        "socket #1 [system+package+die] 9-13",
        "  NUMA node #2 [numa+l3cache] 9-11",
        "  NUMA node #3 [numa+l3cache] 12-13",
    ]


def test_offline_cpus_are_in_no_pool_and_leave_no_empty_ones() -> None:
    assert drawn(tree_of(nodes.SMALL + " offline=3,8-11")) == [
        "root [system] 0-2,4-7,12-15",
        "  socket #0 [package+die] 0-2,4-7",
        "    NUMA node #0 [numa+l3cache] 0-2",
        "    NUMA node #1 [numa+l3cache] 4-7",
        "  socket #1 [package+die+numa+l3cache] 12-15",
    ]


def test_one_cpu_is_one_pool() -> None:
    tree = tree_of(nodes.SMALL, "5")
    assert drawn(tree) == ["socket #0 [system+package+die+numa+l3cache] 5"]
    assert memory(tree.top) == {"dram": "0-3"}, "the root has all memory"


def test_sets_that_cross_others_are_left_out_with_a_note() -> None:
    """Fake NUMA deals memory out in slices, and CPUs to whatever node."""
    machine = with_nodes(nodes.machine("package:2 numa:2 core:4 pu:2"), "0-11", "12-19", "20-31")
    tree = tree_of(machine)
    assert [line.split(" [")[0] for line in drawn(tree)] == [
        "root",
        "  socket #0",
        "    NUMA node #0",
        "      NUMA node #0/L3 cache #0",
        "  socket #1",
        "    NUMA node #2",
        "      NUMA node #2/L3 cache #0",
    ]
    assert tree.notes == (
        "the numa set 12-19 crosses the package set 0-15: left out",
        "the l3cache set 8-15 crosses the numa set 0-11: left out",
        "the l3cache set 16-23 crosses the numa set 20-31: left out",
    )
    check(tree, machine, machine.online)


def test_all_nodes_with_all_cpus_are_one_pool() -> None:
    """Fake NUMA on one node, the other way it is met: every node has the same CPUs."""
    machine = with_nodes(nodes.machine("package:1 core:4"), "0-3", "0-3", "0-3")
    tree = tree_of(machine)
    assert drawn(tree) == ["socket #0 [system+package+die+numa+l3cache] 0-3"]
    assert memory(tree.top) == {"dram": "0-2"}
    assert tree.notes == ()


def test_without_l3_ids_there_are_no_l3_pools() -> None:
    machine = replace(nodes.machine("package:2 numa:1 core:4"), caches=())
    assert [pool.name for pool in tree_of(machine).pools] == ["socket #0", "socket #1", "root"]


def test_other_caches_make_no_pools() -> None:
    machine = nodes.machine("package:1 core:4")
    odd = Cache(level=3, type="instruction", size=1, cpus=CPUSet.parse("0-1"))
    l2 = Cache(level=2, type="unified", size=1, cpus=CPUSet.parse("2-3"))
    assert len(tree_of(replace(machine, caches=(odd, l2))).pools) == 1


def test_l3_domains_are_counted_in_each_parent_by_lowest_cpu() -> None:
    machine = nodes.machine("package:2 numa:1 l3:3 core:4 pu:2 siblings=apart")
    caches = tuple(reversed(machine.caches))
    tree = tree_of(replace(machine, caches=caches))
    assert [f"{pool.name} {pool.cpus}" for pool in tree.pools if pool.depth == 2] == [
        "socket #0/L3 cache #0 0-3,24-27",
        "socket #0/L3 cache #1 4-7,28-31",
        "socket #0/L3 cache #2 8-11,32-35",
        "socket #1/L3 cache #0 12-15,36-39",
        "socket #1/L3 cache #1 16-19,40-43",
        "socket #1/L3 cache #2 20-23,44-47",
    ]


def test_cpus_of_a_node_without_memory_belong_to_the_nearest_with_memory() -> None:
    tree = tree_of("package:2 numa:2(memory=4GiB,0) l3:1 core:4")
    assert drawn(tree) == [
        "root [system] 0-15",
        "  socket #0 [package+die+numa] 0-7",
        "    socket #0/L3 cache #0 [l3cache] 0-3",
        "    socket #0/L3 cache #1 [l3cache] 4-7",
        "  socket #1 [package+die+numa] 8-15",
        "    socket #1/L3 cache #0 [l3cache] 8-11",
        "    socket #1/L3 cache #1 [l3cache] 12-15",
    ]
    near = {pool.name: memory(pool) for pool in tree.pools}
    assert near["socket #1"] == {"dram": "2"}
    assert near["socket #1/L3 cache #0"] == {"dram": "2"}
    assert near["socket #1/L3 cache #1"] == {"dram": "2"}, "an L3 pool has its NUMA pool's memory"


def test_packages_without_memory_have_that_of_the_nearest_node() -> None:
    machine = nodes.machine("package:4 numa:1(memory=4GiB) l3:1 core:4")
    sizes = (4 << 30, 0, 0, 4 << 30)
    machine = with_nodes(machine, "0-3", "4-7", "8-11", "12-15", memory=sizes)
    rows = ((10, 20, 30, 40), (20, 10, 40, 30), (30, 40, 10, 20), (40, 30, 20, 10))
    machine = replace(machine, distances=Distances(nodes=(0, 1, 2, 3), matrix=rows))
    tree = tree_of(machine)
    assert drawn(tree) == [
        "root [system] 0-15",
        "  NUMA node #0 [numa] 0-7",
        "    socket #0 [package+die+l3cache] 0-3",
        "    socket #1 [package+die+l3cache] 4-7",
        "  NUMA node #3 [numa] 8-15",
        "    socket #2 [package+die+l3cache] 8-11",
        "    socket #3 [package+die+l3cache] 12-15",
    ]
    assert memory(pool_named(tree, "socket #1")) == {"dram": "0"}
    assert memory(pool_named(tree, "socket #2")) == {"dram": "3"}
    check(tree, machine, machine.online)


def test_where_only_cpuless_nodes_have_memory_the_cpus_belong_to_them() -> None:
    machine = nodes.machine("package:2 numa:1(memory=0,0 pmem=8GiB) l3:1 core:2")
    tree = tree_of(machine)
    check(tree, machine, machine.online)
    names = [pool.name for pool in tree.pools]
    assert names == ["socket #0", "socket #1", "root"]
    assert memory(tree.pools[0]) == {"pmem": "2"}
    assert memory(tree.pools[1]) == {"pmem": "3"}


def test_without_any_memory_there_still_is_a_tree() -> None:
    machine = nodes.machine("package:2 numa:2(memory=0) l3:1 core:1")
    tree = tree_of(machine)
    check(tree, machine, machine.online)
    assert memory(tree.top) == {}


def test_cpuless_nodes_belong_to_the_pools_that_they_are_near_to() -> None:
    tree = tree_of("package:2(pmem=8GiB) numa:2(hbm=1GiB) core:2")
    near = {pool.name: memory(pool) for pool in tree.pools}
    # nodes 0-3 have the CPUs; 4-5 pmem of the packages, 6-9 hbm of the nodes
    assert near["NUMA node #0"]["dram"] == "0"
    hbm = {name: memory.get("hbm") for name, memory in near.items() if name.startswith("NUMA")}
    assert len(set(hbm.values())) == 4
    assert near["root"] == {"dram": "0-3", "pmem": near["root"]["pmem"], "hbm": near["root"]["hbm"]}
    # a package's pmem is equally near to both of its nodes: a member of each
    assert near["NUMA node #0"]["pmem"] == near["NUMA node #1"]["pmem"] == near["socket #0"]["pmem"]
    assert near["NUMA node #2"]["pmem"] == near["socket #1"]["pmem"] != near["socket #0"]["pmem"]


def test_cxl_counts_as_pmem_and_device_memory_is_nobodys() -> None:
    machine = nodes.machine("package:1(cxl=8GiB) core:2")
    assert memory(tree_of(machine).top) == {"dram": "0", "pmem": "1"}
    gpu = replace(machine.nodes[1], kind=MemoryKind.DEVICE)
    machine = replace(machine, nodes=(machine.nodes[0], gpu))
    assert memory(tree_of(machine).top) == {"dram": "0"}


def test_cpus_do_not_belong_to_device_memory() -> None:
    machine = nodes.machine("package:2 numa:1(memory=4GiB,0) l3:1 core:4")
    gpu: MemoryNode = replace(
        machine.nodes[0], id=2, cpus=EMPTY, kind=MemoryKind.DEVICE, nearest=CPUSet([1])
    )
    rows = ((10, 40, 80), (40, 10, 20), (80, 20, 10))
    machine = replace(
        machine,
        nodes=(*machine.nodes, gpu),
        distances=Distances(nodes=(0, 1, 2), matrix=rows),
    )
    tree = tree_of(machine)
    assert memory(pool_named(tree, "socket #1")) == {"dram": "0"}


def test_a_level_is_looked_up_on_the_path_or_else_the_next_coarser() -> None:
    tree = tree_of("package:2 numa:1 die:2 l3:2 core:4")
    leaf = tree.pools[0]
    assert [tree.at_level(leaf, level).name for level in Level] == [
        *("root", "socket #0", "die #0/0", "socket #0", "die #0/0/L3 cache #0"),
    ]
    socket = pool_named(tree, "socket #1")
    assert tree.at_level(socket, Level.L3CACHE) is socket, "nothing finer on the path"
    assert tree.at_level(socket, Level.PACKAGE) is socket
    assert tree.at_level(tree.top, Level.NUMA) is tree.top


def test_the_path_ends_at_the_top() -> None:
    tree = tree_of(nodes.SMALL)
    assert [pool.name for pool in tree.path(tree.pools[3])] == ["NUMA node #2", "socket #1", "root"]


def test_a_machine_of_4096_cpus_has_its_512_domains() -> None:
    machine = nodes.largest()
    tree = tree_of(machine)
    assert len(tree.pools) == 1 + 8 + 32 + 512
    check(tree, machine, machine.online)
    assert pool_named(tree, "NUMA node #31/L3 cache #15").cpus == CPUSet(range(4088, 4096))


def test_a_package_with_cpus_that_no_other_level_knows_keeps_them() -> None:
    machine = nodes.machine("package:1 numa:2 core:2")
    machine = with_nodes(machine, "0-1", "3")
    tree = tree_of(replace(machine, caches=(), dies=()))
    assert drawn(tree) == [
        "socket #0 [system+package] 0-3",
        "  NUMA node #0 [numa] 0-1",
        "  NUMA node #1 [numa] 3",
    ]


def test_package_ids_are_the_kernels() -> None:
    machine = nodes.machine("package:2 numa:1 core:1")
    packages = (Package(id=36, cpus=CPUSet([0])), Package(id=3180, cpus=CPUSet([1])))
    tree = tree_of(replace(machine, packages=packages))
    assert [pool.name for pool in tree.pools] == ["socket #36", "socket #3180", "root"]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_every_capture_has_a_tree(path: Path) -> None:
    with open_capture(path) as root:
        machine = discover(root)
    check(tree_of(machine), machine, machine.online)
    half = machine.online.first((len(machine.online) + 1) // 2)
    check(build(machine, half), machine, half)
