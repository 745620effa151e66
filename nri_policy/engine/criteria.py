"""The table of criteria by which pools are compared: spec placement.md §4, as data.

Each criterion is one or two columns of a Table; higher is better, and the comparison is
lexicographic in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

from nri_policy.pools.supply import COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One line of the comparison."""

    name: str
    doc: str  # what its value says, for `explain`
    columns: tuple[str, ...]


CRITERIA = (
    Criterion(
        name="isolated_fit",
        doc="1 if a wish for isolated CPUs can be met here, or there is none",
        columns=("isolated_fit",),
    ),
    Criterion(
        name="affinity",
        doc="weight of the containers nearby that this one wants near, or far",
        columns=("affinity",),
    ),
    Criterion(
        name="hints",
        doc="how much of the devices' and mounts' locality lies here; then of those that do at all",
        columns=("hints", "hints_nonzero"),
    ),
    Criterion(
        name="hint_depth",
        doc="deeper, where hints exist and decide nothing",
        columns=("hint_depth",),
    ),
    Criterion(
        name="memory_kind",
        doc="1 if the memory offered is of exactly the kinds asked for",
        columns=("memory_kind",),
    ),
    Criterion(
        name="memory_burst",
        doc="whether, or how far, memory can grow here",
        columns=("memory_burst",),
    ),
    Criterion(
        name="cpu_burst",
        doc="Burstable: milli-CPU missing below the limit; without a limit, closeness to the"
        " preferred level, then milli-CPU to grow into",
        columns=("burst_level", "burst_room"),
    ),
    Criterion(
        name="memory_tightness", doc="fewer memory nodes offered", columns=("memory_tightness",)
    ),
    Criterion(
        name="cpu_class",
        doc="1 if enough exclusive CPUs of the wanted priority are free here",
        columns=("cpu_class",),
    ),
    Criterion(name="depth", doc="deeper in the tree", columns=("depth",)),
    Criterion(
        name="capacity",
        doc="isolated or exclusive CPUs left; for shared use fewer neighbours, then milli-CPU left",
        columns=("capacity", "capacity_second"),
    ),
    Criterion(name="id", doc="the first of equals", columns=("id",)),
)

assert tuple(column for criterion in CRITERIA for column in criterion.columns) == COLUMNS
