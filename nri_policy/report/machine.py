"""The machine: the `machine` part of `topology -o json`.

Only parts that differ from a Machine's own types have types here.
"""

from __future__ import annotations

from msgspec import Struct, field

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import (
    Cache,
    Core,
    CoreCluster,
    Die,
    Distances,
    Machine,
    MemoryKind,
    MemoryNode,
    Package,
)


class CPUsReport(Struct, frozen=True, kw_only=True):
    """Which CPUs there are."""

    online: CPUSet
    offline: CPUSet
    possible: CPUSet
    isolated: CPUSet  # by the kernel
    nohz_full: CPUSet


class NodeReport(Struct, frozen=True, kw_only=True):
    """A NUMA node."""

    id: int
    cpus: CPUSet
    memory: int  # bytes
    kind: MemoryKind
    kind_reason: str
    normal: bool  # whether the kernel itself may use its memory
    nearest: CPUSet  # nodes with CPUs
    tier: int | None
    latency: int | None  # ns, of reads
    bandwidth: int | None  # MB/s, of reads


class DeviceReport(Struct, frozen=True, kw_only=True):
    """A device."""

    address: str
    class_: str = field(name="class")
    name: str
    numa_nodes: CPUSet
    cpus: CPUSet


class MachineReport(Struct, frozen=True, kw_only=True):
    """The hardware of a node."""

    cpus: CPUsReport
    packages: tuple[Package, ...]
    dies: tuple[Die, ...]
    clusters: tuple[CoreCluster, ...]
    cores: tuple[Core, ...]
    caches: tuple[Cache, ...]
    numa_nodes: tuple[NodeReport, ...]
    distances: Distances
    devices: tuple[DeviceReport, ...]
    notes: tuple[str, ...]


def machine_report(machine: Machine) -> MachineReport:
    """Return what is shown of *machine*."""
    return MachineReport(
        cpus=CPUsReport(
            online=machine.online,
            offline=machine.offline,
            possible=machine.possible,
            isolated=machine.isolated,
            nohz_full=machine.nohz_full,
        ),
        packages=machine.packages,
        dies=machine.dies,
        clusters=machine.clusters,
        cores=machine.cores,
        caches=machine.caches,
        numa_nodes=tuple(map(_node, machine.nodes)),
        distances=machine.distances,
        devices=tuple(
            DeviceReport(
                address=each.address,
                class_=each.class_,
                name=each.name,
                numa_nodes=each.numa_nodes,
                cpus=each.cpus,
            )
            for each in machine.devices
        ),
        notes=machine.notes,
    )


def _node(node: MemoryNode) -> NodeReport:
    return NodeReport(
        id=node.id,
        cpus=node.cpus,
        memory=node.memory,
        kind=node.kind,
        kind_reason=node.kind_reason,
        normal=node.normal,
        nearest=node.nearest,
        tier=node.tier,
        latency=node.access.read_latency if node.access else None,
        bandwidth=node.access.read_bandwidth if node.access else None,
    )
