"""Caches and frequencies: what CPUs share besides their cores.

Owns `cpuN/cache` and `cpuN/cpufreq`. A cache is known by its level, type and CPUs: the kernel's
cache ids are missing on many machines. No set has offline CPUs.
"""

from __future__ import annotations

import re

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.cpus import CPU_FOLDER
from nri_policy.hardware.machine import Cache, Frequency
from nri_policy.hardware.notes import quote
from nri_policy.hardware.sysfs import FileTree, Folder

_SIZE = re.compile(r"(\d{1,12})([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TYPES = {"data", "instruction", "unified"}
_MOST_INDEXES = 32  # caches of one CPU; there are five at most on any machine known


def read_caches(tree: FileTree, online: CPUSet) -> tuple[Cache, ...]:
    """Return the caches of the *online* CPUs, by level, type and lowest CPU."""
    sizes: dict[tuple[int, str, CPUSet], int] = {}
    # The kernel lists a cache at each CPU that uses it (drivers/base/cacheinfo.c), though its index
    # may differ between CPUs. So one CPU shows the whole set. A CPU has one cache of each level and
    # type; once all caches of a CPU are known from its neighbours, its files are not read.
    known: dict[tuple[int, str], set[int]] = {}  # level, type -> CPUs with a known cache
    with tree.folder(CPU_FOLDER) as folder:
        for cpu in online:
            with folder.folder(f"cpu{cpu}") as own, own.folder("cache") as caches:
                indexes = caches.numbered("index")[:_MOST_INDEXES]
                if len(indexes) == sum(cpu in cpus for cpus in known.values()):
                    continue
                for index in indexes:
                    with caches.folder(f"index{index}") as cache:
                        kind = _read_kind(cache, cpu)
                        if kind is None or cpu in known.setdefault(kind, set()):
                            continue
                        cpus, size = _read_cpus(cache, cpu, online), _read_size(cache)
                        sizes[*kind, cpus] = max(size, sizes.get((*kind, cpus), 0))
                        known[kind].update(cpus)
    return tuple(
        Cache(level=level, type=type_, size=size, cpus=cpus)
        for (level, type_, cpus), size in sorted(
            sizes.items(), key=lambda item: (item[0][0], item[0][1], item[0][2].lowest)
        )
    )


def _read_kind(cache: Folder, cpu: int) -> tuple[int, str] | None:
    """Return the level and the type of a cache; a CPU has one of each."""
    level = cache.integer("level")
    type_ = (cache.text("type") or "").lower()
    if level is None or type_ not in _TYPES:
        cache.tree.notes.add("caches without a level or type are left out", cpu)
        return None
    return level, type_


def _read_cpus(cache: Folder, cpu: int, online: CPUSet) -> CPUSet:
    """Return the CPUs that share a cache of *cpu*; some firmware leaves the set empty."""
    cpus = cache.set("shared_cpu_list", "shared_cpu_map")
    return ((cpus & online) if cpus else CPUSet()) | CPUSet((cpu,))


def _read_size(cache: Folder) -> int:
    text = cache.text("size")
    if not text:
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        cache.tree.notes.add(f"{cache.path}/size: {quote(text)} is not a size such as 32K")
        return 0
    return int(match.group(1)) * _UNITS[match.group(2)]


def read_frequencies(tree: FileTree, online: CPUSet) -> tuple[Frequency, ...]:
    """Return the frequency limits of the *online* CPUs, CPUs with the same limits together."""
    groups: dict[tuple[int | None, int | None, int | None, str | None], list[int]] = {}
    with tree.folder(CPU_FOLDER) as folder:
        for cpu in online:
            with folder.folder(f"cpu{cpu}") as own, own.folder("cpufreq") as limits:
                if limits:
                    key = (
                        limits.integer("base_frequency"),
                        limits.integer("cpuinfo_min_freq"),
                        limits.integer("cpuinfo_max_freq"),
                        limits.text("energy_performance_preference"),
                    )
                    groups.setdefault(key, []).append(cpu)
    return tuple(
        Frequency(cpus=CPUSet(cpus), base=base, minimum=low, maximum=high, preference=preference)
        for (base, low, high, preference), cpus in groups.items()
    )
