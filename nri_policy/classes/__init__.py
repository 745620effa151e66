"""Classes: the scheduling attributes, I/O priority, I/O limits and RDT groups of containers.

Pure: `select_classes` computes the values from the settings, the node's equipment and the
container's request; no other package computes them. It must not know how they are sent or written.
"""

from __future__ import annotations

from nri_policy.classes.container_classes import (
    BlockIOClass,
    Classes,
    CPUUse,
    Origin,
    RDTGroup,
    Scheduling,
)
from nri_policy.classes.equipment import Equipment
from nri_policy.classes.io_limits import join_changes, limits_to_write, parse_limits
from nri_policy.classes.scheduler import IOPriority, Scheduler
from nri_policy.classes.selection import (
    check_cpu_class,
    explain_unserved,
    select_blockio,
    select_classes,
    select_cpu,
    select_crio,
    select_rdt,
    select_scheduling,
)

__all__ = [
    "BlockIOClass",
    "CPUUse",
    "Classes",
    "Equipment",
    "IOPriority",
    "Origin",
    "RDTGroup",
    "Scheduler",
    "Scheduling",
    "check_cpu_class",
    "explain_unserved",
    "join_changes",
    "limits_to_write",
    "parse_limits",
    "select_blockio",
    "select_classes",
    "select_cpu",
    "select_crio",
    "select_rdt",
    "select_scheduling",
]
