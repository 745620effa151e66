"""Spreading against its plain twin, and by trying out every split on small trees."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.native._counts import Counts
from nri_policy.native._domains import Domains, Mask, Rows, Vector
from nri_policy.native._node_order import arrange_by_labels
from nri_policy.native._spreading import spread
from tests.support import spreading_twin as twin

WEIGHTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), max_size=3)
PREFERENCES = st.lists(
    st.one_of(
        st.builds(twin.Preference),
        st.builds(twin.Preference, weights=WEIGHTS),
        st.just(twin.Preference(packed=True)),
    ),
    max_size=3,
)


@st.composite
def hosts(draw: st.DrawFn, levels: int, most: int = 12) -> list[twin.Host]:
    number = st.sampled_from([0, 0, 0, 1, 2, 3, 7])
    return [
        twin.Host(
            name=f"h{at:02}",
            values=tuple(draw(st.sampled_from(["", "a", "b", "c"])) for _ in range(levels)),
            room=draw(st.integers(0, 5)),
            own=(own := draw(number)),
            every=own + draw(number),
            failures=draw(number),
        )
        for at in range(draw(st.integers(0, most)))
    ]


def by_kernel(
    every: list[twin.Host], pods: int, preferences: list[twin.Preference], most: int | None
) -> tuple[dict[str, int], int]:
    by_path = sorted(every, key=lambda host: (*host.values, host.name))
    paths = [(*host.values, host.name) for host in by_path]
    if not paths:
        return {}, pods
    domains = Domains(paths)
    rows = Rows(domains)
    for leaf, host in enumerate(by_path):
        rows.add(leaf, {"pods": host.room}, 1, 1)
    counts = Counts(rows, Vector(rows, {"pods": 1}), Mask(len(paths), False))
    weights = [
        {
            domain: preference.weights[value]
            for domain in domains.of_level(level)
            if (value := paths[domains.leaves_below(domain).start][level]) in preference.weights
        }
        for level, preference in enumerate(preferences)
    ]
    found, left = spread(
        counts,
        pods,
        array("i", [host.own for host in by_path]),
        array("i", [host.every for host in by_path]),
        array("i", [host.failures for host in by_path]),
        packed=[preference.packed for preference in preferences],
        weights=weights,
        unlabelled=[
            domain
            for level in range(len(preferences))
            for domain in domains.of_level(level)
            if not paths[domains.leaves_below(domain).start][level]
        ],
        most=-1 if most is None else most,
    )
    return {by_path[leaf].name: number for leaf, number in found}, left


@given(st.data(), PREFERENCES, st.integers(0, 40), st.none() | st.integers(1, 4))
def test_pods_go_where_the_twins_go(
    data: st.DataObject, preferences: list[twin.Preference], pods: int, most: int | None
) -> None:
    every = data.draw(hosts(len(preferences)))
    found = by_kernel(every, pods, preferences, most)
    assert found == twin.spread(every, pods, preferences, most)


@given(st.lists(st.dictionaries(st.sampled_from("kl"), st.sampled_from(["", "a", "b"]))), st.data())
def test_nodes_are_in_the_order_of_their_values_and_names(
    labels: list[dict[str, str]], data: st.DataObject
) -> None:
    made = [ClusterNode(f"n{at:02}", each, {}) for at, each in enumerate(labels)]
    nodes = data.draw(st.permutations(made))
    there = [(data.draw(st.booleans()) and node) or None for node in nodes]
    by_name = array("i", sorted(range(len(nodes)), key=lambda at: nodes[at].name))
    for keys in ((), ("k",), ("l", "k")):
        places = array("i", bytes(4 * len(nodes)))
        found, order, domains = arrange_by_labels(there, by_name, keys, places)
        paths = sorted((*(node.labels.get(key, "") for key in keys), node.name) for node in found)
        assert [node.name for node in found] == [path[-1] for path in paths]
        assert found == [there[at] for at in order]
        assert sorted(order) == [at for at, node in enumerate(there) if node is not None]
        assert [*places] == [order.index(at) if at in order else -1 for at in range(len(nodes))]
        wanted = Domains(paths)
        assert domains.leaves == wanted.leaves
        for level in range(wanted.levels):
            assert domains.of_level(level) == wanted.of_level(level)
            for each in wanted.of_level(level):
                assert domains.leaves_below(each) == wanted.leaves_below(each)


def splits(rooms: list[int], pods: int) -> Iterator[list[int]]:
    """All ways to give *pods* to branches that have so much room."""
    if not rooms:
        if not pods:
            yield []
        return
    for first in range(min(rooms[0], pods) + 1):
        for rest in splits(rooms[1:], pods - first):
            yield [first, *rest]


@given(st.data(), st.integers(0, 8))
def test_no_other_split_balances_better(data: st.DataObject, pods: int) -> None:
    """From the top down: given what their parent got, siblings' counts are the best there are."""
    every = data.draw(hosts(2, most=6))
    placed, left = by_kernel(every, pods, [twin.Preference(), twin.Preference()], None)
    assert left == max(pods - sum(host.room for host in every), 0)
    siblings: dict[Any, dict[str, list[twin.Host]]] = {}
    for host in every:
        for level in (0, 1):
            branches = siblings.setdefault(host.values[:level], {})
            branches.setdefault(host.values[level], []).append(host)
    for branches in siblings.values():
        rooms = [sum(host.room for host in branch) for branch in branches.values()]
        have = [sum(host.own for host in branch) for branch in branches.values()]
        given_to = [
            sum(placed.get(host.name, 0) for host in branch) for branch in branches.values()
        ]
        best = max(
            sorted(map(sum, zip(have, split, strict=True)))
            for split in splits(rooms, sum(given_to))
        )
        assert sorted(map(sum, zip(have, given_to, strict=True))) == best


@given(st.data(), PREFERENCES, st.integers(0, 40))
def test_no_host_gets_more_than_it_holds(
    data: st.DataObject, preferences: list[twin.Preference], pods: int
) -> None:
    every = data.draw(hosts(len(preferences)))
    placed, left = by_kernel(every, pods, preferences, 3)
    assert sum(placed.values()) + left == pods
    rooms = Counter({host.name: host.room for host in every})
    assert all(number <= rooms[name] for name, number in placed.items())
    assert all(host.own + placed[host.name] <= 3 for host in every if host.name in placed)


def test_a_number_beyond_counting_takes_no_time() -> None:
    every = [twin.Host(f"h{at}", (), 2**31 - 1) for at in range(3)]
    placed, left = by_kernel(every, 2**31 - 1, [], None)
    assert left == 0
    assert sorted(placed.values()) == [715827882, 715827882, 715827883]
