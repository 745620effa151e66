"""A machine's devices, as few lines as there are sorts of them in each place.

Owns which PCI functions a person wants to see, and in which order: a server has hundreds, most of
them bridges, and virtual functions by the dozen.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Device

# PCI classes of devices that containers use, most requested first.
_KINDS = {
    "03": "graphics",
    "12": "accelerator",
    "0b": "processor",
    "02": "network",
    "0c06": "network",  # InfiniBand
    "01": "storage",
    "0502": "memory",  # CXL
    "10": "encryption",
}


class DeviceGroup(Struct, frozen=True, kw_only=True):
    """Functions of one name in one place."""

    kind: str
    name: str
    nodes: CPUSet  # NUMA nodes, as in a Device
    cpus: CPUSet
    addresses: tuple[str, ...]  # ascending


def groups_of(devices: Iterable[Device]) -> list[DeviceGroup]:
    """Group *devices* of kinds that containers use: GPUs, NICs, disks and the like."""
    order = [*dict.fromkeys(_KINDS.values())]
    alike: dict[tuple[int, tuple[int, ...], str, CPUSet], list[Device]] = {}
    for device in devices:
        kind = _KINDS.get(device.class_[:4]) or _KINDS.get(device.class_[:2])
        if kind is not None:
            place = tuple(device.numa_nodes)
            alike.setdefault((order.index(kind), place, device.name, device.cpus), []).append(
                device
            )
    return [
        DeviceGroup(
            kind=order[rank],
            name=name,
            nodes=CPUSet(place),
            cpus=cpus,
            addresses=tuple(sorted(device.address for device in group)),
        )
        # the place that is unknown last
        for (rank, place, name, cpus), group in sorted(
            alike.items(), key=lambda item: (item[0][0], not item[0][1], *item[0][1:3])
        )
    ]
