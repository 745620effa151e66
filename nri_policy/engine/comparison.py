"""Comparison: which pools can hold a request, and which of them is best; placement.md §4.

Owns the filling of the table of criteria from all its sources, and the words for a request that no
pool can hold. Changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

from nri_policy.cpuset import EMPTY
from nri_policy.engine.layout import Layout
from nri_policy.engine.state import State
from nri_policy.pools.memory_offer import Offers
from nri_policy.pools.supply import Table
from nri_policy.units import format_cpu
from nri_policy.workload.peers import Pulls
from nri_policy.workload.pod import QoS
from nri_policy.workload.request import Isolation, Request


class Lack(StrEnum):
    """What a refused request is short of: a few words, for counting."""

    CPU = "cpu"
    ISOLATED_CPU = "isolated-cpu"
    ALIGNED_CPU = "aligned-cpu"  # within a NUMA node
    MEMORY = "memory"
    HINTS = "hints"  # CPUs or memory as near as its strict hints want them


_MOST_CPUS = 1 << 20  # asked for: more than any machine has, and safe to reckon with


def search(
    state: State,
    request: Request,
    pulls: Pulls | None,
    offers: Offers | None,
    only: int | None,
) -> tuple[Table, int | None, bool]:
    """Return the table, the best pool (or *only*, if that will do) and whether guests counted."""
    for with_guests in (True, False):
        table = _compare(state, request, pulls, offers, with_guests=with_guests)
        pool = table.best() if only is None else only if table.fits(only) else None
        if pool is not None:
            return table, pool, with_guests
    return table, None, False


def _compare(
    state: State,
    request: Request,
    pulls: Pulls | None,
    offers: Offers | None,
    *,
    with_guests: bool,
) -> Table:
    layout = state.layout
    burstable = request.qos is QoS.BURSTABLE
    unlimited = burstable and request.cpu_limit is None
    wanted = layout.classes.order(request.priority)[:1] if request.exclusive else ()
    table = state.supply.score(
        min(request.exclusive, _MOST_CPUS),
        min(request.shared, 1000 * _MOST_CPUS),
        request.shares,
        int(request.isolated),
        with_guests,
        request.cpu_limit if burstable else None,
        layout.burst_levels[request.burst_level] if unlimited else None,
        wanted[0] if wanted else None,
    )
    if pulls is not None and pulls.terms:
        table.fill("affinity", layout.attraction.scores(state.peers.pools, pulls.terms))
    if request.hints and (scores := layout.nearness.scores(request.hints)) is not None:
        table.fill("hints", scores.hints)
        table.fill("hints_nonzero", scores.nonzero)
        table.fill("hint_depth", scores.depth)
    if offers is not None:
        _compare_memory(table, offers)
    if request.exclusive:
        for pool in layout.too_coarse:
            table.exclude(pool)
    if request.strict_hints:
        for pool in _out_of_bounds(state, request, offers):
            table.exclude(pool)
    return table


def _out_of_bounds(state: State, request: Request, offers: Offers | None) -> list[int]:
    """Return the pools in which *request* cannot be as near to its hints as it must (§8)."""
    layout = state.layout
    bounds = layout.nearness.bounds(request.hints)
    free = state.supply.free_cpus() | state.supply.free_isolated_cpus()
    return [
        pool.id
        for pool in layout.tree.pools
        if (request.shares and not pool.cpus & layout.capacity.sharable <= bounds.cpus)
        or len(free & pool.cpus & bounds.cpus) < request.exclusive
        or (offers is not None and not (offers.zone(pool.id) or EMPTY) <= bounds.mems)
    ]


def _compare_memory(table: Table, offers: Offers) -> None:
    """Fill in the criteria of memory, and leave out the pools that offer none."""
    offered = offers.columns()
    for pool in offered.none:
        table.exclude(pool)
    table.fill("memory_kind", offered.kind)
    table.fill("memory_tightness", offered.tightness)
    if offered.burst is not None:
        table.fill("memory_burst", offered.burst)


def shortage(
    layout: Layout, request: Request, table: Table, offers: Offers | None
) -> tuple[Lack, str]:
    """Return what is short, and say what was asked for, which pool comes closest, what it lacks."""
    if offers is not None:
        for pool in reversed(range(table.count)):  # the widest first
            if not table.missing(pool) and offers.zone(pool) is None:
                return Lack.MEMORY, offers.shortage(pool).text
    parts = []
    if request.exclusive:
        sort = "isolated " if request.isolated is Isolation.REQUIRED else ""
        parts.append(f"{request.exclusive} exclusive {sort}CPU{'s' * (request.exclusive > 1)}")
    if request.shared:
        parts.append(f"{request.shared}m of shared CPU")
    if not parts:
        parts.append("a share of a CPU")
    if request.strict_hints and request.hints:
        names = ", ".join(dict.fromkeys(hint.source for hint in request.hints))
        text = f"no pool near to all strict hints ({names}) has room for {' and '.join(parts)}"
        return Lack.HINTS, text
    aligned = " within a NUMA node" if request.exclusive and layout.too_coarse else ""
    isolated = request.exclusive and request.isolated is Isolation.REQUIRED
    lack = Lack.ISOLATED_CPU if isolated else Lack.ALIGNED_CPU if aligned else Lack.CPU
    closest = table.closest()
    return lack, (
        f"no pool{aligned} has room for {' and '.join(parts)}:"
        f" {layout.tree.pools[closest].name} comes closest,"
        f" {format_cpu(table.missing(closest))} CPU short"
    )
