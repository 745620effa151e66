"""The document form of a Machine: the `machine` part of `topology -o json`.

Owns the names and forms of the fields (spec annotations-and-settings.md, Data formats): sets as
kernel lists, sizes in bytes. Fields may be added, never renamed.
"""

from __future__ import annotations

from typing import Any

from nri_policy.hardware.machine import Machine


def to_json(machine: Machine) -> dict[str, Any]:
    """Return *machine* as plain values for JSON or YAML."""
    return {
        "cpus": {
            "online": str(machine.online),
            "offline": str(machine.offline),
            "possible": str(machine.possible),
            "isolated": str(machine.isolated),
            "nohz_full": str(machine.nohz_full),
        },
        "packages": [{"id": each.id, "cpus": str(each.cpus)} for each in machine.packages],
        "dies": [
            {"package": each.package, "id": each.id, "cpus": str(each.cpus)}
            for each in machine.dies
        ],
        "clusters": [
            {"package": each.package, "id": each.id, "cpus": str(each.cpus)}
            for each in machine.clusters
        ],
        "cores": [
            {
                "package": each.package,
                "die": each.die,
                "id": each.id,
                "cpus": str(each.cpus),
                "kind": each.kind.value,
            }
            for each in machine.cores
        ],
        "caches": [
            {
                "level": each.level,
                "type": each.type,
                "size": each.size,
                "cpus": str(each.cpus),
            }
            for each in machine.caches
        ],
        "numa_nodes": [
            {
                "id": each.id,
                "cpus": str(each.cpus),
                "memory": each.memory,
                "kind": each.kind.value,
                "kind_reason": each.kind_reason,
                "normal": each.normal,
                "nearest": str(each.nearest),
                "tier": each.tier,
                "latency": each.access and each.access.read_latency,
                "bandwidth": each.access and each.access.read_bandwidth,
            }
            for each in machine.nodes
        ],
        "distances": {
            "nodes": list(machine.distances.nodes),
            "matrix": [list(row) for row in machine.distances.matrix],
        },
        "devices": [
            {
                "address": each.address,
                "class": each.class_,
                "name": each.name,
                "numa_nodes": str(each.numa_nodes),
                "cpus": str(each.cpus),
            }
            for each in machine.devices
        ],
        "notes": list(machine.notes),
    }
