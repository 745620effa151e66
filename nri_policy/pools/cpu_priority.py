"""CPU priority classes: which CPUs are fast and which are slow; spec placement.md §6.

From core kinds, else base frequency bins, else energy-performance preferences: first source that
tells CPUs apart. CPUs that no source tells apart are normal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import CoreKind, Frequency, Machine
from nri_policy.settings import Priority

# By the class that is wanted: it first, then the next lower
Classes = Mapping[Priority, tuple[CPUSet, ...]]

# Energy-performance preferences of the kernel (Documentation/admin-guide/pm/intel_pstate.rst),
# eager first.
_PREFERENCES = ("performance", "balance_performance", "default", "balance_power", "power")


def classes_of(machine: Machine) -> Classes:
    """Return the priority classes of *machine*'s online CPUs; each CPU is in exactly one."""
    by_kind = {
        kind: CPUSet.union(core.cpus for core in machine.cores if core.kind is kind)
        for kind in CoreKind
    }
    if by_kind[CoreKind.EFFICIENCY]:
        high, low = by_kind[CoreKind.PERFORMANCE], by_kind[CoreKind.EFFICIENCY]
    else:
        high, low = _split(machine.frequencies, _base)
        if not low:
            high, low = _split(machine.frequencies, _eagerness)
    high, low = high & machine.online, low & machine.online
    normal = machine.online - high - low
    return {
        Priority.HIGH: (high, normal, low),
        Priority.NORMAL: (normal, low, high),
        Priority.LOW: (low, normal, high),
        Priority.NONE: (),
    }


def _split(
    groups: tuple[Frequency, ...], figure: Callable[[Frequency], int | None]
) -> tuple[CPUSet, CPUSet]:
    """Return the CPUs above and at the lowest *figure*; nothing where it tells none apart."""
    known = [(value, group.cpus) for group in groups if (value := figure(group)) is not None]
    lowest = min((value for value, _ in known), default=None)
    high = CPUSet.union(cpus for value, cpus in known if value != lowest)
    return (
        (high, CPUSet.union(cpus for value, cpus in known if value == lowest))
        if high
        else (EMPTY, EMPTY)
    )


def _base(group: Frequency) -> int | None:
    return group.base


def _eagerness(group: Frequency) -> int | None:
    if group.preference not in _PREFERENCES:
        return None
    return -_PREFERENCES.index(group.preference)
