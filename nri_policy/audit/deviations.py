"""Compares what was decided for a container with what the kernel says. Pure.

| observed | judgement |
|---|---|
| the cgroup was set to other CPUs or nodes than decided | drift; sending the update again helps |
| it was set as decided, but may use fewer | drift; because of its parent cgroups |
| a thread runs on fewer CPUs than the cgroup | no drift: threads may pin themselves |
| the first process had another scheduling class soon after its start | drift; nothing helps |
| the cgroup has other I/O limits than decided | drift; sending the update again helps |
| the cgroup is not the kernel partition decided | drift; the delivery tries again |
| an unpinned container may run on its exclusive CPUs | drift; nothing helps |
| a thread runs on CPUs that neither decision nor cgroup allows | drift: it left the cgroup |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct, field

from nri_policy.audit.first_process import FirstProcess
from nri_policy.classes import Scheduling, parse_limits
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Company
from nri_policy.workload.annotation_values import ROOT_GROUP

_MAX_NAMED = 8  # threads


class DeviationKind(StrEnum):
    """The kind of a container's drift."""

    CPUS = "cpus"
    MEMS = "mems"
    THREADS = "threads"
    CLASS = "class"
    IO = "io"
    COMPANY = "company"
    PARTITION = "partition"


class Target(Struct, frozen=True, kw_only=True):
    """Where a running container should be; an empty set is not checked."""

    container_id: str
    name: str  # namespace/pod/container
    cgroup: str  # the runtime's name for it
    cpus: CPUSet
    mems: CPUSet
    sent: bool = True  # whether the runtime has this decision
    scheduling: Scheduling | None = None  # set at its creation
    rdt_group: str | None = None  # set at its creation; empty: the root group
    limits: tuple[tuple[str, str], ...] = ()  # of I/O: files of its cgroup, with their content
    partition: Partition | None = None  # its desired kernel partition
    company: Company | None = None  # of a pinned container with exclusive CPUs

    @property
    def has_class_of_process(self) -> bool:
        """Whether it has a class that its first process shows."""
        return self.scheduling is not None or self.rdt_group is not None


class CpusetState(Struct, frozen=True, kw_only=True):
    """The CPUs or the memory nodes of a cgroup."""

    written: CPUSet  # empty if never written
    effective: CPUSet  # what the cgroup may use


class KernelState(Struct, frozen=True, kw_only=True):
    """What the kernel says about a container."""

    cpus: CpusetState
    mems: CpusetState
    threads: Mapping[int, CPUSet]  # the CPUs that each may use, by id
    partition: str = ""  # cpuset.cpus.partition; empty without that file
    hidden: bool = False  # there are threads that are not visible from here
    process: FirstProcess | None = None  # soon after its start; None: not read
    limits: Mapping[str, str] = field(default_factory=dict)  # files of its cgroup about I/O


class Deviation(Struct, frozen=True, kw_only=True):
    """One difference between a container and its decision."""

    kind: DeviationKind
    decided: CPUSet | str
    found: CPUSet | str
    reason: str
    curable: bool  # by sending the update again
    threads: tuple[int, ...] = ()  # some of the threads concerned


def compare(decided: Target, observed: KernelState) -> tuple[Deviation, ...]:
    """Return all differences between a container and its decision."""
    return tuple(_deviations(decided, observed))


def _compare_partition(decided: Partition | None, found: str) -> Iterator[Deviation]:
    if decided is not None and found != decided.kind:
        yield Deviation(
            kind=DeviationKind.PARTITION,
            decided=decided.kind,
            found=found or "no such file",
            reason="it was changed, or the kernel does not make it",
            curable=False,
        )


def _deviations(decided: Target, observed: KernelState) -> Iterator[Deviation]:
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
    group = None if observed.process is None else observed.process.rdt_group
    if None not in (decided.rdt_group, group) and decided.rdt_group != group:
        yield Deviation(
            kind=DeviationKind.CLASS,
            decided=f"RDT class {decided.rdt_group or ROOT_GROUP}",
            found=f"RDT class {group or ROOT_GROUP}",
            reason="not applied by the runtime",
            curable=False,
        )
    yield from _compare_partition(decided.partition, observed.partition)
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
            threads=tuple(sorted(astray)[:_MAX_NAMED]),
        )
