"""Comparison: which pools can hold a request, and which of them is best; placement.md §4.

Owns the filling of the table of criteria from all its sources. Changes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection

from msgspec import Struct

from nri_policy.engine.choice.scheduler_hint import has_room
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.memory_offer import Offers
from nri_policy.pools.supply import Column, Table
from nri_policy.settings import FullCores, Packing
from nri_policy.workload.hints import Hint
from nri_policy.workload.peers import Pulls
from nri_policy.workload.request import Isolation, Request


class BestPool(Struct, frozen=True, kw_only=True):
    """The best pool for a request."""

    table: Table
    pool: int | None  # None if no pool can hold it
    # the ways to count preemptible containers when its CPUs are cut; both are compared
    looks: tuple[bool, ...]
    offers: Offers | None  # of memory; None if none is requested


def compare(  # noqa: PLR0913, PLR0917 - a request, and the pools
    state: State,
    request: Request,
    pulls: Pulls | None,
    offers: Offers | None,
    first: int = 0,
    last: int = -1,
) -> BestPool:
    """Return the best of the pools from *first* to *last* (-1: the top); placement.md §2.

    Preemptible containers make room where nothing fits beside them, or where what fits is worse by
    the criteria up to `depth`.
    """
    comparison = Comparison(state, request, pulls, offers)
    table = comparison.table(with_preemptible=True)
    pool = table.best(first, last)
    looks: tuple[bool, ...] = (True,)
    if request.exclusive and state.supply.has_preemptible():
        alone = comparison.table(with_preemptible=False)
        other = alone.best(first, last)
        if other is None or pool is None or alone.outranks(other, pool):
            table, pool, looks = alone, other, (False,)
        elif pool == other:
            looks = True, False
    return BestPool(table=table, pool=pool, looks=looks, offers=offers)


class Comparison:
    """One request and all pools; what preemptible containers do not change is worked out once."""

    def __init__(
        self, state: State, request: Request, pulls: Pulls | None, offers: Offers | None
    ) -> None:
        layout, steering = state.layout, request.steering
        self._state = state
        self._request = request
        self._columns: list[tuple[Column, array[float]]] = []
        self._excluded = [*layout.too_coarse] if request.exclusive else []
        if pulls is not None and pulls.terms:
            scored = layout.affinity_scorer.scores(state.peers.pools, pulls.terms)
            self._columns.append((Column.AFFINITY, scored))
        if steering.hints:
            self._columns += _hint_columns(layout, steering.hints)
        if steering.zone is not None:  # counts only where it has room
            self._in_zone = _hint_columns(layout, (*steering.hints, steering.zone))
        if offers is not None:
            self._compare_memory(offers)
            self._excluded += spill_order(layout, request, offers)
        if steering.strict_hints:
            self._excluded += _out_of_bounds(state, request, offers)

    def table(self, *, with_preemptible: bool) -> Table:
        """Return the table of criteria, with what is kept for preemptible containers or without."""
        state, request, layout = self._state, self._request, self._state.layout
        burstable = request.qos is QoS.BURSTABLE
        unlimited = burstable and request.cpu_limit is None
        # criterion 9 only counts for exclusive CPUs (§6)
        wanted = layout.classes[request.steering.priority][:1] if request.exclusive else ()
        table = state.supply.score(
            exclusive=request.exclusive,
            milli=request.shared,
            shares=request.shares,
            isolated=int(request.steering.isolated),
            with_preemptible=with_preemptible,
            limit=request.cpu_limit if burstable else None,
            burst_levels=layout.burst_levels[request.steering.burst_level] if unlimited else None,
            wanted_class=wanted[0] if wanted else None,
            tight=layout.settings.packing is Packing.TIGHT,
        )
        for column, values in self._columns:
            table.fill(column, values)
        for pool in self._excluded:
            table.exclude(pool)
        if request.exclusive:
            self._compare_domains(table, with_preemptible=with_preemptible)
        if request.steering.zone is not None and has_room(layout, request.steering.zone, table):
            for column, values in self._in_zone:
                table.fill(column, values)
        return table

    def _compare_domains(self, table: Table, *, with_preemptible: bool) -> None:
        """Fill in criterion 12, and leave out the pools that have too few exclusive CPUs."""
        supply, layout, request = self._state.supply, self._state.layout, self._request
        steering, touch, cpus = request.steering, layout.picker.domains.touch, supply.free_cpus()
        bounds = None
        if steering.strict_hints:
            bounds = layout.topology_hints.bounds(steering.hints).cpus
            cpus &= bounds
        slack = supply.slack(layout.tree.pools[-1].id, 0, False, with_preemptible)
        wished, whole = (
            steering.isolated is not Isolation.NO,
            steering.full_cores is FullCores.REQUIRE,
        )
        touch(table, request.exclusive, cpus, slack, not wished, whole_cores=whole)
        if wished and layout.capacity.isolated:
            isolated = supply.free_isolated_cpus()
            isolated = isolated if bounds is None else isolated & bounds
            touch(table, request.exclusive, isolated, None, True, whole_cores=whole)

    def _compare_memory(self, offers: Offers) -> None:
        """Take in criteria 5, 6, 8 and 10, and leave out the pools that offer no memory."""
        offered = offers.columns()
        self._excluded += offered.none
        self._columns += (
            (Column.MEMORY_KIND, offered.kind),
            (Column.MEMORY_TIGHTNESS, offered.tightness),
        )
        if offered.burst is not None:
            self._columns.append((Column.MEMORY_BURST, offered.burst))
        request = self._request
        unlimited = request.memory_limit is None and request.cpu_limit is None
        if request.qos is QoS.BURSTABLE and request.memory and unlimited:
            # with a CPU limit, that decides how wide the pool is (criterion 7)
            levels = self._state.layout.burst_levels[request.steering.burst_level]
            self._columns.append((Column.MEMORY_BURST, levels))
        if offered.undisturbed is not None:
            self._columns.append((Column.UNDISTURBED_MEMORY, offered.undisturbed))


def _hint_columns(layout: Layout, hints: Collection[Hint]) -> list[tuple[Column, array[float]]]:
    """Return criteria 3 and 4."""
    scores = layout.topology_hints.scores(hints)
    if scores is None:
        return []
    return [
        (Column.HINTS, scores.hints),
        (Column.HINTS_NONZERO, scores.nonzero),
        (Column.HINT_DEPTH, scores.depth),
    ]


def spill_order(layout: Layout, request: Request, offers: Offers | None) -> list[int]:
    """Return the pools that `alignment` forbids a *request* because of its memory (§4)."""
    if offers is None or not (request.exclusive and layout.aligned):
        return []
    return [
        pool.id
        for pool in layout.tree.pools
        if not (offers.zone(pool.id) or EMPTY) <= CPUSet.union(pool.memory.values())
    ]


def _out_of_bounds(state: State, request: Request, offers: Offers | None) -> list[int]:
    """Return the pools in which *request* would violate strict hints (§8)."""
    layout = state.layout
    bounds = layout.topology_hints.bounds(request.steering.hints)
    free = state.supply.free_cpus() | state.supply.free_isolated_cpus()
    return [
        pool.id
        for pool in layout.tree.pools
        if (request.shares and not pool.cpus & layout.capacity.sharable <= bounds.cpus)
        or len(free & pool.cpus & bounds.cpus) < request.exclusive
        or (offers is not None and not (offers.zone(pool.id) or EMPTY) <= bounds.mems)
    ]
