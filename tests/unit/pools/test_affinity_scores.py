"""How weights that sit on pools add up over the tree."""

from __future__ import annotations

from array import array

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.native._affinity import scores
from nri_policy.pools.affinity_scores import AffinityScorer
from nri_policy.pools.tree import build
from tests.support.affinity_twin import scores as formula
from tests.support.nodes import machine

# Two sockets (2, 5) of two NUMA nodes each (0, 1 and 3, 4), and the root (6).
TREE = build(machine("package:2 numa:2 core:2 pu:2"), CPUSet.parse("0-15"))


def test_a_pull_loses_a_quarter_with_each_link_and_reaches_the_path_and_the_subtree_only() -> None:
    scorer = AffinityScorer(TREE)
    on_a_node = scorer.scores(array("i", [1]), [(16, 1)])
    assert [*on_a_node] == [0, 16, 12, 0, 0, 0, 9]
    on_the_root = scorer.scores(array("i", [6]), [(-16, 1)])
    assert [*on_the_root] == [-9, -9, -12, -9, -9, -12, -16]


def test_pulls_from_everywhere_add_up_as_the_formula_says() -> None:
    pools = array("i", [0, 6, 5, 3, 3, -1, 2, 1, 4, 0])
    terms = [(5, 0b1111), (-1000, 0b0001010010), (7, 0b1111011111), (1, 1 << 9)]
    booked: dict[int, int] = {}
    for weight, members in terms:
        for bit, pool in enumerate(pools):
            booked[pool] = booked.get(pool, 0) + weight * (members >> bit & 1)
    assert [*AffinityScorer(TREE).scores(pools, terms)] == [*formula(TREE, booked)]


def test_without_pulls_all_scores_are_zero() -> None:
    assert [*AffinityScorer(TREE).scores(array("i"), [])] == [0] * 7


@pytest.mark.parametrize(
    ("pools", "members"), [([0, -1], 2), ([0, 7], 2), ([0, 0], 4), ([0] * 8 + [-1], 1 << 8)]
)
def test_a_peer_that_is_on_no_pool_is_an_error(pools: list[int], members: int) -> None:
    with pytest.raises(ValueError, match="on no pool"):
        AffinityScorer(TREE).scores(array("i", pools), [(1, members)])


def test_a_peer_beyond_the_last_is_an_error() -> None:
    with pytest.raises(OverflowError):
        AffinityScorer(TREE).scores(array("i", [0]), [(1, 1 << 8)])


@pytest.mark.parametrize("parents", [[0], [1, 0], [-1, -1], [2, 0, -1], [3, -1]])
def test_a_tree_that_is_not_in_post_order_is_an_error(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="post-order"):
        scores(array("i", parents), array("i"), [])
