"""The kernels that pick CPUs against plain Python: placement.md §6, and examples by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.picker import Domains, Picker, picker_of
from nri_policy.pools.supply import Slack, Supply
from tests.support import nodes

EXAMPLES = 500


@dataclass(kw_only=True)
class Twin:
    """Who takes what: the domains first, then stage by stage."""

    levels: list[list[set[int]]]  # packages, NUMA nodes, L3 domains: each has every CPU once
    dies: list[set[int]]
    groups: list[set[int]]  # L3 domains and clusters that are taken whole
    cores: list[set[int]]
    limits: dict[frozenset[int], int] = field(default_factory=dict)  # pool -> CPUs to take of it
    shared: list[set[int]] = field(default_factory=list)  # pools with somebody who shares
    spare_cores: bool = False
    spares: bool = False  # whether this pick takes idle cores before broken ones
    whole_cores: bool = False
    counts: bool = True  # by brute force, which takes as many steps as there are sets of domains
    taken: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)  # CPUs held before, and all taken since
    left: set[int] = field(default_factory=set)
    wanted: int = 0
    regretted: bool = False  # the largest gain first took more of a finer level than necessary

    @property
    def every(self) -> set[int]:
        return set().union(*self.cores)

    def pick(
        self,
        n: int,
        candidates: set[int],
        classes: Sequence[set[int]] = (),
        held: Iterable[int] = (),
    ) -> set[int] | None:
        self.taken, self.own, self.regretted = set(), set(held) & self.every, False
        self.spares = self.spare_cores or n > 1
        rest = candidates
        for part in classes:
            self.stages(n - len(self.taken), candidates & part, candidates)
            rest = rest - part
        self.stages(n - len(self.taken), rest, candidates)
        return self.taken if len(self.taken) >= n else None

    def allows(self, cpus: set[int], unit: int = 1) -> bool:
        """Whether all of *cpus* may be taken besides what was; of each pool whole *unit*s only."""
        return all(
            len(mask & cpus) <= (most - len(mask & self.taken)) // unit * unit
            for mask, most in self.limits.items()
        )

    def rank(self, cpus: set[int], unit: int = 1) -> int:
        """How many of *cpus* may be taken: one after the other in any order, for limits nest."""
        some: set[int] = set()
        for cpu in cpus:
            if self.allows(some | {cpu}, unit):
                some.add(cpu)
        return len(some)

    def outside(self, n: int, candidates: set[int], unit: int) -> int:
        """How many of *n* threads are not on whole idle cores, these taken in their order."""
        some: set[int] = set()
        for domain in self.levels[-1]:
            for core in sorted((c for c in self.cores if min(c) in domain), key=min):
                if len(some | core) <= n and core <= candidates and self.allows(some | core, unit):
                    some |= core
        return n - len(some)

    def extend(
        self, level: int, area: set[int], n: int, candidates: set[int], unit: int
    ) -> tuple[tuple[int, ...], set[int]]:
        """Return how many domains of each level hold *n* of *area*, and the CPUs of the finest."""
        if level == len(self.levels):
            return (), area
        domains = [domain for domain in self.levels[level] if domain <= area]
        chosen = [domain for domain in domains if domain & self.own]
        kept = len(chosen)

        def held(*more: set[int]) -> set[int]:
            return set().union(*chosen, *more) & candidates

        while (got := self.rank(held(), unit)) < n:
            gains = {
                at: self.rank(held(domain), unit) - got
                for at, domain in enumerate(domains)
                if domain not in chosen
            }
            enough = [at for at, gain in gains.items() if got + gain >= n]

            def worth(at: int, gains: dict[int, int] = gains) -> tuple[object, ...]:
                area = set().union(*chosen, domains[at])
                return (
                    self.extend(level + 1, area, n, candidates, unit)[0],
                    self.outside(n, held(domains[at]), unit),
                    any(pool <= domains[at] for pool in self.shared),
                    gains[at],
                    at,
                )

            best = (
                min(enough, key=worth)
                if enough
                else max(gains, key=lambda at: (gains[at], len(domains[at] & candidates), -at))
            )
            chosen.append(domains[best])
        finer, area = self.extend(level + 1, set().union(*chosen), n, candidates, unit)
        return (len(chosen) - kept, *finer), area

    def fewest(self, n: int, candidates: set[int], unit: int = 1) -> tuple[int, ...]:
        """How many domains of each level hold *n*, by trying all sets of them."""
        kept = [domain for domain in self.levels[-1] if domain & self.own]
        others = [domain for domain in self.levels[-1] if domain not in kept]
        return min(
            self.touched(set().union(*kept, *some))
            for size in range(len(others) + 1)
            for some in combinations(others, size)
            if self.rank(set().union(*kept, *some) & candidates, unit) >= n
        )

    def touched(self, cpus: set[int]) -> tuple[int, ...]:
        """How many domains of each level *cpus* touch that the taker is not in."""
        return tuple(
            sum(bool(domain & cpus) and not domain & self.own for domain in level)
            for level in self.levels
        )

    def near(self, level: int, cpu: int) -> int:
        home = next(cpus for cpus in self.levels[level] if cpu in cpus)
        return len(home & self.own)

    def stages(self, n: int, left: set[int], candidates: set[int]) -> None:
        """Take *n* of *left*, or as many as there are."""
        if n <= 0:
            return
        self.left, unit = set(left), 1
        if self.whole_cores:
            idle_cores = [core for core in self.cores if core <= left]
            self.left = set().union(*idle_cores)
            sizes = {len(core) for core in idle_cores}
            unit = sizes.pop() if len(sizes) == 1 else 1
            n += -n % unit
        self.wanted = min(n, self.rank(self.left, unit))
        touched, area = self.extend(0, self.every, self.wanted, self.left, unit)
        if self.counts:
            self.regretted |= touched != self.fewest(self.wanted, self.left, unit)
        self.left &= area
        while self.wanted > 1 and (whole := self.idle(self.groups)):
            self.take(min(whole, key=lambda g: (-self.near(0, min(g)), -len(g), min(g))))
        while whole := self.idle(self.cores):
            self.take_cores_of_a_domain(whole)
        if self.whole_cores:
            larger = [c for c in self.in_order(self.cores) if c <= self.left and self.allows(c)]
            if self.wanted > 0 and larger:
                self.take(min(larger, key=len))
            return
        while self.wanted and self.take_thread(candidates):
            pass

    def idle(self, groups: list[set[int]]) -> list[set[int]]:
        return [g for g in groups if len(g) <= self.wanted and g <= self.left and self.allows(g)]

    def take(self, cpus: set[int]) -> None:
        self.left.difference_update(cpus)
        self.taken |= cpus
        self.own |= cpus
        self.wanted -= len(cpus)

    def take_cores_of_a_domain(self, whole: list[set[int]]) -> None:
        def worth(domain: set[int]) -> tuple[int, ...]:
            threads = sum(len(core) for core in whole if min(core) in domain)
            limit = self.limits.get(frozenset(domain), 1 << 30)
            threads = min(threads, limit - len(domain & self.taken))
            near = self.near(0, min(domain)), self.near(2, min(domain))
            enough = threads >= self.wanted
            tight = -threads if enough else threads
            return *near, int(enough), tight, -self.levels[-1].index(domain)

        homes = [domain for domain in self.levels[-1] if any(min(core) in domain for core in whole)]
        domain = max(homes, key=worth)
        for core in sorted((core for core in self.cores if min(core) in domain), key=min):
            if core in self.idle(self.cores):
                self.take(core)

    def take_thread(self, candidates: set[int]) -> bool:
        cores = {cpu: core for core in self.cores for cpu in core}

        def worth(cpu: int) -> tuple[int, ...]:
            if cores[cpu] & self.own:
                state = 2
            else:
                broken = not cores[cpu] <= candidates
                state = int(broken != self.spares)
            return self.near(2, cpu), self.near(0, cpu), state, -cpu

        single = [cpu for cpu in self.left if self.allows({cpu})]
        if single:
            self.take({max(single, key=worth)})
        return bool(single)

    def in_order(self, cores: list[set[int]]) -> list[set[int]]:
        """Return *cores* by L3 domain."""
        homes = self.levels[-1]
        return sorted(
            cores, key=lambda core: (next(i for i, d in enumerate(homes) if core & d), min(core))
        )


@st.composite
def topologies(draw: st.DrawFn) -> Twin:
    """Nested domains with CPUs missing from them, in any numbering."""
    packages, dies, nodes_, caches, cores = [], [], [], [], []
    cpu, small = 0, 0
    widths = draw(st.sampled_from(((1,), (2,), (2,), (1, 2), (4,))))
    for _ in range(draw(st.integers(1, 3))):
        package: set[int] = set()
        for _ in range(draw(st.integers(1, 2))):
            die: set[int] = set()
            for _ in range(draw(st.integers(1, 2)) if small < 6 else 1):
                node: set[int] = set()
                for _ in range(draw(st.integers(1, 2)) if small < 5 else 1):
                    cache: set[int] = set()
                    small += 1
                    for _ in range(draw(st.integers(1, 3))):
                        core = set(range(cpu, cpu + draw(st.sampled_from(widths))))
                        cpu += len(core)
                        cores.append(core)
                        cache |= core
                    caches.append(cache)
                    node |= cache
                nodes_.append(node)
                die |= node
            dies.append(die)
            package |= die
        packages.append(package)
    offline = draw(st.sets(st.integers(0, cpu - 1), max_size=cpu // 4))
    order = draw(st.permutations(range(cpu))) if draw(st.booleans()) else list(range(cpu))
    stride = draw(st.sampled_from((1, 1, 5)))

    def real(groups: list[set[int]]) -> list[set[int]]:
        kept = [{stride * order[one] for one in group - offline} for group in groups]
        return [group for group in kept if group]

    packages, nodes_, caches = real(packages), real(nodes_), real(caches)
    groups = draw(st.sampled_from((caches, caches, [], caches[::2])))
    if draw(st.integers(0, 3)) == 0:  # no L3 ids: the nodes, or the packages, stand for them
        caches = nodes_ = draw(st.sampled_from((nodes_, packages)))
    dies = real(dies) if draw(st.booleans()) and nodes_ is not packages else []
    return Twin(levels=[packages, nodes_, caches], dies=dies, groups=groups, cores=real(cores))


def pools(twin: Twin) -> tuple[list[int], list[set[int]]]:
    """Return the parents and the CPUs of the domains' tree, in post-order."""
    sets = [twin.every, *twin.levels[0], *twin.dies, *twin.levels[1], *twin.levels[2]]
    masks: list[set[int]] = []
    parents: list[int] = []

    def grow(area: set[int]) -> int:
        inside = [one for at, one in enumerate(sets) if one < area and one not in sets[:at]]
        children = [one for one in inside if not any(one < other for other in inside)]
        below = [grow(child) for child in children]
        masks.append(area)
        parents.append(-1)
        for child in below:
            parents[child] = len(masks) - 1
        return len(masks) - 1

    grow(twin.every)
    return parents, masks


