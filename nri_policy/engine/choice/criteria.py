"""The table of criteria by which pools are compared: spec placement.md §4, as data.

Each criterion is one or more columns of a Table; higher is better, and the comparison is
lexicographic in this order. A value of which less is better is negative; tables for people show
it without the sign.
"""

from __future__ import annotations

from msgspec import Struct

from nri_policy.pools.supply import Column


class Criterion(Struct, frozen=True, kw_only=True):
    """One line of the comparison."""

    name: str
    heading: str  # of its column in `explain`
    doc: str  # the meaning of that column, and which value is better
    reason: str  # why a pool won by it: the end of a sentence about that pool
    lack: str  # the property of a pool that lost by it
    columns: tuple[Column, ...]


CRITERIA = (
    Criterion(
        name="isolated_fit",
        heading="isolated",
        doc="whether the isolated CPUs that it prefers are free here",
        reason="it has the isolated CPUs that were asked for",
        lack="too few isolated CPUs",
        columns=(Column.ISOLATED_FIT,),
    ),
    Criterion(
        name="affinity",
        heading="affinity",
        doc="weight of containers nearby: those to be near, less those to avoid; more is better",
        reason="affinities favour it most",
        lack="affinities favour it less",
        columns=(Column.AFFINITY,),
    ),
    Criterion(
        name="hints",
        heading="near devices",
        doc="part of the devices and mounts that are near the pool, 1.00 is all; more is better",
        reason="it contains most of the devices and mounts",
        lack="farther from the devices and mounts",
        columns=(Column.HINTS, Column.HINTS_NONZERO),
    ),
    Criterion(
        name="hint_depth",
        heading="depth by devices",
        doc="level in the tree, for containers with devices or mounts; deeper is better",
        reason="it is the smallest part near the devices and mounts",
        lack="wider than needed around the devices and mounts",
        columns=(Column.HINT_DEPTH,),
    ),
    Criterion(
        name="memory_kind",
        heading="memory kind",
        doc="whether the memory offered is of exactly the kinds asked for",
        reason="its memory is of exactly the kinds asked for",
        lack="memory of other kinds",
        columns=(Column.MEMORY_KIND,),
    ),
    Criterion(
        name="memory_burst",
        heading="memory to grow",
        doc="whether memory can grow to the limit here; Burstable without limits: levels between"
        " the pool and the preferred level, fewer are better",
        reason="its memory can grow there up to its limit",
        lack="less memory to grow into, or farther away",
        columns=(Column.MEMORY_BURST,),
    ),
    Criterion(
        name="cpu_burst",
        heading="CPU to grow",
        doc="with a CPU limit: CPU that is missing to reach it, plus a quarter of the limit if the"
        " pool crosses NUMA nodes, and another if a socket could hold the limit and the pool is"
        " wider; less is better. Without a limit: levels between the pool and the preferred level,"
        " fewer are better; then CPU to grow, more is better",
        reason="it leaves most room to burst",
        lack="less room to burst",
        columns=(Column.BURST_LEVEL, Column.BURST_ROOM),
    ),
    Criterion(
        name="memory_tightness",
        heading="memory nodes",
        doc="on how many nodes its memory would be; fewer are better",
        reason="elsewhere its memory would be on more nodes",
        lack="memory on more nodes",
        columns=(Column.MEMORY_TIGHTNESS,),
    ),
    Criterion(
        name="cpu_class",
        heading="CPU priority",
        doc="whether enough exclusive CPUs of the wanted priority are free here",
        reason="it has free CPUs of the wanted priority",
        lack="too few CPUs of the wanted priority",
        columns=(Column.CPU_CLASS,),
    ),
    Criterion(
        name="undisturbed_memory",
        heading="others' memory",
        doc="whether the memory of all other containers can stay on its nodes",
        reason="no other container's memory has to be spread wider",
        lack="memory of others would have to be spread wider",
        columns=(Column.UNDISTURBED_MEMORY,),
    ),
    Criterion(
        name="depth",
        heading="depth",
        doc="level in the tree; deeper is better",
        reason="it is the smallest part of the machine with room",
        lack="a wider part of the machine",
        columns=(Column.DEPTH,),
    ),
    Criterion(
        name="domains",
        heading="spread",
        doc="sockets, NUMA nodes, L3 caches that its exclusive CPUs would touch; fewer are better",
        reason="its exclusive CPUs lie closest together there",
        lack="exclusive CPUs farther apart",
        columns=(Column.PACKAGES, Column.NODES, Column.L3S),
    ),
    Criterion(
        name="quiet",
        heading="others",
        doc="containers with a CPU request that share CPUs there; fewer are better",
        reason="fewer others share CPUs there than elsewhere",
        lack="more others share CPUs there",
        columns=(Column.QUIET,),
    ),
    Criterion(
        name="capacity",
        heading="left",
        doc="for exclusive CPUs: CPUs left after this request; more are better (with packing:"
        " tight, fewer). For shared CPUs: containers that share there; fewer are better, then more"
        " CPU left",
        reason="most CPUs are left there",
        lack="less suitable room is left",
        columns=(Column.CAPACITY, Column.CAPACITY_SECOND),
    ),
    Criterion(
        name="id",
        heading="id",
        doc="number of the pool; the lower one wins",
        reason="other pools are equally good, and the lowest number wins",
        lack="equal; the lower id wins",
        columns=(Column.ID,),
    ),
)

assert tuple(column for criterion in CRITERIA for column in criterion.columns) == tuple(Column)

REASONS = {criterion.name: criterion.reason for criterion in CRITERIA}
LACKS = {criterion.name: criterion.lack for criterion in CRITERIA}
