"""Who makes way for width: the kernel against plain Python; spec placement.md §2."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.supply import Search
from tests.property.test_supply import EXAMPLES, Twin, kernel, trees

Mover = tuple[int, int, str, int]  # milli-CPU, age, id, pool


def who(  # noqa: PLR0917 - as the kernel has them, and the twin
    twin: Twin,
    movers: list[Mover],
    target: int,
    pool: int,
    n: int,
    milli: int,
    shares: bool,
    looked_at: int,
) -> list[int] | None:
    """Return what `Search.who` does: book those who leave above, and ask the formulas."""
    inside = [i for i, (_, _, _, at) in enumerate(movers) if target in twin.path(at)]
    above = target if twin.parents[target] < 0 else twin.parents[target]

    def holds(left: list[int]) -> bool:
        booked = [
            (above if i in left else at, request, True, False)
            for i, (request, _, _, at) in enumerate(movers)
        ]
        moved = replace(twin, bookings=[*twin.bookings, *booked])
        return moved.rank(pool, milli, shares, False) >= n

    if holds([]) or not holds(inside):
        return [] if holds([]) else None
    for each in inside:
        if holds([each]):
            return [each]
    first = next((inside[:k] for k in range(1, looked_at + 1) if holds(inside[:k])), None)
    for each in reversed(first or []):
        rest = [other for other in first or [] if other != each]
        first = rest if holds(rest) else first
    return first


@given(trees(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_search_finds_who_the_formulas_say(twin: Twin, data: st.DataObject) -> None:
    supply = kernel(twin)
    taken = data.draw(st.sets(st.sampled_from(sorted(twin.sharable) or [0]))) & twin.sharable
    supply.take(CPUSet(taken))
    twin.taken |= taken
    pools = st.integers(0, supply.count - 1)
    for pool, request in data.draw(
        st.lists(st.tuples(pools, st.sampled_from((0, 0, 300, 1200))), max_size=4)
    ):
        preemptible = request == 0 and data.draw(st.booleans())
        twin.bookings.append((pool, request, True, preemptible))
    below_top = st.integers(0, max(0, supply.count - 2))
    drawn = data.draw(
        st.lists(st.tuples(st.sampled_from((100, 400, 1500)), st.integers(0, 9), below_top))
        if supply.count > 1
        else st.just([])
    )
    movers = sorted((request, age, str(i), pool) for i, (request, age, pool) in enumerate(drawn))
    for pool, request, shares, preemptible in [
        *twin.bookings,
        *((pool, request, True, False) for request, _, _, pool in movers),
    ]:
        supply.book(pool, request, shares, preemptible)
    before = supply.snapshot()
    search = Search(supply, movers)
    for _ in range(4 if supply.count > 1 else 0):
        pool, n = data.draw(pools), data.draw(st.integers(0, 6))
        target = data.draw(st.sampled_from([*twin.path(pool)]))
        milli = data.draw(st.sampled_from((0, 0, 500, 1500)))
        looked_at = data.draw(st.sampled_from((2, 16)))
        asked = target, pool, n, milli, milli > 0, looked_at
        assert search.who(*asked) == who(twin, movers, *asked)
    assert supply.snapshot() == before
