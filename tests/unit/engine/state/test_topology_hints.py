from __future__ import annotations

from math import isclose, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.engine.state.topology_hints import Scores, TopologyHints
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.tree import PoolTree, build
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from tests.support.nodes import SMALL, machine

WITH_PMEM = "package:2(pmem=8GiB) numa:2 core:2"  # nodes 4 and 5 are pmem of sockets 0 and 1
L3 = "package:2 numa:1 l3:2 core:4"


def tree_of(spec: str) -> PoolTree:
    return build(machine(spec), machine(spec).online)


def topology_hints(spec: str = SMALL) -> TopologyHints:
    return TopologyHints(machine(spec), tree_of(spec))


def sets(text: str) -> CPUSet:
    return CPUSet.parse(text)


def assigned(nodes: str, resource: str = "gpu") -> Hint:
    return Hint(
        source=f"podresourceapi:{resource}",
        kind=HintKind.POD_RESOURCES,
        cpus=EMPTY,
        nodes=sets(nodes),
    )


def claimed(nodes: str, driver: str = "gpu.x") -> Hint:
    return Hint(source=f"claim:{driver}", kind=HintKind.CLAIMS, cpus=EMPTY, nodes=sets(nodes))


def device(cpus: str, nodes: str = "", path: str = "/dev/x") -> Hint:
    return Hint(source=path, kind=HintKind.DEVICES, cpus=sets(cpus), nodes=sets(nodes))


def mount(cpus: str, nodes: str = "", path: str = "/data") -> Hint:
    return Hint(source=path, kind=HintKind.MOUNTS, cpus=sets(cpus), nodes=sets(nodes))


def by_pool(spec: str, column: str, *hints: Hint) -> dict[str, float]:
    scores = topology_hints(spec).scores(hints)
    assert scores is not None
    names = (pool.name for pool in tree_of(spec).pools)
    return {
        name: round(value, 6)
        for name, value in zip(names, getattr(scores, column), strict=True)
        if value
    }


def test_cpus_count_by_their_share() -> None:
    assert by_pool(SMALL, "hints", device("4-7")) == {
        "NUMA node #1": 1,
        "socket #0": 1,
        "root": 1,
    }
    assert by_pool(SMALL, "hints", device("2-7")) == {
        "NUMA node #0": 0.333333,
        "NUMA node #1": 0.666667,
        "socket #0": 1,
        "root": 1,
    }


def test_nodes_count_less_for_every_level_above() -> None:
    assert by_pool(SMALL, "hints", assigned("3")) == {
        "NUMA node #3": 1,
        "socket #1": 0.9,
        "root": 0.81,
    }
    assert by_pool(SMALL, "hints", assigned("2-3")) == {
        "NUMA node #2": 0.5,
        "NUMA node #3": 0.5,
        "socket #1": 1,
        "root": 0.9,
    }
    assert by_pool(SMALL, "hints", assigned("0,3")) == {
        "NUMA node #0": 0.5,
        "socket #0": 0.45,
        "NUMA node #3": 0.5,
        "socket #1": 0.45,
        "root": 1,
    }


def test_a_node_lies_in_each_of_its_l3_pools_and_one_without_cpus_where_it_is_near() -> None:
    assert by_pool(L3, "hints", assigned("1")) == {
        "socket #1/L3 cache #0": 1,
        "socket #1/L3 cache #1": 1,
        "socket #1": 0.9,
        "root": 0.81,
    }
    assert by_pool(WITH_PMEM, "hints", assigned("5")) == {
        "NUMA node #2": 1,
        "NUMA node #3": 1,
        "socket #1": 0.9,
        "root": 0.81,
    }


def test_several_hints_are_multiplied_with_and_without_those_that_are_nil() -> None:
    hints = device("0-3"), device("12-15"), device("8-15")
    assert by_pool(SMALL, "hints", *hints) == {"root": 1}
    assert by_pool(SMALL, "nonzero", *hints) == {
        "NUMA node #0": 1,
        "socket #0": 1,
        "NUMA node #2": 0.5,
        "NUMA node #3": 0.5,
        "socket #1": 1,
        "root": 1,
    }


def test_each_of_several_devices_of_a_resource_counts() -> None:
    assert by_pool(SMALL, "hints", assigned("3"), assigned("3"), assigned("2")) == {
        "socket #1": 0.729,
        "root": 0.531441,
    }


def test_depth_counts_where_any_hint_does() -> None:
    assert by_pool(SMALL, "depth", device("4-7")) == {"NUMA node #1": 2, "socket #0": 1}


def test_hints_of_nothing_on_this_machine_are_no_hints() -> None:
    assert topology_hints().scores([]) is None
    assert topology_hints().scores([assigned("77"), device("4000")]) is None
    assert by_pool(SMALL, "hints", assigned("3,77"))["NUMA node #3"] == 1
    assert by_pool(SMALL, "hints", assigned("3"), assigned("77"))["NUMA node #3"] == 1


NODES = st.sets(st.integers(0, 3), min_size=1).map(CPUSet)
CPUS = st.sets(st.integers(0, 15), min_size=1).map(CPUSet)
HINTS = st.lists(
    st.one_of(
        CPUS.map(lambda cpus: device(str(cpus))), NODES.map(lambda nodes: assigned(str(nodes)))
    ),
    min_size=1,
    max_size=20,
)


