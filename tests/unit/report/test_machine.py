from __future__ import annotations

import json
from pathlib import Path

from nri_policy.hardware.discovery import discover
from nri_policy.hardware.synthetic import write
from nri_policy.report import machine_report, plain
from tests.unit.hardware.conftest import Link, Read


def test_a_machine_is_shown_as_the_spec_names_it(read: Read) -> None:
    function = "pci0000:00/0000:00:02.0"
    machine = read(
        "package:1(pmem=1GiB) cluster:2 core:2 pu:1 isolated=1 offline=3",
        {
            "sys/bus/pci/devices/0000:00:02.0": Link(f"../../../devices/{function}"),
            f"sys/devices/{function}/class": "0x020000",
            f"sys/devices/{function}/vendor": "0x8086",
            f"sys/devices/{function}/device": "0x10d3",
            f"sys/devices/{function}/numa_node": "0",
            "sys/devices/system/node/node0/distance": "10 99 1",
        },
    )
    core = {"package": 0, "die": 0, "kind": "standard"}
    shown = plain(machine_report(machine))
    caches = shown.pop("caches")
    assert shown == {
        "cpus": {
            "online": "0-2",
            "offline": "3",
            "possible": "0-3",
            "isolated": "1",
            "nohz_full": "",
        },
        "packages": [{"id": 0, "cpus": "0-2"}],
        "dies": [{"package": 0, "id": 0, "cpus": "0-2"}],
        "clusters": [{"package": 0, "id": 0, "cpus": "0-1"}],
        "cores": [{**core, "id": cpu, "cpus": str(cpu)} for cpu in range(3)],
        "numa_nodes": [
            {
                "id": 0,
                "cpus": "0-2",
                "memory": 4 << 30,
                "kind": "dram",
                "kind_reason": "has CPUs",
                "normal": True,
                "nearest": "0",
                "tier": 4,
                "latency": None,
                "bandwidth": None,
            },
            {
                "id": 1,
                "cpus": "",
                "memory": 1 << 30,
                "kind": "pmem",
                "kind_reason": "dax1.0 lies in persistent memory",
                "normal": False,
                "nearest": "0",
                "tier": 22,
                "latency": None,
                "bandwidth": None,
            },
        ],
        "distances": {"nodes": [0, 1], "matrix": [[10, 99], [17, 10]]},
        "devices": [
            {
                "address": "0000:00:02.0",
                "class": "020000",
                "name": "8086:10d3",
                "numa_nodes": "0",
                "cpus": "0-2",
            }
        ],
        "notes": ["node0/distance: 3 columns for 2 online nodes"],
    }
    assert caches[0] == {"level": 1, "type": "data", "size": 48 << 10, "cpus": "0"}
    assert json.loads(json.dumps(shown)) == shown


def test_what_the_firmware_says_of_access_is_shown(tmp_path: Path) -> None:
    write("package:1 numa:1(hbm=8GiB) core:2", tmp_path)
    dram, hbm = machine_report(discover(tmp_path)).numa_nodes
    assert (hbm.bandwidth or 0) > (dram.bandwidth or 0) > 0
    assert (hbm.latency or 0) > 0
