"""The packing kernels against plain Python, and what must hold whatever they choose."""

from __future__ import annotations

import struct
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nri_policy.native._counts import Counts
from nri_policy.native._domains import Domains, Mask, Rows, Vector
from nri_policy.native._packing import Entries, Refusal, pack
from nri_policy.native._unit_slices import (
    UnitSlices,
    all_may_fit,
    describe_domain,
    describe_left,
    take,
)
from tests.support import packing_twin as twin

EXAMPLES = 150

paths_of = st.integers(1, 3).flatmap(
    lambda depth: st.sets(
        st.tuples(*[st.sampled_from("abc")] * (depth - 1), st.sampled_from("abcdef")),
        min_size=1,
        max_size=12,
    ).map(sorted)
)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A tree of at most twelve leaves, a pod set, and how it is to be placed."""
    paths = draw(paths_of)
    depth, leaves = len(paths[0]), len(paths)
    amount = st.integers(-2, 9)
    slice_level = draw(st.integers(0, depth - 1))
    inner: dict[int, int] = {}
    size = draw(st.sampled_from([1, 1, 2, 4]))
    if slice_level < depth - 1 and size == 4 and draw(st.booleans()):
        inner = dict.fromkeys(
            range(slice_level + 1, draw(st.integers(slice_level + 1, depth - 1)) + 1), 2
        )
    if size == 1 and draw(st.booleans()):
        slice_level = depth - 1
    scored = draw(st.booleans())
    mode = draw(st.sampled_from(["required", "preferred", "unconstrained"]))
    balanced = mode == "preferred" and not inner and draw(st.booleans())
    return {
        "paths": paths,
        "rows": [{"cpu": draw(amount), "gpu": draw(amount)} for _ in range(leaves)],
        "pod": {"cpu": draw(st.integers(int(balanced), 3)), "gpu": draw(st.integers(0, 1))},
        "leader": draw(st.none() | st.just({"cpu": 2})) if not inner else None,
        "mask": [draw(st.sampled_from([0, 0, 0, 1])) for _ in range(leaves)],
        "scores": [draw(st.integers(0, 2)) if scored else 0 for _ in range(leaves)],
        "scored": scored,
        "size": size,
        "slice_level": slice_level,
        "inner": inner,
        "count": size * draw(st.integers(1, 12)),
        "level": draw(st.integers(0, slice_level)),
        "required": mode == "required",
        "unconstrained": mode == "unconstrained",
        "ascending": draw(st.booleans()),
        "balanced": balanced,
        "compact": draw(st.booleans()),
    }


def counted(case: dict[str, Any]) -> Counts:
    rows = Rows(Domains(case["paths"]))
    rows.fill(case["rows"])
    return counted_in(rows, case)


def counted_in(rows: Rows, case: dict[str, Any]) -> Counts:
    mask = Mask(len(case["paths"]), case["scored"])
    for leaf, (code, score) in enumerate(zip(case["mask"], case["scores"], strict=True)):
        mask.set(leaf, code, score)
    return Counts(
        rows,
        Vector(rows, case["pod"]),
        mask,
        size=case["size"],
        slice_level=case["slice_level"],
        inner=case["inner"],
        leader=case["leader"] and Vector(rows, case["leader"]),
    )


def packed(counts: Counts, case: dict[str, Any], within: int = -1) -> Any:
    names = ("level", "required", "unconstrained", "ascending", "balanced", "compact")
    more = {name: case[name] for name in names}
    try:
        places, leader = pack(counts, case["count"], within=within, **more)
    except Refusal as refusal:
        return (refusal.fits, refusal.level)
    return [*places], leader


def twin_levels(case: dict[str, Any]) -> list[list[twin.Domain]]:
    levels = twin.grow(case["paths"])
    names = ("leader", "mask", "scores", "size", "slice_level", "inner")
    twin.count(levels, case["rows"], case["pod"], **{name: case[name] for name in names})
    return levels


def twin_packed(case: dict[str, Any], within: twin.Path = ()) -> Any:
    levels = twin_levels(case)
    need, wanted = int(case["leader"] is not None), case["count"] // case["size"]
    more = {name: case[name] for name in ("size", "slice_level", "inner", "ascending", "compact")}
    if case["balanced"] and not within:
        more["ascending"] = False
        sizes = {name: case[name] for name in ("size", "slice_level")}
        found = twin.balance(levels, case["level"], wanted, need, **sizes)
        if found is not None:
            return twin.descend(levels, *found, case["count"], need, apart=True, **more)
    try:
        level, chosen = twin.choose(
            levels,
            case["level"],
            wanted,
            need,
            required=case["required"],
            unconstrained=case["unconstrained"],
            ascending=more["ascending"],
            within=within,
        )
    except twin.Unfit as unfit:
        return unfit.args
    return twin.descend(levels, level, chosen, case["count"], need, **more)


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_counts_and_their_roll_up_are_those_of_the_twin(case: dict[str, Any]) -> None:
    counts = counted(case)
    flat = [domain for level in twin_levels(case) for domain in level]
    for number, domain in enumerate(flat):
        leaders = domain.leaders
        expected = (
            domain.pods,
            domain.slices,
            domain.pods_l,
            domain.slices_l,
            leaders,
            domain.score,
        )
        assert counts.of(number) == expected, domain.path


BALANCED_AND_ASCENDING: dict[str, Any] = {
    "paths": [("a", "a", "a"), ("a", "a", "b"), ("a", "a", "c"), ("a", "b", "a")],
    "rows": [{"cpu": cpu} for cpu in (0, 1, 2, 0)],
    "pod": {"cpu": 1},
    "leader": None,
    "mask": [0] * 4,
    "scores": [0] * 4,
    "scored": False,
    "size": 1,
    "slice_level": 2,
    "inner": {},
    "count": 2,
    "level": 0,
    "required": False,
    "unconstrained": False,
    "ascending": True,
    "balanced": True,
    "compact": False,
}


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(cases())
@example(BALANCED_AND_ASCENDING)
def test_pods_go_where_the_twin_puts_them(case: dict[str, Any]) -> None:
    assert packed(counted(case), case) == twin_packed(case)


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases(), st.data())
def test_pods_go_where_the_twin_puts_them_within_a_domain(
    case: dict[str, Any], data: st.DataObject
) -> None:
    counts = counted(case)
    top = data.draw(st.integers(0, case["level"]))
    within = data.draw(st.sampled_from(counts.domains.of_level(top)))
    leaf = counts.domains.leaves_below(within).start
    answer = packed(counts, case, within)
    assert answer == twin_packed(case, case["paths"][leaf][: top + 1])
    if isinstance(answer[0], list):
        leaves = [at for at, _ in answer[0]] + [answer[1]] * (answer[1] >= 0)
        assert {*leaves} <= {*counts.domains.leaves_below(within)}


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_domains_that_hold_slices_are_found_best_fit_first(case: dict[str, Any]) -> None:
    counts, level, wanted = counted(case), case["level"], case["count"] // case["size"]
    led = case["leader"] is not None
    able = [
        (-score, slices, pods, domain)
        for domain in counts.domains.of_level(level)
        for _, _, pods, slices, leaders, score in [counts.of(domain)]
        if slices >= wanted and leaders >= led
    ]
    holders = [each[3] for each in sorted(able)]
    whole = UnitSlices(counts, level, wanted, whole=True)
    assert whole.holders() == holders
    assert whole.may_fit() == bool(holders)
    top = counts.domains.of_level(0)
    parted = UnitSlices(counts, level, wanted, whole=False)
    assert parted.may_fit() == (sum(counts.of(each)[1] for each in top) >= wanted)
    assert all_may_fit([whole, parted]) == (whole.may_fit() and parted.may_fit())
    for domain in top:
        leaves = counts.domains.leaves_below(domain)
        inside = {counts.domains.above(leaf, level) for leaf in leaves}
        own = [each for each in holders if each in inside]
        whole = UnitSlices(counts, level, wanted, whole=True, within=domain)
        assert whole.holders() == own
        assert whole.may_fit() == bool(own)


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_places_that_are_taken_and_given_back_leave_what_was_there(case: dict[str, Any]) -> None:
    counts, before = counted(case), counted(case).rows.dump()
    try:
        places, leader = pack(counts, case["count"], level=case["level"])
    except Refusal:
        return
    take(counts, places, leader, 1)
    expected = [{**row} for row in case["rows"]]
    for leaf, pods in places:
        for name, amount in case["pod"].items():
            expected[leaf][name] -= pods * amount
    for name, amount in (case["leader"] or {}).items():
        expected[leader][name] -= amount
    leaves = range(len(case["paths"]))
    assert [counts.rows.room(leaf) for leaf in leaves] == expected
    level, slices = case["level"], case["count"] // case["size"]
    last = counts.domains.of_level(len(case["paths"][0]) - 1)
    requests = case["pod"] | (case["leader"] or {})
    requested = {name for name in requests if case["pod"].get(name) or requests[name]}
    wanted: list[int] = []
    for leaf in sorted({leaf for leaf, _ in places} | {leader} - {-1}):
        pods, _, _, _, leaders, _ = counts.of(last[leaf])
        _, _, _, held, above, _ = counts.of(counts.domains.above(leaf, level))
        fits = not case["required"] or (held >= slices and above >= bool(case["leader"]))
        used = bool(pods or leaders) and fits
        free = counts.rows.room(leaf).items()
        wanted += leaf, used, *(used * (name in requested) * amount for name, amount in free)
    unit = UnitSlices(counts, level, slices, whole=case["required"])
    left = describe_left([unit], [(places, leader)])
    assert left == struct.pack(f"={len(wanted)}q", *wanted)
    take(counts, places, leader, -1)
    assert counts.rows.dump() == before


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_domains_are_described_alike_if_they_hold_as_many(case: dict[str, Any]) -> None:
    counts = counted(case)
    every, unit = range(counts.domains.count), UnitSlices(counts, 0, 1, whole=True)
    for one, other in product(every, every):
        alike = describe_domain([unit], one) == describe_domain([unit], other)
        assert alike == (counts.of(one) == counts.of(other))


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_a_slice_of_a_compact_placement_is_on_as_few_hosts_as_can_be(case: dict[str, Any]) -> None:
    """One slice in a domain of hosts takes the largest hosts, and no more than it needs."""
    depth = len(case["paths"][0])
    if depth < 2 or case["leader"] or case["scored"]:
        return
    one = {"size": case["count"], "slice_level": depth - 2, "level": depth - 2, "inner": {}}
    case = case | one | {"required": True, "compact": True, "balanced": False}
    counts = counted(case)
    answer = packed(counts, case)
    if isinstance(answer[0], list):
        hosts = counts.domains.children(counts.domains.above(answer[0][0][0], depth - 2))
        held = sorted((counts.of(host)[0] for host in hosts), reverse=True)
        fewest = next(n for n in range(len(held) + 1) if sum(held[:n]) >= case["count"])
        assert len(answer[0]) == fewest


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases(), st.data())
def test_changes_one_by_one_count_as_all_at_once(case: dict[str, Any], data: st.DataObject) -> None:
    counts = counted(case)
    counts.of(0)
    leaves = len(case["paths"])
    for _ in range(data.draw(st.integers(1, 3))):
        leaf = data.draw(st.integers(0, leaves - 1))
        change = data.draw(st.integers(-3, 3))
        counts.rows.add(leaf, {"cpu": 1}, change)
        case["rows"][leaf]["cpu"] += change
    assert packed(counts, case) == packed(counted(case), case)


def held(case: dict[str, Any], places: list[tuple[int, int]], leader: int) -> bool:
    """Whether no leaf gets more than it has."""
    for leaf, pods in {leader: 0, **dict(places)}.items():
        for name, free in case["rows"][leaf].items() if leaf >= 0 else ():
            need = pods * case["pod"].get(name, 0)
            if leaf == leader:
                need += case["leader"].get(name, 0)
            if need and need > free:
                return False
    return True


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_promises_are_kept(case: dict[str, Any]) -> None:
    """All are placed, within capacity, where they may be; required in one domain, slices whole."""
    answer = packed(counted(case), case)
    if not isinstance(answer[0], list):
        return
    places, leader = answer
    paths = case["paths"]
    assert sum(pods for _, pods in places) == case["count"]
    assert (leader >= 0) == (case["leader"] is not None)
    assert held(case, places, leader)
    assert not any(case["mask"][leaf] for leaf, _ in places)
    everybody = [paths[leaf] for leaf, _ in places] + ([paths[leader]] if leader >= 0 else [])
    if case["required"]:
        assert len({path[: case["level"] + 1] for path in everybody}) == 1
    for level, size in {case["slice_level"]: case["size"], **case["inner"]}.items():
        sums: dict[Any, int] = {}
        for leaf, pods in places:
            key = paths[leaf][: level + 1]
            sums[key] = sums.get(key, 0) + pods
        assert not any(pods % size for pods in sums.values())


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_nothing_is_refused_that_fits(case: dict[str, Any]) -> None:
    """Every domain, and every leaf for the leader in it, is tried."""
    answer = packed(counted(case), case)
    if isinstance(answer[0], list) or case["inner"]:
        return
    paths, level = case["paths"], case["level"]
    everywhere = not case["required"]

    def able(leaf: int, leader: int) -> int:
        free = dict(case["rows"][leaf])
        if leaf == leader:
            free = {name: amount - case["leader"].get(name, 0) for name, amount in free.items()}
        return 0 if case["mask"][leaf] else twin.fits(free, case["pod"])

    tops = [()] if everywhere else sorted({path[: level + 1] for path in paths})
    leaders = [-1]
    if case["leader"]:
        leaders = [
            leaf
            for leaf, row in enumerate(case["rows"])
            if twin.fits(row, case["leader"]) and not case["mask"][leaf]
        ]
    if case["leader"] and case["slice_level"] < len(paths[0]) - 1:
        return  # the loss of slices by the leader is bounded, not exact, above the leaves
    for top, leader in product(tops, leaders):
        if leader >= 0 and paths[leader][: len(top)] != top:
            continue
        sums: dict[Any, int] = {}
        for leaf, path in enumerate(paths):
            if path[: len(top)] == top:
                key = path[: case["slice_level"] + 1]
                sums[key] = sums.get(key, 0) + able(leaf, leader)
        slices = sum(pods // case["size"] for pods in sums.values())
        assert slices < case["count"] // case["size"], (top, leader)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(1, 30),
)
def test_balanced_takes_the_fewest_with_the_least_and_gives_all_the_same(
    held: list[int], count: int
) -> None:
    """On one level: the smallest sufficient set, every member at least the threshold."""
    paths: list[tuple[str, ...]] = [(f"{number:02}",) for number in range(len(held))]
    rows = Rows(Domains(paths))
    rows.fill([{"cpu": each} for each in held])
    counts = Counts(rows, Vector(rows, {"cpu": 1}), Mask(len(held), False))
    try:
        places, _ = pack(counts, count, level=0, balanced=True)
    except Refusal:
        assert sum(held) < count
        return
    used = sorted(held, reverse=True)
    number = next(n for n in range(1, len(used) + 1) if sum(used[:n]) >= count)
    threshold = min(count // number, used[number - 1])
    able = [each if each >= threshold else 0 for each in held]
    chosen = twin.smallest_set(able, count)
    assert threshold
    assert [leaf for leaf, _ in places] == sorted(chosen or [])
    assert all(threshold <= pods <= held[leaf] for leaf, pods in places)
    assert sum(pods for _, pods in places) == count


@pytest.mark.parametrize(
    ("held", "count", "ascending", "size", "expected"),
    [
        ([3, 3, 2, 1], 7, False, 1, [3, 3, 0, 1]),
        ([3, 3, 2, 1], 7, True, 1, [3, 1, 2, 1]),
        ([6, 5, 4, 3, 2], 12, False, 2, [6, 0, 4, 0, 2]),
        ([6, 5, 4, 3, 2], 10, True, 2, [0, 2, 4, 2, 2]),
    ],
)
def test_the_examples_of_the_documentation(
    held: list[int], count: int, ascending: bool, size: int, expected: list[int]
) -> None:
    paths: list[tuple[str, ...]] = [(f"{number}",) for number in range(len(held))]
    rows = Rows(Domains(paths))
    rows.fill([{"cpu": each} for each in held])
    counts = Counts(rows, Vector(rows, {"cpu": 1}), Mask(len(held), False), size=size)
    places, _ = pack(counts, count, level=0, unconstrained=True, ascending=ascending)
    assert [dict(places).get(leaf, 0) for leaf in range(len(held))] == expected


def test_the_last_that_a_greedy_fit_uses_bounds_the_balance() -> None:
    """With scores that is not the smallest: those that hold less are out, as with Kueue."""
    paths: list[tuple[str, ...]] = [(f"{number}",) for number in range(7)]
    rows, mask = Rows(Domains(paths)), Mask(7, True)
    rows.fill([{"cpu": each} for each in (4, 3, 6, 8, 2, 2, 8)])
    for leaf, score in enumerate((1, 1, 0, 0, 1, 2, 1)):
        mask.set(leaf, 0, score)
    counts = Counts(rows, Vector(rows, {"cpu": 1}), mask, size=2)
    assert [*pack(counts, 8, level=0, balanced=True)[0]] == [(5, 2), (6, 6)]


def test_amounts_beyond_all_bounds_do_not_overflow() -> None:
    rows = Rows(Domains([("a",), ("b",)]))
    rows.fill([{"cpu": 2**63 - 1}, {"cpu": 5}])
    rows.add(0, {"cpu": 2**63 - 1}, -(2**31 - 1))
    rows.add(0, {"cpu": 2**63 - 1}, 2**31 - 1)
    counts = Counts(rows, Vector(rows, {}), Mask(2, False))
    assert counts.of(0)[0] == 2**31 - 1
    places, leader = pack(counts, 2**31 - 1, level=0, required=True)
    assert ([*places], leader) == ([(0, 2**31 - 1)], -1)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), unique_by=lambda e: e[0]))
)
def test_entries_are_what_was_asked_for_and_the_last_of_a_leaf_is_used_again(
    asked: list[list[tuple[int, int]]],
) -> None:
    entries = Entries(6, lambda leaf, pods: [leaf, pods])
    last: dict[int, list[int]] = {}
    for places in asked:
        found = entries.of(places)
        assert found == [[*place] for place in places]
        for entry in found:
            before = last.get(entry[0])
            assert before != entry or before is entry
            last[entry[0]] = entry


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases(), st.lists(st.tuples(st.integers(0, 11), st.integers(-3, 3)), max_size=15), st.data())
def test_a_fork_of_rows_counts_on_by_itself(
    case: dict[str, Any], changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """What was counted is taken over unless the rows have changed; neither sees the other."""
    counts = counted(case)
    every = range(counts.domains.count)
    before = [counts.of(each) for each in every]
    fork = counts.rows.fork()
    late = data.draw(st.booleans())
    if late:
        counts.rows.add(0, {"cpu": 1}, 1)
    copy = counted_in(fork, case)
    copy.start_from(counts)
    assert [copy.of(each) for each in every] == before
    for leaf, amount in changes:
        fork.add(leaf % counts.domains.leaves, {"cpu": 1}, amount)
    anew = counted_in(fork, case)
    assert [copy.of(each) for each in every] == [anew.of(each) for each in every]
    if not late:
        assert [counts.of(each) for each in every] == before
