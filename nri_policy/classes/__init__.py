"""Classes: the scheduling attributes, I/O priority and I/O limits of containers.

Pure: `desired` computes the values from the settings, the node's equipment and the container's
request; no other package computes them. It must not know how they are sent or written.
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