def kernel(twin: Twin) -> Picker:
    parents, masks = pools(twin)
    at = [
        [next((masks.index(home) for home in level if mask <= home), -1) for mask in masks]
        for level in twin.levels
    ]
    leaves = [CPUSet(mask) if at not in parents else None for at, mask in enumerate(masks)]
    domains = Domains(
        parents,
        [*range(len(masks))],
        at,
        leaves,
        [CPUSet(core) for core in twin.cores],
    )
    return Picker(domains, [CPUSet(group) for group in twin.groups])


def outcome(
    picker: Picker,
    n: int,
    candidates: set[int],
    classes: Sequence[set[int]] = (),
    *,
    twin: Twin,
    slack: Slack | None = None,
    held: Iterable[int] = (),
) -> set[int] | None:
    try:
        picked = picker.pick(
            n,
            CPUSet(candidates),
            [CPUSet(part) for part in classes],
            slack,
            CPUSet(held),
            spare_cores=twin.spare_cores,
            whole_cores=twin.whole_cores,
        )
    except ValueError:
        return None
    assert len(picked) == n or twin.whole_cores
    return set(picked)


def subsets(cpus: set[int]) -> st.SearchStrategy[set[int]]:
    """Any part of *cpus*; mostly large ones."""
    some = st.sets(st.sampled_from(sorted(cpus)))
    return st.just(cpus) | some | some.map(lambda out: cpus - out)


