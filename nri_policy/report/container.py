"""Containers: what each holds, where it runs, or why it was refused (`containers`)."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.engine.choice.placement_notes import lacks_cpus
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Holding
from nri_policy.report.classes import ClassesReport, classes_report
from nri_policy.settings import ExclusivePartitions
from nri_policy.workload.pod import shares_of
from nri_policy.workload.request import Sort


class ContainerReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container; fields about a grant are None if it has none."""

    qos: QoS | None
    sort: Sort | None
    pool: str | None
    cpus: CPUSet  # where it may run; empty where the policy leaves that alone
    exclusive: CPUSet | None
    shared_milli: int | None
    isolated: CPUSet | None  # exclusive CPUs that the kernel isolates
    mems: CPUSet
    shares: int | None  # cgroup v1's cpu.shares
    state: str  # created, running, removed, ...; error: it was refused
    error: str | None
    updated_by: tuple[str, ...] | None = None  # containers with the events that changed it last
    cpu_seconds: float | None = None  # used so far; only on request
    classes: ClassesReport | None = None  # that it is in
    quota: str | None = None  # CFS quota that the daemon set instead of the kubelet's
    partition: ExclusivePartitions | None = None  # its desired kernel partition
    partition_error: str | None = None  # why the kernel refuses its partition
    home: str | None = None  # the pool that it left to make room, and returns to
    room: CPUSet | None = None  # CPUs of the pod's room, of which this container holds a slice
    # fields that are decided but not in force, because the settings do not pin: cpus, mems
    decided_only: tuple[str, ...] = ()
    requested_milli: int | None = None  # if larger than the grant, for lack of room

    @property
    def place(self) -> str:
        """The pool, and the one that it made way from."""
        return ", from ".join(filter(None, (self.pool, self.home)))


NO_QUOTA = "none (exclusive)"

Containers = dict[str, ContainerReport]  # by namespace/pod/name


def container_report(
    holding: Holding,
    state: str,
    *,
    error: str | None = None,
    updated_by: tuple[str, ...] | None = None,
    partition_error: str = "",
) -> ContainerReport:
    """Describe a placed container."""
    placed, grant = holding.placed, holding.placed.grant
    return ContainerReport(
        qos=placed.container.pod.qos,
        sort=grant.sort,
        pool=holding.pool,
        cpus=holding.cpus,
        exclusive=grant.own,
        shared_milli=grant.shared,
        isolated=grant.exclusive if grant.isolated else EMPTY,
        mems=grant.mems,
        shares=shares_of(placed.asked.milli),
        state=state,
        error=error,
        updated_by=updated_by,
        classes=classes_report(holding.classes, holding.interrupts),
        quota=NO_QUOTA if holding.unthrottled else None,
        partition=None if holding.partition is None else holding.partition.kind,
        partition_error=partition_error or None,
        home=holding.home,
        room=holding.room,
        decided_only=holding.decided_only,
        requested_milli=placed.asked.milli if lacks_cpus(placed.explanation, grant) else None,
    )


def refusal_report(error: str, *, updated_by: tuple[str, ...] | None = None) -> ContainerReport:
    """Return what is shown of a container that got nothing."""
    return ContainerReport(
        qos=None,
        sort=None,
        pool=None,
        cpus=EMPTY,
        exclusive=None,
        shared_milli=None,
        isolated=None,
        mems=EMPTY,
        shares=None,
        state="error",
        error=error,
        updated_by=updated_by,
    )
