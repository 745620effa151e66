"""PCI devices: their names, and the CPUs and NUMA nodes near them.

Owns `sys/bus/pci/devices` with the chain of bridges above each, and names from the root's own
`pci.ids`. `locality` finds the function behind a device file or a mount.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Device
from nri_policy.hardware.sysfs import FileTree

_PCI = "sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")
_PCI_IDS_LIMIT = 1 << 23  # bytes; the file has 1.5 MB


def read_devices(
    tree: FileTree, online: CPUSet, node_cpus: Mapping[int, CPUSet]
) -> tuple[Device, ...]:
    """Return the PCI functions, by address.

    *node_cpus* has the CPUs of each NUMA node, or the nearest ones of a node without CPUs.
    """
    with tree.folder(_PCI) as folder:
        addresses = [name for name in folder.names() if ADDRESS.fullmatch(name)]
    names = _read_names(tree) if addresses else {}
    return tuple(_read_device(tree, address, online, node_cpus, names) for address in addresses)


def _read_device(
    tree: FileTree,
    address: str,
    online: CPUSet,
    node_cpus: Mapping[int, CPUSet],
    names: Mapping[str, str],
) -> Device:
    path = f"{_PCI}/{address}"
    with tree.folder(path) as folder:
        class_ = folder.integer("class") or 0
        vendor, model = folder.integer("vendor"), folder.integer("device")
    nodes, cpus = place_of(tree, path, online, node_cpus)
    key = "unknown"
    if vendor is not None and model is not None:
        key = f"{vendor & 0xFFFF:04x}:{model & 0xFFFF:04x}"
    return Device(
        address=address,
        class_=f"{class_ & 0xFFFFFF:06x}",
        name=names.get(key, key),
        numa_nodes=nodes,
        cpus=cpus,
    )


def place_of(
    tree: FileTree, path: str, online: CPUSet, node_cpus: Mapping[int, CPUSet]
) -> tuple[CPUSet, CPUSet]:
    """Return the NUMA nodes and the CPUs near the device at *path*.

    If nothing is known: no node, and all *online* CPUs.
    """
    with tree.folder(path) as folder:
        node = folder.integer("numa_node")
        cpus = (folder.set("local_cpulist", "local_cpus") or EMPTY) & online
    nodes = EMPTY
    if node is not None and node in node_cpus:
        nodes = CPUSet((node,))
    elif cpus and cpus != online:
        nodes = CPUSet(id_ for id_, each in node_cpus.items() if each and each <= cpus)
    else:  # all CPUs is the kernel's way to say "unknown": a bridge may know better
        nodes = _nodes_of_bridge(tree, path, node_cpus)
        cpus = EMPTY
    if not cpus:
        cpus = CPUSet.union(node_cpus[id_] for id_ in nodes) or online
    return nodes, cpus


def _nodes_of_bridge(tree: FileTree, path: str, node_cpus: Mapping[int, CPUSet]) -> CPUSet:
    """Return the node of the nearest bridge that has one, above the PCI function at *path*."""
    parts = (tree.resolve(path) or "").split("/")[:-1]
    while parts and (ADDRESS.fullmatch(parts[-1]) or parts[-1].startswith("pci")):
        with tree.folder("/".join(parts)) as folder:
            node = folder.integer("numa_node")
        if node is not None and node in node_cpus:
            return CPUSet((node,))
        parts.pop()
    return EMPTY


def _read_names(tree: FileTree) -> dict[str, str]:
    """Return "vendor model" by "vendor:device" in hexadecimal, from the root's list of PCI ids."""
    for path in _PCI_IDS:
        folder_path, _, name = path.rpartition("/")
        with tree.folder(folder_path) as folder:
            text = folder.text(name, _PCI_IDS_LIMIT)
        if text:
            return _parse_names(text)
    return {}


def _parse_names(text: str) -> dict[str, str]:
    names: dict[str, str] = {}
    vendor = vendor_name = ""
    for line in text.splitlines():
        if line.startswith("C "):  # device classes follow
            break
        if re.match(r"[0-9a-f]{4}  ", line):
            vendor, vendor_name = line[:4], line[6:].strip()
        elif vendor and re.match(r"\t[0-9a-f]{4}  ", line):
            names[f"{vendor}:{line[1:5]}"] = f"{vendor_name} {line[7:].strip()}"
    return names
