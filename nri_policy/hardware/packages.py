"""Packages, dies, clusters and cores: how CPUs nest.

Owns the grouping of CPUs by what the kernel says of each. The kernel's sets come before its ids:
ids repeat across dies and packages. Whatever it says, the outcome holds these invariants, and a
note tells where it had to be bent: every online CPU is in exactly one package, die and core; a core
lies within one die, a die within one package; package ids, and die ids in a package, are unique.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.cpus import CPU, CPUPosition
from nri_policy.hardware.machine import Core, CoreCluster, CoreKind, Die, OuterUnit, Package
from nri_policy.hardware.notes import Notes

_NOWHERE = CPUPosition()


class Nesting(Struct, frozen=True, kw_only=True):
    """The groups of a machine's online CPUs, each tuple in order of its lowest CPU."""

    groups: tuple[OuterUnit, ...]
    packages: tuple[Package, ...]
    dies: tuple[Die, ...]
    clusters: tuple[CoreCluster, ...]
    cores: tuple[Core, ...]


def nest(cpus: Mapping[int, CPU], kinds: Mapping[int, CoreKind], notes: Notes) -> Nesting:
    """Return how the online *cpus* nest; *kinds* gives the kind of each CPU's core."""
    online = CPUSet(cpus)
    split = _Splitter(cpus, notes)
    groups: list[OuterUnit] = []
    packages: list[Package] = []
    dies: list[Die] = []
    clusters: list[CoreCluster] = []
    cores: list[Core] = []
    for level in ("drawer", "book"):
        for id_, members in split(split.known(online, level), level):
            groups.append(OuterUnit(kind=level, id=id_, cpus=members))
    for package, package_cpus in split(online, "package"):
        packages.append(Package(id=package, cpus=package_cpus))
        for cluster, members in split(split.known(package_cpus, "cluster"), "cluster"):
            clusters.append(CoreCluster(package=package, id=cluster, cpus=members))
        for die, die_cpus in split(package_cpus, "die"):
            dies.append(Die(package=package, id=die, cpus=die_cpus))
            for core, members in split(die_cpus, "core"):
                kind = kinds.get(members.lowest, CoreKind.STANDARD)
                cores.append(Core(package=package, die=die, id=core, cpus=members, kind=kind))
    listed = {each.cpus for each in packages}
    listed.update(each.cpus for each in dies)
    listed.update(each.cpus for each in cores)
    return Nesting(
        groups=tuple(groups),
        packages=tuple(sorted(packages, key=_lowest)),
        dies=tuple(sorted(dies, key=_lowest)),
        clusters=tuple(sorted((each for each in clusters if each.cpus not in listed), key=_lowest)),
        cores=tuple(sorted(cores, key=_lowest)),
    )


def _lowest(group: Package | Die | CoreCluster | Core) -> int:
    return group.cpus.lowest


class _Splitter:
    """Splits sets of CPUs into the groups of one level."""

    def __init__(self, cpus: Mapping[int, CPU], notes: Notes) -> None:
        self._cpus = cpus
        self._online = CPUSet(cpus)
        self._notes = notes

    def known(self, cpus: CPUSet, level: str) -> CPUSet:
        """Return those of *cpus* whose id on *level* the kernel knows."""
        return CPUSet(cpu for cpu in cpus if self._place(cpu, level).id is not None)

    def __call__(self, within: CPUSet, level: str) -> list[tuple[int, CPUSet]]:
        """Return the groups of the CPUs *within*, each with its id, in order of lowest CPU."""
        same_id = self._by_id(within, level)
        left = within
        found: list[tuple[int | None, CPUSet]] = []
        for cpu in within:
            if cpu not in left:
                continue
            id_, said = self._place(cpu, level)
            members = ((same_id[cpu] if said is None else said) & left) | CPUSet((cpu,))
            for member in members:
                if self._place(member, level).cpus not in (said, None):
                    self._notes.add(
                        f"sets of CPUs of the same {level} contradict each other", member
                    )
            if said is not None and said & self._online != members:
                self._notes.add(f"CPUs of one {level} lie in different larger units", cpu)
            left -= members
            found.append((id_, members))
        if level == "core":  # ids of cores repeat, and nothing is keyed by them
            return [(members.lowest if id_ is None else id_, members) for id_, members in found]
        return self._name(found, level)

    def _place(self, cpu: int, level: str) -> CPUPosition:
        place = self._cpus[cpu].get(level, _NOWHERE)
        if level == "package" and place.cpus is not None and len(place.cpus) == 1:
            # smaller than the core in it: the kernel's default for "unknown"
            return CPUPosition(place.id, place.cpus | (self._place(cpu, "core").cpus or place.cpus))
        return place

    def _by_id(self, within: CPUSet, level: str) -> dict[int, CPUSet]:
        """Return, for each CPU without a set, the CPUs without a set that have its id."""
        by_id: dict[Hashable, list[int]] = {}
        for cpu in within:
            id_, said = self._place(cpu, level)
            if said is None:
                # neither id nor siblings: a core by itself
                alone = id_ is None and level == "core"
                by_id.setdefault(("alone", cpu) if alone else id_, []).append(cpu)
        groups = map(CPUSet, by_id.values())
        return {cpu: group for group in groups for cpu in group}

    def _name(self, found: list[tuple[int | None, CPUSet]], level: str) -> list[tuple[int, CPUSet]]:
        """Give each group an id of its own: the kernel's, else the lowest free one."""
        taken = {id_ for id_, _ in found if id_ is not None}
        used: set[int] = set()
        named: list[tuple[int, CPUSet]] = []
        fresh = 0
        for said, members in found:
            id_ = said
            if id_ is None or id_ in used:
                if id_ is not None:
                    self._notes.add(f"{level} id {id_} is used by several: CPUs {members} renamed")
                while fresh in taken:
                    fresh += 1
                id_ = fresh
                taken.add(id_)
            used.add(id_)
            named.append((id_, members))
        return named
