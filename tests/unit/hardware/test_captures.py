"""Captured machines against ground truth: what hwloc and lscpu read from the same files.

Our own guest captures are beside this file; the others, where they can be found, are in
`../shared/captures` beside the project's root, or in that of NRI_POLICY_SHARED.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from tests.support.shared_data import NOT_HERE

DATA = Path(__file__).parent / "data"
SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[4] / "shared"))
CAPTURES = {
    path.name.removesuffix(".tar.xz"): path
    for folder in (SHARED / "captures" / "guest", SHARED / "captures" / "real", DATA)
    for path in sorted(folder.glob("*.tar.xz"))
}


def truth_of(name: str) -> Path:
    return CAPTURES[name].with_name(f"{name}.json")


WITH_TRUTH = sorted(name for name in CAPTURES if truth_of(name).exists())

# capture -> field in which we differ from a program on purpose -> why
DIFFERENCES: dict[str, dict[str, str]] = {
    "qemu-arm64-dt-clusters": {
        "devices": "the functions' own folders are not in the capture: only their addresses are",
    },
    "hwloc-256ppc-8n8s4t": {
        "package ids": "the kernel knows none (-1): hwloc has null, we count",
    },
    "hwloc-64intel64-fakeKNL-SNC4-hybrid": {
        "L3 caches": "MCDRAM in cache mode, from hwloc's own file: not in sysfs",
    },
    "hwloc-8em64t-2s2ca2c-buggynuma": {
        "nodes": "hwloc drops overlapping nodes; the spec keeps what the kernel says, with a note",
    },
    "hwloc-fakeheteromemtiers": {
        "kind of node 2": "it has CPUs, and such nodes are dram (hardware.md 2, rule 2)",
    },
    "hwloc-nvidiagpunumanodes": {
        "devices": "hwloc has them from its own file of the captured machine: not in sysfs",
        **{
            f"nearest CPUs of node {id_}": "by those devices; the distances of both packages tie"
            for id_ in range(250, 256)
        },
    },
    "lscpu-arm-A510-A710-A715-X3": {
        "lscpu cores": "lscpu merges equal core ids of different packages; hwloc is with us",
        "lscpu sockets": "lscpu takes all for one socket; hwloc and the kernel's sets are with us",
    },
}

KINDS = {"DRAM": "dram", "HBM": "hbm", "MCDRAM": "hbm", "NVM": "pmem", "GPUMemory": "device"}


def lists(sets: Iterable[CPUSet]) -> list[str]:
    return sorted(map(str, sets))


def fields(machine: Machine, truth: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Compare field by field: name, ours, theirs."""
    hwloc = truth["hwloc"]
    yield "online", str(machine.online), hwloc["pus"]
    yield "offline", str(machine.offline), hwloc["offline"]
    yield (
        "packages",
        lists(package.cpus for package in machine.packages),
        sorted(package["cpuset"] for package in hwloc["packages"]),
    )
    yield (
        "package ids",
        {str(package.cpus): package.id for package in machine.packages},
        {package["cpuset"]: package["os_index"] for package in hwloc["packages"]},
    )
    # hwloc shows no dies where each package is one
    yield (
        "dies",
        sorted((die.id, str(die.cpus)) for die in machine.dies),
        sorted((die["os_index"], die["cpuset"]) for die in hwloc["dies"])
        or sorted((die.id, str(die.cpus)) for die in machine.dies if is_package(machine, die.cpus)),
    )
    yield (
        "cores",
        sorted((str(core.cpus), core.id) for core in machine.cores),
        sorted((core["cpuset"], core["os_index"]) for core in hwloc["cores"]),
    )
    yield from node_fields(machine, hwloc)
    yield from cache_fields(machine, hwloc)
    kinds: dict[str, list[CPUSet]] = defaultdict(list)
    for core in machine.cores:
        kinds[core.kind].append(core.cpus)
    yield (
        "core kinds",
        lists(CPUSet.union(sets) for sets in kinds.values()),
        sorted(kind["cpuset"] for kind in hwloc["cpukinds"]) or [str(machine.online)],
    )
    theirs = {  # as in "0200 [8086:10d3] [8086:0000] 00"; hwloc leaves bridges out
        each["busid"]: (each["pci_type"][:4], each["pci_type"][6:15], each["locality"]["cpuset"])
        for each in hwloc["pci"] or ()
    }
    ours = {
        device.address: (device.class_[:4], device.name, str(device.cpus))
        for device in machine.devices
        if device.address in theirs
    }
    yield "devices", ours, theirs
    yield from lscpu_fields(machine, truth["lscpu"])


def is_package(machine: Machine, cpus: CPUSet) -> bool:
    return any(package.cpus == cpus for package in machine.packages)


