"""The scheduler's zone: the NUMA zone that it chose for the pod, a hint that is not binding.

Owns when it counts, and the notes on whether it was kept.
"""

from __future__ import annotations

from nri_policy.engine.grant import Grant
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import State
from nri_policy.pools.supply import Table
from nri_policy.workload.annotations import ZONE
from nri_policy.workload.hints import Hint
from nri_policy.workload.request import Request


def has_room(layout: Layout, zone: Hint, table: Table) -> bool:
    """Return whether a pool within *zone* can hold the request that *table* compares."""
    near = layout.topology_hints.cpus(zone)
    return any(table.fits(pool.id) for pool in layout.tree.pools if pool.cpus <= near)


def zone_note(state: State, request: Request, grant: Grant, table: Table | None) -> tuple[str, ...]:
    """Return a note for `explain` on whether a *grant* keeps to the request's zone.

    *table* has the compared pools; None if no pools were compared. Empty without a zone.
    """
    if request.steering.zone is None:
        return ()
    topology, pools = state.layout.topology_hints, state.layout.tree.pools
    near = topology.cpus(request.steering.zone)
    cpus = state.cpus(grant, hide_hyperthreads=False)
    if cpus <= near and grant.mems <= topology.mems(request.steering.zone):
        return (f"{ZONE}: kept",)
    why = ""
    if table is not None:
        room = has_room(state.layout, request.steering.zone, table)
        why = ": other criteria decided before hints" if room else ": it has no room there"
    return (f"{ZONE}: not kept, it is on {pools[grant.pool].name}{why}",)
