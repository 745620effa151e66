"""Partitions: which containers the kernel keeps all others off for; delivery.md §5.

Pure: from the grant, the settings and what the kernel can do.
"""

from __future__ import annotations

from msgspec import Struct

from nri_policy.classes import Equipment
from nri_policy.engine.grant import Grant
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import ExclusivePartitions
from nri_policy.workload.annotation_table import EXCLUSIVE_PARTITION
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.pod import Container
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import Request, Sort

# Python 3.11 takes 0.5 µs to find a member of an enumeration, and a look asks about all containers
_OFF = ExclusivePartitions.OFF


class Partition(Struct, frozen=True, kw_only=True):
    """A cgroup's partition: `cpuset.cpus.partition` and `cpuset.cpus.exclusive`."""

    kind: ExclusivePartitions  # never OFF
    cpus: CPUSet


def asks_for_partition(request: Request, grant: Grant) -> bool:
    """Whether a container with exclusive CPUs is to be a partition, if it can be one."""
    return request.steering.exclusive_partition is not _OFF and bool(
        grant.exclusive or grant.claimed
    )


def partition_of(
    request: Request, grant: Grant, cpus: CPUSet, layout: Layout, equipment: Equipment
) -> Partition | str:
    """Return the partition of a container with these *cpus*, or why it has none.

    The text is empty where none was asked for.
    """
    kind = request.steering.exclusive_partition
    if kind is ExclusivePartitions.OFF:
        return ""
    reason = equipment.no_partition
    if not grant.own or grant.sort is not Sort.NORMAL:
        reason = "it has no exclusive CPUs"
    elif not layout.settings.pin_cpu:
        reason = "the setting pinCPU is false"
    elif grant.shares or grant.rest:
        reason = "it also shares CPUs with others"
    elif kind is not ExclusivePartitions.ISOLATED and cpus & layout.machine.isolated:
        reason = "some of its CPUs are isolated since boot, which needs isolated"
    return reason or Partition(kind=kind, cpus=cpus)


def check_partition(container: Container, request: Request, equipment: Equipment) -> None:
    """Raise AnnotationError where a container is annotated with a partition that cannot be."""
    kind = request.steering.exclusive_partition
    if kind is ExclusivePartitions.OFF or not equipment.no_partition:
        return
    if preferences(container.pod.annotations, container.name).exclusive_partition is kind:
        allowed = f"possible on this node: {equipment.no_partition}"
        raise AnnotationError(EXCLUSIVE_PARTITION, str(kind), allowed)
