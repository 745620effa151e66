"""The Supply kernel against plain Python: sets, and the formulas of placement.md §2 and §4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.supply import Column, Supply, Table

EXAMPLES = 300


@dataclass
class Twin:
    """What a Supply is, by the book."""

    parents: list[int]
    masks: list[set[int]]
    sharable: set[int]
    isolated: set[int]
    wide: set[int] = field(default_factory=set)
    package_milli: list[int] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    bookings: list[tuple[int, int, bool, bool]] = field(default_factory=list)

    def path(self, pool: int) -> list[int]:
        return [pool, *(self.path(self.parents[pool]) if self.parents[pool] >= 0 else [])]

    def free(self, pool: int) -> set[int]:
        return self.masks[pool] & self.sharable - self.taken

    def below(self, pool: int) -> list[tuple[int, int, bool, bool]]:
        return [booking for booking in self.bookings if pool in self.path(booking[0])]

    def milli(self, pool: int) -> int:
        return sum(milli for _, milli, _, _ in self.below(pool))

    def need(self, pool: int, more: int, shares: bool, guests: bool) -> int:
        sharing = shares or any(guests if g else s for _, _, s, g in self.below(pool))
        return max(self.milli(pool) + more, 1000 if sharing else 0)

    def allocatable(self, pool: int) -> int:
        return min(1000 * len(self.free(at)) - self.milli(at) for at in self.path(pool))

    def room(self, pool: int, more: int, shares: bool, guests: bool) -> int:
        """Milli-CPU left of a pool and all above it once a grant is booked on it."""
        return min(
            1000 * len(self.free(at)) - self.need(at, more, shares, guests)
            for at in self.path(pool)
        )

    def cut(self, at: int, guests: bool) -> int:
        """The most CPUs that can be cut out of the pools below *at* and *at* itself."""
        children = [pool for pool, parent in enumerate(self.parents) if parent == at]
        own = len(self.free(at)) - sum(len(self.free(child)) for child in children)
        spare = (1000 * len(self.free(at)) - self.need(at, 0, False, guests)) // 1000
        return min(max(spare, 0), own + sum(self.cut(child, guests) for child in children))

    def rank(self, pool: int, more: int, shares: bool, guests: bool) -> int:
        children = [child for child, parent in enumerate(self.parents) if parent == pool]
        own = len(self.free(pool)) - sum(len(self.free(child)) for child in children)
        inside = own + sum(self.cut(child, guests) for child in children)
        return min(self.room(pool, more, shares, guests) // 1000, inside)


@st.composite
def trees(draw: st.DrawFn) -> Twin:
    """Any tree: CPUs of their own anywhere, ids far apart, one pool to dozens."""
    parents: list[int] = []
    masks: list[set[int]] = []
    ids = iter(
        draw(st.lists(st.integers(0, 300), min_size=1, max_size=40, unique=True).map(sorted))
    )

    def grow(depth: int) -> tuple[int, set[int]]:
        inner = draw(st.integers(0, 3)) if depth < 3 else 0
        below = [grow(depth + 1) for _ in range(inner)]
        own = {cpu for cpu, _ in zip(ids, range(draw(st.integers(0, 4))), strict=False)}
        pool = len(parents)
        for child, _ in below:
            parents[child] = pool
        parents.append(-1)
        masks.append(own.union(*(cpus for _, cpus in below)))
        return pool, masks[pool]

    grow(0)
    masks[-1] |= set(ids)
    cpus = sorted(masks[-1])
    isolated = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) // 3)) if cpus else set()
    reserved = draw(st.sets(st.sampled_from(cpus), max_size=2)) if cpus else set()
    wide = draw(st.sets(st.integers(0, len(parents) - 1)))
    packages = st.sampled_from((0, 1000, 8000))
    package_milli = draw(st.lists(packages, min_size=len(parents), max_size=len(parents)))
    return Twin(
        parents,
        masks,
        masks[-1] - isolated - reserved,
        isolated - reserved,
        wide,
        package_milli,
    )


def compare(supply: Supply, twin: Twin) -> None:
    assert set(supply.free_cpus()) == twin.sharable - twin.taken
    assert set(supply.free_isolated_cpus()) == twin.isolated - twin.taken
    for pool in range(supply.count):
        assert supply.shared_milli_in(pool) == twin.milli(pool)
        assert supply.allocatable_shared(pool) == twin.allocatable(pool)


amounts = st.sampled_from((0, 1, 100, 999, 1000, 1001, 2500))


@given(trees(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_sequence_of_grants_is_accounted_as_by_sets(twin: Twin, data: st.DataObject) -> None:
    supply = kernel(twin)
    untouched = supply.snapshot()
    cpus = st.sets(st.sampled_from(sorted(twin.masks[-1]) or [0]), max_size=5)
    for _ in range(data.draw(st.integers(0, 10))):
        match data.draw(st.sampled_from(("take", "give", "book", "book", "unbook"))):
            case "take":
                take(supply, twin, data.draw(cpus))
            case "give":
                give(supply, twin, data.draw(cpus))
            case "book":
                milli = data.draw(amounts)
                shares = milli > 0 or data.draw(st.booleans())
                guest = shares and milli == 0 and data.draw(st.booleans())
                booking = (data.draw(st.integers(0, supply.count - 1)), milli, shares, guest)
                supply.book(*booking)
                twin.bookings.append(booking)
            case _ if twin.bookings:
                booking = data.draw(st.sampled_from(twin.bookings))
                refuse_what_is_not_booked(supply, twin, booking[0])
                supply.unbook(*booking)
                twin.bookings.remove(booking)
            case _:  # nothing is booked
                pass
        compare(supply, twin)
    compare_slack(supply, twin, data)
    compare_scores(supply, twin, data)
    for booking in twin.bookings:
        supply.unbook(*booking)
    supply.give(CPUSet(twin.taken & twin.sharable))
    supply.give(CPUSet(twin.taken & twin.isolated))
    assert supply.snapshot() == untouched


def refuse_what_is_not_booked(supply: Supply, twin: Twin, pool: int) -> None:
    """Nothing is taken back of a sort that is nowhere in the pool's subtree, nor more than is."""
    before, below = supply.snapshot(), twin.below(pool)
    assert refused(lambda: supply.unbook(pool, twin.milli(pool) + 1, True, False))
    for sort in ((True, True), (True, False)):
        if sort not in [booking[2:] for booking in below]:
            assert refused(lambda: supply.unbook(pool, 0, *sort))  # noqa: B023
    assert supply.snapshot() == before


