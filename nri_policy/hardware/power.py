"""Power: which frequencies, idle states and uncore frequencies the CPUs of a machine can be set to.

Owns `cpufreq`, `cpuidle` and `intel_uncore_frequency` below `sys/devices/system/cpu`: what the
drivers accept, not what is set at the moment. No set contains offline CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.cpus import CPU_FOLDER
from nri_policy.hardware.machine import Die, Machine
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree, Folder

_NUMERIC = ("intel_pstate", "intel_cpufreq")  # drivers that take the preference as a number, too
_DIE = re.compile(r"package_([0-9]{2})_die_([0-9]{2})")
_MOST_STATES = 32  # of one CPU; the kernel's CPUIDLE_STATE_MAX is 10


class FrequencyPolicy(Struct, frozen=True, kw_only=True):
    """CPUs that the driver sets together, and what it accepts; frequencies in kHz."""

    id: int
    cpus: CPUSet
    minimum: int
    base: int  # the maximum, where the driver does not tell it
    maximum: int
    governors: tuple[str, ...]
    preferences: tuple[str, ...]  # words for the energy-performance preference; empty: it has none
    numeric: bool  # whether the preference can be any number from 0 to 255


class IdleState(Struct, frozen=True, kw_only=True):
    """A C-state."""

    number: int
    name: str
    latency: int  # µs until the CPU works again


class IdleStates(Struct, frozen=True, kw_only=True):
    """The C-states of some CPUs, as they are numbered."""

    cpus: CPUSet
    states: tuple[IdleState, ...]


class Uncore(Struct, frozen=True, kw_only=True):
    """A die whose mesh and caches have a frequency of their own, in kHz."""

    id: str  # its folder
    cpus: CPUSet
    minimum: int
    maximum: int


class Power(Struct, frozen=True, kw_only=True):
    """What can be set on a machine; empty without a driver, as on most virtual machines."""

    policies: tuple[FrequencyPolicy, ...] = ()
    idle: tuple[IdleStates, ...] = ()
    uncore: tuple[Uncore, ...] = ()


def power_of(root: Path, machine: Machine) -> Power:
    """Return what can be set on the *machine* below *root*."""
    with FileTree(root, Notes()) as tree:
        return read_power(tree, machine)


def read_power(tree: FileTree, machine: Machine) -> Power:
    """Return what can be set on the *machine* that *tree* describes."""
    with tree.folder(CPU_FOLDER) as folder:
        return Power(
            policies=tuple(_policies(folder, machine.online)),
            idle=_idle(folder, machine.online),
            uncore=tuple(_uncore(folder, machine.dies)),
        )


def _policies(folder: Folder, online: CPUSet) -> Iterator[FrequencyPolicy]:
    with folder.folder("cpufreq") as policies:
        for number in policies.numbered("policy"):
            with policies.folder(f"policy{number}") as policy:
                words = (policy.text("affected_cpus") or "").split()
                cpus = CPUSet(int(word) for word in words if word.isdecimal()) & online
                low, high = policy.integer("cpuinfo_min_freq"), policy.integer("cpuinfo_max_freq")
                if not cpus or not low or not high:
                    continue
                yield FrequencyPolicy(
                    id=number,
                    cpus=cpus,
                    minimum=low,
                    base=policy.integer("base_frequency") or high,
                    maximum=high,
                    governors=_words(policy, "scaling_available_governors"),
                    preferences=_words(policy, "energy_performance_available_preferences"),
                    numeric=policy.text("scaling_driver") in _NUMERIC,
                )


def _words(folder: Folder, name: str) -> tuple[str, ...]:
    return tuple((folder.text(name) or "").split())


def _idle(folder: Folder, online: CPUSet) -> tuple[IdleStates, ...]:
    """Return the C-states, CPUs with the same ones together."""
    groups: dict[tuple[IdleState, ...], list[int]] = {}
    for cpu in online:
        with folder.folder(f"cpu{cpu}") as own, own.folder("cpuidle") as idle:
            states = []
            for number in idle.numbered("state")[:_MOST_STATES]:
                with idle.folder(f"state{number}") as state:
                    name, latency = state.text("name"), state.integer("latency")
                    if name and latency is not None:
                        states.append(IdleState(number=number, name=name, latency=latency))
        if states:
            groups.setdefault(tuple(states), []).append(cpu)
    return tuple(IdleStates(cpus=CPUSet(cpus), states=states) for states, cpus in groups.items())


def _uncore(folder: Folder, dies: tuple[Die, ...]) -> Iterator[Uncore]:
    """Yield the dies; newer kernels also have folders for parts of a die, which follow it."""
    cpus_of = {(die.package, die.id): die.cpus for die in dies}
    with folder.folder("intel_uncore_frequency") as uncore:
        for name in uncore.names():
            found = _DIE.fullmatch(name)
            cpus = cpus_of.get((int(found[1]), int(found[2]))) if found else None
            if not cpus:
                continue
            with uncore.folder(name) as die:
                low = die.integer("initial_min_freq_khz")
                high = die.integer("initial_max_freq_khz")
                if low and high:
                    yield Uncore(id=name, cpus=cpus, minimum=low, maximum=high)
