"""The table of criteria by which pools are compared: spec placement.md §4, as data.

Each criterion is one or two columns of a Table; higher is better, and the comparison is
lexicographic in this order.
"""

from __future__ import annotations

from msgspec import Struct

from nri_policy.pools.supply import COLUMNS


class Criterion(Struct, frozen=True, kw_only=True):
    """One line of the comparison."""

    name: str
    doc: str  # what its value says, for `explain`
    reason: str  # why a pool won by it: the end of a sentence about that pool
    lack: str  # what a pool has that lost by it
    columns: tuple[str, ...]


CRITERIA = (
    Criterion(
        name="isolated_fit",
        doc="1 if a wish for isolated CPUs can be met here, or there is none",
        reason="it has the isolated CPUs that are wished for",
        lack="too few isolated CPUs",
        columns=("isolated_fit",),
    ),
    Criterion(
        name="affinity",
        doc="weight of the containers nearby that this one wants near, or far",
        reason="the containers to be near, or to keep away from, speak for it",
        lack="other containers speak less for it",
        columns=("affinity",),
    ),
    Criterion(
        name="hints",
        doc="how much of the devices' and mounts' locality lies here; then of those that do at all",
        reason="the devices and mounts are nearest to it",
        lack="farther from the devices and mounts",
        columns=("hints", "hints_nonzero"),
    ),
    Criterion(
        name="hint_depth",
        doc="deeper, where hints exist and decide nothing",
        reason="it is the smallest part near the devices and mounts",
        lack="wider than needed around the devices and mounts",
        columns=("hint_depth",),
    ),
    Criterion(
        name="memory_kind",
        doc="1 if the memory offered is of exactly the kinds asked for",
        reason="its memory is of just the kinds asked for",
        lack="memory of other kinds",
        columns=("memory_kind",),
    ),
    Criterion(
        name="memory_burst",
        doc="1 if memory can grow to the limit here; without a limit, how much there is",
        reason="memory can grow furthest there",
        lack="memory can grow less",
        columns=("memory_burst",),
    ),
    Criterion(
        name="cpu_burst",
        doc="Burstable: CPU missing below the limit; without a limit, levels off the preferred one,"
        " then CPU to grow into",
        reason="it leaves most room to burst",
        lack="less room to burst",
        columns=("burst_level", "burst_room"),
    ),
    Criterion(
        name="memory_tightness",
        doc="fewer memory nodes offered",
        reason="its memory is on the fewest nodes",
        lack="memory on more nodes",
        columns=("memory_tightness",),
    ),
    Criterion(
        name="cpu_class",
        doc="1 if enough exclusive CPUs of the wanted priority are free here",
        reason="it has free CPUs of the wanted priority",
        lack="too few CPUs of the wanted priority",
        columns=("cpu_class",),
    ),
    Criterion(
        name="undisturbed_memory",
        doc="1 if the memory of nobody else has to be spread over more nodes",
        reason="nobody's memory has to be spread wider for it",
        lack="the memory of others would have to be spread wider",
        columns=("undisturbed_memory",),
    ),
    Criterion(
        name="depth",
        doc="deeper in the tree",
        reason="it is the smallest part of the machine with room",
        lack="a wider part of the machine",
        columns=("depth",),
    ),
    Criterion(
        name="capacity",
        doc="exclusive or isolated CPUs left; for shared use fewer others there, then CPU left",
        reason="it has most left over",
        lack="less would be left",
        columns=("capacity", "capacity_second"),
    ),
    Criterion(
        name="id",
        doc="the first of equals",
        reason="it is the first of equals",
        lack="as good, but later",
        columns=("id",),
    ),
)

assert tuple(column for criterion in CRITERIA for column in criterion.columns) == COLUMNS

REASONS = {criterion.name: criterion.reason for criterion in CRITERIA}
LACKS = {criterion.name: criterion.lack for criterion in CRITERIA}
