"""Picture: who runs where on a machine, as the demo, `pools` and `simulate` show it.

Owns the value that is shown, the marks that containers have in it, and what is written beside the
floor plan. Legible without colour; with colour, a container's mark and its CPUs have the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from nri_policy.cli.floorplan import FloorPlan, Look
from nri_policy.cli.machine_table import counted, headline
from nri_policy.cli.pieces import cpu_list, path
from nri_policy.cpuset import CPUSet
from nri_policy.engine.state import Placed, State
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import Capacity
from nri_policy.pools.tree import Pool, PoolTree
from nri_policy.units import format_cpu
from nri_policy.workload.pod import QoS
from nri_policy.workload.request import Sort

# Lower-case letters stand for CPUs that are nobody's own.
_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_NO_MARK = "#"
_LONGEST_LIST = 20  # characters of CPUs in a change
# Of the terminals' 256 colours, such that black letters are legible on them and neighbours differ
_COLOURS = (39, 208, 76, 213, 220, 45, 203, 141, 156, 173, 117, 178, 219, 80, 215, 111)
_SHARED = Look("s", "color(232) on color(250)", "color(250)")
_IDLE = Look("·", "color(244)", "color(238)")
_RESERVED = Look("r", "color(255) on color(60)", "color(60)")
_ISOLATED = Look("i", "color(232) on color(144)", "color(144)")
_OFFLINE = Look("x", "color(160)", "color(52)")
_UNAVAILABLE = Look("-", "color(244)", "color(234)")
_KEY = {
    _SHARED: "shared, in use",
    _IDLE: "shared, idle",
    _RESERVED: "reserved",
    _ISOLATED: "isolated",
    _OFFLINE: "offline",
    _UNAVAILABLE: "not available",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A container and what it holds."""

    name: str  # namespace/pod/container
    qos: QoS
    sort: Sort
    pool: int  # id in the tree
    cpus: CPUSet  # where it may run; empty where it is not pinned
    exclusive: CPUSet  # booked for it; more than `cpus` shows where hyperthreads are hidden
    shared: int  # milli-CPU
    mems: CPUSet  # node ids; empty where it is not bound
    change: str = ""  # what this step did to it, in a few words; "" for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Who runs where at one moment; prints itself with rich."""

    machine: Machine
    tree: PoolTree
    capacity: Capacity
    occupants: tuple[Occupant, ...]
    marks: Mapping[str, str]  # letter by name, of those with exclusive CPUs, now or earlier

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = console.color_system is not None and not console.no_color
        looks = self._looks()
        plan = FloorPlan(machine=self.machine, tree=self.tree, looks=looks, writing=self._writing)
        yield Text(headline(self.machine), "bold")
        if not plan.has_outer_box:
            yield Text(" · ".join(self._writing(self.tree.top)))
        yield plan.drawn(options.max_width, colour=colour)
        yield self._key(set(looks.values()), colour=colour)
        if self.occupants:
            yield Text()
            yield self._table()

    def _looks(self) -> dict[int, Look]:
        machine, capacity = self.machine, self.capacity
        in_use = CPUSet.union(each.cpus for each in self.occupants if each.sort is Sort.NORMAL)
        layers = [
            (machine.online, _UNAVAILABLE),
            (machine.offline, _OFFLINE),
            (capacity.sharable, _IDLE),
            (capacity.sharable & in_use, _SHARED),
            (capacity.reserved, _RESERVED),
            (capacity.isolated, _ISOLATED),
            *((each.exclusive, self._own(each)) for each in self.occupants if each.exclusive),
        ]
        return {cpu: look for cpus, look in layers for cpu in cpus}

    def _own(self, occupant: Occupant) -> Look:
        mark = self.marks[occupant.name]
        colour = f"color({_COLOURS[(_MARKS + _NO_MARK).index(mark) % len(_COLOURS)]})"
        changed = " underline" if occupant.change else ""
        return Look(mark, f"color(232) on {colour}{changed}", colour)

    def _writing(self, pool: Pool) -> tuple[str, str]:
        """Return a pool's name and CPUs; its memory nodes, and its shared CPUs and their use."""
        owned = CPUSet.union(each.exclusive for each in self.occupants)
        mems = CPUSet.union(pool.memory.values())
        granted = sum(
            each.shared
            for each in self.occupants
            if each.sort is Sort.NORMAL and pool in self.tree.path(self.tree.pools[each.pool])
        )
        left = len((pool.cpus & self.capacity.sharable) - owned)
        return (
            f"{pool.name}: {pool.cpus}",
            f"mem {mems or 'none'} · shared {format_cpu(granted)} of {left}",
        )

    def _key(self, looks: set[Look], *, colour: bool) -> Columns:
        entries = [
            Text.assemble((look.letter, look.style), f" {meaning}")
            for look, meaning in _KEY.items()
            if look in looks
        ]
        if looks - _KEY.keys():
            entries.insert(0, Text("A… a container's own"))
        if any(len(core.cpus) > 1 for core in self.machine.cores):
            entries.append(
                Text("▀ threads differ" if colour else "a column a core, a line a thread")
            )
        return Columns(entries, padding=(0, 3))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("", "container", "class", "own + shared", "cpuset", "mems", "pool"):
            table.add_column(name)
        if changed := any(each.change for each in self.occupants):
            table.add_column("changed", overflow="fold")
        for each in self.occupants:
            own = self._own(each) if each.exclusive else None
            table.add_row(
                Text(own.letter, own.style) if own else Text(),
                path(each.name.removeprefix("default/")),
                Text(each.qos.value),
                Text(self._amount(each)),
                cpu_list(each.cpus),
                cpu_list(each.mems),
                path(self.tree.pools[each.pool].name),
                *([Text(each.change)] if changed else []),
                style="bold" if each.change else "",
            )
        return table

    def _amount(self, occupant: Occupant) -> str:
        """Return the exclusive CPUs and shared milli-CPU; 0 is a share for who has nothing else."""
        if occupant.sort is Sort.PRESERVE:
            return "preserved"
        amounts = []
        if occupant.exclusive:
            isolated = occupant.exclusive <= self.capacity.isolated
            amounts.append(f"{len(occupant.exclusive)}{' isolated' if isolated else ''}")
        if occupant.shared or not occupant.exclusive:
            reserved = " reserved" if occupant.sort is Sort.RESERVED else ""
            amounts.append(format_cpu(occupant.shared) + reserved)
        return " + ".join(amounts)


