from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from nri_policy.cli.node.device_groups import groups_of
from nri_policy.cli.node.machine_table import machine_tables
from nri_policy.cli.options import Source
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Device, Machine
from nri_policy.pools.capacity import capacity_of
from nri_policy.pools.picker import picker_of
from nri_policy.pools.tree import build
from tests.support import nodes

CAPTURE = Path(__file__).parents[2] / "hardware/data/qemu-pci-locality.tar.xz"


def device(address: str, class_: str, name: str = "maker model", node: int | None = 0) -> Device:
    nodes = CPUSet() if node is None else CPUSet((node,))
    return Device(address=address, class_=class_, name=name, numa_nodes=nodes, cpus=CPUSet((0,)))


def shown(machine: Machine, width: int) -> list[str]:
    """Return the lines of the section about devices."""
    capacity = capacity_of(machine, nodes.settings(), picker_of(machine))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for part in machine_tables(machine, build(machine, machine.online), capacity, {}):
            console.print(part)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert max(map(len, lines)) <= width
    start = lines.index("Devices")
    return lines[start + 1 : lines.index("", start)]


def test_an_emulated_machines_devices() -> None:
    machine = Source(capture=CAPTURE).machine()
    assert shown(machine, 100) == [
        "  kind      count  node  CPUs  name       address",
        "  graphics      1  -     all   1af4:1050  0000:00:04.0",
        "  network       1  0     0-3   1af4:1041  0000:41:00.0",
        "  network       1  0     0-3   8086:10d3  0000:42:00.0",
        "  network       1  1     4-7   8086:10c9  0000:81:00.0",
        "  network       4  1     4-7   8086:10ca  0000:81:10.0 …",
        "  storage       1  1     4-7   1b36:0010  0000:82:00.0",
        "  storage       1  -     all   1af4:1001  0000:00:01.0",
        "  storage       1  -     all   8086:2922  0000:00:1f.2",
        "  9 other functions, such as bridges: see -o json",
    ]


@pytest.mark.parametrize(
    ("class_", "kind"),
    [
        ("030200", "graphics"),
        ("120000", "accelerator"),
        ("0b4000", "processor"),
        ("020700", "network"),
        ("0c0600", "network"),
        ("010802", "storage"),
        ("050210", "memory"),
        ("100000", "encryption"),
        ("060400", None),
        ("050000", None),
        ("0c0330", None),
        ("000000", None),
        ("ff0000", None),
    ],
)
def test_functions_that_work_for_somebody(class_: str, kind: str | None) -> None:
    assert [each.kind for each in groups_of([device("0000:01:00.0", class_)])] == (
        [] if kind is None else [kind]
    )


def test_functions_are_together_that_are_alike_and_in_one_place() -> None:
    alike = [device(f"0000:01:00.{i}", "020000") for i in (3, 1, 2)]
    others = [
        device("0000:01:00.0", "010000"),
        device("0000:01:01.0", "020000", name="another"),
        device("0000:81:00.0", "020000", node=1),
        device("0000:82:00.0", "020000", node=None),
    ]
    assert [(each.name, str(each.nodes), each.addresses) for each in groups_of(alike + others)] == [
        ("another", "0", ("0000:01:01.0",)),
        ("maker model", "0", ("0000:01:00.1", "0000:01:00.2", "0000:01:00.3")),
        ("maker model", "1", ("0000:81:00.0",)),
        ("maker model", "", ("0000:82:00.0",)),
        ("maker model", "0", ("0000:01:00.0",)),
    ]


def test_a_server_with_300_functions_can_be_read_in_80_columns() -> None:
    """Two ports with 64 virtual functions each on two sockets, disks, GPUs, and bridges."""
    port = "Mellanox Technologies MT2892 Family [ConnectX-6 Dx]"
    virtual = "Mellanox Technologies ConnectX Family mlx5Gen Virtual Function"
    found = []
    for node in (0, 3):
        for i in range(64):
            found.append(device(f"0000:{node}b:{i // 8:02x}.{i % 8}", "020000", virtual, node))
            found.append(device(f"0000:{node}0:{i // 8:02x}.{i % 8}", "060400", f"b:{i}", node))
        found += [device(f"0000:{node}b:1{i}.0", "020000", port, node) for i in range(2)]
        found += [device(f"0000:{node}d:0{i}.0", "030200", "A 40GB", node) for i in range(4)]
    found += [device(f"0000:e{i:x}:00.0", "010802", f"1e0f:{i:04x}", None) for i in range(16)]
    lines = shown(replace(nodes.machine(), devices=tuple(found)), 80)
    assert len(found) > 280
    assert len(lines) < 40
    text = " ".join(" ".join(lines).split())
    assert "graphics 4 3 0 A 40GB 0000:3d:00.0 …" in text
    assert "network 64 0 0 Mellanox" in text
    assert lines[-1] == "  128 other functions, such as bridges: see -o json"


def test_more_sorts_of_devices_than_anybody_reads_are_left_to_the_document() -> None:
    many = [device(f"0000:{i:02x}:00.0", "020000", name=f"n{i}") for i in range(200)]
    lines = shown(replace(nodes.machine(), devices=tuple(many)), 100)
    assert len(lines) == 42
    assert lines[-1] == "  160 other functions, such as bridges: see -o json"
