"""Notes of a placement: what a container got less of than it asked for, and why."""

from __future__ import annotations

from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Grant
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import State
from nri_policy.foundation.units import format_cpu, format_pages
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.memory_offer import Offer
from nri_policy.pools.supply import Column, Table, width_cost
from nri_policy.pools.tree import PoolTree
from nri_policy.workload.request import Isolation, Request, Sort


def lacks_cpus(explanation: Explanation, grant: Grant) -> bool:
    """Return whether a container has less CPU by its *grant* than it asks for.

    CPUs in a room or a claim are not compared, because others use them too.
    """
    asked = explanation.request
    if asked is None or grant.tenant or explanation.kind is DecisionKind.CLAIMED:
        return False
    has = 1000 * len(grant.exclusive) + grant.shared
    return grant.sort is Sort.NORMAL and has < asked.milli


def shortcomings(
    state: State, request: Request, grant: Grant, offer: Offer | None, table: Table
) -> list[str]:
    """Return what a container gets less of than it asked for in the pool of *grant*.

    That was chosen from *table*, with the *offer* of memory.
    """
    layout = state.layout
    notes: list[str] = []
    if offer is not None:
        notes += note_missing_pages(state, request, offer)
    if may_be_confined(request):
        notes += _confinement_notes(layout, request, table, grant.pool)
    if offer is not None and (refused := offer.booking.home.cold_refused):
        notes.append(refused)
    wanted = request.exclusive and request.steering.isolated is not Isolation.NO
    if wanted and layout.capacity.isolated and not grant.isolated:
        name = layout.tree.pools[grant.pool].name
        notes.append(f"its CPUs are not isolated: {name} has too few of them left")
    return notes


def note_missing_pages(state: State, request: Request, offer: Offer) -> tuple[str, ...]:
    """Return a note if the books have too few huge pages on the zone of *offer* (§7)."""
    pages = request.hugepages
    if not pages or state.memory.has_pages(offer.zone, pages):
        return ()
    text = ", ".join(format_pages(size, amount) for size, amount in pages)
    return (f"{text} huge pages are not free by the books: it may use all nodes that have any",)


def may_be_confined(request: Request) -> bool:
    """Whether a container has a limit that a pool could keep it from."""
    return request.qos is QoS.BURSTABLE and request.cpu_limit is not None


def confinement(request: Request, table: Table, tree: PoolTree, pool: int) -> int:
    """Return the milli-CPU that a Burstable container's limit is above what *pool* leaves it."""
    if not may_be_confined(request) or request.cpu_limit is None:
        return 0
    short = -int(table.row(pool)[Column.BURST_ROOM])
    if not short:
        return 0
    return short - width_cost(tree, tree.pools[pool], request.cpu_limit)


def _confinement_notes(
    layout: Layout, request: Request, table: Table, pool: int
) -> tuple[str, ...]:
    """Return a note if a Burstable container cannot reach its limit in *pool* (§4)."""
    short = confinement(request, table, layout.tree, pool)
    if request.cpu_limit is None or not short:
        return ()
    limit, left = format_cpu(request.cpu_limit), format_cpu(request.cpu_limit - short)
    name = layout.tree.pools[pool].name
    return (f"its CPU limit of {limit} does not fit: {name} leaves it {left} at most",)
