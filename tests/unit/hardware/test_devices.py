from __future__ import annotations

import pytest

from nri_policy.hardware.machine import Device

from .conftest import Change, Link, Read

PCI = "sys/bus/pci/devices"
TWO = "package:2 numa:1 core:2"  # CPUs 0-1 and 2-3


def function(path: str, **files: str) -> dict[str, Change]:
    """Describe the PCI function at *path*, as in pci0000:00/0000:00:01.0."""
    changes: dict[str, Change] = {
        f"sys/devices/{path}/{name}": text for name, text in files.items()
    }
    changes[f"{PCI}/{path.rpartition('/')[2]}"] = Link(f"../../../devices/{path}")
    return changes


def only(devices: tuple[Device, ...]) -> tuple[str, str]:
    device = devices[-1]
    return str(device.numa_nodes), str(device.cpus)


NIC = "pci0000:00/0000:00:02.0/0000:01:00.0"


def test_a_function_has_a_class_a_name_and_a_place(read: Read) -> None:
    files = {"vendor": "0x8086", "device": "0x10d3", "numa_node": "1", "local_cpulist": "2-3"}
    [device] = read(TWO, {**function(NIC, **{"class": "0x020000"}, **files)}).devices
    assert (device.address, device.class_, device.name) == ("0000:01:00.0", "020000", "8086:10d3")
    assert (str(device.numa_nodes), str(device.cpus)) == ("1", "2-3")


def test_an_unplaced_function_is_near_to_all_cpus_and_no_node(read: Read) -> None:
    assert only(read(TWO, function(NIC, numa_node="-1", local_cpulist="0-3")).devices) == (
        "",
        "0-3",
    )


def test_an_unplaced_function_takes_the_place_of_its_bridge(read: Read) -> None:
    changes = {
        **function(NIC, numa_node="-1", local_cpulist="0-3"),
        **function(NIC.rpartition("/")[0], numa_node="1"),
    }
    assert only(read(TWO, changes).devices) == ("1", "2-3")


@pytest.mark.parametrize("name", ["local_cpulist", "local_cpus"])
def test_local_cpus_alone_tell_the_node(read: Read, name: str) -> None:
    text = {"local_cpulist": "2-3", "local_cpus": "0000000c"}[name]
    assert only(read(TWO, function(NIC, **{name: text})).devices) == ("1", "2-3")


def test_node_and_local_cpus_that_differ_are_both_kept(read: Read) -> None:
    assert only(read(TWO, function(NIC, numa_node="1", local_cpulist="0-3")).devices) == (
        "1",
        "0-3",
    )


def test_a_function_on_a_node_without_cpus_is_near_to_that_nodes_nearest(read: Read) -> None:
    spec = "package:2(pmem=1GiB) numa:1 core:2"
    assert only(read(spec, function(NIC, numa_node="3", local_cpulist="")).devices) == ("3", "2-3")


def test_nodes_that_do_not_exist_are_unknown(read: Read) -> None:
    assert only(read(TWO, function(NIC, numa_node="77")).devices) == ("", "0-3")


def test_domains_may_have_32_bits_and_other_names_are_no_functions(read: Read) -> None:
    changes = {**function("pci10000:00/10000:00:02.0", numa_node="0"), f"{PCI}/pci0000": ""}
    assert [device.address for device in read(TWO, changes).devices] == ["10000:00:02.0"]


def test_a_function_whose_folder_is_gone_is_unknown_but_listed(read: Read) -> None:
    [device] = read(TWO, {f"{PCI}/0000:01:00.0": Link("../../../devices/gone")}).devices
    assert (device.name, device.class_, str(device.cpus)) == ("unknown", "000000", "0-3")


def test_names_come_from_the_roots_own_pci_ids(read: Read) -> None:
    ids = "# list\n8086  Intel Corporation\n\t10d3  82574L\n\t\t8086 0001  Board\nC 02  Network\n"
    changes = {**function(NIC, vendor="0x8086", device="0x10d3"), "usr/share/misc/pci.ids": ids}
    assert read(TWO, changes).devices[0].name == "Intel Corporation 82574L"