def picture_of(state: State, before: Picture | None = None) -> Picture:
    """Return the picture of an engine's state; with *before*, it says what changed since."""
    layout = state.layout
    occupants = tuple(_occupant(state, placed) for placed in state.placed.values())
    return picture(layout.machine, layout.tree, layout.capacity, occupants, before)


def _occupant(state: State, placed: Placed) -> Occupant:
    cpus, mems = state.told[placed.container.id]
    grant = placed.grant
    return Occupant(
        name=placed.container.full_name,
        qos=placed.container.pod.qos,
        sort=grant.sort,
        pool=grant.pool,
        cpus=cpus,
        exclusive=grant.exclusive,
        shared=grant.shared,
        mems=mems,
    )


def picture(
    machine: Machine,
    tree: PoolTree,
    capacity: Capacity,
    occupants: Iterable[Occupant],
    before: Picture | None = None,
) -> Picture:
    """Return the picture of *occupants*; with *before*, marks stay and changes are described."""
    now = tuple(occupants)
    if before is not None:
        earlier = {each.name: each for each in before.occupants}
        now = tuple(
            replace(each, change="; ".join(_changes(before, earlier.get(each.name), tree, each)))
            for each in now
        )
    return Picture(
        machine=machine,
        tree=tree,
        capacity=capacity,
        occupants=now,
        marks=_marked(now, before.marks if before else {}),
    )


def _marked(occupants: Iterable[Occupant], known: Mapping[str, str]) -> Mapping[str, str]:
    """Return *known* with marks for who has none.

    A mark is used again only when there is no other left, so that throughout a series of pictures
    it means the same container.
    """
    names = [each.name for each in occupants if each.exclusive]
    marks = dict(known)
    if len(marks.keys() | names) > len(_MARKS):
        marks = {name: mark for name, mark in marks.items() if name in names}
    free = (mark for mark in _MARKS if mark not in set(marks.values()))
    return marks | {name: next(free, _NO_MARK) for name in names if name not in marks}


def _changes(before: Picture, old: Occupant | None, tree: PoolTree, new: Occupant) -> Iterator[str]:
    if old is None:
        yield "new"
        return
    if before.tree.pools[old.pool].name != tree.pools[new.pool].name:
        yield f"from {before.tree.pools[old.pool].name}"
    if gone := old.cpus - new.cpus:
        yield f"left {_briefly(gone)}"
    if added := new.cpus - old.cpus:
        yield f"got {_briefly(added)}"
    if old.shared != new.shared:
        yield f"shared {format_cpu(old.shared)} before"
    if old.mems != new.mems:
        yield f"mems {old.mems or 'any'} before"


def _briefly(cpus: CPUSet) -> str:
    text = str(cpus)
    return f"CPU {text}" if len(text) <= _LONGEST_LIST else counted(len(cpus), "CPU")
