"""Capacity: which CPUs the engine may use, and what for; spec placement.md §2.

Available CPUs are online and allowed by the settings. Each is reserved, isolated by the kernel, or
sharable.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.wording import counted
from nri_policy.hardware.machine import Machine
from nri_policy.pools.picker import Picker
from nri_policy.settings import CPUAmount, CPUQuantity, ListedCPUs, Settings


class CapacityError(Refused):
    """The settings ask for more than this machine has, or leave too little for its containers."""


class Capacity(Struct, frozen=True, kw_only=True):
    """The available CPUs, parted in three."""

    reserved: CPUSet
    isolated: CPUSet
    sharable: CPUSet

    @property
    def available(self) -> CPUSet:
        """All CPUs that the engine may use."""
        return self.reserved | self.isolated | self.sharable

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if pods have no CPU to share: allowed, but hardly meant."""
        if self.sharable:
            return ()
        other = f" but the isolated {self.isolated}" if self.isolated else ""
        return (f"no CPU{other} is left for pods: reservedResources.cpu takes {self.reserved}",)


class Earlier(Struct, frozen=True, kw_only=True):
    """What was in use before a change of the machine or the settings, or before a restart."""

    reserved: CPUSet = EMPTY
    exclusive: CPUSet = EMPTY  # in exclusive grants


NOTHING = Earlier()


def capacity_of(
    machine: Machine, settings: Settings, picker: Picker, earlier: Earlier = NOTHING
) -> Capacity:
    """Return what *settings* leave of *machine*; CapacityError where they ask the impossible.

    If an amount is reserved, as many as possible of the CPUs reserved *earlier* stay reserved. CPUs
    of a list that went offline since are left out. CPUs with an exclusive grant are reserved last.
    """
    available = machine.online
    if settings.available.cpu is not None:
        available = _list(settings.available.cpu, machine.online) & machine.online
    if not available:
        raise CapacityError(
            f"availableResources.cpu: no CPU is left: this machine has {machine.online} online"
        )
    reserved = _reserve(settings, machine, available, picker, earlier)
    return Capacity(
        reserved=reserved,
        isolated=(machine.isolated & available) - reserved,
        sharable=available - machine.isolated - reserved,
    )


def capacity_left(
    machine: Machine, settings: Settings, picker: Picker, earlier: Earlier
) -> tuple[Capacity, tuple[str, ...]]:
    """Return the part of what *settings* ask for that *machine* has, and notes on the rest.

    For a machine that has lost CPUs while containers run: such a change cannot be refused.
    """
    notes = []
    asked, online = settings.available.cpu, machine.online
    if asked is not None and not _list(asked, online) & online:
        notes.append(
            "availableResources.cpu: none of these CPUs is online:"
            f" all online CPUs {online} are used"
        )
        asked = None
        settings = replace(settings, available=replace(settings.available, cpu=None))
    available = online if asked is None else _list(asked, online) & online
    wanted = settings.reserved.cpu
    try:
        capacity = capacity_of(machine, settings, picker, earlier)
    except CapacityError as error:
        less: CPUAmount = CPUQuantity(1000)
        if not isinstance(wanted, ListedCPUs):
            less = CPUQuantity(min(wanted.milli_cpu, 1000 * len(available)))
        elif left := _list(wanted, available) & available:
            less = ListedCPUs(left)
        settings = replace(settings, reserved=replace(settings.reserved, cpu=less))
        # isolated CPUs too, where there are no others
        earlier = Earlier(reserved=earlier.reserved, exclusive=earlier.exclusive or available)
        capacity = capacity_of(machine, settings, picker, earlier)
        notes.append(f"{error}: {capacity.reserved} is reserved")
    else:
        notes += note_lost(settings, available, capacity)
    return capacity, tuple(notes)


def note_lost(settings: Settings, available: CPUSet, capacity: Capacity) -> tuple[str, ...]:
    """Return a note if CPUs that *settings* list are not reserved: they went offline."""
    wanted = settings.reserved.cpu
    if not isinstance(wanted, ListedCPUs) or _list(wanted, available) <= capacity.reserved:
        return ()
    text = "reservedResources.cpu: some of these CPUs are offline:"
    return (f"{text} {capacity.reserved} is reserved",)


def note_absent(settings: Settings, machine: Machine) -> tuple[str, ...]:
    """Return a note if the available CPUs that *settings* list are not all of *machine*."""
    wanted = settings.available.cpu
    if wanted is None or wanted.excluded:
        return ()
    absent = wanted.cpus - machine.online - machine.offline
    return (f"availableResources.cpu: this machine has no CPUs {absent}",) if absent else ()


def _list(listed: ListedCPUs, whole: CPUSet) -> CPUSet:
    return whole - listed.cpus if listed.excluded else listed.cpus


def _reserve(
    settings: Settings, machine: Machine, available: CPUSet, picker: Picker, earlier: Earlier
) -> CPUSet:
    """Return the reserved CPUs: those listed, or ceil(q) for an amount q, picked by §6 (§2)."""
    wanted = settings.reserved.cpu
    count = 1
    if isinstance(wanted, ListedCPUs):
        reserved = _list(wanted, available)
        if not reserved:
            raise CapacityError(
                f"reservedResources.cpu: it contains none of the available CPUs {available}"
            )
        lost = reserved - available
        if lost and not (earlier.reserved and lost <= machine.offline):
            raise CapacityError(
                f"reservedResources.cpu: {lost} is not in the available CPUs {available}"
            )
        # hotplug cannot be refused: CPUs that went offline are left out
        if reserved != lost:
            return reserved - lost
    else:
        count = wanted.whole
    ordinary = available - machine.isolated
    others = available - earlier.exclusive
    kept = earlier.reserved & available
    # rather an isolated CPU than one that a container runs on alone
    candidates = available if earlier.exclusive else ordinary | kept
    if not 0 < count <= len(candidates):
        raise CapacityError(
            f"reservedResources.cpu: cannot reserve {counted(count, 'CPU')}:"
            f" the available CPUs that are not isolated are {ordinary or 'none'}"
        )
    # not beside an isolated thread, which shares its core's caches and pipelines
    quiet = ordinary & CPUSet.union(
        core.cpus for core in machine.cores if core.cpus.isdisjoint(machine.isolated)
    )
    classes = (
        kept,
        (quiet & others) - kept,
        (ordinary & others) - quiet - kept,
        others - ordinary - kept,
    )
    first = next(filter(None, classes), candidates)
    whole = CPUSet.union(
        core.cpus for core in machine.cores if core.cpus <= first and len(core.cpus) <= count
    )
    # the lowest, wherever the tightest domain is: the kernel's own work is mostly there
    lowest = (whole or first).lowest
    return picker.pick(count, candidates, classes, beside=CPUSet([lowest]))