def kernel(twin: Twin) -> Supply:
    masks = [CPUSet(cpus) for cpus in twin.masks]
    sharable, isolated = CPUSet(twin.sharable), CPUSet(twin.isolated)
    return Supply(twin.parents, masks, sharable, isolated, twin.wide, twin.package_milli)


def take(supply: Supply, twin: Twin, cpus: set[int]) -> None:
    before = supply.snapshot()
    if cpus <= twin.sharable - twin.taken or cpus <= twin.isolated - twin.taken:
        supply.take(CPUSet(cpus))
        twin.taken |= cpus
        return
    assert refused(lambda: supply.take(CPUSet(cpus)))
    assert supply.snapshot() == before


def give(supply: Supply, twin: Twin, cpus: set[int]) -> None:
    before = supply.snapshot()
    if cpus <= twin.taken and (cpus <= twin.sharable or cpus <= twin.isolated):
        supply.give(CPUSet(cpus))
        twin.taken -= cpus
        return
    assert refused(lambda: supply.give(CPUSet(cpus)))
    assert supply.snapshot() == before


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False


def compare_slack(supply: Supply, twin: Twin, data: st.DataObject) -> None:
    """`permits` is the rule of §2 for one set, need for need."""
    pool = data.draw(st.integers(0, supply.count - 1))
    milli, guests = data.draw(amounts), data.draw(st.booleans())
    shares = milli > 0 or data.draw(st.booleans())
    slack = supply.slack(pool, milli, shares, guests)
    free = sorted(twin.free(pool))
    for _ in range(5):
        cut = set(data.draw(st.lists(st.sampled_from(free), max_size=6))) if free else set()
        concerned = [q for q in range(supply.count) if q in twin.path(pool) or twin.masks[q] & cut]
        allowed = all(
            1000 * len(twin.free(q) - cut)
            >= twin.need(q, *((milli, shares) if q in twin.path(pool) else (0, False)), guests)
            for q in concerned
        )
        assert slack.permits(CPUSet(cut)) == allowed, (pool, cut)


