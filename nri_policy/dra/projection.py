"""The projection: what ordinary pods leave to claims, as one value for each published pool.

Owns only that arithmetic; spec dra.md §2.2. Shared grants of ordinary containers are also booked
on inner pools, so two pools may have less room together than the sum of both: two NUMA nodes of 8
CPUs with 4000m booked on their root leave 8 each, but 12 in all. The scheduler adds claims up by
published pool. So for every pool Q, the sum over the published pools in Q is at most the CPUs that
can be cut out of Q (placement.md §2, with its need(Q)). Then all claims that fit the values can be
granted at once.

The values have the largest possible sum, and are as even as possible: the emptiest pools bear the
bookings above them. They differ as little as possible from the published values, because each
change is a write that reaches every scheduler.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from msgspec import Struct


class Left(Struct, frozen=True, kw_only=True):
    """What ordinary grants leave of a pool, before claims."""

    parent: int | None  # its index; None: the top
    free: int  # sharable CPUs without an exclusive grant, its children's included
    shared: int  # milli-CPU of the shared grants booked on it, without its children
    shares: bool  # whether a container with a shared part is booked on it, a request of 0 included
    published: bool  # whether claims name it; of the pools on a path to the top, one at most


def project(pools: Sequence[Left], last: Mapping[int, int]) -> dict[int, int]:
    """Return the value of each published pool, by index, in whole CPUs.

    *pools* have children before their parents. *last* has the values
    of the last call, if any.
    """
    room = _room(pools)
    taken = [0] * len(pools)  # of each pool's room
    values = {at: 0 for at, pool in enumerate(pools) if pool.published}
    paths = {at: _path(pools, at) for at in values}

    def add(at: int, amount: int) -> None:
        values[at] += amount
        for each in paths[at]:
            taken[each] += amount

    for at in values:
        add(at, min(last.get(at, 0), room[at]))
    for pool, least in enumerate(room):
        inside = [at for at in values if pool in paths[at]]
        while taken[pool] > least:
            add(max(inside, key=lambda at: (values[at], -at)), -1)
    lowest = [(value, at) for at, value in values.items()]
    heapq.heapify(lowest)
    while lowest:
        value, at = heapq.heappop(lowest)
        if all(taken[each] < room[each] for each in paths[at]):
            add(at, 1)
            heapq.heappush(lowest, (value + 1, at))
    return values


def _room(pools: Sequence[Left]) -> list[int]:
    """Return how many CPUs may be cut out of each pool, if nothing is cut elsewhere.

    The limits are the pool's own need, the room of its children, and its CPUs outside of them.
    """
    shared = [pool.shared for pool in pools]  # in the whole subtree from here on, as the next ones
    shares = [pool.shares for pool in pools]
    rest = [pool.free for pool in pools]
    room = [0] * len(pools)
    for at, pool in enumerate(pools):
        need = max(shared[at], 1000 * shares[at])
        room[at] = max(0, min(rest[at], (1000 * pool.free - need) // 1000))
        if pool.parent is not None:
            shared[pool.parent] += shared[at]
            shares[pool.parent] |= shares[at]
            rest[pool.parent] += room[at] - pool.free
    return room


def _path(pools: Sequence[Left], at: int) -> tuple[int, ...]:
    """Return a pool and all above it."""
    parent = pools[at].parent
    return (at,) if parent is None else (at, *_path(pools, parent))