def node_fields(machine: Machine, hwloc: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    theirs = {node["os_index"]: node for node in hwloc["numa_nodes"]}
    yield "nodes", [node.id for node in machine.nodes], sorted(theirs)
    cpus_of = {node.id: node.cpus for node in machine.nodes}
    for node in machine.nodes:
        if node.id in theirs:
            near = CPUSet.union(cpus_of[id_] for id_ in node.nearest)
            yield f"nearest CPUs of node {node.id}", str(near), theirs[node.id]["cpuset"]
            yield f"memory of node {node.id}", node.memory, theirs[node.id]["memory"]
            subtype = theirs[node.id]["subtype"]
            if subtype is not None:  # hwloc does not guess
                yield f"kind of node {node.id}", node.kind.value, KINDS[subtype]
    if hwloc["distances"]:
        ours = (list(machine.distances.nodes), [list(row) for row in machine.distances.matrix])
        yield "distances", ours, (hwloc["distances"]["nodes"], hwloc["distances"]["matrix"])


def cache_fields(machine: Machine, hwloc: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    ours: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for own in machine.caches:
        ours[f"L{own.level}"].append((str(own.cpus), own.type, own.size))
    theirs: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for name, caches in hwloc["caches"].items():  # as in L1iCache
        for one in caches:
            theirs[name[:2]].append((one["cpuset"], one["type"].lower(), one["size"]))
    for level in sorted({*ours, *theirs}):
        yield f"{level} caches", sorted(ours[level]), sorted(theirs[level])


def lscpu_fields(
    machine: Machine, rows: list[dict[str, Any]]
) -> Iterator[tuple[str, object, object]]:
    online = [row for row in rows if row["online"]]
    yield "lscpu online", str(machine.online), str(CPUSet(row["cpu"] for row in online))
    for level, sets in (
        ("core", [core.cpus for core in machine.cores]),
        ("socket", [package.cpus for package in machine.packages]),
    ):
        cpus: dict[str, list[int]] = defaultdict(list)
        for row in online:
            cpus[str(row[level])].append(row["cpu"])
        yield f"lscpu {level}s", lists(sets), lists(map(CPUSet, cpus.values()))
    said = {row["cpu"]: str(row["node"]) for row in online if str(row["node"]) != "-"}
    yield (
        "lscpu nodes",
        {cpu for cpu, id_ in said.items() if id_ not in ids_of(machine, cpu)},
        set(),
    )
    if machine.frequencies:  # some captures were packed without them
        yield (
            "lscpu maximum frequencies",
            {cpu: f.maximum / 1000 for f in machine.frequencies if f.maximum for cpu in f.cpus},
            {row["cpu"]: row["maxmhz"] for row in online if row["maxmhz"] != "-"},
        )


def ids_of(machine: Machine, cpu: int) -> list[str]:
    return [str(node.id) for node in machine.nodes if cpu in node.cpus]


@cache
def read(name: str) -> Machine:
    with open_capture(CAPTURES[name]) as root:
        return discover(root)


@pytest.mark.parametrize("name", WITH_TRUTH)
def test_a_capture_reads_as_hwloc_and_lscpu_read_it(name: str) -> None:
    truth = json.loads(truth_of(name).read_text())
    allowed = DIFFERENCES.get(name, {})
    differing = {
        field: (ours, theirs) for field, ours, theirs in fields(read(name), truth) if ours != theirs
    }
    assert {field: both for field, both in differing.items() if field not in allowed} == {}
    assert differing.keys() == allowed.keys(), "these agree now: take them off the list"


# What the captures' README and their names say of those without ground truth:
# packages, dies, cores, online CPUs, CPUs of each node
SHAPES: dict[str, tuple[int, int, int, int, list[str]]] = {
    "a-2s2n-16cpu": (2, 2, 8, 16, ["0-3", "4-7", "8-11", "12-15"]),
    "a2-intel-numbering": (2, 2, 8, 16, ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
    "a3-hugepages": (2, 2, 8, 16, ["0-3", "4-7", "8-11", "12-15"]),
    "b1-2s2d-4n": (2, 4, 8, 16, ["0-3", "4-7", "8-11", "12-15"]),
    "b2-2s2d2n-32cpu": (2, 4, 16, 32, [f"{cpu}-{cpu + 3}" for cpu in range(0, 32, 4)]),
    "b3-amd-2s2d-4n": (2, 2, 8, 16, ["0-3", "4-7", "8-11", "12-15"]),
    "c-pmem": (2, 2, 4, 8, ["0-3", "4-7", "", ""]),
    "c2-pmem-movable": (2, 2, 4, 8, ["0-3", "4-7", "", ""]),
    "d-hbm": (2, 2, 4, 8, ["0-3", "4-7", "", ""]),
    "e-isolcpus": (2, 2, 8, 16, ["0-3", "4-7", "8-11", "12-15"]),
    "f-plain": (1, 1, 4, 4, ["0-3"]),
    "f2-plain-smt": (1, 1, 4, 8, ["0-7"]),
    "g-offline": (2, 2, 8, 12, ["0-2", "4-5,7", "8-9,11", "12-14"]),
    "g2-unplugged": (2, 2, 6, 11, ["0-3", "4,6-7", "8-11", ""]),
    "h-asym": (2, 2, 7, 14, ["0-7", "8-11", "12-13", ""]),
    "h2-asym-1s": (1, 1, 6, 12, ["0-3", "4-9", "10-11", ""]),
    "i-pci": (2, 2, 8, 16, ["0-3", "4-7", "8-11", "12-15"]),
    "n64": (2, 2, 32, 64, ["0-15", "16-31", "32-47", "48-63"]),
    "n128": (2, 2, 64, 128, ["0-31", "32-63", "64-95", "96-127"]),
}


@pytest.mark.parametrize("name", sorted(SHAPES.keys() & CAPTURES.keys()))
def test_a_guest_has_the_shape_that_it_was_started_with(name: str) -> None:
    machine = read(name)
    assert (
        len(machine.packages),
        len(machine.dies),
        len(machine.cores),
        len(machine.online),
        [str(node.cpus) for node in machine.nodes],
    ) == SHAPES[name]
    assert machine.notes == tuple(note for note in machine.notes if "is a guess" in note)


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in CAPTURES, reason=NOT_HERE)


@needs("a2-intel-numbering")
def test_siblings_may_be_numbered_apart() -> None:
    assert [str(core.cpus) for core in read("a2-intel-numbering").cores][:2] == ["0,8", "1,9"]


@needs("a3-hugepages")
def test_huge_pages_differ_by_node() -> None:
    small, large = 2 << 20, 1 << 30
    assert [node.hugepages for node in read("a3-hugepages").nodes] == [
        ((small, pages), (large, 0)) for pages in (8, 16, 0, 4)
    ]


@needs("b3-amd-2s2d-4n")
def test_a_package_may_have_two_l3_caches() -> None:
    machine = read("b3-amd-2s2d-4n")
    assert [str(each.cpus) for each in machine.caches if each.level == 3] == [
        *("0-3", "4-7", "8-11", "12-15")
    ]


@pytest.mark.parametrize(
    ("name", "kinds", "normal"),
    [
        pytest.param("c-pmem", "dram dram pmem pmem", "0-3", marks=needs("c-pmem")),
        pytest.param(
            "c2-pmem-movable", "dram dram pmem pmem", "0-1", marks=needs("c2-pmem-movable")
        ),
        pytest.param("d-hbm", "dram dram hbm hbm", "0-3", marks=needs("d-hbm")),
        ("qemu-2s-dram-hbm-pmem-hmat", "dram dram hbm hbm pmem pmem", "0-3"),
        pytest.param(
            "nri-server", "dram dram dram dram pmem pmem", "0-5", marks=needs("nri-server")
        ),
    ],
)
def test_memory_only_nodes_are_told_apart(name: str, kinds: str, normal: str) -> None:
    nodes = read(name).nodes
    assert " ".join(node.kind for node in nodes) == kinds
    assert str(CPUSet(node.id for node in nodes if node.normal)) == normal


@needs("e-isolcpus")
def test_isolated_cpus_are_those_of_the_boot_options() -> None:
    machine = read("e-isolcpus")
    assert str(machine.isolated) == str(machine.nohz_full) == "4-7,12-15"


def test_isolated_full_tickless_and_offline_cpus_differ() -> None:
    machine = read("qemu-offline-isolated")
    assert (str(machine.isolated), str(machine.nohz_full)) == ("4-7,12-13", "6-7")
    assert str(machine.offline) == "3,9-10"


@needs("h-asym")
def test_a_node_may_lack_memory() -> None:
    nodes = read("h-asym").nodes
    assert (nodes[2].memory, nodes[2].normal, nodes[2].kind) == (0, False, "dram")
    assert str(nodes[3].nearest) == "0-2"


@needs("hwloc-40intel64-2g2n4c-pcilocality")
def test_a_real_machine_whose_firmware_places_one_device_only() -> None:
    machine = read("hwloc-40intel64-2g2n4c-pcilocality")
    placed = {d.address: (d.class_, str(d.numa_nodes)) for d in machine.devices if d.numa_nodes}
    assert placed == {"0000:43:00.0": ("0c0600", "2")}
    assert {d.cpus for d in machine.devices} == {machine.online}, "the kernel says all, of each"


PLACES = {
    "0000:00:01.0": ("1af4:1001", "", "0-7"),
    "0000:41:00.0": ("1af4:1041", "0", "0-3"),
    "0000:42:00.0": ("8086:10d3", "0", "0-3"),
    "0000:81:00.0": ("8086:10c9", "1", "4-7"),
    "0000:81:10.6": ("8086:10ca", "1", "4-7"),  # a virtual function of the one before
    "0000:82:00.0": ("1b36:0010", "1", "4-7"),
}


@pytest.mark.parametrize("address", PLACES)
def test_a_device_of_an_emulated_machine_has_a_name_and_a_place(address: str) -> None:
    [device] = [each for each in read("qemu-pci-locality").devices if each.address == address]
    assert (device.name, str(device.numa_nodes), str(device.cpus)) == PLACES[address]


@needs("i-pci")
def test_devices_are_placed_by_their_bridges() -> None:
    placed = {d.address: str(d.numa_nodes) for d in read("i-pci").devices if d.numa_nodes}
    assert placed == {
        "0000:20:00.0": "0",
        "0000:21:00.0": "0",
        "0000:40:00.0": "1",
        "0000:41:00.0": "1",
        "0000:60:00.0": "3",
        "0000:61:00.0": "3",
    }
