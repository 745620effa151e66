"""Affinities against their twin, the index against a new one, and any text as annotation."""

from __future__ import annotations

import json
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.affinity_scores import AffinityScorer
from nri_policy.pools.tree import build
from nri_policy.workload.affinity import MAX_WEIGHT, Affinity, affinities_of
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.expression import Operator
from nri_policy.workload.peers import Peers
from nri_policy.workload.pod import Container
from tests.support import affinity_twin
from tests.support.containers import annotated, member
from tests.support.nodes import machine, settings

TREES = [
    build(machine(spec), CPUSet.parse("0-15"))
    for spec in ("package:2 numa:2 core:2 pu:2", "package:1 numa:4 l3:2 core:2 pu:1")
]
LABELS = st.dictionaries(
    st.sampled_from(["k", "a/b"]), st.sampled_from(["", "a", "a:b", "b", "ab", "a/b"]), max_size=2
)
FULL_NAMES = st.sampled_from(
    [f"{ns}/{pod}/{c}" for ns in "nm" for pod in "pq" for c in ("a", "ab")]
)


@st.composite
def herds(draw: st.DrawFn) -> list[Container]:
    return [
        member(
            draw(FULL_NAMES),
            number=number,
            qos=draw(st.sampled_from(QoS)),
            labels=draw(LABELS),
            pod_labels=draw(LABELS),
        )
        for number in range(draw(st.integers(1, 12)))
    ]


PROPERTIES = ("name", "namespace", "qosclass", "id", "uid", "labels/k", "labels/a/b", "tags/k")
SINGLE_KEYS = st.sampled_from([*PROPERTIES, *(f"pod/{each}" for each in PROPERTIES)])
KEYS = SINGLE_KEYS | st.builds(
    lambda lead, parts: lead + (lead[-2:][:1] or ":").join(parts),
    st.sampled_from([":", "::", ":::", ":;=", "; "]),
    st.lists(SINGLE_KEYS, min_size=1, max_size=3),
)
VALUES = st.sampled_from(
    ["a", "ab", "n", "p", "a:b", ":", ":a", "a:", "Burstable", "ctr-2", "*", ""]
)
GLOBS = st.sampled_from(["*", "a*", "?", "*:*", "[a-m]", "[^a]*", "a/*", "", "uid-p-*"])


OPERATORS = [*map(str, Operator), "NotExist"]


@st.composite
def expressions(draw: st.DrawFn) -> dict[str, Any]:
    operator = draw(st.sampled_from(OPERATORS))
    values = GLOBS if operator.startswith("Matches") else VALUES
    bounds = {"In": (1, 4), "NotIn": (1, 4), "MatchesAny": (1, 3), "MatchesNone": (1, 3)}
    none = (0, 0) if "Exist" in operator or operator == "AlwaysTrue" else (1, 1)
    low, high = bounds.get(operator, none)
    return {
        "key": draw(KEYS),
        "operator": operator,
        "values": draw(st.lists(values, min_size=low, max_size=high)),
    }


ITEMS = st.sampled_from(["a", "ab"]) | st.fixed_dictionaries(
    {"match": expressions()},
    optional={"scope": expressions(), "weight": st.integers(-MAX_WEIGHT, MAX_WEIGHT)},
)
ANNOTATIONS = st.dictionaries(st.sampled_from(["a", "ab"]), st.lists(ITEMS, max_size=5), max_size=2)


def asking(container: Container, text: dict[str, Any]) -> tuple[Container, list[Affinity]]:
    asked = annotated(container, json.dumps(text))
    return asked, list(affinities_of(asked, settings()).each)


@given(st.data(), herds(), ANNOTATIONS, st.sampled_from(TREES))
def test_weights_and_scores_are_the_twins(
    data: st.DataObject, herd: list[Container], text: dict[str, Any], tree: Any
) -> None:
    asked, affinities = asking(data.draw(st.sampled_from(herd)), text)
    on_a_pool = st.integers(0, len(tree.pools) - 1)
    places = {container.id: data.draw(on_a_pool) for container in herd}
    peers = Peers()
    for container in herd:
        peers.add(container, places[container.id])
    pulls = peers.pulls(asked, affinities)
    expected = affinity_twin.weights(asked, affinities, herd)
    assert pulls.weights() == expected
    booked: dict[int, int] = {}
    for container_id, weight in expected.items():
        booked[places[container_id]] = booked.get(places[container_id], 0) + weight
    found = AffinityScorer(tree).scores(peers.pools, pulls.terms)
    assert [*found] == [*affinity_twin.scores(tree, booked)]


STEPS = st.lists(
    st.tuples(st.sampled_from(["toggle", "toggle", "ask", "follow"]), st.integers(0, 11)),
    max_size=20,
)


@given(herds(), ANNOTATIONS, STEPS)
def test_the_index_is_what_a_new_one_would_be(
    herd: list[Container], text: dict[str, Any], steps: list[tuple[str, int]]
) -> None:
    peers = Peers()
    held: dict[str, tuple[Container, int]] = {}
    asked, affinities = asking(member("n/p/a", number=99), text)
    earlier = dict(held)
    for step, number in steps:
        container = herd[number % len(herd)]
        if step == "follow":
            held, earlier = earlier, dict(held)
            peers.follow(held.values())
        elif step == "ask":
            peers.pulls(asked, affinities)
        elif container.id in held:
            peers.remove(container.id)
            del held[container.id]
        else:
            peers.add(container, number)
            held[container.id] = container, number
        fresh = Peers()
        for each, pool in held.values():
            fresh.add(each, pool)
        ours, theirs = (index.pulls(asked, affinities) for index in (peers, fresh))
        assert ours.strongest() == theirs.strongest()
        booked = sorted(pool for pool in peers.pools if pool >= 0)
        assert booked == sorted(fresh.pools)
    peers.follow([])
    assert peers._columns == {}
    assert all(not column.values for column in peers._joint.values())
    assert list(peers.pools) == [-1] * len(peers.pools)


@given(
    st.text(alphabet="ab: {}[]\"',-&*\n!|?", max_size=60)
    | st.text(max_size=40)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KEYS,
        lambda each: (
            st.lists(each, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["a", "match", "scope", "weight", "key", "operator", "values", "b"]
                ),
                each,
                max_size=4,
            )
        ),
    ).map(lambda value: json.dumps({"a": [value], "b": value})),
    st.booleans(),
)
def test_any_text_is_affinities_or_an_error_that_names_the_annotation(
    text: str, anti: bool
) -> None:
    asked = annotated(member("n/p/a"), text, anti=anti)
    try:
        found = affinities_of(asked, settings())
    except AnnotationError as error:
        key, message = error.key, str(error)
    else:
        hash(found)
        Peers().pulls(asked, found.each)
        return
    assert key in asked.pod.annotations
    assert message.startswith(f"annotation {key}")
    assert len(message) < 1000


def test_a_score_is_exact_whatever_the_weights() -> None:
    deep = build(machine("package:2 die:2 numa:2 l3:2 core:2 pu:1"), CPUSet.parse("0-31"))
    booked = {pool.id: 10**9 + pool.id for pool in deep.pools}
    pools = array("i", range(len(deep.pools)))
    terms = [(10**9 + pool, 1 << pool) for pool in pools]
    assert [*AffinityScorer(deep).scores(pools, terms)] == [*affinity_twin.scores(deep, booked)]
