from __future__ import annotations

import pytest

from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine, MemoryKind

from .conftest import Change, Link, Plant, Read

NODE = "sys/devices/system/node"
DAX = "sys/bus/dax/devices"
GIB = 1 << 30
# node 2 is memory-only and near to node 0; nothing but its size and distance tells what it is
PLAIN = "package:2 numa:1 core:2"


def extra(size: int = 1 * GIB, distance: int = 15, *, normal: bool = True) -> dict[str, Change]:
    """Add node 2, memory-only, near to node 0."""
    return {
        f"{NODE}/online": "0-2",
        f"{NODE}/has_normal_memory": "0-2" if normal else "0-1",
        f"{NODE}/node0/distance": f"10 21 {distance}",
        f"{NODE}/node1/distance": "21 10 28",
        f"{NODE}/node2/distance": f"{distance} 28 10",
        f"{NODE}/node2/cpulist": "\n",
        f"{NODE}/node2/meminfo": f"Node 2 MemTotal: {size >> 10} kB",
        "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": "0-2",
    }


def verdict(machine: Machine, id_: int = 2) -> tuple[str, str]:
    [node] = [each for each in machine.nodes if each.id == id_]
    return node.kind.value, node.kind_reason


def hmat(latency: int, bandwidth: int) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for id_, (ns, mbs) in {0: (100, 1000), 2: (latency, bandwidth)}.items():
        folder = f"{NODE}/node{id_}/access1/initiators"
        changes[f"{folder}/node0"] = Link("../../../node0")
        changes[f"{folder}/read_latency"] = str(ns)
        changes[f"{folder}/read_bandwidth"] = str(mbs)
    return changes


def tier(number: int) -> dict[str, Change]:
    return {
        "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": "0-1",
        f"sys/devices/virtual/memory_tiering/memory_tier{number}/nodelist": "2",
    }


def dax(path: str, driver: str | None = "kmem") -> dict[str, Change]:
    changes: dict[str, Change] = {
        f"sys/devices/{path}/target_node": "2",
        f"{DAX}/dax0.0": Link(f"../../../devices/{path}"),
    }
    if driver is not None:
        changes[f"sys/bus/dax/drivers/{driver}/bind"] = ""
        ups = "../" * (path.count("/") + 2)
        changes[f"sys/devices/{path}/driver"] = Link(f"{ups}bus/dax/drivers/{driver}")
    return changes


NVDIMM = "LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region0/dax0.1/dax0.0"
CXL = "platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0"
HMEM = "platform/hmem.0/dax0.0"


def test_the_settings_come_first(plant: Plant) -> None:
    root = plant(PLAIN, {**extra(), **dax(NVDIMM)})
    machine = discover(
        root, memory_kinds={2: MemoryKind.HBM, 0: MemoryKind.HBM, 9: MemoryKind.PMEM}
    )
    assert verdict(machine) == ("hbm", "the settings")
    assert verdict(machine, 0) == ("hbm", "the settings")
    assert any("node 9" in note for note in machine.notes)


def test_nodes_with_cpus_are_dram(read: Read) -> None:
    assert verdict(read(PLAIN), 1) == ("dram", "has CPUs")


def test_persistent_memory_is_known_by_its_driver(read: Read) -> None:
    machine = read(PLAIN, {**extra(), **dax(NVDIMM), **hmat(100, 9000)})
    assert verdict(machine) == ("pmem", "dax0.0 lies in persistent memory")


def test_cxl_is_known_by_its_driver(read: Read) -> None:
    assert verdict(read(PLAIN, {**extra(), **dax(CXL)})) == ("cxl", "dax0.0 lies in a CXL region")


def test_a_dax_device_that_is_not_the_kernels_memory_says_nothing(read: Read) -> None:
    assert verdict(read(PLAIN, {**extra(), **dax(NVDIMM, "device_dax")}))[0] == "hbm"


def test_a_dax_device_without_a_driver_link_is_believed(read: Read) -> None:
    assert verdict(read(PLAIN, {**extra(), **dax(NVDIMM, None)}))[0] == "pmem"


def test_soft_reserved_memory_is_judged_by_other_signs(read: Read) -> None:
    assert verdict(read(PLAIN, {**extra(), **dax(HMEM), **hmat(110, 4000)}))[0] == "hbm"


def test_an_nvdimm_region_names_its_node(read: Read) -> None:
    machine = read(PLAIN, {**extra(), "sys/bus/nd/devices/region3/target_node": "2"})
    assert verdict(machine) == ("pmem", "its memory is NVDIMM region3")


def test_a_cxl_region_is_found_by_its_address(read: Read) -> None:
    changes: dict[str, Change] = {
        **extra(),
        "sys/bus/cxl/devices/region0/resource": "0x180000000",
        "sys/devices/system/memory/block_size_bytes": "8000000\n",
        f"{NODE}/node2/memory48": Link("../../memory/memory48"),
    }
    assert verdict(read(PLAIN, changes)) == ("cxl", "its memory is CXL region0")


