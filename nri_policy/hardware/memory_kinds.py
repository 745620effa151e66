"""Memory kinds: what each NUMA node's memory is made of, and why we think so.

Owns the rules of spec hardware.md part 2, in their order; the first that decides a node wins, and
its reason is kept for people. A node that nothing tells apart from main memory is dram.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.cpus import CPUINFO_LIMIT
from nri_policy.hardware.machine import Device, Distances, MemoryKind, Package
from nri_policy.hardware.numa import NUMANode
from nri_policy.hardware.sysfs import FileTree, Folder

Verdicts = Mapping[int, tuple[MemoryKind, str]]  # by node id; nodes that a rule cannot judge lack

_DISPLAY, _ACCELERATOR = "03", "12"  # PCI base classes
_DAX = "sys/bus/dax/devices"
_NVDIMM = re.compile(r"/ndbus\d+/")
_CXL = re.compile(r"/(dax_region\d+|decoder\d+\.\d+|ACPI0017:\d+)/")
_NVIDIA = "proc/driver/nvidia/gpus"
_KNIGHTS = re.compile(r"(?m)^cpu family[ \t]*: 6\nmodel[ \t]*: (87|133)$")


class Evidence(Struct, frozen=True, kw_only=True):
    """All that the rules may look at."""

    tree: FileTree
    settings: Mapping[int, MemoryKind]
    nodes: tuple[NUMANode, ...]
    nearest: Mapping[int, CPUSet]
    distances: Distances
    packages: tuple[Package, ...]
    devices: tuple[Device, ...]


def judge(evidence: Evidence) -> dict[int, tuple[MemoryKind, str]]:
    """Return the kind of every node and the reason for it."""
    verdicts: dict[int, tuple[MemoryKind, str]] = {}
    left = evidence.nodes
    for rule in (
        _by_settings,
        _by_cpus,
        _by_driver,
        _by_accelerator,
        _by_emptiness,
    ):
        verdicts.update(rule(evidence, left))
        left = tuple(node for node in left if node.id not in verdicts)
    dram = [n for n in evidence.nodes if n.id in verdicts and verdicts[n.id][0] is MemoryKind.DRAM]
    # CPUs may also sit on memory that a driver brought: not what others are measured by
    dram = [node for node in dram if node.normal] or dram
    for compare in (_by_hmat, _by_tier, _by_zone, _by_processor, _by_size):
        verdicts.update(compare(evidence, left, dram))
        left = tuple(node for node in left if node.id not in verdicts)
    for node in left:
        verdicts[node.id] = (MemoryKind.DRAM, "nothing tells it apart from the nodes with CPUs")
    return verdicts


def _by_settings(evidence: Evidence, nodes: Iterable[NUMANode]) -> Verdicts:
    kinds = evidence.settings
    for id_ in kinds.keys() - {node.id for node in nodes}:
        evidence.tree.notes.add(f"memoryKinds in the settings names node {id_}, which is not here")
    return {node.id: (kinds[node.id], "the settings") for node in nodes if node.id in kinds}


def _by_cpus(_: Evidence, nodes: Iterable[NUMANode]) -> Verdicts:
    return {
        node.id: (MemoryKind.DRAM, "has CPUs" if node.cpus else "has CPUs, all of them offline")
        for node in nodes
        if node.has_cpus
    }


def _by_driver(evidence: Evidence, nodes: Iterable[NUMANode]) -> Verdicts:
    """Judge by the drivers that brought the memory: dax devices, NVDIMM and CXL regions."""
    tree = evidence.tree
    verdicts: dict[int, tuple[MemoryKind, str]] = {}
    with tree.folder(_DAX) as devices:
        for name in devices.names():
            path = tree.resolve(f"{_DAX}/{name}") or ""
            driver = (tree.resolve(f"{path}/driver") or "").rpartition("/")[2]
            if driver not in ("driver", "kmem"):  # absent, or memory that is not the kernel's
                continue
            with devices.folder(name) as device:
                node = device.integer("target_node")
            if node is not None and _NVDIMM.search(path):
                verdicts[node] = (MemoryKind.PMEM, f"{name} lies in persistent memory")
            elif node is not None and _CXL.search(path):
                verdicts[node] = (MemoryKind.CXL, f"{name} lies in a CXL region")
    for bus, kind, what in (("nd", MemoryKind.PMEM, "NVDIMM"), ("cxl", MemoryKind.CXL, "CXL")):
        with tree.folder(f"sys/bus/{bus}/devices") as regions:
            for number in regions.numbered("region"):
                with regions.folder(f"region{number}") as region:
                    node = _node_of_region(evidence, region)
                if node is not None:
                    verdicts.setdefault(node, (kind, f"its memory is {what} region{number}"))
    return {node.id: verdicts[node.id] for node in nodes if node.id in verdicts}


def _node_of_region(evidence: Evidence, region: Folder) -> int | None:
    """Return the node of a memory region: by its own file, else by its address."""
    node = region.integer("target_node")
    if node is not None:
        return node
    start = region.integer("resource")
    tree = evidence.tree
    with tree.folder("sys/devices/system/memory") as memory:
        block_size = memory.text("block_size_bytes") or ""  # hexadecimal without 0x
    if start is None or not re.fullmatch("[0-9a-f]{1,16}", block_size) or not int(block_size, 16):
        return None
    block = f"memory{start // int(block_size, 16)}"
    for candidate in evidence.nodes:
        with tree.folder(f"sys/devices/system/node/node{candidate.id}") as folder:
            if folder.has(block):
                return candidate.id
    return None


def _by_accelerator(evidence: Evidence, nodes: Iterable[NUMANode]) -> Verdicts:
    """Judge memory that belongs to an accelerator; never memory that the kernel itself may use."""
    tree = evidence.tree
    reasons: dict[int, str] = {}
    with tree.folder("sys/devices/system/node") as folder:
        for id_ in folder.set("has_generic_initiator") or CPUSet():
            reasons[id_] = "is a device's own node (generic initiator)"
    if _in_cpuinfo(tree, re.compile(r"(?m)^platform[ \t]*: PowerNV$")):
        # such machines have no other memory-only nodes without an NVDIMM driver behind them
        reasons.update(
            (node.id, "memory-only node of a PowerNV machine: a GPU's") for node in nodes
        )
    for device in evidence.devices:
        if device.class_[:2] in (_DISPLAY, _ACCELERATOR):
            reasons.update(
                (id_, f"belongs to the device {device.address}") for id_ in device.numa_nodes
            )
    with tree.folder(_NVIDIA) as gpus:
        for name in gpus.names():
            with gpus.folder(name) as gpu:
                match = re.search(r"(?m)^Node:\s*(\d{1,4})$", gpu.text("numa_status") or "")
            if match:
                reasons[int(match.group(1))] = f"belongs to the GPU {name}"
    return {
        node.id: (MemoryKind.DEVICE, reasons[node.id])
        for node in nodes
        if node.id in reasons and not node.normal
    }


def _by_emptiness(_: Evidence, nodes: Iterable[NUMANode]) -> Verdicts:
    return {node.id: (MemoryKind.DRAM, "has no memory") for node in nodes if not node.memory}


def _by_hmat(_: Evidence, nodes: Iterable[NUMANode], dram: Iterable[NUMANode]) -> Verdicts:
    """Judge by the firmware's figures, against the best of the dram nodes."""
    figures = [node.access for node in dram if node.access is not None]
    bandwidth = max((a.read_bandwidth for a in figures if a.read_bandwidth), default=None)
    latency = min((a.read_latency for a in figures if a.read_latency), default=None)
    verdicts: dict[int, tuple[MemoryKind, str]] = {}
    for node in nodes:
        if node.access is None:
            continue
        own = node.access.read_bandwidth
        if own and bandwidth:
            text = f"HMAT: {own} MB/s, dram {bandwidth} MB/s"
            if own >= 2 * bandwidth:
                verdicts[node.id] = (MemoryKind.HBM, text)
                continue
            if 2 * own <= bandwidth:
                verdicts[node.id] = (MemoryKind.PMEM, text)
                continue
        delay = node.access.read_latency
        if delay and latency:
            text = f"HMAT: {delay} ns, dram {latency} ns"
            if 2 * delay >= 3 * latency:
                verdicts[node.id] = (MemoryKind.PMEM, text)
    return verdicts


