"""Machine: the frozen description of a node, as everything above `hardware` sees it.

Owns the types only; `discovery` fills them. Ids are the kernel's own (gaps are normal), sizes are
bytes, frequencies kHz. Structures hold online CPUs only; offline ones are known by id.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet


class MemoryKind(StrEnum):
    """What a memory node is made of; spec hardware.md part 2."""

    DRAM = "dram"
    PMEM = "pmem"
    HBM = "hbm"
    CXL = "cxl"  # requests see it as the pmem tier
    DEVICE = "device"  # an accelerator's own memory: never handed out unless named in the settings


class MemoryUse(Struct, frozen=True, kw_only=True):
    """The use of memory of one kind."""

    asked_as: MemoryKind | None  # the kind in requests; None: containers never get it
    usual: bool = False  # containers get it without asking
    settable: bool = True  # the settings may give a node this kind


MEMORY_USES = {
    MemoryKind.DRAM: MemoryUse(asked_as=MemoryKind.DRAM, usual=True),
    MemoryKind.PMEM: MemoryUse(asked_as=MemoryKind.PMEM, usual=True),
    MemoryKind.HBM: MemoryUse(asked_as=MemoryKind.HBM),
    MemoryKind.CXL: MemoryUse(asked_as=MemoryKind.PMEM, settable=False),
    MemoryKind.DEVICE: MemoryUse(asked_as=None),
}
# kind in requests -> kinds of memory that meet it
REQUESTABLE = {
    kind: tuple(other for other, use in MEMORY_USES.items() if use.asked_as is kind)
    for kind, use in MEMORY_USES.items()
    if use.asked_as is kind
}


class CoreKind(StrEnum):
    """The kind of a core in a hybrid machine; all cores of other machines are STANDARD.

    Of three kinds or more, the fastest are PERFORMANCE, the slowest EFFICIENCY, others STANDARD.
    """

    STANDARD = "standard"
    PERFORMANCE = "performance"
    EFFICIENCY = "efficiency"


class OuterUnit(Struct, frozen=True, kw_only=True):
    """A unit above the package: a book or a drawer of s390."""

    kind: str  # "book" or "drawer"
    id: int
    cpus: CPUSet


class Package(Struct, frozen=True, kw_only=True):
    """A socket."""

    id: int
    cpus: CPUSet


class Die(Struct, frozen=True, kw_only=True):
    """A die, named by (package, id): ids repeat across packages on some kernels.

    Every package has at least one: the package itself where the kernel knows of no dies.
    """

    package: int
    id: int
    cpus: CPUSet


class CoreCluster(Struct, frozen=True, kw_only=True):
    """A cluster of cores, where the kernel tells of one that is neither a core nor a die."""

    package: int
    id: int
    cpus: CPUSet


class Core(Struct, frozen=True, kw_only=True):
    """A core, identified by its threads: core ids repeat."""

    package: int
    die: int
    id: int
    cpus: CPUSet
    kind: CoreKind


class Cache(Struct, frozen=True, kw_only=True):
    """A cache, identified by level, type and the CPUs that share it."""

    level: int
    type: str  # "data", "instruction" or "unified"
    size: int  # bytes; 0 where unknown
    cpus: CPUSet


class AccessClass(Struct, frozen=True, kw_only=True):
    """HMAT figures of a memory node for its best initiators; None where the firmware is silent."""

    initiators: CPUSet  # node ids
    read_latency: int | None  # ns
    write_latency: int | None
    read_bandwidth: int | None  # MB/s
    write_bandwidth: int | None


class MemoryNode(Struct, frozen=True, kw_only=True):
    """A NUMA node: memory, CPUs, both or neither."""

    id: int
    cpus: CPUSet  # online CPUs of its own
    memory: int  # bytes, MemTotal
    hugepages: tuple[tuple[int, int], ...]  # (page size in bytes, pages), sizes ascending
    kind: MemoryKind
    kind_reason: str  # the source of `kind`, in words
    normal: bool  # has memory that the kernel itself may use (not movable-only)
    nearest: CPUSet  # ids of the CPU-bearing nodes nearest to it; itself where it has CPUs
    tier: int | None  # the kernel's memory tier: lower is faster
    access: AccessClass | None
    side_cache: int  # bytes of its memory-side cache; 0 if none is known


class Frequency(Struct, frozen=True, kw_only=True):
    """Frequency limits that a group of CPUs shares, kHz; None where unknown."""

    cpus: CPUSet
    base: int | None
    minimum: int | None
    maximum: int | None
    preference: str | None  # energy_performance_preference


class Distances(Struct, frozen=True, kw_only=True):
    """The firmware's distance table; matrix[i][j] is from nodes[i] to nodes[j]."""

    nodes: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]

    def between(self, one: int, other: int) -> float:
        """Return the mean of both directions, infinite where the table is silent."""
        if one not in self.nodes or other not in self.nodes:
            return inf
        i, j = self.nodes.index(one), self.nodes.index(other)
        return (self.matrix[i][j] + self.matrix[j][i]) / 2


class Device(Struct, frozen=True, kw_only=True):
    """A PCI function, and the CPUs and NUMA nodes near it."""

    address: str
    class_: str  # six hexadecimal digits
    name: str  # vendor:device, or the names where pci.ids is installed; "unknown"
    numa_nodes: CPUSet  # empty where the kernel does not know
    cpus: CPUSet  # all online ones where nothing is known


class Machine(Struct, frozen=True, kw_only=True):
    """A node's hardware.

    `online` is never empty; every online CPU is in exactly one core, die and package, and each of
    these lies within one of the next. A CPU may be in no memory node, or (fake NUMA) in several.
    """

    online: CPUSet
    offline: CPUSet
    possible: CPUSet
    isolated: CPUSet
    nohz_full: CPUSet
    groups: tuple[OuterUnit, ...]
    packages: tuple[Package, ...]
    dies: tuple[Die, ...]
    clusters: tuple[CoreCluster, ...]
    cores: tuple[Core, ...]
    caches: tuple[Cache, ...]
    nodes: tuple[MemoryNode, ...]  # online nodes, by id; at least one
    distances: Distances
    frequencies: tuple[Frequency, ...]
    devices: tuple[Device, ...]
    notes: tuple[str, ...]  # what was missing or odd, for people

    @property
    def memory(self) -> int:
        """The bytes of all nodes together."""
        return sum(node.memory for node in self.nodes)

    @property
    def near_cpus(self) -> dict[int, CPUSet]:
        """The CPUs of each node, by id; the nearest CPUs for a node without any."""
        own = {node.id: node.cpus for node in self.nodes}
        return {
            node.id: node.cpus or CPUSet.union(own[near] for near in node.nearest)
            for node in self.nodes
        }

    def restricted(self, online: CPUSet) -> Machine:
        """Return the machine with only *online*, a non-empty part of its CPUs, left online."""
        parts: dict[str, Any] = {
            name: tuple(
                replace(part, cpus=part.cpus & online)
                for part in getattr(self, name)
                if not part.cpus.isdisjoint(online)
            )
            for name in ("groups", "packages", "dies", "clusters", "cores", "caches", "frequencies")
        }
        nodes = tuple(replace(node, cpus=node.cpus & online) for node in self.nodes)
        offline = self.offline | (self.online - online)
        return replace(self, online=online, offline=offline, nodes=nodes, **parts)
