"""The Picker kernel against plain Python: the stages of placement.md §6, and examples by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.cpuset import CPUSet
from nri_policy.pools.picker import Picker, picker_of
from nri_policy.pools.supply import Slack, Supply
from tests.support import nodes

EXAMPLES = int(os.environ.get("NRI_POLICY_SEQUENCES", "500"))

Allows = Callable[[set[int]], bool]  # whether the laminar constraint admits all of these at once


@dataclass
class Twin:
    """Who takes what, stage by stage."""

    packages: list[set[int]]
    dies: list[set[int]]
    caches: list[set[int]]
    cores: list[set[int]]
    domains: list[set[int]]
    taken: set[int] = field(default_factory=set)
    beside: list[int] = field(default_factory=list)  # CPUs held before, and all taken since

    def pick(
        self, n: int, candidates: set[int], classes: Sequence[set[int]], held: set[int], ok: Allows
    ) -> set[int] | None:
        self.taken, self.beside = set(), sorted(held)
        rest = candidates
        for part in classes:
            self.stages(n, candidates & part, ok)
            rest = rest - part
        self.stages(n, rest, ok)
        return self.taken if len(self.taken) == n else None

    def near(self, sets: list[set[int]], cpu: int) -> int:
        home = next(cpus for cpus in sets if cpu in cpus)
        return sum(other in home for other in self.beside)

    def stages(self, n: int, left: set[int], ok: Allows) -> None:
        left = set(left)

        def idle(groups: list[set[int]]) -> list[set[int]]:
            size = n - len(self.taken)
            return [g for g in groups if len(g) <= size and g <= left and ok(self.taken | g)]

        def take(cpus: set[int]) -> None:
            left.difference_update(cpus)
            self.taken |= cpus
            self.beside += cpus

        for groups in (self.packages, self.dies, self.caches):
            while n - len(self.taken) > 1 and (whole := idle(groups)):
                take(min(whole, key=lambda g: (-self.near(self.packages, min(g)), -len(g), min(g))))
        while whole := idle(self.cores):  # from one domain after the other
            wanted = n - len(self.taken)

            def worth(domain: set[int], wanted: int = wanted) -> tuple[int, ...]:
                threads = sum(len(core) for core in whole if min(core) in domain)
                near = self.near(self.packages, min(domain)), self.near(self.domains, min(domain))
                tight = -threads if threads >= wanted else threads
                return *near, int(threads >= wanted), tight, -min(domain)

            domain = max((d for d in self.domains if any(min(c) in d for c in whole)), key=worth)
            for core in sorted((c for c in self.cores if min(c) in domain), key=min):
                if core in idle(self.cores):
                    take(core)
        while len(self.taken) < n and (single := [cpu for cpu in left if ok(self.taken | {cpu})]):
            broken = {cpu for core in self.cores if not core <= left for cpu in core}
            near = {
                cpu: (self.near(self.packages, cpu), self.near(self.domains, cpu)) for cpu in single
            }
            take({max(single, key=lambda cpu: (cpu in broken, near[cpu], -cpu))})


def anything(_: set[int]) -> bool:
    return True


@st.composite
def topologies(draw: st.DrawFn) -> Twin:
    """Nested groups with CPUs missing from them, in any numbering."""
    packages, dies, caches, cores, domains = [], [], [], [], []
    cpu = 0
    for _ in range(draw(st.integers(1, 3))):
        package: set[int] = set()
        for _ in range(draw(st.integers(1, 2))):
            die: set[int] = set()
            for _ in range(draw(st.integers(1, 3))):
                cache: set[int] = set()
                for _ in range(draw(st.integers(1, 4))):
                    threads = draw(st.sampled_from((1, 2, 2, 2, 4)))
                    core = set(range(cpu, cpu + threads))
                    cpu += threads
                    cores.append(core)
                    cache |= core
                caches.append(cache)
                die |= cache
            dies.append(die)
            package |= die
        packages.append(package)
    offline = draw(st.sets(st.integers(0, cpu - 1), max_size=cpu // 4))
    order = draw(st.permutations(range(cpu))) if draw(st.booleans()) else list(range(cpu))
    stride = draw(st.sampled_from((1, 1, 5)))

    def real(groups: list[set[int]]) -> list[set[int]]:
        kept = [{stride * order[one] for one in group - offline} for group in groups]
        return [group for group in kept if group]

    if not (packages := real(packages)):
        return Twin([{0}], [], [], [{0}], [{0}])
    domains = real(caches)
    caches = real(caches)
    match draw(st.sampled_from(("all", "all", "none", "some"))):
        case "none":  # no L3 ids
            caches, domains = [], packages
        case "some":
            caches = caches[::2]
            covered = set().union(*caches)
            domains = [*caches, *filter(None, (package - covered for package in packages))]
    dies = real(dies) if draw(st.booleans()) else []
    cores = real(cores)
    return Twin(packages, dies, caches, cores, domains)


def kernel(twin: Twin) -> Picker:
    def sets(groups: list[set[int]]) -> list[CPUSet]:
        return [CPUSet(group) for group in groups]

    return Picker(
        sets(twin.packages),
        sets(twin.dies),
        sets(twin.caches),
        sets(twin.cores),
        sets(twin.domains),
    )


def outcome(
    picker: Picker,
    n: int,
    candidates: set[int],
    classes: Sequence[set[int]] = (),
    *,
    slack: Slack | None = None,
    held: set[int] | None = None,
) -> set[int] | None:
    try:
        picked = picker.pick(
            n,
            CPUSet(candidates),
            [CPUSet(part) for part in classes],
            slack,
            None if held is None else CPUSet(held),
        )
    except ValueError:
        return None
    assert len(picked) == n
    return set(picked)


def subsets(cpus: set[int]) -> st.SearchStrategy[set[int]]:
    """Any part of *cpus*; mostly large ones."""
    some = st.sets(st.sampled_from(sorted(cpus)))
    return st.just(cpus) | some | some.map(lambda out: cpus - out)


@given(topologies(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_pick_is_the_twins(twin: Twin, data: st.DataObject) -> None:
    every = set().union(*twin.packages)
    candidates = data.draw(subsets(every))
    # what was held may be gone since: it is beside nothing
    held = data.draw(st.sets(st.sampled_from([*every, 701, 8191]), max_size=4))
    classes, rest = [], every
    for _ in range(data.draw(st.integers(0, 2))):
        classes.append(data.draw(subsets(rest or {0})) & rest)
        rest = rest - classes[-1]
    n = data.draw(st.integers(0, len(candidates) + 1))
    picked = outcome(kernel(twin), n, candidates, classes, held=held)
    assert picked == twin.pick(n, candidates, classes, held, anything)
    if n <= len(candidates):
        assert picked is not None
        assert picked <= candidates
        most = min(n, len(candidates & classes[0])) if classes else 0
        assert len(picked & classes[0] if classes else ()) == most
    else:
        assert picked is None


@given(topologies(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_picks_respect_the_slack_and_find_all_that_it_admits(
    twin: Twin, data: st.DataObject
) -> None:
    every = set().union(*twin.packages)
    free = set(data.draw(st.lists(st.sampled_from(sorted(every)), max_size=9)))
    parents, masks = nested([*twin.packages, *twin.dies, *twin.caches, every])
    supply = Supply(parents, [CPUSet(mask) for mask in masks], CPUSet(free), CPUSet())
    for _ in range(data.draw(st.integers(0, 4))):
        pool, milli = data.draw(st.integers(0, len(masks) - 1)), data.draw(st.integers(0, 2500))
        if milli <= supply.allocatable_shared(pool):
            supply.book(pool, milli, True, False)
    home = data.draw(st.integers(0, len(masks) - 1))
    shared = data.draw(st.sampled_from((0, 500)))
    spare = {
        pool: 1000 * len(free & mask)
        - supply.shared_milli_in(pool)
        - (shared if masks[home] <= mask else 0)
        for pool, mask in enumerate(masks)
    }

    def allows(cut: set[int]) -> bool:
        slack = supply.slack(home, shared, shared > 0, True)
        return slack.permits(CPUSet(cut))

    candidates = free & masks[home]
    assert not allows(set()) or all(
        spare[pool] >= 0 for pool, mask in enumerate(masks) if masks[home] <= mask
    )
    rank = 0
    if allows(set()):
        rank = max(
            size
            for size in range(len(candidates) + 1)
            if any(allows(set(cut)) for cut in combinations(sorted(candidates), size))
        )
    n = data.draw(st.integers(0, rank))
    if not allows(set()):
        return
    slack = supply.slack(home, shared, shared > 0, True)
    picked = outcome(kernel(twin), n, candidates, slack=slack)
    assert picked == twin.pick(n, candidates, (), set(), allows)
    assert picked is not None
    assert allows(picked)
    slack = supply.slack(home, shared, shared > 0, True)
    assert outcome(kernel(twin), rank + 1, candidates, slack=slack) is None


@given(topologies(), st.data())
@settings(max_examples=100, deadline=None)
def test_first_threads_are_the_lowest_of_each_core(twin: Twin, data: st.DataObject) -> None:
    cpus = data.draw(subsets(set().union(*twin.packages)))
    first = kernel(twin).first_threads(CPUSet(cpus | {8191}))
    assert set(first) == {min(core & cpus) for core in twin.cores if core & cpus}


def nested(sets: list[set[int]]) -> tuple[list[int], list[set[int]]]:
    """Return the tree of distinct nested sets in an order with parents last."""
    masks: list[set[int]] = []
    for mask in sorted(sets, key=len):
        if mask not in masks:
            masks.append(mask)
    parents = [
        next((q for q in range(p + 1, len(masks)) if masks[p] < masks[q]), -1)
        for p in range(len(masks))
    ]
    return parents, masks


# 2 packages x 2 dies x 2 L3 domains x 2 cores x 2 threads: domain k is 4k..4k+3, siblings adjacent
LARGE = "package:2 die:2 l3:2 core:2 pu:2"


@pytest.mark.parametrize(
    ("n", "candidates", "picked"),
    [
        (32, "0-31", "0-31"),
        (16, "1-31", "16-31"),  # the idle package
        (17, "0-30", "0-15,30"),  # it, then the thread that no one else has beside it
        (17, "0-31", "0-16"),  # it, then the lowest thread
        (8, "0-31", "0-7"),  # a die
        (8, "0-5,8-15,16-31", "8-15"),
        (12, "0-31", "0-11"),  # a die, then a domain beside it
        (12, "4-11,16-31", "16-27"),  # of dies 2 and 3, since package 0 has none whole
        (4, "1-31", "4-7"),  # a domain
        (4, "2-5,8-9,12-13", "2-5"),  # cores, from two domains: no domain has two
        (6, "0-3,6-11", "0-3,6-7"),  # a domain, then a core of the same package, lowest first
        (3, "0-31", "0-2"),  # a core, then a thread beside it
        (3, "1,4-7", "1,4-5"),  # a core, then a thread of a broken core
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


def test_fewer_than_wanted_is_an_error_that_says_by_how_much() -> None:
    picker = picker_of(nodes.machine(LARGE))
    with pytest.raises(ValueError, match=r"cannot pick 4 CPUs from '1-3': 1 too few"):
        picker.pick(4, CPUSet.parse("1-3"))
    with pytest.raises(ValueError, match="cannot pick -1 CPUs"):
        picker.pick(-1, CPUSet.parse("1-3"))
    with pytest.raises(ValueError, match="1 too few"):
        picker.pick(1, CPUSet([8000]))
