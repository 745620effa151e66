from __future__ import annotations

import pytest

from nri_policy.hardware.machine import AccessClass, Machine, MemoryNode

from .conftest import Change, Link, Read

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
TWO = "numa:2 core:2"  # CPUs 0-1 and 2-3
GIB = 1 << 30


def node(machine: Machine, id_: int) -> MemoryNode:
    [found] = [each for each in machine.nodes if each.id == id_]
    return found


def renamed(ids: dict[int, int]) -> dict[str, Change]:
    """Give new ids to the nodes of a machine, of which the folders are made anew."""
    changes: dict[str, Change] = {f"{NODE}/node{id_}": None for id_ in ids}
    for old, new in ids.items():
        changes[f"{NODE}/node{new}/cpulist"] = f"{old * 2}-{old * 2 + 1}"
        changes[f"{NODE}/node{new}/meminfo"] = f"Node {new} MemTotal: 1048576 kB"
    changes[f"{NODE}/online"] = ",".join(map(str, ids.values()))
    changes[f"{NODE}/has_normal_memory"] = None
    return changes


def test_node_ids_may_have_gaps_and_distances_go_by_position(read: Read) -> None:
    changes = renamed({0: 0, 1: 8, 2: 250})
    changes |= {
        f"{NODE}/node0/distance": "10 40 80",
        f"{NODE}/node8/distance": "40 10 80",
        f"{NODE}/node250/distance": "80 80 10",
    }
    machine = read("numa:3 core:2", changes)
    assert [(each.id, str(each.cpus)) for each in machine.nodes] == [
        *((0, "0-1"), (8, "2-3"), (250, "4-5"))
    ]
    assert machine.distances.nodes == (0, 8, 250)
    assert machine.distances.matrix == ((10, 40, 80), (40, 10, 80), (80, 80, 10))


def test_without_nodes_node_0_has_all_cpus_and_memory(read: Read) -> None:
    machine = read(
        "core:4",
        {
            NODE: None,
            "proc/meminfo": "MemTotal:       2097152 kB\nMemFree: 1 kB\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "7",
        },
    )
    [only] = machine.nodes
    assert (only.id, str(only.cpus), only.memory, only.normal) == (0, "0-3", 2 * GIB, True)
    assert only.hugepages == ((2 << 20, 7),)
    assert str(only.nearest) == "0"
    assert machine.distances.matrix == ((10,),)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("\nNode 0 MemTotal:       1024 kB\n", 1 << 20),  # Linux 2.6
        ("Node 0 MemTotal: 0 kB", 0),
        ("Node 0 MemFree: 5 kB\nNode 0 MemTotal:\t1024 kB\n\0", 1 << 20),
        ("Node 0 MemTotal: lots", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_memory_is_the_total_of_meminfo(read: Read, text: str | None, memory: int) -> None:
    assert node(read(TWO, {f"{NODE}/node0/meminfo": text}), 0).memory == memory


def test_an_only_node_without_meminfo_has_the_machines_memory(read: Read) -> None:
    machine = read("core:2", {f"{NODE}/node0/meminfo": None, "proc/meminfo": "MemTotal: 1024 kB"})
    assert node(machine, 0).memory == 1 << 20


def test_cpus_may_be_a_mask_or_links_only(read: Read) -> None:
    machine = read(
        TWO,
        {
            f"{NODE}/node0/cpulist": None,
            f"{NODE}/node0/cpumap": "00000000,00000003",
            f"{NODE}/node1/cpulist": None,
            f"{NODE}/node1/cpu2": Link("../../cpu/cpu2"),
            f"{NODE}/node1/cpu3": Link("../../cpu/cpu3"),
        },
    )
    assert [str(each.cpus) for each in machine.nodes] == ["0-1", "2-3"]


def test_a_node_whose_cpus_are_offline_is_no_memory_only_node(read: Read) -> None:
    gone = read("package:2 numa:1 core:2 offline=2-3")
    assert str(node(gone, 1).cpus) == ""
    assert node(gone, 1).kind_reason == "has CPUs, all of them offline"
    assert str(node(gone, 1).nearest) == "0"


def test_a_cpus_own_link_tells_that_it_is_offline(read: Read) -> None:
    links: dict[str, Change] = {f"{NODE}/node1/cpu{cpu}": None for cpu in (2, 3)}
    assert node(read(f"{TWO} offline=2-3", links), 1).kind_reason.startswith("has CPUs")


def test_overlapping_nodes_are_kept_and_noted(read: Read) -> None:
    machine = read(TWO, {f"{NODE}/node{id_}/cpulist": "0-3" for id_ in (0, 1)})
    assert [str(each.cpus) for each in machine.nodes] == ["0-3", "0-3"]
    assert "in more than one NUMA node (CPUs 0-3)" in machine.notes


def test_cpus_may_be_in_no_node(read: Read) -> None:
    machine = read(TWO, {f"{NODE}/node1/cpulist": "2"})
    assert machine.notes == ("in no NUMA node (CPUs 3)",)


def test_nodes_online_without_a_folder_are_left_out_but_keep_their_column(read: Read) -> None:
    machine = read(
        TWO,
        {
            f"{NODE}/online": "0-2",
            f"{NODE}/node1": None,
            f"{NODE}/node0/distance": "10 15 25",
            f"{NODE}/node2/distance": "25 16 10",
            f"{NODE}/node2/cpulist": "2-3",
        },
    )
    assert machine.distances.nodes == (0, 2)
    assert machine.distances.matrix == ((10, 25), (25, 10))


def test_a_row_as_long_as_there_are_folders_goes_by_these(read: Read) -> None:
    changes: dict[str, Change] = {f"{NODE}/online": "0-7", f"{NODE}/node1/distance": "31 10"}
    assert read(TWO, changes).distances.matrix == ((10, 11), (31, 10))


def test_folders_of_nodes_that_are_not_online_are_left_out(read: Read) -> None:
    assert [each.id for each in read("numa:3 core:2", {f"{NODE}/online": "0,2"}).nodes] == [0, 2]


def test_a_lone_online_node_without_folder_leaves_one_made_up(read: Read) -> None:
    machine = read("core:2", {f"{NODE}/online": "1", f"{NODE}/node0": None})
    assert [(each.id, str(each.cpus)) for each in machine.nodes] == [(0, "0-1")]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("10 255", (10, 255)),
        ("10", (10, 20)),
        ("10 21 31 41", (10, 21)),
        ("0 0", (10, 20)),  # ACPI reserves what is below 10
        ("ten far", (10, 20)),
        ("10 -5", (10, 20)),
        ("10 99999999999999999999", (10, 20)),
        ("10 0000000219999", (10, 20)),
        ("", (10, 20)),
        (None, (10, 20)),
    ],
)
def test_what_is_no_distance_is_the_kernels_default(
    read: Read, text: str | None, row: tuple[int, ...]
) -> None:
    machine = read(TWO, {f"{NODE}/node0/distance": text})
    assert machine.distances.matrix[0] == row
    assert bool(machine.notes) == (text != "10 255")


