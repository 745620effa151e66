"""A capture reads like what it was made of, and says nothing else."""

from __future__ import annotations

import os
import socket
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.capture_writer import pack
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.report import machine_report

from .conftest import Change, Link, Plant
from .test_captures import CAPTURES
from .test_locality import DEVICES, FOUR

FIRST = "sys/devices/pci0000:00/0000:00:01.0"
PCI: dict[str, Change] = {
    f"{FIRST}/vendor": "0x15b3\n",
    f"{FIRST}/device": "0x101d\n",
    f"{FIRST}/class": "0x020000\n",
    f"{FIRST}/serial_number": "MT2008X00001",
    f"{FIRST}/net/eth0/address": "52:54:00:12:34:56",
    "sys/bus/pci/devices/0000:00:01.0": Link("../../../devices/pci0000:00/0000:00:01.0"),
    "usr/share/misc/pci.ids": (
        "# names\n8086  Intel\n\t101d  Not this\n15b3  Mellanox\n\t101d  ConnectX-6 Dx\n"
        "\t101e  Another\n\t\t15b3 0001  a board\nC 02  Network\n\t101d  class\n"
    ),
}


def packed(root: Path, file: Path) -> tuple[str, ...]:
    with file.open("wb") as out:
        return pack(root, out, lambda: None)


def texts(file: Path) -> dict[str, str]:
    """Return the files in a capture."""
    found = {}
    with tarfile.open(file) as archive:
        for member in archive:
            if member.isreg() and (content := archive.extractfile(member)):
                found[member.name] = content.read().decode()
    return found


@pytest.mark.parametrize(
    "spec",
    [
        "package:2 numa:2 core:2 pu:2",
        "package:2(pmem=1GiB) die:2 l3:2 core:2 pu:2",
        "package:2 numa:1 core:4 pu:2 isolated=2-3 offline=5",
        "package:1 core:4(efficiency=2) pu:1",
        "package:2(hbm=8GiB cxl=64GiB) numa:1(memory=16GiB) core:4",
    ],
)
def test_a_capture_has_the_machine_that_it_is_of(plant: Plant, tmp_path: Path, spec: str) -> None:
    root = plant(spec)
    assert packed(root, tmp_path / "c.tar.xz") == ()
    with open_capture(tmp_path / "c.tar.xz") as again:
        assert machine_report(discover(again)) == machine_report(discover(root))


@pytest.mark.parametrize("name", sorted(CAPTURES))
def test_a_capture_of_a_real_machine_has_it_again(name: str, tmp_path: Path) -> None:
    with open_capture(CAPTURES[name]) as root:
        packed(root, tmp_path / "c.tar.xz")
        machine = discover(root)
    with open_capture(tmp_path / "c.tar.xz") as again:
        assert discover(again) == machine


def test_a_capture_of_this_host_has_it_again(tmp_path: Path) -> None:
    packed(Path("/"), tmp_path / "c.tar.xz")
    machine = machine_report(discover(Path("/")))
    with open_capture(tmp_path / "c.tar.xz") as again:
        read = machine_report(discover(again))
    if os.geteuid() == 0:
        assert read == machine
    else:  # what cannot be read is a note there, and nothing here
        assert replace(read, notes=()) == replace(machine, notes=())


def test_devices_are_near_to_the_same_in_a_capture(plant: Plant, tmp_path: Path) -> None:
    root = plant(FOUR, DEVICES)
    packed(root, tmp_path / "c.tar.xz")
    machine = discover(root)
    numbers = [path.rpartition("/")[2] for path in DEVICES if path.startswith("sys/dev/block/")]
    interfaces = [path.rpartition("/")[2] for path in DEVICES if path.startswith("sys/class/net/")]
    with open_capture(tmp_path / "c.tar.xz") as again:
        there, here = Locator(root, machine), Locator(again, machine)
        near = {number: there.device("block", number) for number in numbers}
        assert {number: here.device("block", number) for number in numbers} == near
        assert any(near.values())
        assert here.device("char", "195:0") == there.device("char", "195:0") is not None
        for name in interfaces:
            assert here.interface(name) == there.interface(name)


