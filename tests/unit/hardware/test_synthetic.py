from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.synthetic import write
from nri_policy.hardware.synthetic_spec import LEVELS, SpecError, parse

from .conftest import Read

GIB = 1 << 30


def node_cpus(machine: Machine) -> list[str]:
    return [str(node.cpus) for node in machine.nodes]


def test_siblings_are_adjacent_by_default(read: Read) -> None:
    machine = read("package:2 numa:2 core:2 pu:2")
    assert node_cpus(machine) == ["0-3", "4-7", "8-11", "12-15"]
    assert [str(core.cpus) for core in machine.cores][:3] == ["0-1", "2-3", "4-5"]
    assert [(package.id, str(package.cpus)) for package in machine.packages] == [
        *((0, "0-7"), (1, "8-15"))
    ]
    assert [str(c.cpus) for c in machine.caches if c.level == 3] == node_cpus(machine)
    assert {node.memory for node in machine.nodes} == {4 * GIB}
    assert machine.distances.matrix[0] == (10, 11, 21, 21)
    assert machine.notes == ()


def test_packages_may_take_turns(read: Read) -> None:
    machine = read("package:2 numa:1 core:2 pu:2 siblings=alternating")
    assert [str(each.cpus) for each in machine.packages] == ["0,2,4,6", "1,3,5,7"]
    assert [str(core.cpus) for core in machine.cores] == ["0,4", "1,5", "2,6", "3,7"]


def test_siblings_may_be_apart(read: Read) -> None:
    machine = read("package:2 core:4 pu:2 siblings=apart")
    assert [str(core.cpus) for core in machine.cores][:2] == ["0,8", "1,9"]
    assert [str(package.cpus) for package in machine.packages] == ["0-3,8-11", "4-7,12-15"]


def test_every_level_is_written(read: Read) -> None:
    machine = read("package:2 die:2 numa:1 l3:2 cluster:2 l2:1 core:2 pu:2")
    counts = [len(machine.packages), len(machine.dies), len(machine.nodes), len(machine.clusters)]
    assert counts == [2, 4, 4, 16]
    assert [sum(cache.level == level for cache in machine.caches) for level in (1, 2, 3)] == [
        *(64, 16, 8)
    ]
    assert (len(machine.cores), len(machine.online)) == (32, 64)
    assert [(die.package, die.id) for die in machine.dies] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_numa_node_may_span_packages(read: Read) -> None:
    machine = read("numa:2 package:2 core:2")
    assert node_cpus(machine) == ["0-3", "4-7"]
    assert len(machine.packages) == 4


def test_hwlocs_names_and_threads_without_cores_do(read: Read) -> None:
    machine = read("Socket:2 NUMANode:1 L3Cache:2 Group:1 PU:4")
    assert len(machine.cores) == len(machine.online) == 16
    assert [str(cluster.cpus) for cluster in machine.clusters] == ["0-3", "4-7", "8-11", "12-15"]


def test_levels_left_out_are_one(read: Read) -> None:
    machine = read("core:3")
    assert (len(machine.packages), len(machine.dies), node_cpus(machine)) == (1, 1, ["0-2"])
    assert [str(cache.cpus) for cache in machine.caches if cache.level == 3] == ["0-2"]