def _by_tier(_: Evidence, nodes: Iterable[NUMANode], dram: Iterable[NUMANode]) -> Verdicts:
    # The tier of dram proves nothing: the kernel also puts unknown memory there.
    tiers = [node.tier for node in dram if node.tier is not None]
    if not tiers:
        return {}
    fastest, slowest = min(tiers), max(tiers)
    verdicts: dict[int, tuple[MemoryKind, str]] = {}
    for node in nodes:
        if node.tier is not None and node.tier < fastest:
            verdicts[node.id] = (MemoryKind.HBM, f"memory tier {node.tier}, dram {fastest}")
        elif node.tier is not None and node.tier > slowest:
            verdicts[node.id] = (MemoryKind.PMEM, f"memory tier {node.tier}, dram {slowest}")
    return verdicts


def _by_zone(_: Evidence, nodes: Iterable[NUMANode], __: Iterable[NUMANode]) -> Verdicts:
    # Memory that came after boot: a driver brought it. Main and high-bandwidth memory is there
    # from the start.
    return {node.id: (MemoryKind.PMEM, "movable memory only") for node in nodes if not node.normal}


def _by_processor(evidence: Evidence, nodes: Iterable[NUMANode], _: Iterable[NUMANode]) -> Verdicts:
    # Xeon Phi has neither HMAT nor tiers, and its MCDRAM may be larger than a node's main memory.
    nodes = tuple(nodes)
    if not nodes or not _in_cpuinfo(evidence.tree, _KNIGHTS):
        return {}
    return {node.id: (MemoryKind.HBM, "MCDRAM of a Xeon Phi") for node in nodes}