@given(topologies(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_pick_is_the_twins(twin: Twin, data: st.DataObject) -> None:
    every = twin.every
    # CPUs that were held may no longer exist: these are near no other CPU
    held = data.draw(st.sets(st.sampled_from([*every, 701, 8191]), max_size=4))
    candidates = data.draw(subsets(every)) - held
    classes, rest = [], every
    for _ in range(data.draw(st.integers(0, 2))):
        classes.append(data.draw(subsets(rest or {0})) & rest)
        rest = rest - classes[-1]
    n = data.draw(st.integers(0, len(candidates) + 1))
    twin.spare_cores = data.draw(st.booleans())
    picked = outcome(kernel(twin), n, candidates, classes, held=held, twin=twin)
    expected = twin.pick(n, candidates, classes, held)
    assert twin.regretted or picked == expected
    assert (picked is None) == (n > len(candidates))
    if picked is not None and classes:
        assert len(picked & classes[0]) == min(n, len(candidates & classes[0]))
    elif picked is not None:
        twin.own, twin.taken = held & every, set()
        assert twin.touched(picked) == twin.fewest(n, candidates)


@given(topologies(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_picks_within_limits_touch_the_fewest_domains(twin: Twin, data: st.DataObject) -> None:
    parents, masks = pools(twin)
    free = data.draw(subsets(twin.every))
    supply = Supply(parents, [CPUSet(mask) for mask in masks], CPUSet(free), CPUSet())
    sharing = []
    for _ in range(data.draw(st.integers(0, 4))):
        pool, milli = data.draw(st.integers(0, len(masks) - 1)), data.draw(st.integers(0, 2500))
        if milli <= supply.allocatable_shared(pool):
            supply.book(pool, milli, True, False)
            sharing.append(masks[pool])
            twin.shared += [masks[pool]] if milli else []
    home = data.draw(st.integers(0, len(masks) - 1))
    shared = data.draw(st.sampled_from((0, 500)))
    for pool, mask in enumerate(masks):
        milli = supply.shared_milli_in(pool) + (shared if masks[home] <= mask else 0)
        least = 1000 * any(one <= mask for one in sharing)
        if shared and masks[home] <= mask:
            least = 1000
        twin.limits[frozenset(mask)] = len(free & mask) - -(-max(milli, least) // 1000)
    candidates = free & masks[home]
    if not twin.allows(set()):
        return
    twin.whole_cores = data.draw(st.booleans())
    n = data.draw(st.integers(0, len(candidates) + 1))
    slack = supply.slack(home, shared, shared > 0, True)
    picked = outcome(kernel(twin), n, candidates, slack=slack, twin=twin)
    expected = twin.pick(n, candidates)
    assert twin.regretted or picked == expected
    twin.own, twin.taken = set(), set()
    assert picked is None or twin.allows(picked)
    if twin.whole_cores:
        assert picked is None or all(core <= picked for core in twin.cores if core & picked)
    else:
        assert (picked is None) == (n > twin.rank(candidates))
        assert picked is None or twin.touched(picked) == twin.fewest(n, candidates)


@given(topologies(), st.data())
@settings(max_examples=100, deadline=None)
def test_touched_domains_are_counted_by_level(twin: Twin, data: st.DataObject) -> None:
    cpus = data.draw(subsets(twin.every))
    assert kernel(twin).domains.touched(CPUSet(cpus | {8191})) == twin.touched(cpus)


@given(topologies(), st.data())
@settings(max_examples=100, deadline=None)
def test_first_threads_are_the_lowest_of_each_core(twin: Twin, data: st.DataObject) -> None:
    cpus = data.draw(subsets(twin.every))
    first = kernel(twin).first_threads(CPUSet(cpus | {8191}))
    assert set(first) == {min(core & cpus) for core in twin.cores if core & cpus}


# 2 packages x 2 dies x 2 L3 domains x 2 cores x 2 threads: domain k is 4k..4k+3, siblings adjacent
LARGE = "package:2 die:2 l3:2 core:2 pu:2"


@pytest.mark.parametrize(
    ("n", "candidates", "picked"),
    [
        (32, "0-31", "0-31"),
        (16, "1-31", "16-31"),  # the idle package
        (17, "0-30", "0-15,28"),  # it, then the thread of an idle core in the tightest domain
        (17, "0-31", "0-16"),  # it, then the lowest thread
        (8, "0-31", "0-7"),  # a die
        (8, "0-5,8-15,16-31", "0-3,8-11"),  # two L3 domains of the package with least to spare
        (12, "0-31", "0-11"),  # a die, then a domain beside it
        (12, "4-11,16-31", "16-27"),  # of dies 2 and 3, since package 0 has none whole
        (4, "1-31", "4-7"),  # a domain
        (4, "2-5,8-9,12-13", "2-5"),  # cores, from two domains: no domain has two
        (6, "0-3,6-11", "0-3,6-7"),  # a domain, then a core of the same package, lowest first
        (3, "0-31", "0-2"),  # a core, then a thread beside it
        (3, "1,4-7", "4-6"),  # one L3 domain, though core 0-1 is broken already
        (2, "1,3,5,7,30-31", "30-31"),  # a whole core far away before threads nearby
        (2, "1,3,5,7", "1,3"),
        (1, "0-4", "4"),  # core 4-5 is broken already
        (1, "0-31", "0"),
        (5, "0-2,4-6,8-10", "0-2,4-5"),  # two cores, then beside them the thread of a broken core
    ],
)
def test_each_stage_comes_before_the_next(n: int, candidates: str, picked: str) -> None:
    picker = picker_of(nodes.machine(LARGE))
    assert str(picker.pick(n, CPUSet.parse(candidates))) == picked


@pytest.mark.parametrize(
    ("spec", "n", "candidates", "picked"),
    [
        ("package:2 core:2 pu:4", 2, "0-15", "0-1"),
        ("package:2 core:2 pu:4", 5, "0-15", "0-4"),  # a core of four threads, then one
        ("package:2 core:2 pu:4", 4, "0-2,5-7,9-11,12-15", "12-15"),
        ("package:2 core:4 pu:1", 3, "1-7", "1-3"),  # the package where they fit tightly
        ("package:4 core:1 pu:1", 1, "1-3", "1"),
        ("package:3 core:3 pu:2 siblings=apart", 2, "0-17", "0,9"),
        ("package:3 core:3 pu:2 siblings=apart", 6, "0-17", "0-2,9-11"),
        ("package:1 cluster:2 l2:1 core:2 pu:1", 2, "1-3", "2-3"),  # the whole cluster
        ("package:2 core:3 pu:2 offline=3", 5, "0-2,4-11", "0-2,4-5"),  # idle: all that is online
        ("package:1 core:70 pu:1", 3, "62-66", "62-64"),
        ("package:1 core:1 pu:1", 1, "0", "0"),
    ],
)
def test_odd_machines_are_picked_from_alike(
    spec: str, n: int, candidates: str, picked: str
) -> None:
    picker = picker_of(nodes.machine(spec))
    assert str(picker.pick(n, CPUSet.parse(candidates))) == picked


def test_what_is_held_attracts_and_the_wanted_class_comes_first() -> None:
    picker = picker_of(nodes.machine(LARGE))
    everything = CPUSet(range(32))
    last = CPUSet([31])
    assert str(picker.pick(1, everything - last, beside=last)) == "30"
    assert str(picker.pick(2, everything - last, beside=last)) == "28-29"
    fast = CPUSet.parse("3,9,20-22")
    assert str(picker.pick(2, everything, [fast])) == "20-21"
    assert str(picker.pick(5, everything, [fast])) == "3,9,20-22"
    assert str(picker.pick(6, everything, [fast])) == "3,9,20-23"
    assert str(picker.pick(2, everything, [CPUSet([40]), CPUSet([5])])) == "4-5"


def test_a_set_that_a_finer_level_would_regret_is_not_taken() -> None:
    many = [{2 * node, 2 * node + 1} for node in range(5)]  # the package with most CPUs
    single = [set(range(10, 19)), set(range(19, 28))]
    nodes_ = [*many, *single]
    twin = Twin(
        levels=[[set(range(10)), *single], nodes_, nodes_],
        dies=[],
        groups=[],
        cores=[{cpu} for cpu in range(28)],
    )
    picked = outcome(kernel(twin), 15, twin.every, twin=twin)
    assert picked == set(range(10, 25))
    assert twin.pick(15, twin.every) != picked
    assert twin.regretted


@pytest.mark.parametrize(
    ("spec", "n", "candidates", "option", "picked"),
    [
        (LARGE, 1, "0-4", "", "4"),
        (LARGE, 1, "0-4", "spare", "4"),  # the tightest L3 domain has no idle core
        (LARGE, 1, "1-3", "", "1"),
        (LARGE, 1, "1-3", "spare", "2"),
        (LARGE, 3, "1-3,5,7", "spare", "1-3"),
        (LARGE, 3, "1-7", "whole", "4-7"),
        (LARGE, 1, "1,3,5,8-9", "whole", "8-9"),
        ("package:1 core:2 pu:4", 5, "0-7", "whole", "0-7"),
        ("package:2 core:3 pu:2 offline=3", 3, "0-2,4-11", "whole", "0-2"),
    ],
)
def test_cores_are_spared_or_taken_whole(
    spec: str, n: int, candidates: str, option: str, picked: str
) -> None:
    picker = picker_of(nodes.machine(spec))
    found = picker.pick(
        n,
        CPUSet.parse(candidates),
        spare_cores=option == "spare",
        whole_cores=option == "whole",
    )
    assert str(found) == picked


def test_too_few_whole_cores_are_an_error() -> None:
    picker = picker_of(nodes.machine(LARGE))
    with pytest.raises(ValueError, match="cannot pick 2 CPUs of whole idle cores from '1,3,5'"):
        picker.pick(2, CPUSet.parse("1,3,5"), whole_cores=True)


def test_fewer_than_wanted_is_an_error_that_says_by_how_much() -> None:
    picker = picker_of(nodes.machine(LARGE))
    with pytest.raises(ValueError, match=r"cannot pick 4 CPUs from '1-3': 1 too few"):
        picker.pick(4, CPUSet.parse("1-3"))
    with pytest.raises(ValueError, match="cannot pick -1 CPUs"):
        picker.pick(-1, CPUSet.parse("1-3"))
    with pytest.raises(ValueError, match="1 too few"):
        picker.pick(1, CPUSet([8000]))
