"""Scene: the containers of a machine at one moment, for all kinds of pictures.

Owns the use of each CPU, and the changes since an earlier scene. Made from the documents that
`topology`, `pools` and `containers` print; every outside text in it is printable
(`wording.printable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import counted, printable
from nri_policy.picture.area import Area, areas_of
from nri_policy.picture.mark import Mark, assign_marks
from nri_policy.picture.occupant import Occupant, changes, occupant
from nri_policy.report import ContainerReport, MachineReport, PoolReport
from nri_policy.workload.request import Sort


class Purpose(StrEnum):
    """What a CPU is for."""

    OWN = "own"
    SHARED = "shared"
    IDLE = "idle"
    RESERVED = "reserved"
    ISOLATED = "isolated"
    OFFLINE = "offline"
    UNAVAILABLE = "unavailable"


MEANINGS = {
    Purpose.OWN: "exclusive",
    Purpose.SHARED: "shared, in use",
    Purpose.IDLE: "shared, idle",
    Purpose.RESERVED: "reserved",
    Purpose.ISOLATED: "isolated",
    Purpose.OFFLINE: "offline",
    Purpose.UNAVAILABLE: "not available",
}


LETTERS = {
    Purpose.OWN: "A",  # or any other, and figures
    Purpose.SHARED: "s",
    Purpose.IDLE: "·",
    Purpose.RESERVED: "r",
    Purpose.ISOLATED: "i",
    Purpose.OFFLINE: "x",
    Purpose.UNAVAILABLE: "-",
}


class DrawnUse(Struct, frozen=True):
    """The present use of a CPU, and its owner if it is exclusive."""

    use: Purpose
    owner: str = ""  # container; empty if it is not exclusive

    def moved_from(self, earlier: DrawnUse) -> bool:
        """Return whether the owner changed; a change between shared and idle does not count."""
        common = {Purpose.SHARED, Purpose.IDLE}
        return self != earlier and not {self.use, earlier.use} <= common


class Scene(Struct, frozen=True, kw_only=True):
    """The containers of a machine at one moment."""

    machine: MachineReport
    areas: Mapping[int, Area]  # by the pool's id
    places: Mapping[int, DrawnUse]  # of every online and offline CPU
    occupants: tuple[Occupant, ...]
    refused: Mapping[str, str]  # why, by name of the container
    marks: Mapping[str, Mark]  # of those with exclusive CPUs, now or earlier
    moved: CPUSet  # CPUs that changed hands since the earlier scene

    @property
    def top(self) -> Area:
        """The pool of all available CPUs."""
        return next(area for area in self.areas.values() if area.parent is None)

    @property
    def has_outer_box(self) -> bool:
        """Whether the top pool has a box: not if it is but the sum of several packages."""
        return "package" in self.top.levels or not self.top.children

    @property
    def cores(self) -> list[CPUSet]:
        """The online CPUs of each core, in the order of their CPUs."""
        return sorted((core.cpus for core in self.machine.cores), key=lambda core: core.lowest)

    @property
    def changes(self) -> list[Occupant]:
        """The containers that changed since the earlier scene."""
        return [each for each in self.occupants if each.change]


def scene(
    machine: MachineReport,
    pools: Sequence[PoolReport],
    containers: Mapping[str, ContainerReport] | None = None,
    before: Scene | None = None,
) -> Scene:
    """Return the scene of documents; with *before*, marks stay and changes are described.

    Without *containers* it shows only the machine, with the sizes of its memory.
    """
    held = {_line(name): each for name, each in (containers or {}).items()}
    occupants = tuple(occupant(name, each) for name, each in held.items() if each.pool is not None)
    if before is not None:
        earlier = {each.name: each for each in before.occupants}
        occupants = tuple(
            replace(each, change="; ".join(changes(earlier.get(each.name), each)))
            for each in occupants
        )
    places = _places(machine, pools, occupants)
    known = before.places if before is not None else places
    owners = [each.name for each in occupants if each.exclusive]
    owners += dict.fromkeys(each.pod for each in occupants if each.room)
    return Scene(
        machine=machine,
        areas=areas_of(machine, pools, occupants, with_sizes=containers is None),
        places=places,
        occupants=occupants,
        refused={name: _line(each.error) for name, each in held.items() if each.error},
        marks=assign_marks(owners, before.marks if before is not None else {}),
        moved=CPUSet(cpu for cpu in places if places[cpu].moved_from(known.get(cpu, places[cpu]))),
    )


def _line(text: str) -> str:
    """Return *text* printable, in one line."""
    return printable(text).replace("\n", "\\n")


def headline(machine: MachineReport) -> str:
    """Return the size of a machine in one line."""
    memory: dict[str, int] = {}
    for node in machine.numa_nodes:
        memory[node.kind] = memory.get(node.kind, 0) + node.memory
    return " · ".join(
        (
            counted(len(machine.packages), "socket"),
            counted(len(machine.numa_nodes), "NUMA node"),
            counted(len(machine.cores), "core"),
            counted(len(machine.cpus.online), "CPU"),
            *(f"{format_bytes(size)} {kind}" for kind, size in memory.items() if size),
        )
    )


def _places(
    machine: MachineReport, pools: Sequence[PoolReport], occupants: Iterable[Occupant]
) -> dict[int, DrawnUse]:
    (top,) = (pool for pool in pools if pool.parent is None)
    sharable = top.sharable
    in_use = CPUSet.union(each.cpus for each in occupants if each.sort is Sort.NORMAL)
    layers = [
        (machine.cpus.online, DrawnUse(Purpose.UNAVAILABLE)),
        (machine.cpus.offline, DrawnUse(Purpose.OFFLINE)),
        (sharable, DrawnUse(Purpose.IDLE)),
        (sharable & in_use, DrawnUse(Purpose.SHARED)),
        (top.reserved, DrawnUse(Purpose.RESERVED)),
        (top.isolated, DrawnUse(Purpose.ISOLATED)),
        *((each.room, DrawnUse(Purpose.OWN, each.pod)) for each in occupants),
        *((each.exclusive, DrawnUse(Purpose.OWN, each.name)) for each in occupants),
    ]
    return {cpu: place for cpus, place in layers for cpu in cpus}
