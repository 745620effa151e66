"""Core kinds: which cores of a hybrid machine are the fast ones.

Owns the rules that turn what kernels tell into `CoreKind`. With one kind all cores are STANDARD.
With two, the faster are PERFORMANCE and the slower EFFICIENCY. With three or more (phones; Arrow
Lake with its low-power island) the fastest are PERFORMANCE, the slowest EFFICIENCY and all between
STANDARD, so that the CPU priorities high, normal and low (spec placement.md, 6) each have a kind.

Rules, the first that finds more than one kind among the online CPUs decides:

1. x86: the PMU of each core type, `sys/devices/cpu_{core,atom,lowpower}/cpus`;
2. `cpu_capacity` (ARM big.LITTLE, and hybrid x86 from Linux 6.13);
3. ACPI CPPC's highest performance or else the maximum frequency, provided that the cores' caches
   or (ARM) part numbers differ too. Turbo Boost Max 3.0, AMD's preferred cores and SST-BF give
   cores of one design different speeds.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.cpus import CPU_FOLDER, CPUINFO_LIMIT
from nri_policy.hardware.machine import Cache, CoreKind, Frequency
from nri_policy.hardware.sysfs import FileTree

_PART = re.compile(
    r"(?m)^(?:processor[ \t]*:[ \t]*(\d{1,4})|CPU part[ \t]*:[ \t]*(0x[0-9a-f]{1,4}))$"
)
_PMUS = ("cpu_core", "cpu_atom", "cpu_lowpower")  # fastest first
# Neighbouring figures closer than this belong to one kind: on one design, cores are binned for
# slightly different speeds (of some ARM servers almost every core has a capacity of its own).
_CAPACITY_GAP = 0.9
_SPEED_GAP = 0.85


def core_kinds(
    tree: FileTree, online: CPUSet, caches: Iterable[Cache], frequencies: Iterable[Frequency]
) -> dict[int, CoreKind]:
    """Return the kind of every online CPU's core."""
    capacity: dict[int, int] = {}
    highest: dict[int, int] = {}
    with tree.folder(CPU_FOLDER) as folder:
        for cpu in online:
            with folder.folder(f"cpu{cpu}") as own:
                _keep(capacity, cpu, own.integer("cpu_capacity"))
                with own.folder("acpi_cppc") as cppc:
                    _keep(highest, cpu, cppc.integer("highest_perf"))
    maximum = {cpu: group.maximum for group in frequencies for cpu in group.cpus if group.maximum}
    for kinds in (
        _by_pmu(tree, online),
        _by_figure(online, capacity, _CAPACITY_GAP),
        _of_designs(tree, _by_figure(online, highest, _SPEED_GAP), caches),
        _of_designs(tree, _by_figure(online, maximum, _SPEED_GAP), caches),
    ):
        if len(kinds) > 1:
            names = [CoreKind.STANDARD] * len(kinds)
            names[0], names[-1] = CoreKind.PERFORMANCE, CoreKind.EFFICIENCY
            return {cpu: name for name, cpus in zip(names, kinds, strict=True) for cpu in cpus}
    return dict.fromkeys(online, CoreKind.STANDARD)


def _keep(figures: dict[int, int], cpu: int, figure: int | None) -> None:
    if figure is not None and figure > 0:
        figures[cpu] = figure


def _by_pmu(tree: FileTree, online: CPUSet) -> list[CPUSet]:
    """Return the CPUs of each PMU, fastest first; nothing unless they cover the online CPUs."""
    kinds: list[CPUSet] = []
    left = online
    for pmu in _PMUS:
        with tree.folder(f"sys/devices/{pmu}") as folder:
            cpus = (folder.set("cpus") or CPUSet()) & left
        if cpus:
            kinds.append(cpus)
            left -= cpus
    return [] if left else kinds


def _by_figure(online: CPUSet, figures: Mapping[int, int], gap: float) -> list[CPUSet]:
    """Return CPUs of like *figures* together, greatest first; nothing unless all have one."""
    if len(figures) < len(online):
        return []
    kinds: list[list[int]] = []
    previous = 0
    for cpu in sorted(figures, key=lambda cpu: -figures[cpu]):
        if not kinds or figures[cpu] < gap * previous:
            kinds.append([])
        kinds[-1].append(cpu)
        previous = figures[cpu]
    return [CPUSet(cpus) for cpus in kinds]


def _of_designs(tree: FileTree, kinds: list[CPUSet], caches: Iterable[Cache]) -> list[CPUSet]:
    """Return *kinds* if the cores of each have a design of their own."""
    if len(kinds) < 2:
        return []
    designs: dict[int, list[Hashable]] = {}
    for cache in caches:  # sorted, so that equal designs are equal lists
        if cache.level <= 2:
            for cpu in cache.cpus:
                designs.setdefault(cpu, []).append((cache.level, cache.type, cache.size))
    with tree.folder("proc") as proc:
        text = proc.text("cpuinfo", CPUINFO_LIMIT) or ""
    cpu = 0
    for number, part in _PART.findall(text):
        if number:
            cpu = int(number)
        else:
            designs.setdefault(cpu, []).append(part)
    found = [{tuple(designs.get(cpu, ())) for cpu in cpus} for cpus in kinds]
    return kinds if len(set().union(*found)) == sum(map(len, found)) else []
