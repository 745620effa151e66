"""What was decided for a container against what the kernel says of it. Pure.

| observed | judgement |
|---|---|
| the cgroup was set to other CPUs or nodes than decided | drift; telling again helps |
| it was set right, but may not use all of that | drift; because of the cgroups above it |
| a thread runs on fewer CPUs than the cgroup | none: threads may pin themselves |
| the first process had another scheduling class soon after its start | drift; nothing helps |
| the cgroup has other limits of I/O than decided | drift; telling again helps |
| another may run on its exclusive CPUs, because that one is not pinned | drift; nothing helps |
| a thread runs on CPUs that neither the decision nor the cgroup allows | drift: it is elsewhere |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct, field

from nri_policy.audit.first_process import FirstProcess
from nri_policy.classes import Scheduling, parse_limits
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Company

_MOST_NAMED = 8  # threads


class DeviationKind(StrEnum):
    """What of a container has drifted."""

    CPUS = "cpus"
    MEMS = "mems"
    THREADS = "threads"
    CLASS = "class"
    IO = "io"
    COMPANY = "company"


class Target(Struct, frozen=True, kw_only=True):
    """Where a running container is to be; an empty set is not looked at."""

    container_id: str
    name: str  # namespace/pod/container
    cgroup: str  # the runtime's name for it
    cpus: CPUSet
    mems: CPUSet
    sent: bool = True  # whether the runtime has heard of it
    scheduling: Scheduling | None = None  # that it was created with
    limits: tuple[tuple[str, str], ...] = ()  # of I/O: files of its cgroup, and what they hold
    company: Company | None = None  # of one with exclusive CPUs that is pinned


class CpusetState(Struct, frozen=True, kw_only=True):
    """One set of a cgroup."""

    written: CPUSet  # empty where nothing was
    effective: CPUSet  # what it may use


class Observed(Struct, frozen=True, kw_only=True):
    """What the kernel says of a container."""

    cpus: CpusetState
    mems: CpusetState
    threads: Mapping[int, CPUSet]  # the CPUs that each may use, by id
    hidden: bool = False  # there are threads that cannot be seen from here
    process: FirstProcess | None = None  # soon after its start; None: nobody looked
    limits: Mapping[str, str] = field(default_factory=dict)  # files of its cgroup about I/O


class Deviation(Struct, frozen=True, kw_only=True):
    """One thing about a container that is not as decided."""

    kind: DeviationKind
    decided: CPUSet | str
    found: CPUSet | str
    reason: str
    curable: bool  # by telling the runtime again
    threads: tuple[int, ...] = ()  # some of those concerned


def compare(decided: Target, observed: Observed) -> tuple[Deviation, ...]:
    """Return everything about a container that is not as decided."""
    return tuple(_deviations(decided, observed))


def _deviations(decided: Target, observed: Observed) -> Iterator[Deviation]:
    for kind, wanted, found in (
        (DeviationKind.CPUS, decided.cpus, observed.cpus),
        (DeviationKind.MEMS, decided.mems, observed.mems),
    ):
        if wanted and found.effective != wanted:
            right = found.written == wanted
            yield Deviation(
                kind=kind,
                decided=wanted,
                found=found.effective,
                reason=(
                    "its parent cgroups or the online CPUs and nodes allow no more"
                    if right
                    else "its cgroup was changed, or never updated"
                ),
                curable=not right,
            )
    if decided.scheduling is not None and observed.process is not None:
        for wanted_class, found_class in observed.process.differences(decided.scheduling):
            yield Deviation(
                kind=DeviationKind.CLASS,
                decided=wanted_class,
                found=found_class,
                reason="not applied by the runtime",
                curable=False,
            )
    for name, text in decided.limits:
        limits, there = parse_limits(text), parse_limits(observed.limits.get(name, ""))
        if any(there.get(disk) != value for disk, value in limits.items()):
            yield Deviation(
                kind=DeviationKind.IO,
                decided=f"{name} {text}",
                found=f"{name} {observed.limits.get(name, 'is not there')}",
                reason="its cgroup was changed, or never updated",
                curable=True,
            )
    if decided.company is not None and (others := decided.company.others):
        yield Deviation(
            kind=DeviationKind.COMPANY,
            decided=decided.company.cpus,
            found=CPUSet.union(each.cpus for each in others),
            reason=f"not alone: {decided.company.beside}",
            curable=False,
        )
    allowed = decided.cpus, observed.cpus.effective
    astray = {
        thread: cpus
        for thread, cpus in observed.threads.items()
        if decided.cpus and not any(cpus <= each for each in allowed)
    }
    if astray:
        yield Deviation(
            kind=DeviationKind.THREADS,
            decided=decided.cpus,
            found=CPUSet.union(astray.values()),
            reason="threads have left its cgroup",
            curable=False,
            threads=tuple(sorted(astray)[:_MOST_NAMED]),
        )