@given(HINTS)
def test_scores_are_those_of_a_plain_reading_of_the_formula(hints: list[Hint]) -> None:
    tree = tree_of(SMALL)
    below = {p.id: [q for q in tree.pools if p in tree.path(q)] for p in tree.pools}

    def score(hint: Hint, pool: int) -> float:
        if hint.cpus:
            return len(set(hint.cpus) & set(tree.pools[pool].cpus)) / len(hint.cpus)
        own = {q.id: {cpu // 4 for cpu in q.cpus} for q in tree.pools}
        inside = set(hint.nodes) & own[pool]
        deepest = max(q.depth for q in below[pool] if inside <= own[q.id])
        return len(inside) / len(hint.nodes) * 0.9 ** (deepest - tree.pools[pool].depth)

    scores = topology_hints().scores(hints)
    assert isinstance(scores, Scores)
    for pool in tree.pools:
        each = [score(hint, pool.id) for hint in hints]
        assert isclose(scores.hints[pool.id], prod(each), abs_tol=1e-12)
        assert isclose(scores.nonzero[pool.id], prod(filter(None, each)) if any(each) else 0)
        assert scores.depth[pool.id] == (pool.depth if any(each) else 0)


def test_strict_hints_bound_cpus_and_memory() -> None:
    near = topology_hints()
    bounds = near.bounds([device("4-7", "1"), mount("0-7", "0-1")])
    assert (str(bounds.cpus), str(bounds.mems)) == ("4-7", "1")
    contradiction = near.bounds([device("4-7", "1"), mount("8-11", "2")])
    assert (bool(contradiction.cpus), bool(contradiction.mems)) == (False, False)
    free = near.bounds([])
    assert (str(free.cpus), str(free.mems)) == ("0-15", "0-3")


def test_devices_of_one_resource_bound_together_and_those_of_two_each() -> None:
    near = topology_hints()
    both = near.bounds([assigned("0"), assigned("3")])
    assert (str(both.cpus), str(both.mems)) == ("0-3,12-15", "0,3")
    assert near.bounds([claimed("0"), claimed("3")]) == both, "of one driver, any"
    none = near.bounds([claimed("0"), claimed("3", "nic.x")])
    assert (none.cpus, none.mems) == (EMPTY, EMPTY)
    none = near.bounds([assigned("0", "gpu"), assigned("3", "nic")])
    assert (str(none.cpus), str(none.mems)) == ("", "")


def test_memory_beside_the_same_cpus_is_as_near() -> None:
    near = topology_hints(WITH_PMEM)
    assert str(near.bounds([assigned("0")]).mems) == "0,4"
    assert str(near.bounds([assigned("4")]).mems) == "0-1,4"
    assert str(near.bounds([device("0-1")]).mems) == "0,4"


@pytest.mark.parametrize(
    ("cpus", "mems", "wrong"),
    [
        ("4-7", "1", None),
        ("5", "1", None),
        ("", "", None),
        ("3-4", "1", "strict hint /dev/x: CPUs 3-4 are not all among its 4-7"),
        ("4", "0-1", "strict hint /dev/x: memory nodes 0-1 are not all among its 1"),
    ],
)
def test_what_fails_a_strict_hint_is_named(cpus: str, mems: str, wrong: str | None) -> None:
    hints = [assigned("0-3", "fits"), device("4-7", "1")]
    assert topology_hints().failing(hints, sets(cpus), sets(mems)) == wrong


def test_localities_are_of_assigned_resources_or_else_of_each_place_of_device_files() -> None:
    near = topology_hints()
    files = [device("0-3", path="/dev/a"), device("0-3", path="/dev/b"), device("4-7")]
    assert list(map(str, near.localities([*files, mount("8-15")]))) == ["0-3", "4-7"]
    both = [assigned("1"), assigned("1"), *files]
    assert list(map(str, near.localities(both))) == ["4-7", "4-7"]
    assert list(map(str, near.localities([*both, claimed("0")]))) == ["4-7", "4-7", "0-3"]
    assert list(map(str, near.localities([*files, claimed("0")]))) == ["0-3"]
    assert near.localities([mount("8-15")]) == ()
    assert near.localities([assigned("77")]) == ()


@pytest.mark.parametrize(
    ("spec", "hints", "offer", "zone"),
    [
        (SMALL, [assigned("0"), assigned("3")], "0-3", "0,3"),
        (SMALL, [device("0-3", "0"), mount("8-11", "2")], "0-3", "0"),
        (SMALL, [assigned("0"), assigned("3")], "0-1", None),  # the pool has no memory there
        (SMALL, [mount("8-11", "2")], "0-3", None),
        (SMALL, [], "0-3", None),
        (WITH_PMEM, [assigned("0"), assigned("3")], "0-5", "0,3-5"),
        (WITH_PMEM, [assigned("0")], "0-3", "0"),
        (WITH_PMEM, [assigned("4")], "4-5", None),  # pmem is movable: the kernel needs other
    ],
)
def test_memory_is_that_of_the_devices(
    spec: str, hints: list[Hint], offer: str, zone: str | None
) -> None:
    found = topology_hints(spec).pick_memory(hints, sets(offer))
    assert (None if found is None else str(found)) == zone
