"""Details of pools: memory, caches and devices, each where it belongs."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.picture.detail import details_of
from nri_policy.report import DeviceReport, machine_report, pool_reports
from tests.support import nodes


def device(address: str, cpus: str) -> DeviceReport:
    return DeviceReport(
        address=address, class_="020000", name="a NIC", numa_nodes=EMPTY, cpus=CPUSet.parse(cpus)
    )


def details(*devices: DeviceReport) -> dict[str, tuple[str, ...]]:
    """Return the details of each pool by its name."""
    layout = nodes.engine("package:2(pmem=256GiB) numa:2(memory=64GiB) l3:2 core:2 pu:2").layout
    machine = replace(machine_report(layout.machine), devices=devices)
    found = details_of(machine, pool_reports(layout.tree, layout.capacity))
    return {pool.name: found[pool.id] for pool in layout.tree.pools}


def test_a_pool_has_its_memory_and_its_last_level_caches() -> None:
    found = details()
    assert found["NUMA node #1"] == (
        "memory node 1: 64 GiB dram",
        "memory node 4: 256 GiB pmem",
        "2 L3 caches of 32 MiB",
    )
    assert found["NUMA node #1/L3 cache #0"][-1] == "1 L3 cache of 32 MiB"
    assert len(found["root"]) == 7


def test_a_device_is_in_the_smallest_pool_around_its_cpus() -> None:
    found = details(
        device("0000:01:00.0", "0-7"),
        device("0000:02:00.0", "0-15"),
        device("0000:03:00.0", "0-31"),
    )
    with_devices = {
        name: line for name, lines in found.items() for line in lines if line.endswith("a NIC")
    }
    assert with_devices == {
        "NUMA node #0": "0000:01:00.0 a NIC",
        "socket #0": "0000:02:00.0 a NIC",
        "root": "0000:03:00.0 a NIC",
    }


def test_of_many_devices_the_first_are_named() -> None:
    found = details(*(device(f"0000:{n:02}:00.0", "0-7") for n in range(14)))
    assert found["NUMA node #0"][-2:] == ("0000:11:00.0 a NIC", "and 2 devices more")
