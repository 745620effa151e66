"""Making way: sharers that move up so that exclusive CPUs are closer together; placement.md §2.

Each pool with a small sharer keeps a whole CPU for it, so exclusive CPUs can end up on two packages
although one would hold them. Owns when such moves are searched for, and their order; placement
tries whether a move helps. Changes nothing.
"""

from __future__ import annotations

from operator import itemgetter

from msgspec import Struct

from nri_policy.engine.grant import Grant, HeldGrant
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.wording import counted
from nri_policy.pools.supply import Column, Search, Table
from nri_policy.pools.tree import Pool
from nri_policy.pools.width import Width
from nri_policy.settings import MAX_MOVERS
from nri_policy.workload.request import Isolation, Request

# sorts by width, number of movers, width of their new pool, their milli-CPU, and the pool's id
_Order = tuple[Width, int, Width, int, int]

NARROWEST = (1, 1, 1)
_DOMAINS = ("socket", "NUMA node", "L3 cache")


class Relocation(Struct, frozen=True, kw_only=True):
    """Sharers that must leave a pool so that it can hold a request."""

    to: Pool  # their new pool, above the old one
    movers: tuple[str, ...]  # container ids
    milli: int  # booked by all of them


class Relocations(Struct, frozen=True, kw_only=True):
    """What can be tried for one request, the best first."""

    options: tuple[Relocation, ...] = ()
    # the least width that needs more movers than are allowed, and how many; None: there is none
    beyond: tuple[Width, int] | None = None


def width_of(layout: Layout, grant: Grant) -> Width:
    """Return the width of a grant's exclusive CPUs, or of its pool if it shares as well."""
    if grant.shares:
        return layout.widths.pools[grant.pool]
    return layout.picker.domains.touched(grant.exclusive)


def cpus_to_keep(state: State, request: Request, held: HeldGrant | None) -> tuple[CPUSet, int]:
    """Return the CPUs that a resize keeps if it can, and how many of them; none at a creation."""
    if held is None:
        return EMPTY, 0
    own = held.grant.exclusive & state.layout.capacity.sharable
    return own, min(len(own), request.exclusive)


def find_relocations(
    state: State, request: Request, grant: Grant, table: Table, held: HeldGrant | None
) -> Relocations:
    """Return sharers that could move so that *request* gets closer CPUs than by *grant*.

    The grant was chosen from *table*. In a resize, also sharers whose moves let the container keep
    CPUs that it *held*.
    """
    layout = state.layout
    most = layout.settings.make_way.movers
    if grant.isolated or not (most and state.movers and layout.settings.pin_cpu):
        return Relocations()
    if held is not None and held.covers(request):
        return Relocations()
    if not (targets := _targets(state, request, grant, held)):
        return Relocations()
    search = _Search(state)
    found: list[tuple[_Order, Relocation]] = []
    for target in targets:
        best: Relocation | None = None
        for left in layout.tree.path(target):
            # widen the search to pools above only if the request needs it
            if left.parent is None or (best is not None and len(best.movers) <= most):
                break
            n = len(grant.exclusive)
            best = search.relocation(left, target, n, request, MAX_MOVERS) or best
        if best is not None:
            width, to = layout.widths.pools[target.id], layout.widths.pools[best.to.id]
            found.append(((width, len(best.movers), to, best.milli, target.id), best))
    found.sort(key=itemgetter(0))
    row = table.row(grant.pool)[: Column.DEPTH]
    beyond = (
        (width, count)
        for (width, count, _, _, target), _ in found
        if count > most and table.row(target)[: Column.DEPTH] >= row
    )
    return Relocations(
        options=tuple(relocation for _, relocation in found if len(relocation.movers) <= most),
        beyond=next(beyond, None),
    )


def note_beyond(layout: Layout, relocations: Relocations, grant: Grant) -> tuple[str, ...]:
    """Return a note if more movers than are allowed would make a *grant* closer."""
    wide = width_of(layout, grant)
    if relocations.beyond is None or relocations.beyond[0] >= wide:
        return ()
    width, count = relocations.beyond
    most, needs = layout.settings.make_way.movers, counted(count, "container")
    return (f"{_narrower(width, wide)} would do if {needs} moved; {most} is the limit",)


def find_last_relocations(state: State, request: Request) -> list[Relocation]:
    """Return sharers that could move so that *request* fits at all, the fewest first."""
    widths, search = state.layout.widths, _Search(state)
    isolated = state.supply.free_isolated_cpus()
    found: list[tuple[tuple[int, Width, int, int, int], Relocation]] = []
    for pool in state.layout.tree.pools:
        n = request.exclusive
        if request.steering.isolated is not Isolation.NO and len(isolated & pool.cpus) >= n:
            n = 0
        for target in state.layout.tree.path(pool):
            if target.parent is None and pool.parent is not None:
                continue  # the same as leaving the pool below
            if relocation := search.relocation(target, pool, n, request, len(state.movers)):
                to = widths.pools[relocation.to.id]
                order = len(relocation.movers), to, relocation.milli, target.id, pool.id
                found.append((order, relocation))
    return [relocation for _, relocation in sorted(found, key=itemgetter(0))]


class _Search:
    """The search for one request, by sums alone."""

    def __init__(self, state: State) -> None:
        self._tree = state.layout.tree
        self._movers = state.movers_in_order()
        self._search = Search(state.supply, self._movers)

    def relocation(
        self, target: Pool, pool: Pool, n: int, request: Request, most: int
    ) -> Relocation | None:
        """Return the sharers, of the first *most* in *target*, that block *n* CPUs of *pool*."""
        places = self._search.who(target.id, pool.id, n, request.shared, request.shares, most)
        if not places:
            return None
        movers = [self._movers[place] for place in places]
        return Relocation(
            to=target if target.parent is None else self._tree.pools[target.parent],
            movers=tuple(container_id for _, _, container_id, _ in movers),
            milli=sum(milli for milli, _, _, _ in movers),
        )


def _targets(state: State, request: Request, grant: Grant, held: HeldGrant | None) -> list[Pool]:
    """Return the pools that are narrower than *grant* and have enough CPUs without a grant.

    None if the grant is as narrow as possible. Equally narrow pools count too, if the container
    would keep CPUs there that it *held* and loses now.
    """
    layout = state.layout
    widths, wide = layout.widths, width_of(layout, grant)
    cpus = len(grant.exclusive) + grant.shares
    own, keeps = cpus_to_keep(state, request, held)
    leaves = len(own & grant.exclusive) < keeps
    if wide == NARROWEST and not leaves:
        return []
    least = widths.least(cpus)
    if held is not None and own:
        least = max(least, width_of(layout, held.grant))
    if wide <= least and not leaves:
        return []
    free = state.supply.free_cpus()
    return [
        pool
        for pool in layout.tree.pools[:-1]
        if widths.sizes[pool.id] >= cpus
        and (widths.pools[pool.id] < wide or (leaves and widths.pools[pool.id] == wide))
        and len(own & pool.cpus) >= keeps
        and len(free & pool.cpus) >= len(grant.exclusive)
    ]


def _narrower(width: Width, wide: Width) -> str:
    """Return in words how *width* is narrower than *wide*."""
    for name, count, before in zip(_DOMAINS, width, wide, strict=True):
        if count < before:
            return f"one {name}" if count == 1 else counted(count, name)
    return "the pool that it is in"
