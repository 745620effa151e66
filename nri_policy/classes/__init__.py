"""Classes: what containers get beside CPUs and memory: scheduling, priorities and limits of I/O.

Pure: `desired` says what a container is to have, by the settings, the node's equipment and what the
container asks for. Nothing else computes values.
"""

from __future__ import annotations

from nri_policy.classes.blockio import join_changes, limits_to_write, parse_limits
from nri_policy.classes.desired import blockio, desired
from nri_policy.classes.equipment import Equipment
from nri_policy.classes.membership import BlockIO, Classes, Origin, Scheduling
from nri_policy.classes.scheduling import IOPriority, Scheduler

__all__ = [
    "BlockIO",
    "Classes",
    "Equipment",
    "IOPriority",
    "Origin",
    "Scheduler",
    "Scheduling",
    "blockio",
    "desired",
    "join_changes",
    "limits_to_write",
    "parse_limits",
]