@pytest.mark.parametrize("size", ["0", "", "-8", "8000000000000000000000", "zz"])
def test_odd_memory_block_sizes_are_survived(read: Read, size: str) -> None:
    changes: dict[str, Change] = {
        **extra(),
        "sys/bus/cxl/devices/region0/resource": "0x180000000",
        "sys/devices/system/memory/block_size_bytes": size,
    }
    assert verdict(read(PLAIN, changes))[0] == "hbm"


@pytest.mark.parametrize("class_", ["0x030200", "0x120000"])
def test_an_accelerators_memory_is_the_devices(read: Read, class_: str) -> None:
    changes: dict[str, Change] = {
        **extra(normal=False),
        "sys/bus/pci/devices/0000:01:00.0/class": class_,
        "sys/bus/pci/devices/0000:01:00.0/numa_node": "2",
    }
    assert verdict(read(PLAIN, changes)) == ("device", "belongs to the device 0000:01:00.0")


def test_memory_of_the_kernels_own_use_is_no_devices(read: Read) -> None:
    changes: dict[str, Change] = {
        **extra(),
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030000",
        "sys/bus/pci/devices/0000:01:00.0/numa_node": "2",
    }
    assert verdict(read(PLAIN, changes))[0] == "hbm"


@pytest.mark.parametrize(
    "changes",
    [
        {f"{NODE}/has_generic_initiator": "2"},
        {"proc/driver/nvidia/gpus/0004:04:00.0/numa_status": "Node: 2\nStatus: online\n"},
        {"proc/cpuinfo": "processor : 0\nplatform\t: PowerNV\n"},
    ],
)
def test_coherent_gpus_show_in_several_ways(read: Read, changes: dict[str, Change]) -> None:
    assert verdict(read(PLAIN, {**extra(normal=False), **changes}))[0] == "device"


def test_a_node_without_cpus_and_memory_is_harmless(read: Read) -> None:
    assert verdict(read(PLAIN, extra(0))) == ("dram", "has no memory")


@pytest.mark.parametrize(
    ("latency", "bandwidth", "kind"),
    [
        (120, 2000, "hbm"),
        (300, 4000, "hbm"),  # bandwidth tells before latency
        (100, 500, "pmem"),
        (150, 1000, "pmem"),
        (149, 501, None),
        (149, 1999, None),
        (0, 0, None),
    ],
)
def test_hmat_figures_are_compared_with_drams(
    read: Read, latency: int, bandwidth: int, kind: str | None
) -> None:
    found, reason = verdict(read(PLAIN, {**extra(), **hmat(latency, bandwidth)}))
    assert reason.startswith("HMAT") == (kind is not None)
    assert found == (kind or "hbm")


@pytest.mark.parametrize(("number", "kind"), [(1, "hbm"), (22, "pmem")])
def test_the_kernels_tiers_tell(read: Read, number: int, kind: str) -> None:
    found = verdict(read(PLAIN, {**extra(), **tier(number)}))
    assert found == (kind, f"memory tier {number}, dram 4")


def test_movable_memory_came_later(read: Read) -> None:
    assert verdict(read(PLAIN, extra(normal=False))) == ("pmem", "movable memory only")


def test_xeon_phi_has_its_own_memory(read: Read) -> None:
    changes = {**extra(16 * GIB), "proc/cpuinfo": "cpu family\t: 6\nmodel\t\t: 87\n"}
    assert verdict(read(PLAIN, changes)) == ("hbm", "MCDRAM of a Xeon Phi")


@pytest.mark.parametrize(
    ("size", "distance", "kind"),
    [
        (1 * GIB, 15, "hbm"),  # smaller and nearer than the other package
        (16 * GIB, 15, "pmem"),
        (1 * GIB, 21, "pmem"),
        (4 * GIB, 15, "dram"),  # as large as dram: nothing tells
    ],
)
def test_size_and_distance_are_the_last_resort(
    read: Read, size: int, distance: int, kind: str
) -> None:
    machine = read(PLAIN, extra(size, distance))
    assert verdict(machine)[0] == kind
    assert any("is a guess" in note for note in machine.notes) == (kind != "dram")


def test_movable_memory_with_cpus_is_not_what_others_are_measured_by(read: Read) -> None:
    changes = {**extra(), **hmat(100, 4000), f"{NODE}/has_normal_memory": "0,2"}
    folder = f"{NODE}/node1/access1/initiators"
    changes |= {f"{folder}/node1": Link("../../../node1"), f"{folder}/read_bandwidth": "4000"}
    machine = read(PLAIN, changes)
    assert verdict(machine, 1)[0] == "dram"
    assert verdict(machine)[0] == "hbm"
