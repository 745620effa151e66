"""The table of criteria by which pools are compared: spec placement.md §4, as data.

Each criterion is one or more columns of a Table; higher is better, and the comparison is
lexicographic in this order.
"""

from __future__ import annotations

from msgspec import Struct

from nri_policy.pools.supply import Column


class Criterion(Struct, frozen=True, kw_only=True):
    """One line of the comparison."""

    name: str
    doc: str  # what its value says, for `explain`
    reason: str  # why a pool won by it: the end of a sentence about that pool
    lack: str  # what a pool has that lost by it
    columns: tuple[Column, ...]


CRITERIA = (
    Criterion(
        name="isolated_fit",
        doc="1 if a wish for isolated CPUs can be met here, or there is none",
        reason="it has the isolated CPUs that are wished for",
        lack="too few isolated CPUs",
        columns=(Column.ISOLATED_FIT,),
    ),
    Criterion(
        name="affinity",
        doc="weight of the containers nearby that this one wants near, or far",
        reason="the containers to be near, or to keep away from, speak for it",
        lack="other containers speak less for it",
        columns=(Column.AFFINITY,),
    ),
    Criterion(
        name="hints",
        doc="how much of the devices' and mounts' locality lies here; then of those that do at all",
        reason="the devices and mounts are nearest to it",
        lack="farther from the devices and mounts",
        columns=(Column.HINTS, Column.HINTS_NONZERO),
    ),
    Criterion(
        name="hint_depth",
        doc="deeper, where hints exist and decide nothing",
        reason="it is the smallest part near the devices and mounts",
        lack="wider than needed around the devices and mounts",
        columns=(Column.HINT_DEPTH,),
    ),
    Criterion(
        name="memory_kind",
        doc="1 if the memory offered is of exactly the kinds asked for",
        reason="its memory is of just the kinds asked for",
        lack="memory of other kinds",
        columns=(Column.MEMORY_KIND,),
    ),
    Criterion(
        name="memory_burst",
        doc="1 if memory can grow to the limit here; Burstable without a limit: levels off the"
        " preferred one",
        reason="memory can grow there as it may",
        lack="memory can grow less, or farther than preferred",
        columns=(Column.MEMORY_BURST,),
    ),
    Criterion(
        name="cpu_burst",
        doc="Burstable: CPU missing below the limit, and a quarter of it more across NUMA nodes;"
        " without a limit, levels off the preferred one, then CPU to grow into",
        reason="it leaves most room to burst",
        lack="less room to burst",
        columns=(Column.BURST_LEVEL, Column.BURST_ROOM),
    ),
    Criterion(
        name="memory_tightness",
        doc="fewer memory nodes offered",
        reason="its memory is on the fewest nodes",
        lack="memory on more nodes",
        columns=(Column.MEMORY_TIGHTNESS,),
    ),
    Criterion(
        name="cpu_class",
        doc="1 if enough exclusive CPUs of the wanted priority are free here",
        reason="it has free CPUs of the wanted priority",
        lack="too few CPUs of the wanted priority",
        columns=(Column.CPU_CLASS,),
    ),
    Criterion(
        name="undisturbed_memory",
        doc="1 if the memory of nobody else has to be spread over more nodes",
        reason="nobody's memory has to be spread wider for it",
        lack="the memory of others would have to be spread wider",
        columns=(Column.UNDISTURBED_MEMORY,),
    ),
    Criterion(
        name="depth",
        doc="deeper in the tree",
        reason="it is the smallest part of the machine with room",
        lack="a wider part of the machine",
        columns=(Column.DEPTH,),
    ),
    Criterion(
        name="domains",
        doc="fewer packages, then NUMA nodes, then L3 domains that exclusive CPUs would touch",
        reason="its exclusive CPUs lie closest together there",
        lack="exclusive CPUs farther apart",
        columns=(Column.PACKAGES, Column.NODES, Column.L3S),
    ),
    Criterion(
        name="quiet",
        doc="exclusive CPUs: fewer containers there that share with a CPU request",
        reason="fewest others share CPUs there",
        lack="more others share CPUs there",
        columns=(Column.QUIET,),
    ),
    Criterion(
        name="capacity",
        doc="exclusive CPUs left (least first if tight); to share: fewer others, then CPU left",
        reason="what is left suits best there",
        lack="what is left suits less",
        columns=(Column.CAPACITY, Column.CAPACITY_SECOND),
    ),
    Criterion(
        name="id",
        doc="the first of equals",
        reason="it is the first of equals",
        lack="as good, but later",
        columns=(Column.ID,),
    ),
)

assert tuple(column for criterion in CRITERIA for column in criterion.columns) == tuple(Column)

REASONS = {criterion.name: criterion.reason for criterion in CRITERIA}
LACKS = {criterion.name: criterion.lack for criterion in CRITERIA}
