"""Re-booking: containers that move up the tree so that another fits; spec placement.md §2.

Owns which ones must move: preemptible containers without a CPU left, and, as the last resort before
a refusal, small sharers, for each of which its pool keeps a whole CPU. No container loses a CPU,
because the pool above has all shared ones. No memory moves: the pages would stay behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from msgspec.structs import replace

from nri_policy.engine.grant import Grant
from nri_policy.engine.placement.making_way import Relocation
from nri_policy.engine.state.state import Placed, State
from nri_policy.pools.tree import Pool, PoolTree


def make_room(state: State, cause: str) -> None:
    """Re-book preemptible containers without a CPU to the nearest pool above that has one (§2)."""
    free = state.supply.free_cpus()
    tree = state.layout.tree
    for pool in tree.pools[:-1]:
        for member in [*state.members(pool.id)] if pool.cpus.isdisjoint(free) else ():
            above = next((p for p in tree.path(pool) if not p.cpus.isdisjoint(free)), tree.top)
            grant = state.placed[member].grant
            note = f"moved from {pool.name} to {above.name}: {cause}"
            rebook(state, member, replace(grant, pool=above.id), note)


def move_up(state: State, member: str, above: Pool, cause: str) -> None:
    """Re-book a sharer to *above*; it notes its home (§2), unless it has been back there once."""
    grant = state.placed[member].grant
    home = grant.pool if grant.home is None and not grant.returned else grant.home
    below = state.layout.tree.pools[grant.pool]
    note = f"moved from {below.name} to {above.name}: {cause}"
    rebook(state, member, replace(grant, pool=above.id, home=home), note)


def bring_back(state: State, asked: str | None = None) -> None:
    """Move the oldest container that fits back to its home, or to the nearest pool above it.

    Not the one *asked* about. A container returns once; if it is moved again, it stays (§2).
    """
    tree = state.layout.tree
    by_age = sorted((state.placed[each].container.created, each) for each in state.away)
    for _, member in by_age:
        grant = state.placed[member].grant
        pool = None if member == asked else _nearest_home(state, grant)
        if pool is not None:
            back = replace(grant, pool=pool.id, home=None, returned=True)
            rebook(state, member, back, f"back on {tree.pools[pool.id].name}")
            return


def _nearest_home(state: State, grant: Grant) -> Pool | None:
    """Return the first pool from a grant's home up to its own that holds it; None if none does."""
    tree, supply = state.layout.tree, state.supply
    assert grant.home is not None, "only grants with a home move back"
    path = [pool.id for pool in tree.path(tree.pools[grant.home])]
    if grant.pool not in path:  # not in this layout
        return None
    free = supply.free_cpus()
    with _try(state):
        supply.unbook(grant.pool, grant.shared, grant.shares, grant.preemptible)
        for pool in path[: path.index(grant.pool)]:
            has_cpu = not tree.pools[pool].cpus.isdisjoint(free)
            if has_cpu and supply.allocatable_shared(pool) >= grant.shared:
                return tree.pools[pool]
    return None


def rebook(state: State, member: str, grant: Grant, note: str) -> None:
    """Give a sharer *grant*, on another pool, with a note; its memory stays in its place."""
    placed = state.placed[member]
    explanation = placed.explanation
    explanation = replace(explanation, pool=grant.pool, notes=(*explanation.notes, note))
    state.rebook(replace(placed, explanation=explanation), grant, note)


def last_resort(
    state: State, relocations: Sequence[Relocation], fits: Callable[[], bool]
) -> Mapping[str, Pool]:
    """Return the sharers to re-book on pools above so that *fits* holds; {}: impossible.

    The fewest of *relocations*, which begin with these; other sharers if trials need fewer (§2).
    Without them the request would not fit. The state is unchanged afterwards.
    """
    found: Mapping[str, Pool] = {}
    for _, group in groupby(relocations, key=lambda relocation: len(relocation.movers)):
        if found := _first_relocation(state, [*group], fits):
            break
    if len(found) == 1:
        return found
    others = _by_trials(state, fits)
    return others if others and (not found or len(others) < len(found)) else found


def _first_relocation(
    state: State, relocations: Sequence[Relocation], fits: Callable[[], bool]
) -> Mapping[str, Pool]:
    """Return the movers of the first relocation that helps; to the nearest pools if possible."""
    tree = state.layout.tree
    near = [
        {each: _above(tree, state.placed[each].grant.pool) for each in relocation.movers}
        for relocation in relocations
    ]
    for to in (
        *near,
        *(dict.fromkeys(relocation.movers, relocation.to) for relocation in relocations),
    ):
        sharers = [state.placed[each] for each in to]
        with _try(state):
            for each in sharers:
                _put(state, each, to[each.container.id].id)
            if fits():
                return _find_needed(state, sharers, to, fits)
    return {}


def _by_trials(state: State, fits: Callable[[], bool]) -> Mapping[str, Pool]:
    """Return the movers by trials, because *fits* may require more than numbers of CPUs.

    One alone to the pool above, the smallest first, then the oldest; else as many as necessary in
    this order; else all to the top. A move up only frees capacity, so a request that does not fit
    with all of them at the top must be refused.
    """
    tree = state.layout.tree
    sharers = [state.placed[container_id] for _, _, container_id, _ in state.movers_in_order()]
    above = {each.container.id: _above(tree, each.grant.pool) for each in sharers}
    with _try(state):
        for each in sharers:
            _put(state, each, tree.top.id)
        if not fits():
            return {}
    for each in sharers:
        with _try(state):
            _put(state, each, above[each.container.id].id)
            if fits():
                return {each.container.id: above[each.container.id]}
    with _try(state):
        for count, each in enumerate(sharers, 1):
            _put(state, each, above[each.container.id].id)
            if fits():
                return _find_needed(state, sharers[:count], above, fits)
    with _try(state):
        for each in sharers:
            _put(state, each, tree.top.id)
        return _find_needed(state, sharers, dict.fromkeys(above, tree.top), fits)


def _find_needed(
    state: State, moved: list[Placed], to: Mapping[str, Pool], fits: Callable[[], bool]
) -> dict[str, Pool]:
    """Return the necessary movers with their pools; put back the others, the largest first."""
    needed = {}
    for each in reversed(moved):
        pool = to[each.container.id]
        _put(state, each, each.grant.pool, pool.id)
        if not fits():
            _put(state, each, pool.id)
            needed[each.container.id] = pool
    return needed


def _above(tree: PoolTree, pool: int) -> Pool:
    parent = tree.pools[pool].parent
    assert parent is not None, "only the root has no parent"
    return tree.pools[parent]


@contextmanager
def _try(state: State) -> Iterator[None]:
    """Take back what is booked meanwhile."""
    before = state.supply.snapshot()
    try:
        yield
    finally:
        state.supply.restore(before)


def _put(state: State, sharer: Placed, pool: int, before: int | None = None) -> None:
    """Book a sharer on *pool* instead of where it is booked: its own pool, or *before*."""
    grant = sharer.grant
    old = grant.pool if before is None else before
    state.supply.unbook(old, grant.shared, grant.shares, grant.preemptible)
    state.supply.book(pool, grant.shared, grant.shares, grant.preemptible)
