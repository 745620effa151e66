"""The values published for claims, against all ways to grant these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.dra.projection import Left, project

Claim = tuple[int, int]  # the published pool, milli-CPU

# the parent of each pool, children first; which are published
SHAPES: dict[str, tuple[list[int | None], list[int]]] = {
    "one": ([None], [0]),
    "two": ([2, 2, None], [0, 1]),
    "sockets": ([2, 2, 6, 5, 5, 6, None], [0, 1, 3, 4]),
    "by socket": ([2, 2, 6, 5, 5, 6, None], [2, 5]),
    "uneven": ([3, 2, 3, None], [0, 1]),
}


def inside(parents: Sequence[int | None], at: int | None) -> Iterator[int]:
    """Yield a pool and all above it."""
    while at is not None:
        yield at
        at = parents[at]


@st.composite
def machines(draw: st.DrawFn) -> list[Left]:
    """Pools of few CPUs with ordinary grants that keep the invariants."""
    parents, published = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
    number = len(parents)
    own = [draw(st.integers(0, 3)) for _ in range(number)]  # CPUs of no child
    free = [0] * number
    for at in range(number):
        for above in inside(parents, at):
            free[above] += own[at]
    shared, shares = [0] * number, [False] * number
    for _ in range(draw(st.integers(0, 5))):  # containers that share
        at, amount = draw(st.integers(0, number - 1)), draw(st.sampled_from([0, 300, 500, 1000]))
        before = shared[at], shares[at]
        shared[at], shares[at] = shared[at] + amount, True
        if not fits(parents, free, shared, shares):
            shared[at], shares[at] = before
    return [
        Left(
            parent=parents[at],
            free=free[at],
            shared=shared[at],
            shares=shares[at],
            published=at in published,
        )
        for at in range(number)
    ]


def fits(
    parents: Sequence[int | None],
    free: Sequence[int],
    shared: Sequence[int],
    shares: Sequence[bool],
) -> bool:
    """Whether every pool has the CPUs that the containers in it share (I2, I3)."""
    booked, some = [0] * len(parents), [False] * len(parents)
    for at in range(len(parents)):
        for above in inside(parents, at):
            booked[above] += shared[at]
            some[above] |= shares[at]
    return all(1000 * free[at] >= max(booked[at], 1000 * some[at]) for at in range(len(parents)))


def grantable(pools: Sequence[Left], claims: Sequence[Claim]) -> bool:
    """Whether some choice of CPUs grants all claims: whole parts exclusive, the rest shared."""
    parents = [pool.parent for pool in pools]
    shared, shares = [pool.shared for pool in pools], [pool.shares for pool in pools]
    wanted: dict[int, int] = {}
    for at, milli in claims:
        wanted[at] = wanted.get(at, 0) + milli // 1000
        shared[at] += milli % 1000
        shares[at] |= milli % 1000 > 0
    own = [pool.free for pool in pools]
    for pool in pools:
        if pool.parent is not None:
            own[pool.parent] -= pool.free
    # the CPUs of a pool that are in no child are interchangeable: only their number matters
    for taken in product(*(range(each + 1) for each in own)):
        free = [pool.free for pool in pools]
        for at, number in enumerate(taken):
            for above in inside(parents, at):
                free[above] -= number
        if all(
            pool.free - free[at] == wanted.get(at, 0)
            for at, pool in enumerate(pools)
            if pool.published
        ) and fits(parents, free, shared, shares):
            return True
    return False


def whole(values: Mapping[int, int]) -> list[Claim]:
    return [(at, 1000 * value) for at, value in values.items()]


@given(machines(), st.data())
def test_whatever_fits_the_values_can_be_granted_at_once(
    pools: list[Left], data: st.DataObject
) -> None:
    values = project(pools, {})
    left = {at: 1000 * value for at, value in values.items()}
    claims = []
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.sampled_from(sorted(left)))
        milli = data.draw(st.integers(0, left[at]) | st.sampled_from([0, left[at]]))
        left[at] -= milli
        claims.append((at, milli))
    assert grantable(pools, claims)
    assert grantable(pools, whole(values))


@given(machines())
def test_no_value_could_be_larger(pools: list[Left]) -> None:
    values = project(pools, {})
    for at in values:
        assert not grantable(pools, whole({**values, at: values[at] + 1}))


@given(machines(), machines(), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_what_was_published_is_kept_as_far_as_it_can_be_granted(
    before: list[Left], pools: list[Left], other: list[int]
) -> None:
    last = project(before, {})
    assert project(before, last) == last, "nothing has changed"
    assert project(before, {}) == last
    last = {at: other[n % 4] for n, at in enumerate(sorted(last))}
    values = project(pools, last)
    assert grantable(pools, whole(values))
    assert sum(values.values()) == sum(project(pools, {}).values()), "none is given away"
    kept = {at: last.get(at, 0) for at in values}
    if grantable(pools, whole(kept)):
        assert all(values[at] >= kept[at] for at in values)


def left(parent: int | None, free: int, shared: int = 0, *, published: bool = False) -> Left:
    return Left(parent=parent, free=free, shared=shared, shares=shared > 0, published=published)


def test_what_is_booked_above_is_borne_by_the_emptiest() -> None:
    root = left(None, 16, 4000)
    two = [left(2, 8, published=True), left(2, 8, published=True), root]
    assert project(two, {}) == {0: 6, 1: 6}
    uneven = [left(2, 12, published=True), left(2, 4, published=True), root]
    assert project(uneven, {}) == {0: 8, 1: 4}


def test_a_value_that_has_to_fall_falls_where_it_is_highest_and_rises_where_it_is_lowest() -> None:
    def two(booked: int) -> list[Left]:
        return [left(2, 8, published=True), left(2, 8, published=True), left(None, 16, booked)]

    assert project(two(4000), {0: 8, 1: 4}) == {0: 8, 1: 4}
    assert project(two(6000), {0: 8, 1: 4}) == {0: 6, 1: 4}
    assert project(two(1000), {0: 8, 1: 4}) == {0: 8, 1: 7}
