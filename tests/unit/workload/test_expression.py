"""Every operator on every sort of key in every sort of scope, from the annotation to the peers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.affinity import affinities_of
from nri_policy.workload.annotations import AnnotationError, ValuePath
from nri_policy.workload.expression import Expression, Key, Operator, facts_of, read_expression
from nri_policy.workload.peers import Peers
from tests.support.containers import annotated, member
from tests.support.nodes import settings

ASKED = member("default/web/shepherd", number=0)
HERD = {
    "peter": member("default/web/peter", number=1, labels={"tier": "back"}),
    "sheep": member("default/web/sheep", number=2, labels={"tier": "", "a/b": "back"}),
    "wolf": member("default/db/wolf", number=3, qos=QoS.GUARANTEED, pod_labels={"x.io/app": "web"}),
    "twin": member("other/web/sheep", number=4, qos=QoS.BEST_EFFORT, pod_labels={"x.io/app": "db"}),
}
EVERYONE = tuple(HERD)

# What each key is worth, to peter, sheep, wolf and twin; and the value and glob to compare with.
KEYS: dict[str, tuple[tuple[str | None, ...], str, str]] = {
    "name": (("peter", "sheep", "wolf", "sheep"), "sheep", "*e?*"),
    "namespace": (("default", "default", "default", "other"), "default", "def*"),
    "qosclass": (("Burstable", "Burstable", "Guaranteed", "BestEffort"), "Burstable", "B*"),
    "id": (("ctr-1", "ctr-2", "ctr-3", "ctr-4"), "ctr-3", "ctr-[1-3]"),
    "uid": (("uid-web-1", "uid-web-2", "uid-db-3", "uid-web-4"), "uid-db-3", "uid-db-*"),
    "labels/tier": (("back", "", None, None), "back", "*"),
    "labels/a/b": ((None, "back", None, None), "back", "b[^a]*"),
    "tags/x": ((None, None, None, None), "x", "*"),
    "pod/name": (("web", "web", "db", "web"), "db", "w?b"),
    "pod/namespace": (("default", "default", "default", "other"), "other", "o*"),
    "pod/qosclass": (("Burstable", "Burstable", "Guaranteed", "BestEffort"), "Guaranteed", "G*"),
    "pod/id": (("pod-web-1", "pod-web-2", "pod-db-3", "pod-web-4"), "pod-web-2", "pod-web-*"),
    "pod/uid": (("uid-web-1", "uid-web-2", "uid-db-3", "uid-web-4"), "uid-web-4", "*-[34]"),
    "pod/labels/x.io/app": ((None, None, "web", "db"), "db", "w*"),
    "pod/tags/x": ((None, None, None, None), "x", "*"),
    ":pod/name:name": (("web:peter", "web:sheep", "db:wolf", "web:sheep"), "web:sheep", "web:*"),
    ":labels/tier:pod/labels/x.io/app": (("back:", ":", ":web", ":db"), ":", ":*b"),
    ":labels/tier:labels/a/b": (("back:", ":back", None, None), ":back", "*"),
    ":,-namespace,name": (
        ("default-peter", "default-sheep", "default-wolf", "other-sheep"),
        "other-sheep",
        "*-sheep",
    ),
    ";=labels/tier;tags/x": (("back=", "=", None, None), "back=", "*="),
    "::name:qosclass": (
        ("peter:Burstable", "sheep:Burstable", "wolf:Guaranteed", "sheep:BestEffort"),
        "wolf:Guaranteed",
        "*:B*",
    ),
    ":name": (("peter", "sheep", "wolf", "sheep"), "wolf", "?????"),
}

# name -> scope (None: the default), and the containers in it
SCOPES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "own pod": (None, ("peter", "sheep")),
    "node": ({"operator": "AlwaysTrue"}, EVERYONE),
    "namespace": (
        {"key": "namespace", "operator": "Equals", "values": ["default"]},
        ("peter", "sheep", "wolf"),
    ),
    "label": ({"key": "pod/labels/x.io/app", "operator": "Exists"}, ("wolf", "twin")),
    "joint": (
        {"key": ":namespace:pod/name", "operator": "Matches", "values": ["*:web"]},
        ("peter", "sheep", "twin"),
    ),
}

# What is compared with (a value, a glob, or nothing), and when an operator holds for a value.
OPERATORS: dict[str, tuple[Callable[[str, str], list[str]], Callable[[Any, str, set[Any]], bool]]]
OPERATORS = {
    "Equals": (lambda value, _: [value], lambda has, value, _: has == value),
    "NotEqual": (lambda value, _: [value], lambda has, value, _: has != value),
    "In": (lambda value, _: ["no", value], lambda has, value, _: has == value),
    "NotIn": (lambda value, _: [value, "no"], lambda has, value, _: has != value),
    "Exists": (lambda *_: [], lambda has, *_: has is not None),
    "NotExists": (lambda *_: [], lambda has, *_: has is None),
    "NotExist": (lambda *_: [], lambda has, *_: has is None),
    "AlwaysTrue": (lambda *_: [], lambda *_: True),
    "Matches": (lambda _, glob: [glob], lambda has, _, globbed: has in globbed),
    "MatchesNot": (lambda _, glob: [glob], lambda has, _, globbed: has not in globbed),
    "MatchesAny": (lambda _, glob: ["no", glob], lambda has, _, globbed: has in globbed),
    "MatchesNone": (lambda _, glob: [glob, "no"], lambda has, _, globbed: has not in globbed),
}
# Which of a key's values its glob above matches.
GLOBBED: dict[str, set[str]] = {
    "name": {"peter", "sheep"},
    "namespace": {"default"},
    "qosclass": {"Burstable", "BestEffort"},
    "id": {"ctr-1", "ctr-2", "ctr-3"},
    "uid": {"uid-db-3"},
    "labels/tier": {"back", ""},
    "labels/a/b": set(),
    "tags/x": set(),
    "pod/name": {"web"},
    "pod/namespace": {"other"},
    "pod/qosclass": {"Guaranteed"},
    "pod/id": {"pod-web-1", "pod-web-2", "pod-web-4"},
    "pod/uid": {"uid-db-3", "uid-web-4"},
    "pod/labels/x.io/app": {"web"},
    "pod/tags/x": set(),
    ":pod/name:name": {"web:peter", "web:sheep"},
    ":labels/tier:pod/labels/x.io/app": {":web", ":db"},
    ":labels/tier:labels/a/b": {"back:", ":back"},
    ":,-namespace,name": {"default-sheep", "other-sheep"},
    ";=labels/tier;tags/x": {"back=", "="},
    "::name:qosclass": {"peter:Burstable", "sheep:Burstable", "sheep:BestEffort"},
    ":name": {"peter", "sheep"},
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_selects_whom_it_should(operator: str, key: str, scope: str) -> None:
    values, value, glob = KEYS[key]
    written, members = SCOPES[scope]
    compared, holds = OPERATORS[operator]
    affinity = {
        "scope": written,
        "match": {"key": key, "operator": operator, "values": compared(value, glob)},
        "weight": 7,
    }
    asked = annotated(ASKED, json.dumps({ASKED.name: [affinity]}))
    peers = Peers()
    for pool, container in enumerate([ASKED, *HERD.values()]):
        peers.add(container, pool)
    pulls = peers.pulls(asked, affinities_of(asked, settings()).each)
    expected = {
        HERD[name].id: 7
        for name, has in zip(EVERYONE, values, strict=True)
        if name in members and holds(has, value, GLOBBED[key])
    }
    assert pulls.weights() == expected


@pytest.mark.parametrize(
    ("operator", "key", "expected"),
    [
        ("Equals", "labels/tier", {"peter", "sheep"}),
        ("In", "labels/tier", {"peter", "sheep"}),
        ("NotEqual", "labels/tier", {"wolf", "twin"}),
        ("NotIn", ":labels/tier:tags/x", {"wolf", "twin"}),
    ],
)
def test_a_star_stands_for_any_value_where_there_is_one(
    operator: str, key: str, expected: set[str]
) -> None:
    peers = Peers()
    for container in HERD.values():
        peers.add(container, 0)
    match = {"key": key, "operator": operator, "values": ["*"]}
    affinity = {"scope": {"operator": "AlwaysTrue"}, "match": match}
    asked = annotated(ASKED, json.dumps({ASKED.name: [affinity]}))
    weights = peers.pulls(asked, affinities_of(asked, settings()).each).weights()
    assert weights == {HERD[name].id: 1 for name in expected}


@pytest.mark.parametrize(
    ("text", "parts", "separator"),
    [
        ("name", ("name",), ""),
        ("labels/a.b/c:d", ("labels/a.b/c:d",), ""),
        (":name:namespace", ("name", "namespace"), ":"),
        (":::name:namespace", ("name", "namespace"), ":"),
        (":,-name,labels/a:b", ("name", "labels/a:b"), "-"),
        (",-name,labels/a:b", ("name", "labels/a:b"), "-"),
        ("- name-id", ("name", "id"), " "),
    ],
)
def test_a_key_is_one_property_or_several_with_separators(
    text: str, parts: tuple[str, ...], separator: str
) -> None:
    value = {"key": text, "operator": "Exists"}
    expected = Expression(key=Key(parts, separator), operator=Operator.EXISTS)
    assert read_expression(value, ValuePath("x")) == expected


@pytest.mark.parametrize(
    "key",
    [
        None,
        1,
        ["name"],
        "",
        "Name",
        "pod",
        "pod/",
        "pod/pod/name",
        "name/",
        "name/x",
        "labels",
        "labels/",
        "/name",
        "annotations/x",
        "name:id",
        ":",
        "::",
        ":name:",
        ",name",
        ":;,:name",
        ":name:pod",
        ":" + ":".join(["name"] * 9),
        ":" * 20_000,
        ":" + "name:" * 6_000,
    ],
)
def test_what_is_no_key_is_refused_and_keys_are_named(key: object) -> None:
    with pytest.raises(AnnotationError, match="labels/K") as caught:
        read_expression({"key": key, "operator": "Exists"}, ValuePath("x", "a[0].match"))
    assert caught.value.path == "a[0].match.key"
    assert len(str(caught.value)) < 400


def test_only_an_expression_that_is_always_true_needs_no_key() -> None:
    assert read_expression({"operator": "AlwaysTrue"}, ValuePath("x")).key is None
    with pytest.raises(AnnotationError):
        read_expression({"operator": "AlwaysTrue", "key": "nam"}, ValuePath("x"))


def test_a_container_has_facts_of_its_own_and_of_its_pod() -> None:
    container = member("ns/p/c", number=5, labels={"k": "v"}, pod_labels={"k": "w"})
    assert facts_of(container) == {
        "name": "c",
        "namespace": "ns",
        "qosclass": "Burstable",
        "id": "ctr-5",
        "uid": "uid-p-5",
        "labels/k": "v",
        "pod": "ns/p",
        "pod/name": "p",
        "pod/namespace": "ns",
        "pod/qosclass": "Burstable",
        "pod/id": "pod-p-5",
        "pod/uid": "uid-p-5",
        "pod/labels/k": "w",
    }
