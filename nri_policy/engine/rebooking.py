"""Re-booking: who is booked farther up the tree so that another fits; spec placement.md §2.

Owns who has to: preemptible containers that are left without a CPU, and, as the last resort before
a refusal, small sharers, for each of which its pool keeps a whole CPU. Nobody loses a CPU by it:
the pool above has all that were shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from nri_policy.engine.state import Placed, State
from nri_policy.engine.zone import memory_request
from nri_policy.pools.memory_offer import MemoryShortageError
from nri_policy.pools.tree import Pool, PoolTree
from nri_policy.workload.request import Sort


def make_room(state: State, cause: str) -> None:
    """Re-book preemptible containers without a CPU to the nearest pool above that has one (§2)."""
    free = state.supply.free_cpus()
    tree = state.layout.tree
    for pool in tree.pools[:-1]:
        for member in [*state.members(pool.id)] if pool.cpus.isdisjoint(free) else ():
            above = next((p for p in tree.path(pool) if not p.cpus.isdisjoint(free)), tree.top)
            rebook(state, member, above, cause)


def rebook(state: State, member: str, above: Pool, cause: str) -> None:
    """Re-book a sharer to *above*, with no less memory than it has."""
    cold, deadline = member in state.cold, state.cold.get(member)
    placed = state.drop(member)
    zone = placed.grant.mems
    memory = memory_request(
        placed.container, placed.request, aligned=state.layout.aligned, cold=cold
    )
    offer = None
    if memory is not None:
        # who has been found with more than there is keeps what it has
        with suppress(MemoryShortageError):
            offer = state.memory.offer(above.id, memory, zone)
    grant = replace(placed.grant, pool=above.id, mems=zone if offer is None else offer.zone)
    below = state.layout.tree.pools[placed.grant.pool]
    notes = (*placed.explanation.notes, f"moved from {below.name} to {above.name}: {cause}")
    explanation = replace(placed.explanation, pool=above.id, notes=notes)
    state.put(replace(placed, grant=grant, explanation=explanation), offer)
    if memory is not None and offer is None:
        state.memory.adopt(above.id, memory, zone)
    if cold and (offer is None or offer.booking.home.cold):
        state.cold[member] = deadline


def last_resort(state: State, fits: Callable[[], bool]) -> Mapping[str, Pool]:
    """Return which sharers have to be booked on which pools above for *fits* to hold; {}: none do.

    One alone to the pool above, the smallest first, then the oldest; else as many as it takes in
    this order; else to the top, of all, those without whom it does not fit. Moving one up only
    takes from what is needed of pools, so that who is refused with all of them at the top has to
    be. The state is as before afterwards.
    """
    tree = state.layout.tree
    sharers = sorted(_movable(state), key=_smallest_first)
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
        moved = {}
        for each in sharers:
            moved[each.container.id] = above[each.container.id]
            _put(state, each, above[each.container.id].id)
            if fits():
                return moved
    with _try(state):
        moved = {each.container.id: tree.top for each in sharers}
        for each in sharers:
            _put(state, each, tree.top.id)
        for each in reversed(sharers):
            _put(state, each, each.grant.pool, tree.top.id)
            if fits():
                del moved[each.container.id]
            else:
                _put(state, each, tree.top.id)
        return moved


def _movable(state: State) -> Iterator[Placed]:
    """Yield those who only share, below the top, and may be moved; no preemptible ones."""
    top = state.layout.tree.top.id
    for placed in state.placed.values():
        grant = placed.grant
        if (
            grant.sort is Sort.NORMAL
            and grant.pool != top
            and not grant.exclusive
            and not grant.preemptible
            and placed.request.movable
        ):
            yield placed


def _smallest_first(placed: Placed) -> tuple[int, int, str]:
    return placed.grant.shared, placed.container.created, placed.container.id


def _above(tree: PoolTree, pool: int) -> Pool:
    parent = tree.pools[pool].parent
    assert parent is not None, "only the top has none"
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