def test_memory_takes_turns(read: Read) -> None:
    machine = read("numa:4(memory=16GiB,512MiB) core:1")
    assert [node.memory for node in machine.nodes] == [16 * GIB, GIB // 2] * 2


def test_huge_pages_take_turns_and_are_a_part_of_the_memory(read: Read) -> None:
    machine = read("numa:4(memory=16GiB hugepages-1Gi=0,8 hugepages-2Mi=64) core:1")
    assert [node.hugepages for node in machine.nodes] == [
        ((2 << 20, 64), (GIB, count)) for count in (0, 8, 0, 8)
    ]


def test_huge_pages_come_on_top_of_memory_that_is_not_given(read: Read) -> None:
    machine = read("numa:2(hugepages-1Gi=0,16) core:1")
    assert [node.memory for node in machine.nodes] == [4 * GIB, 20 * GIB]


def test_devices_are_functions_with_the_names_of_their_resources(read: Read) -> None:
    machine = read("numa:3(x.com/gpu=1,2 y.com/nic=1) core:1")
    assert [(each.name, str(each.numa_nodes), str(each.cpus)) for each in machine.devices] == [
        *(("x.com gpu", str(node), str(node)) for node in (0, 1, 1, 2)),
        *(("y.com nic", str(node), str(node)) for node in (0, 1, 2)),
    ]


def test_memory_only_nodes_are_of_their_kind_and_near_their_place(read: Read) -> None:
    machine = read("package:2(pmem=64GiB cxl=8GiB) numa:2(memory=16GiB hbm=2GiB) core:2")
    found = [(node.id, node.kind, node.memory, str(node.nearest)) for node in machine.nodes[4:]]
    assert found == [
        (4, "pmem", 64 * GIB, "0-1"),
        (5, "pmem", 64 * GIB, "2-3"),
        (6, "cxl", 8 * GIB, "0-1"),
        (7, "cxl", 8 * GIB, "2-3"),
        *((8 + id_, "hbm", 2 * GIB, str(id_)) for id_ in range(4)),
    ]
    assert [node.normal for node in machine.nodes] == [True] * 4 + [False] * 4 + [True] * 4
    assert machine.distances.matrix[0] == (10, 11, 21, 21, 17, 28, 17, 28, 13, 23, 23, 23)
    assert [list(row) for row in zip(*machine.distances.matrix, strict=True)] == [
        list(row) for row in machine.distances.matrix
    ]


def test_efficiency_cores_have_one_thread(read: Read) -> None:
    machine = read("core:14(efficiency=8) pu:2")
    assert str(machine.online) == "0-19"
    assert [(str(core.cpus), core.kind) for core in machine.cores][5:7] == [
        *(("10-11", "performance"), ("12", "efficiency"))
    ]


def test_cpus_may_be_offline_and_isolated(read: Read) -> None:
    machine = read("core:4 pu:2 offline=2-3,7 isolated=4-5 nohz_full=5")
    assert (str(machine.online), str(machine.offline)) == ("0-1,4-6", "2-3,7")
    assert (str(machine.isolated), str(machine.nohz_full)) == ("4-5", "5")
    assert [str(core.cpus) for core in machine.cores] == ["0-1", "4-5", "6"]


def test_distances_may_be_given(read: Read) -> None:
    assert read("numa:2 core:1 distances=10,12/32,10").distances.matrix == ((10, 12), (32, 10))


def test_frequencies_may_be_given_for_all_or_some(read: Read) -> None:
    machine = read("core:3 base=2.1GHz base@1-2=2700MHz epp=performance max=4000000kHz")
    assert [(str(f.cpus), f.base, f.maximum, f.preference) for f in machine.frequencies] == [
        ("0", 2_100_000, 4_000_000, "performance"),
        ("1-2", 2_700_000, 4_000_000, "performance"),
    ]


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected a level"),
        ("corre:2", 0, f"levels are {', '.join(LEVELS)}"),
        ("package:2 core", 10, "expected LEVEL:COUNT"),
        ("package:two", 8, "expected a count from 1"),
        ("package:0", 8, "expected a count from 1"),
        ("package:9999999999999999999", 8, "expected a count from 1"),
        ("package:000000001234", 8, "expected a count from 1"),
        ("core:" + "1" * 5000, 5, "expected a count from 1"),
        ("numa:2 core:1 distances=10,0000000219999/20,10", 24, "a number from 0 to 255"),
        ("core:2 core:2", 7, "a second time"),
        ("core:2 package:2", 7, "package cannot be inside core"),
        ("l2:2 numa:2 core:1", 5, "numa cannot be inside l2"),
        ("numa:2(memroy=1GiB)", 7, "attributes of numa are: memory=…"),
        ("numa:2(memory)", 7, "attributes of numa are: memory=…"),
        ("numa:2(hugepages=4)", 7, "attributes of numa are: memory=…, hugepages-SIZE=…"),
        ("numa:1(hugepages-1Gi=4GiB)", 21, "expected a number from 0 to"),
        ("numa:1(memory=1GiB hugepages-1Gi=2)", 35, "node 0 has less memory than huge pages"),
        ("numa:1(x.com/=4)", 7, "attributes of numa are: memory=…"),
        ("numa:1(gpu=4)", 7, "hugepages-SIZE=…, DOMAIN/DEVICE=…"),
        ("core:1(x.com/gpu=1)", 7, "attributes of core are: efficiency=…"),
        ("numa:1(x.com/gpu=many)", 17, "expected a number from 0 to"),
        ("numa:4(x.com/gpu=2000)", 22, "8000 devices; the most is 4096"),
        ("pu:2(hugepages-1Gi=4)", 5, "attributes of pu are: none"),
        ("pu:2(memory=1GiB)", 5, "attributes of pu are: none"),
        ("numa:2(memory=1GiB,much) core:1", 14, "expected a size such as 16GiB"),
        ("core:2(efficiency=3)", 18, "expected a number from 0 to 2"),
        ("core:2 sibling=apart", 7, "attributes of the machine are: siblings"),
        ("core:2 siblings=far", 16, "adjacent, apart, alternating"),
        ("core:2 base=fast", 12, "such as 2.1GHz"),
        ("core:2 offline@0=1", 15, "not an attribute of single CPUs"),
        ("core:2 offline=1-", 15, "is not a number"),
        ("core:2 offline=2", 16, "beyond the last one, 1"),
        ("core:2 isolated=9", 17, "beyond the last one, 1"),
        ("core:2 offline=0-1", 18, "no CPU is left online"),
        ("package:8192 core:2", 19, "16384 CPUs; the most is 8192"),
        ("numa:2000 core:1", 16, "2000 NUMA nodes; the most is 1024"),
        ("numa:2 core:1 distances=10,20", 29, "need 2 rows of 2 numbers"),
        ("numa:2 core:1 distances=10,20/20,999", 24, "expected a number from 0 to 255"),
        ("core:2(efficiency=1", 0, "expected LEVEL:COUNT"),
    ],
)
def test_a_bad_specification_points_at_the_place(text: str, position: int, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.position == position
    assert problem in str(caught.value)
    assert str(caught.value).endswith(f"\n  {text}\n  {' ' * position}^")


def test_nothing_is_written_for_a_bad_specification(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        write("core:zero", tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_many_cpus_are_one_machine(tmp_path: Path) -> None:
    write("package:2 numa:2 l3:4 core:16 pu:2", tmp_path / "root")
    machine = discover(tmp_path / "root")
    assert (len(machine.online), len(machine.cores), len(machine.nodes)) == (512, 256, 4)
    assert machine.notes == ()
