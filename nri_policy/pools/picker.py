"""Picker: which CPUs of a set to take; spec placement.md §6.

The kernel does the picking; this module is its Python face and says what the groups of a machine
are.
"""

from __future__ import annotations

from nri_policy._picker import Picker
from nri_policy.cpuset import CPUSet
from nri_policy.hardware.machine import Machine

__all__ = ["Picker", "picker_of"]


def picker_of(machine: Machine) -> Picker:
    """Return the picker for the online CPUs of *machine*.

    A group is idle only if all its online CPUs are candidates: CPUs outside the available set break
    it.
    """
    l3 = [
        c.cpus & machine.online for c in machine.caches if c.level == 3 and c.type != "instruction"
    ]
    domains = _disjoint([*l3, *(package.cpus for package in machine.packages)])
    return Picker(
        packages=[package.cpus for package in machine.packages],
        dies=[die.cpus for die in machine.dies],
        caches=[*filter(None, l3), *(cluster.cpus for cluster in machine.clusters)],
        cores=[core.cpus for core in machine.cores],
        domains=domains,
    )


def _disjoint(sets: list[CPUSet]) -> list[CPUSet]:
    """Return *sets* without what an earlier one holds: every CPU has one domain."""
    result = []
    seen = CPUSet()
    for cpus in sets:
        if fresh := cpus - seen:
            result.append(fresh)
            seen |= fresh
    return result