def _by_size(evidence: Evidence, nodes: Iterable[NUMANode], dram: Iterable[NUMANode]) -> Verdicts:
    """Judge by size and distance: the last resort."""
    sizes = [node.memory for node in dram if node.memory]
    if not sizes:
        return {}
    mean = sum(sizes) // len(sizes)
    packages = {
        node.id: {package.id for package in evidence.packages if package.cpus & node.cpus}
        for node in evidence.nodes
        if node.cpus
    }
    verdicts: dict[int, tuple[MemoryKind, str]] = {}
    for node in nodes:
        if node.memory > mean:
            verdicts[node.id] = (MemoryKind.PMEM, "a guess: larger than a dram node")
        elif not _is_near(evidence, node, packages):
            verdicts[node.id] = (MemoryKind.PMEM, "a guess: as far as another package or farther")
        elif node.memory < mean:
            verdicts[node.id] = (MemoryKind.HBM, "a guess: near, and smaller than a dram node")
        if node.id in verdicts:
            kind, _ = verdicts[node.id]
            evidence.tree.notes.add(f"memory kind of node {node.id} is a guess: {kind}")
    return verdicts


def _is_near(evidence: Evidence, node: NUMANode, packages: Mapping[int, set[int]]) -> bool:
    """Return whether *node* is nearer to its nearest CPUs than each other package is.

    *packages* has the ids of the packages of each node's CPUs.
    """
    column = {id_: index for index, id_ in enumerate(evidence.distances.nodes)}
    for home in evidence.nearest[node.id]:
        row = evidence.distances.matrix[column[home]]
        for other, others in packages.items():
            elsewhere = not others & packages[home]
            if elsewhere and row[column[node.id]] >= row[column[other]]:
                return False
    return True


def _in_cpuinfo(tree: FileTree, pattern: re.Pattern[str]) -> bool:
    with tree.folder("proc") as proc:
        return pattern.search(proc.text("cpuinfo", CPUINFO_LIMIT) or "") is not None
