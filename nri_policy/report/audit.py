"""What an audit finds (`audit`)."""

from __future__ import annotations

from msgspec import Struct


class DriftReport(Struct, frozen=True, kw_only=True):
    """One deviation of a container from its decision."""

    container: str  # namespace/pod/name
    what: str  # cpus, mems, threads, class, io, company
    decided: str  # of the first three a list of CPUs or nodes
    found: str
    threads: tuple[int, ...]  # some of those concerned
    reason: str
    since: float  # seconds since the epoch
    tries: int  # to repair it
    repairable: bool


class CompanyReport(Struct, frozen=True, kw_only=True):
    """A container's exclusive CPUs, and unpinned containers that may run there."""

    container: str  # namespace/pod/name
    cpus: str
    others: tuple[str, ...]  # in words; empty: it is alone


class AuditReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One audit of all containers."""

    mode: str  # the setting
    time: float  # seconds since the epoch; 0 before the first
    audited: int  # containers
    unseen: tuple[str, ...]  # containers without a visible cgroup
    changing: tuple[str, ...]  # containers that change right now, not judged yet
    threads_hidden: tuple[str, ...]  # containers with invisible threads
    drifts: tuple[DriftReport, ...]
    company: tuple[CompanyReport, ...] = ()  # of all that run with exclusive CPUs
    outside: tuple[str, ...] = ()  # cgroups outside of pods that may use exclusive CPUs
