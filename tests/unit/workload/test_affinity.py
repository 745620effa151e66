"""What a container's affinity annotations say, and how mistakes in them are reported."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.workload.affinity import Affinity, affinities_of
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.expression import ALWAYS, Expression, Key, Operator
from nri_policy.workload.pod import Container
from tests.support.containers import annotated, member
from tests.support.nodes import settings

PETER, SHEEP, WOLF = (member(f"default/meadow/{name}") for name in ("peter", "sheep", "wolf"))
AFFINITY = "resource-policy.nri.io/affinity"


def among(key: str, *values: str) -> Expression:
    return Expression(key=Key((key,)), operator=Operator.IN, values=values)


def named(*names: str, weight: int = 1) -> Affinity:
    return Affinity(
        scope=among("pod", "default/meadow"), match=among("name", *names), weight=weight
    )


def read(container: Container, text: str, *, anti: bool = False, **spec: Any) -> list[Affinity]:
    return list(affinities_of(annotated(container, text, anti=anti), settings(**spec)).each)


def test_without_annotations_there_are_none() -> None:
    found = affinities_of(PETER, settings())
    assert found.each == ()
    assert found.notices == ()


def test_the_full_form_has_scope_match_and_weight() -> None:
    text = """
        peter:
        - scope: {key: namespace, operator: In, values: [a, b]}
          match: {key: pod/labels/app, operator: NotExist}
          weight: -20
        - match: {key: name, operator: Equals, values: [sheep]}
    """
    first = Affinity(
        scope=among("namespace", "a", "b"),
        match=Expression(key=Key(("pod/labels/app",)), operator=Operator.NOT_EXISTS),
        weight=-20,
    )
    match = Expression(key=Key(("name",)), operator=Operator.EQUALS, values=("sheep",))
    second = Affinity(scope=among("pod", "default/meadow"), match=match, weight=1)
    assert read(PETER, text) == [first, second]
    assert [a.weight for a in read(PETER, text, anti=True)] == [20, -1]


def test_the_full_form_is_one_way() -> None:
    text = "peter: [{match: {key: name, operator: Equals, values: [sheep]}}]"
    assert read(SHEEP, text) == []


def test_the_short_form_is_symmetric() -> None:
    text = "peter: [sheep, wolf]"
    assert read(PETER, text) == [named("sheep", "wolf")]
    assert read(SHEEP, text) == [named("peter")]
    assert read(WOLF, text, anti=True) == [named("peter", weight=-1)]


def test_a_pair_that_is_named_both_ways_counts_once() -> None:
    assert read(PETER, "{peter: [sheep, sheep], sheep: [peter, wolf]}") == [named("sheep")]
    assert read(SHEEP, "{peter: [sheep], sheep: [peter, wolf]}") == [named("peter", "wolf")]


def test_names_and_full_affinities_may_stand_in_one_list() -> None:
    text = "peter: [sheep, {match: {operator: AlwaysTrue}, weight: 3}]"
    always = Affinity(scope=among("pod", "default/meadow"), match=ALWAYS, weight=3)
    assert read(PETER, text) == [always, named("sheep")]
    assert read(SHEEP, text) == [named("peter")]


def test_affinity_and_anti_affinity_count_together() -> None:
    both = annotated(annotated(PETER, "peter: [sheep]"), "peter: [wolf]", anti=True)
    assert affinities_of(both, settings()).each == (named("sheep"), named("wolf", weight=-1))


@pytest.mark.parametrize(("key", "name"), [("1", "1"), ("true", "true"), ("~", "null")])
def test_a_container_name_that_yaml_reads_as_something_else_is_still_a_name(
    key: str, name: str
) -> None:
    assert read(member(f"default/meadow/{name}"), f"{key}: [sheep]") == [named("sheep")]


@pytest.mark.parametrize(
    ("weight", "counts"),
    [("1000", 1000), ("-1000", -1000), ("1001", 1000), ("-5000", -1000), ("0", 0)],
)
def test_a_weight_beyond_the_range_is_cut_with_a_notice(weight: str, counts: int) -> None:
    text = f"peter: [{{match: {{operator: AlwaysTrue}}, weight: {weight}}}]"
    found = affinities_of(annotated(PETER, text), settings())
    assert [affinity.weight for affinity in found.each] == [counts]
    notice = f"annotation {AFFINITY}.peter[0].weight: {weight} counts as {counts}"
    assert found.notices == ((notice,) if int(weight) != counts else ())


def test_settings_imply_affinities_where_a_container_has_none_of_its_own() -> None:
    pod = Affinity(scope=among("pod", "default/meadow"), match=ALWAYS, weight=10)
    namespace = Affinity(scope=among("namespace", "default"), match=ALWAYS, weight=10)
    text = "sheep: [wolf]"
    assert read(PETER, text, colocatePods=True) == [pod]
    assert read(PETER, text, colocateNamespaces=True) == [namespace]
    assert read(PETER, text, colocatePods=True, colocateNamespaces=True) == [pod, namespace]
    assert read(WOLF, text, colocatePods=True, colocateNamespaces=True) == [named("sheep")]


ALLOWED_KEYS = (
    "a key: name, namespace, qosclass, id, uid, labels/K, tags/K, one of these after pod/"
)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (
            "peter: [",
            "",
            "a map of container name to a list of container names or affinities (line",
        ),
        ("", "", "'' is not a map of container name"),
        ("- peter", "", "a map of container name"),
        ("peter: [sheep]\npeter: [wolf]", "", "the key 'peter' is repeated"),
        ("peter: !!python/name:os.system", "", "the tag"),
        ("a: &a [*a]\npeter: [sheep]", "", "the alias 'a' contains itself"),
        ("peter: " + "[" * 40 + "]" * 40, "", "nested more than 32 levels"),
        ("peter: [sheep" + " " * (1 << 20) + "]", "", "the text is longer than"),
        ("peter: sheep", "peter", "'sheep' is not a list of at most 100 container names"),
        ("peter: {match: {operator: AlwaysTrue}}", "peter", "a map (1 entry) is not a list"),
        ("peter:", "peter", "null is not a list"),
        ("peter: [" + "a, " * 101 + "]", "peter", "a list (101 entries) is not a list of at most"),
        (
            "peter: [" + "{match: {operator: MatchesAny, values: [a, b, c]}}, " * 22 + "]",
            "peter",
            "with at most 64 globs and joint keys in all its expressions",
        ),
        (
            "peter: [" + "{scope: {key: ':name:id'}, match: {key: ;,id;name}}, " * 33 + "]",
            "peter",
            "with at most 64 globs and joint keys in all its expressions",
        ),
        ("peter: [sheep, 5]", "peter[1]", "5 is not a container's name or a map of match, scope"),
        ("peter: [sheep, [wolf]]", "peter[1]", "a list (1 entry) is not a container's name"),
        (
            "peter: [{match: {operator: AlwaysTrue}, wieght: 3}]",
            "peter[0]",
            "'wieght' is not a field here: match, scope, weight; did you mean 'weight'?",
        ),
        ("peter: [{weight: 3}]", "peter[0].match", "null is not a map of key, operator, values"),
        ("peter: [{match: sheep}]", "peter[0].match", "'sheep' is not a map of key, operator"),
        (
            "peter: [{match: {operator: AlwaysTrue}, scope: []}]",
            "peter[0].scope",
            "a list (0 entries) is not a map of key, operator, values",
        ),
        (
            "peter: [{match: {operator: AlwaysTrue, weight: 3}}]",
            "peter[0].match",
            "'weight' is not a field here: key, operator, values",
        ),
        (
            "peter: [{match: {operator: AlwaysTrue, 5: 3}}]",
            "peter[0].match",
            "5 is not a field here",
        ),
        (
            "peter: [{match: {key: name, values: [a]}}]",
            "peter[0].match.operator",
            "null is not an operator: Equals, NotEqual, In, NotIn, Exists, NotExists, AlwaysTrue",
        ),
        (
            "peter: [{match: {key: name, operator: equals, values: [a]}}]",
            "peter[0].match.operator",
            "did you mean 'Equals'?",
        ),
        ("peter: [{match: {key: name, operator: [In]}}]", "peter[0].match.operator", "a list (1"),
        (
            "peter: [{match: {operator: Exists}}]",
            "peter[0].match.key",
            f"null is not {ALLOWED_KEYS}",
        ),
        (
            "peter: [{match: {key: label/a, operator: Exists}}]",
            "peter[0].match.key",
            f"'label/a' is not {ALLOWED_KEYS}",
        ),
        (
            "peter: [{match: {operator: AlwaysTrue}, scope: {key: ':name:', operator: Exists}}]",
            "peter[0].scope.key",
            "':name:' is not a key",
        ),
        (
            "peter: [{match: {key: name, operator: Equals, values: [a, b]}}]",
            "peter[0].match.values",
            "a list (2 entries) is not a list of one string: Equals takes exactly one",
        ),
        (
            "peter: [{match: {key: name, operator: MatchesNot}}]",
            "peter[0].match.values",
            "a list (0 entries) is not a list of one string: MatchesNot takes exactly one",
        ),
        (
            "peter: [{match: {key: name, operator: NotIn, values: []}}]",
            "peter[0].match.values",
            "a list of strings: NotIn takes at least one",
        ),
        (
            "peter: [{match: {key: name, operator: Exists, values: [a]}}]",
            "peter[0].match.values",
            "a list (1 entry) is not left out: Exists takes no values",
        ),
        (
            "peter: [{match: {key: name, operator: In, values: sheep}}]",
            "peter[0].match.values",
            "'sheep' is not a list of strings",
        ),
        (
            "peter: [{match: {key: name, operator: In, values: [a, 1]}}]",
            "peter[0].match.values[1]",
            "1 is not text; quote numbers and booleans",
        ),
        (
            "peter: [{match: {key: name, operator: Matches, values: ['a[']}}]",
            "peter[0].match.values[0]",
            "'a[' is not a glob such as web-* ('a[' is not a glob: '[' is not complete)",
        ),
        (
            "peter: [wolf, {match: {operator: AlwaysTrue}, weight: '5'}]",
            "peter[1].weight",
            "'5' is not a whole number from -1000 to 1000",
        ),
        ("peter: [{match: {operator: AlwaysTrue}, weight: 1.5}]", "peter[0].weight", "1.5 is not"),
        ("peter: [{match: {operator: AlwaysTrue}, weight: yes}]", "peter[0].weight", "true is not"),
        ("peter: [{match: {operator: AlwaysTrue}, weight: }]", "peter[0].weight", "null is not"),
    ],
)
@pytest.mark.parametrize("anti", [False, True])
def test_a_mistake_is_refused_with_its_place_and_what_is_allowed(
    text: str, path: str, message: str, anti: bool
) -> None:
    with pytest.raises(AnnotationError) as caught:
        read(PETER, text, anti=anti)
    key = f"resource-policy.nri.io/{'anti-' if anti else ''}affinity"
    assert caught.value.key == key
    assert caught.value.path == path
    assert str(caught.value).startswith(f"annotation {key}{'.' if path else ''}{path}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "theirs",
    ["sheep", "~", "5", "{match: 5}", "[5, {match: nonsense}, [sheep]]", "[{weight: many}]"],
)
def test_a_mistake_in_what_is_written_for_another_hurts_no_one(theirs: str) -> None:
    assert read(SHEEP, f"wolf: {theirs}\nsheep: [peter]") == [named("peter")]
    assert read(PETER, f"wolf: {theirs}\nsheep: [peter]") == [named("sheep")]


def test_as_many_affinities_and_globs_as_are_allowed_are_read() -> None:
    globs = ", ".join(["a*"] * 64)
    affinity = f"{{match: {{key: name, operator: MatchesAny, values: [{globs}]}}}}"
    assert len(read(PETER, f"peter: [{affinity}{', {match: {operator: AlwaysTrue}}' * 99}]")) == 100
    names = ", ".join(f"c{number}" for number in range(4000))
    many = f"peter: [{{match: {{key: name, operator: In, values: [{names}]}}}}]"
    assert len(read(PETER, many)[0].match.values) == 4000


def test_names_count_in_a_list_of_another_that_is_malformed_otherwise() -> None:
    assert read(SHEEP, "wolf: [sheep, 5]") == [named("wolf")]
