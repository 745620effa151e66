"""Shortage: why a request cannot be met, as data, and in words for the container's owner."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import assert_never

from nri_policy.engine.choice.comparison import spill_order
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.units import count_cpus, format_bytes, format_pages
from nri_policy.foundation.wording import counted, some
from nri_policy.pools.memory_offer import Offers, Shortage
from nri_policy.pools.supply import Table
from nri_policy.pools.tree import Pool
from nri_policy.settings import FullCores
from nri_policy.workload.hints import Hint
from nri_policy.workload.request import Isolation, Request


class Lack(StrEnum):
    """What a refused request is short of: a few words, for counting."""

    CPU = "cpu"
    ISOLATED_CPU = "isolated-cpu"
    ALIGNED_CPU = "aligned-cpu"  # within a NUMA node
    MEMORY = "memory"
    HUGE_PAGES = "huge-pages"
    FULL_CORES = "full-cores"  # whole idle cores
    ALIGNED_MEMORY = "aligned-memory"  # beside its CPUs
    CLAIM = "claim"  # what a resource claim was allocated, or the claim itself
    HINTS = "hints"  # CPUs or memory as near as its strict hints want them


class PlacementError(Refused):
    """A request that cannot be met. Its text is for the container's owner.

    It has the resource that is short (`lack`), the request (`requested`), the name of the closest
    `pool`, and the amount `available` there: milli-CPU, or bytes of memory or huge pages if these
    are short.
    """

    def __init__(  # noqa: PLR0913 - what there is to know of a refusal
        self,
        lack: Lack,
        requested: Request,
        *,
        pool: str,
        available: int,
        aligned: bool = False,
        detail: str = "",
        explanation: Explanation | None = None,
    ) -> None:
        super().__init__(lack, requested, pool, available)
        self.lack = lack
        self.requested = requested
        self.pool = pool
        self.available = available
        self.aligned = aligned  # whether only pools within a NUMA node were asked
        self.detail = detail  # which memory nodes, or which hint
        self.explanation = explanation

    def __str__(self) -> str:
        if self.detail:
            return self.detail
        request, steering = self.requested, self.requested.steering
        asked = describe_cpus(request)
        within = " within a NUMA node" if self.aligned else ""
        match self.lack:
            case Lack.HINTS:
                missing = request.milli - self.available
                closest = f": {self.pool} comes closest, {count_cpus(missing)} short"
                return (
                    f"no pool near to all strict hints ({_places(steering.hints)}) has room for"
                    f" {asked}{closest * (missing > 0)}"
                )
            case Lack.FULL_CORES:
                return f"no pool{within} has enough whole idle cores for {asked}"
            case Lack.CLAIM:
                return f"no room for {asked} of its claim"
            case Lack.MEMORY | Lack.HUGE_PAGES | Lack.ALIGNED_MEMORY:
                pages = "".join(
                    f" and {format_pages(size, amount)} huge pages"
                    for size, amount in request.hugepages
                )
                return (
                    f"no pool within a NUMA node has room for {format_bytes(request.memory)} of"
                    f" memory{pages} beside the CPUs that it has left"
                )
            case Lack.CPU | Lack.ISOLATED_CPU | Lack.ALIGNED_CPU:
                missing = request.milli - self.available
                whole = 0 < request.shared < 1000 <= missing
                return (
                    f"no pool{within} has room for {asked}: {self.pool} comes closest,"
                    f" {count_cpus(missing)} short{' (sharing needs one whole CPU)' * whole}"
                )
        assert_never(self.lack)


def _places(hints: Iterable[Hint]) -> str:
    return some({hint.place for hint in hints})


def describe_cpus(request: Request) -> str:
    """Return the CPUs of a request in words."""
    parts = []
    if request.exclusive:
        sort = "isolated " if request.steering.isolated is Isolation.REQUIRED else ""
        parts.append(f"{request.exclusive} exclusive {sort}CPU{'s' * (request.exclusive > 1)}")
    if request.shared:
        parts.append(_shared(request.shared))
    return " and ".join(parts) or "a share of a CPU"


def _shared(milli: int) -> str:
    """Return `2 shared CPUs`, `100m of a shared CPU`."""
    whole, rest = divmod(milli, 1000)
    if not rest:
        return counted(whole, "shared CPU")
    return f"{milli}m of {'shared CPUs' if whole else 'a shared CPU'}"


def memory_shortage(request: Request, pool: Pool, short: Shortage) -> PlacementError:
    """Return the error that *pool* is *short* of memory for a request."""
    asked = sum(amount for _, amount in request.hugepages) if short.pages else request.memory
    return PlacementError(
        Lack.HUGE_PAGES if short.pages else Lack.MEMORY,
        request,
        pool=pool.name,
        available=asked - short.missing,
        detail=short.text,
    )


def shortage(
    layout: Layout, request: Request, table: Table, offers: Offers | None
) -> PlacementError:
    """Return the error that names the shortage and the closest pool.

    The cases, in this order:

    1. A pool has the CPUs, but no memory, or huge pages: `MEMORY` or `HUGE_PAGES`, of the widest
       such pool.
    2. A pool has both, but not within a NUMA node, as `alignment` requires: `ALIGNED_MEMORY`.
    3. Strict hints exclude all pools: `HINTS`.
    4. A pool that `alignment` permits has the CPUs, but not as whole idle cores: `FULL_CORES`.
    5. No such pool has the CPUs: `ISOLATED_CPU` or `ALIGNED_CPU`, if these were requested.
    """
    pools = layout.tree.pools
    enough = [pool for pool in reversed(range(table.count)) if not table.missing(pool)]
    if offers is not None:
        for pool in enough:  # the widest first
            if offers.zone(pool) is None:
                return memory_shortage(request, pools[pool], offers.shortage(pool))
    for pool in spill_order(layout, request, offers):
        if pool not in layout.too_coarse and not table.missing(pool):
            return PlacementError(Lack.ALIGNED_MEMORY, request, pool=pools[pool].name, available=0)
    closest, steering = table.closest(), request.steering
    too_coarse = layout.too_coarse if request.exclusive else ()
    if steering.strict_hints and steering.hints:
        return _hint_shortage(layout, request, table)
    if steering.full_cores is FullCores.REQUIRE and not {*enough} <= {*too_coarse}:
        lack = Lack.FULL_CORES
    elif request.exclusive and steering.isolated is Isolation.REQUIRED:
        lack = Lack.ISOLATED_CPU
    else:
        lack = Lack.ALIGNED_CPU if too_coarse else Lack.CPU
    hopeless = layout.capacity.notes[:1]
    if lack is Lack.ISOLATED_CPU and not layout.capacity.isolated:
        hopeless = ("the kernel of this node isolates no CPUs",)
    return PlacementError(
        lack,
        request,
        pool=pools[closest].name,
        available=request.milli - table.missing(closest),
        aligned=bool(too_coarse),
        detail=f"no room for {describe_cpus(request)}: {hopeless[0]}" if hopeless else "",
    )


def _hint_shortage(layout: Layout, request: Request, table: Table) -> PlacementError:
    """Return the error that no pool has room near all strict hints, or none is near all."""
    hints, pools = request.steering.hints, layout.tree.pools
    near = layout.topology_hints.bounds(hints).cpus
    detail = "" if near else f"nothing is near to all strict hints ({_places(hints)})"
    inside = [pool.id for pool in pools if pool.cpus <= near]
    closest = min(inside, key=table.missing, default=layout.tree.top.id)
    missing = table.missing(closest) if inside else 0
    return PlacementError(
        Lack.HINTS,
        request,
        pool=pools[closest].name,
        available=request.milli - missing,
        detail=detail,
    )
