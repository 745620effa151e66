"""Shortage: why a request cannot be met, in words for the container's owner."""

from __future__ import annotations

from enum import StrEnum

from nri_policy.engine.comparison import spill_order
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.layout import Layout
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.units import format_bytes, format_cpu
from nri_policy.pools.memory_offer import Offers
from nri_policy.pools.supply import Table
from nri_policy.settings import FullCores
from nri_policy.workload.request import Isolation, Request


class Lack(StrEnum):
    """What a refused request is short of: a few words, for counting."""

    CPU = "cpu"
    ISOLATED_CPU = "isolated-cpu"
    ALIGNED_CPU = "aligned-cpu"  # within a NUMA node
    MEMORY = "memory"
    FULL_CORES = "full-cores"  # whole idle cores
    ALIGNED_MEMORY = "aligned-memory"  # beside its CPUs
    HINTS = "hints"  # CPUs or memory as near as its strict hints want them


class PlacementError(Refused):
    """A request that cannot be met; the text says what is missing, for the container's owner."""

    def __init__(
        self, message: str, explanation: Explanation | None = None, lack: Lack | None = None
    ) -> None:
        super().__init__(message)
        self.explanation = explanation
        self.lack = lack  # None where it is not about a container


def _wish_of(request: Request) -> str:
    """Return the CPUs that a request asks for, in words."""
    parts = []
    if request.exclusive:
        sort = "isolated " if request.isolated is Isolation.REQUIRED else ""
        parts.append(f"{request.exclusive} exclusive {sort}CPU{'s' * (request.exclusive > 1)}")
    if request.shared:
        parts.append(f"{format_cpu(request.shared)} of shared CPU")
    return " and ".join(parts) or "a share of a CPU"


def shortage(
    layout: Layout, request: Request, table: Table, offers: Offers | None
) -> tuple[Lack, str]:
    """Return what is short, and say what was asked for, which pool comes closest, what it lacks."""
    if offers is not None:
        for pool in reversed(range(table.count)):  # the widest first
            if not table.missing(pool) and offers.zone(pool) is None:
                return Lack.MEMORY, offers.shortage(pool).text
    for pool in spill_order(layout, request, offers):
        if pool not in layout.too_coarse and not table.missing(pool):
            return Lack.ALIGNED_MEMORY, (
                f"no pool within a NUMA node has room for {format_bytes(request.memory)} of memory"
                " beside the CPUs that it has left"
            )
    asked = _wish_of(request)
    if request.strict_hints and request.hints:
        names = ", ".join(dict.fromkeys(hint.source for hint in request.hints))
        text = f"no pool near to all strict hints ({names}) has room for {asked}"
        return Lack.HINTS, text
    if request.full_cores is FullCores.REQUIRE and any(
        not table.missing(pool) for pool in range(table.count)
    ):
        return Lack.FULL_CORES, f"no pool has enough whole idle cores for {asked}"
    aligned = " within a NUMA node" if request.exclusive and layout.too_coarse else ""
    isolated = request.exclusive and request.isolated is Isolation.REQUIRED
    lack = Lack.ISOLATED_CPU if isolated else Lack.ALIGNED_CPU if aligned else Lack.CPU
    closest = table.closest()
    return lack, (
        f"no pool{aligned} has room for {asked}:"
        f" {layout.tree.pools[closest].name} comes closest,"
        f" {format_cpu(table.missing(closest))} CPU short"
    )
