"""The layout of a synthetic machine: the CPUs and the memory of its units.

Owns numbering and nesting: from a Spec, which counts, to cores and NUMA nodes with ids. Knows
nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.synthetic_spec import MemoryOnly, Spec

_UNITS = ("package", "die", "numa", "l3", "cluster", "l2")  # levels whose sets of CPUs are needed


class SyntheticCore(Struct, frozen=True, kw_only=True):
    """A core to be; its number counts within the package."""

    units: dict[str, int]  # level -> number of the unit in the whole machine
    number: int
    cpus: CPUSet  # including offline CPUs, like every set here
    efficiency: bool


class NodeLayout(Struct, frozen=True, kw_only=True):
    """A NUMA node to be."""

    id: int
    kind: str  # "dram", or one of MEMORY_ONLY
    cpus: CPUSet
    packages: frozenset[int]  # of its CPUs
    near: CPUSet  # ids of the nearest nodes with CPUs
    memory: int  # bytes
    hugepages: dict[int, int] = {}  # pages, by the bytes of one


class SyntheticLayout(Struct, frozen=True, kw_only=True):
    """A machine to be. `members` has the CPUs of every unit, by (level, number)."""

    spec: Spec
    cores: tuple[SyntheticCore, ...]
    members: dict[tuple[str, int], CPUSet]
    nodes: tuple[NodeLayout, ...]
    online: CPUSet


def lay_out(spec: Spec) -> SyntheticLayout:
    """Return the machine that *spec* describes."""
    cores = _cores(spec)
    members = _members(cores)
    return SyntheticLayout(
        spec=spec,
        cores=cores,
        members=members,
        nodes=_nodes(spec, cores, members),
        online=CPUSet.union(core.cpus for core in cores) - spec.offline,
    )


def _cores(spec: Spec) -> tuple[SyntheticCore, ...]:
    total = spec.units("core")
    per_parent = spec.counts["core"]
    share = {level: total // spec.units(level) for level in _UNITS if level in spec.counts}
    slow = [number % per_parent >= per_parent - spec.efficiency for number in range(total)]
    threads = [
        (number, thread)
        for number in range(total)
        for thread in range(1 if slow[number] else spec.counts["pu"])
    ]
    if spec.siblings == "apart":
        threads.sort(key=lambda place: place[1])  # stable: all first threads, then all second ones
    elif spec.siblings == "alternating":
        threads.sort(key=lambda place: (place[1], place[0] % share["package"]))
    cpus: list[list[int]] = [[] for _ in range(total)]
    for cpu, (number, _) in enumerate(threads):
        cpus[number].append(cpu)
    return tuple(
        SyntheticCore(
            units={level: number // cores for level, cores in share.items()},
            number=number % share["package"],
            cpus=CPUSet(cpus[number]),
            efficiency=slow[number],
        )
        for number in range(total)
    )


def _members(cores: Iterable[SyntheticCore]) -> dict[tuple[str, int], CPUSet]:
    """Return the CPUs of every unit, by (level, number)."""
    cpus: dict[tuple[str, int], list[CPUSet]] = {}
    for core in cores:
        for unit in core.units.items():
            cpus.setdefault(unit, []).append(core.cpus)
    return {unit: CPUSet.union(sets) for unit, sets in cpus.items()}


def _nodes(
    spec: Spec, cores: Iterable[SyntheticCore], members: dict[tuple[str, int], CPUSet]
) -> tuple[NodeLayout, ...]:
    packages: dict[int, set[int]] = {}
    for core in cores:
        packages.setdefault(core.units["numa"], set()).add(core.units["package"])
    own = tuple(
        NodeLayout(
            id=number,
            kind="dram",
            cpus=members["numa", number],
            packages=frozenset(packages[number]),
            near=CPUSet((number,)),
            memory=spec.memory_of(number),
            hugepages=spec.pages_of(number),
        )
        for number in range(spec.units("numa"))
    )
    nodes = list(own)
    for extra in spec.memory_only:
        for number in range(spec.units(extra.level)):
            nodes.append(_memory_only(extra, len(nodes), members[extra.level, number], own))
    return tuple(nodes)


def _memory_only(
    extra: MemoryOnly, id_: int, cpus: CPUSet, own: Iterable[NodeLayout]
) -> NodeLayout:
    return NodeLayout(
        id=id_,
        kind=extra.kind,
        cpus=EMPTY,
        packages=frozenset(),
        near=CPUSet(node.id for node in own if node.cpus & cpus),
        memory=extra.size,
    )