def test_asymmetric_distances_stay_as_they_are(read: Read) -> None:
    machine = read(f"{TWO} distances=10,17/31,10")
    assert machine.distances.matrix == ((10, 17), (31, 10))


def test_huge_pages_are_counted_by_node_and_size(read: Read) -> None:
    machine = read(
        TWO,
        {
            f"{NODE}/node0/hugepages/hugepages-1048576kB/nr_hugepages": "1",
            f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": "100",
            f"{NODE}/node1/hugepages/hugepages-64kB/nr_hugepages": "many",
        },
    )
    assert node(machine, 0).hugepages == ((2 << 20, 100), (GIB, 1))
    assert node(machine, 1).hugepages == ((64 << 10, 0),)


def access(id_: int, class_: int, initiator: int, bandwidth: int) -> dict[str, Change]:
    folder = f"{NODE}/node{id_}/access{class_}/initiators"
    return {
        f"{folder}/node{initiator}": Link(f"../../../node{initiator}"),
        f"{folder}/read_bandwidth": f"{bandwidth}",
        f"{folder}/read_latency": "0",
    }


def test_access_class_1_comes_before_0(read: Read) -> None:
    # class 0 may name a device as the best initiator
    machine = read("numa:2(pmem=1GiB) core:2", {**access(2, 0, 3, 900), **access(2, 1, 1, 100)})
    found = node(machine, 2)
    assert found.access == AccessClass(
        initiators=found.nearest,
        read_latency=None,
        write_latency=None,
        read_bandwidth=100,
        write_bandwidth=None,
    )
    assert str(found.nearest) == "1"


def test_access_class_0_does_where_there_is_no_1(read: Read) -> None:
    assert str(node(read("numa:2(pmem=1GiB) core:2", access(2, 0, 1, 100)), 2).nearest) == "1"


def test_nearest_are_all_cpu_nodes_at_the_least_distance_from_the_cpus(read: Read) -> None:
    machine = read("package:2(pmem=1GiB) numa:2 core:1")
    assert [str(each.nearest) for each in machine.nodes] == ["0", "1", "2", "3", "0-1", "2-3"]


def test_nearest_goes_by_the_row_of_the_initiator(read: Read) -> None:
    machine = read("package:1(pmem=1GiB) numa:2 core:1 distances=10,11,28/11,10,17/17,28,10")
    assert str(node(machine, 2).nearest) == "1"


def test_normal_memory_is_what_the_kernel_may_use(read: Read) -> None:
    machine = read("numa:2(memory=4GiB,0) core:2", {f"{NODE}/has_normal_memory": "0"})
    assert [each.normal for each in machine.nodes] == [True, False]


def test_without_has_normal_memory_all_memory_is_normal(read: Read) -> None:
    machine = read("numa:2(pmem=1GiB) core:2", {f"{NODE}/has_normal_memory": None})
    assert all(each.normal for each in machine.nodes)


def test_a_normal_memory_list_of_other_nodes_is_not_believed(read: Read) -> None:
    machine = read(TWO, {f"{NODE}/has_normal_memory": "0,5-7"})
    assert [each.normal for each in machine.nodes] == [True, True]
    assert any("5-7" in note for note in machine.notes)


def test_memory_side_caches_are_summed(read: Read) -> None:
    machine = read(TWO, {f"{NODE}/node1/memory_side_cache/index1/size": f"{GIB}"})
    assert [each.side_cache for each in machine.nodes] == [0, GIB]
