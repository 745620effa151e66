"""CPU priority classes: which CPUs are fast and which are slow; spec placement.md §6.

From core kinds, else base frequency bins, else energy-performance preferences: first source that
tells CPUs apart. CPUs that no source tells apart are normal.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import CoreKind, Frequency, Machine
from nri_policy.settings import Priority

# Energy-performance preferences of the kernel (Documentation/admin-guide/pm/intel_pstate.rst),
# eager first.
_PREFERENCES = ("performance", "balance_performance", "default", "balance_power", "power")


class PriorityClasses(Struct, frozen=True, kw_only=True):
    """The online CPUs by class; each CPU is in exactly one."""

    high: CPUSet
    normal: CPUSet
    low: CPUSet

    def order(self, wanted: Priority) -> tuple[CPUSet, ...]:
        """Return the classes, the *wanted* one first, then the next lower; () for none."""
        match wanted:
            case Priority.HIGH:
                return self.high, self.normal, self.low
            case Priority.NORMAL:
                return self.normal, self.low, self.high
            case Priority.LOW:
                return self.low, self.normal, self.high
            case Priority.NONE:
                return ()


def classes_of(machine: Machine) -> PriorityClasses:
    """Return the priority classes of *machine*'s online CPUs."""
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
    return PriorityClasses(high=high, normal=machine.online - high - low, low=low)


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