def test_names_of_devices_are_kept_and_those_of_others_are_not(
    plant: Plant, tmp_path: Path
) -> None:
    root = plant(FOUR, PCI)
    packed(root, tmp_path / "c.tar.xz")
    assert texts(tmp_path / "c.tar.xz")["usr/share/misc/pci.ids"] == (
        "15b3  Mellanox\n\t101d  ConnectX-6 Dx\n"
    )
    with open_capture(tmp_path / "c.tar.xz") as again:
        assert [device.name for device in discover(again).devices] == ["Mellanox ConnectX-6 Dx"]


def test_nothing_that_tells_this_machine_from_others_is_in_it(plant: Plant, tmp_path: Path) -> None:
    gpu = "proc/driver/nvidia/gpus/0000:00:01.0"
    root = plant(
        FOUR,
        {
            **PCI,
            "proc/cpuinfo": "processor\t: 0\nSerial\t\t: 00000000deadbeef\nmodel\t: 87\n",
            f"{gpu}/numa_status": "Node: 1\nGPU UUID: \t GPU-deadbeef\n",
            "proc/1/mountinfo": "1 0 8:0 / /secret rw - ext4 /dev/sda rw",
            "proc/1/cmdline": "secret",
            "etc/hostname": "secret",
            "sys/class/dmi/id/product_serial": "deadbeef",
            "sys/devices/virtual/net/veth-secret/carrier": "1",
            "sys/class/net/veth-secret": Link("../../devices/virtual/net/veth-secret"),
        },
    )
    packed(root, tmp_path / "c.tar.xz")
    inside = texts(tmp_path / "c.tar.xz")
    assert f"{FIRST}/vendor" in inside
    assert "model\t: 87" in inside["proc/cpuinfo"]
    everything = "\n".join([*inside, *inside.values()])
    for private in ("deadbeef", "secret", "52:54:00", "MT2008X00001"):
        assert private not in everything


def test_what_cannot_be_read_is_left_out_and_named(plant: Plant, tmp_path: Path) -> None:
    loop = f"{FIRST}/numa_node"
    root = plant(FOUR, PCI)
    (root / loop).unlink(missing_ok=True)
    (root / loop).mkdir()
    notes = packed(root, tmp_path / "c.tar.xz")
    assert notes == ("sys/bus/pci/devices/0000:00:01.0/numa_node: cannot be read: Is a directory",)
    with open_capture(tmp_path / "c.tar.xz") as again:
        assert not (again / loop).exists()


def test_what_is_there_but_cannot_be_read_is_not_there_as_an_empty_file(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = "sys/devices/system/cpu/isolated"
    root = plant(FOUR)
    (root / listed).unlink(missing_ok=True)
    monkeypatch.chdir((root / listed).parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind("isolated")
    packed(root, tmp_path / "c.tar.xz")
    assert listed not in texts(tmp_path / "c.tar.xz")


def test_it_is_the_same_whenever_it_is_made(plant: Plant, tmp_path: Path) -> None:
    root = plant(FOUR, PCI)
    one, other = tmp_path / "one", tmp_path / "other"
    packed(root, one)
    for path in root.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
    packed(root, other)
    assert one.read_bytes() == other.read_bytes()


def test_absolute_links_lead_to_the_same_place(plant: Plant, tmp_path: Path) -> None:
    absolute = Link("/sys/devices/pci0000:00/0000:00:01.0")
    root = plant(FOUR, {**PCI, "sys/bus/pci/devices/0000:00:01.0": absolute})
    packed(root, tmp_path / "c.tar.xz")
    with open_capture(tmp_path / "c.tar.xz") as again:
        assert discover(again) == discover(root)
        assert discover(root).devices


def test_a_folder_without_a_machine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError):
        packed(tmp_path, tmp_path / "c.tar.xz")
