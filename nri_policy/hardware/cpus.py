"""CPU ids and sets: possible, online and isolated CPUs, and the kernel's facts on each.

Owns `sys/devices/system/cpu` except caches and frequencies, with `proc/cpuinfo` where there is no
such folder. Yields facts for each CPU; `packages` groups them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.sysfs import FileTree, Folder, TopologyError

CPU_FOLDER = "sys/devices/system/cpu"
HIGHEST = 8191  # the kernel's NR_CPUS has never been above 8192
CPUINFO_LIMIT = 1 << 25  # bytes; 8192 CPUs with 2 KiB each, doubled
_UNKNOWN = {65535, 0xFFFFFFFF}  # -1 that went through the u16 and u32 of some kernels
_FIELD = re.compile(r"(?m)^(processor|physical id|core id)[ \t]*:[ \t]*(\d{1,9})[ \t]*$")


class CPUSets(Struct, frozen=True, kw_only=True):
    """Which CPUs there are. `online` is never empty."""

    online: CPUSet
    offline: CPUSet
    possible: CPUSet
    isolated: CPUSet
    nohz_full: CPUSet


class CPUPosition(NamedTuple):
    """The unit of a CPU on one level; None if unknown. The set may name offline CPUs."""

    id: int | None = None
    cpus: CPUSet | None = None


CPU = Mapping[str, CPUPosition]  # by level of LEVELS; a missing level is unknown
LEVELS = {
    # level: (id file, set files, those of newer kernels first)
    "drawer": ("drawer_id", ("drawer_siblings",)),
    "book": ("book_id", ("book_siblings",)),
    "package": ("physical_package_id", ("package_cpus", "core_siblings")),
    "die": ("die_id", ("die_cpus",)),
    "cluster": ("cluster_id", ("cluster_cpus",)),
    "core": ("core_id", ("core_cpus", "thread_siblings")),
}


def read_sets(tree: FileTree) -> CPUSets:
    """Return the machine's CPU sets.

    Raises TopologyError if no CPU is online.
    """
    with tree.folder(CPU_FOLDER) as folder:
        present = CPUSet(_list_known(tree, folder))
        listed = folder.set("online")
        offline = CPUSet(cpu for cpu in present if _is_offline(folder, cpu, listed))
        if not present:
            # neither folders nor lists: the oldest kernels, and captures of one file
            present = CPUSet(cpuinfo(tree))
            if not present:
                raise TopologyError(
                    tree.root / CPU_FOLDER,
                    "no CPU is described here: expected folders cpu0, cpu1, …, or proc/cpuinfo",
                )
        online = present - offline
        if listed:
            _note_missing(tree, listed - present, "online, but has no folder: left out")
            _note_missing(tree, online - listed, "not in the list of online CPUs: taken as offline")
            online &= listed
        if not online:
            raise TopologyError(
                tree.root / CPU_FOLDER / "online",
                f"no CPU is online and described: the list is {listed or EMPTY}, "
                f"the folders are of CPUs {present}",
            )
        # `offline` in sysfs also names CPUs that could never be there: above `present`
        known = folder.set("present")
        offline = present - online if known is None else (known | present) - online
        possible = folder.set("possible")
        return CPUSets(
            online=online,
            offline=offline,
            possible=(possible or EMPTY) | online | offline,
            isolated=(_option(folder, "isolated") or EMPTY) & online,
            nohz_full=(_option(folder, "nohz_full") or EMPTY) & online,
        )


def read_cpus(tree: FileTree, online: CPUSet) -> dict[int, CPU]:
    """Return what the kernel says of every online CPU."""
    cpus: dict[int, CPU] = {}
    with tree.folder(CPU_FOLDER) as folder:
        for cpu in online:
            with folder.folder(f"cpu{cpu}") as own, own.folder("topology") as topology:
                if topology:
                    cpus[cpu] = _read_cpu(topology)
    if not cpus:
        tree.notes.add(f"{CPU_FOLDER}: no CPU has a topology folder")
        facts = cpuinfo(tree)
        return {cpu: facts.get(cpu, {}) for cpu in online}
    for cpu in online:
        if cpu not in cpus:
            tree.notes.add("online, but without a topology folder", cpu)
            cpus[cpu] = {}
    return cpus


def cpuinfo(tree: FileTree) -> Mapping[int, CPU]:
    """Return what `proc/cpuinfo` says of each CPU: x86's form, others give only the ids."""
    with tree.folder("proc") as proc:
        text = proc.text("cpuinfo", CPUINFO_LIMIT) or ""
    found: dict[int, dict[str, int]] = {}
    fields: dict[str, int] = {}
    for match in _FIELD.finditer(text):
        name, number = match.group(1), int(match.group(2))
        if name == "processor":
            if number > HIGHEST:
                continue
            fields = found.setdefault(number, {})
        fields[name] = number
    return {
        cpu: {
            "package": CPUPosition(fields.get("physical id")),
            "core": CPUPosition(fields.get("core id")),
        }
        for cpu, fields in found.items()
    }


def _list_known(tree: FileTree, folder: Folder) -> list[int]:
    cpus = folder.numbered("cpu")
    if cpus and cpus[-1] > HIGHEST:
        tree.notes.add(f"{CPU_FOLDER}: folders of CPUs above {HIGHEST} are left out")
        cpus = [cpu for cpu in cpus if cpu <= HIGHEST]
    return cpus


def _is_offline(folder: Folder, cpu: int, listed: CPUSet | None) -> bool:
    with folder.folder(f"cpu{cpu}") as own:
        online = own.text("online")
        if online is not None:
            return online == "0"
        # without a list, a CPU that lacks what every online CPU has is not online; cpu0 never has
        # a switch of its own on x86
        return not listed and cpu != 0 and not own.has("topology") and folder.has("cpu0/topology")


def _option(folder: Folder, name: str) -> CPUSet | None:
    """Return the set of a boot option; kernels print "(null)" for an unset one."""
    text = folder.text(name)
    if text is None or text == "(null)":
        return None
    return folder.tree.parse(text, f"{folder.path}/{name}")


def _note_missing(tree: FileTree, cpus: CPUSet, what: str) -> None:
    for cpu in cpus:
        tree.notes.add(what, cpu)


def _read_cpu(topology: Folder) -> CPU:
    return {level: _place(topology, level) for level in LEVELS}


def _place(topology: Folder, level: str) -> CPUPosition:
    id_file, set_files = LEVELS[level]
    number = topology.integer(id_file)
    if number is not None and (number < 0 or number in _UNKNOWN):
        number = None
    if number is None and level not in ("package", "core"):
        # A level that an architecture lacks shows as id -1 with a set of the CPU alone
        # (include/linux/topology.h), so that set says nothing. POWER and s390, though, give real
        # sets of packages with the id -1.
        return CPUPosition()
    for name in set_files:
        cpus = topology.set(f"{name}_list", name)
        if cpus:
            return CPUPosition(number, cpus)
    return CPUPosition(number)