def compare_scores(supply: Supply, twin: Twin, data: st.DataObject) -> None:
    """Every cell of the table, what is missing, and the best row."""
    exclusive = data.draw(st.integers(0, 5) | st.just(10**9))
    milli = data.draw(amounts | st.just(10**12))
    shares = exclusive == 0 or milli > 0
    milli = milli if shares else 0
    isolated = data.draw(st.integers(0, 2)) if exclusive else 0
    guests = data.draw(st.booleans())
    limit = data.draw(st.none() | st.sampled_from((0, 500, 3000, 10**9)))
    levels = None
    if data.draw(st.booleans()):
        levels = [data.draw(st.integers(-5, 0)) for _ in range(supply.count)]
    tight = data.draw(st.booleans())
    wanted = data.draw(st.none() | st.sets(st.integers(0, 400), max_size=20))
    table = supply.score(
        exclusive=exclusive,
        milli=milli,
        shares=shares,
        isolated=isolated,
        with_preemptible=guests,
        limit=limit,
        burst_levels=levels,
        wanted_class=None if wanted is None else CPUSet(wanted),
        tight=tight,
    )
    rows = {}
    for pool in range(supply.count):
        spare = len(twin.masks[pool] & twin.isolated - twin.taken)
        fit = isolated > 0 and 0 < exclusive <= spare
        cut = 0 if fit else exclusive
        rank, room = twin.rank(pool, milli, shares, guests), twin.room(pool, milli, shares, guests)
        row = {column.name.lower(): 0.0 for column in Column}
        row["isolated_fit"] = int(fit or not isolated)
        if limit is not None:
            row["burst_room"] = min(0, twin.allocatable(pool) - limit)
            row["burst_room"] -= limit // 4 if pool in twin.wide else 0
            row["burst_room"] -= limit // 4 if limit <= twin.package_milli[pool] else 0
        elif levels is not None:
            row["burst_level"], row["burst_room"] = levels[pool], twin.allocatable(pool)
        if wanted is not None:
            row["cpu_class"] = int(len(twin.free(pool) & wanted) >= exclusive)
        row["undisturbed_memory"] = 1
        row["depth"] = len(twin.path(pool)) - 1
        if exclusive:
            row["quiet"] = -sum(milli > 0 for _, milli, _, _ in twin.below(pool))
        colocated = sum(at == pool and shares for at, _, shares, _ in twin.bookings)
        row["capacity"], row["capacity_second"] = (
            (spare - exclusive, 0)
            if fit
            else ((cut - rank if tight else rank - cut), 0)
            if exclusive
            else (-colocated, twin.allocatable(pool) - milli)
        )
        row["id"] = -pool
        rows[pool] = tuple(row.values())
        assert table.row(pool) == rows[pool]
        short = 1000 * (cut - rank) if cut else -room if shares else 0
        if isolated == 2 and not fit:
            short = 1000 * (exclusive - spare)
        assert table.missing(pool) == max(0, short)
    compare_comparison(table, rows, data)


def compare_comparison(
    table: Table, rows: dict[int, tuple[float, ...]], data: st.DataObject
) -> None:
    """The best is the maximum of the tuples; who is excluded is never the best."""
    fitting = [pool for pool in rows if not table.missing(pool)]
    assert table.best() == max(fitting, key=rows.__getitem__, default=None)
    first, last = sorted(data.draw(st.sampled_from(sorted(rows))) for _ in range(2))
    inside = [pool for pool in fitting if first <= pool <= last]
    assert table.best(first, last) == max(inside, key=rows.__getitem__, default=None)
    to_depth = Column.DEPTH + 1
    assert table.outranks(first, last) == (rows[first][:to_depth] > rows[last][:to_depth])
    assert table.closest() == min(rows, key=lambda pool: (table.missing(pool), -pool))
    for pool in data.draw(st.sets(st.sampled_from(sorted(rows)))):
        assert table.fits(pool) == (pool in fitting)
        table.exclude(pool)
        del rows[pool]
        assert not table.fits(pool)
    fitting = [pool for pool in fitting if pool in rows]
    assert table.best() == max(fitting, key=rows.__getitem__, default=None)
    closest = min(rows, key=lambda pool: (table.missing(pool), -pool), default=table.count - 1)
    assert table.closest() == closest


@given(trees())
@settings(max_examples=20, deadline=None)
def test_what_is_out_of_range_is_an_error_and_changes_nothing(twin: Twin) -> None:
    supply = kernel(twin)
    before = supply.snapshot()
    for pool in (-1, supply.count):
        assert refused(lambda: supply.book(pool, 100, True, False))  # noqa: B023
        assert refused(lambda: supply.allocatable_shared(pool))  # noqa: B023
        assert refused(lambda: supply.shared_milli_in(pool))  # noqa: B023
        assert refused(lambda: supply.slack(pool, 0, False, True))  # noqa: B023
    for booking in ((0, -1, True, False), (0, 1, False, False), (0, 1, True, True)):
        assert refused(lambda: supply.book(*booking))  # noqa: B023
    assert refused(lambda: supply.unbook(0, 0, True, False)), "nothing is booked"
    assert refused(lambda: supply.restore(before + b"\0"))
    assert refused(lambda: supply.take(CPUSet([8000])))
    supply.take(EMPTY)
    supply.give(EMPTY)
    assert supply.snapshot() == before
