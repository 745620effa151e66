from __future__ import annotations

import pytest

from nri_policy.settings_sources.objects import Known, PolicyObject, Scope, name_of

NODE, GROUP, DEFAULT = (
    PolicyObject(name=name, generation=1, spec={}) for name in ("node.a", "group.g", "default")
)


def counting(*said: PolicyObject | None, before: PolicyObject | None = None) -> PolicyObject | None:
    known = Known(before)
    for level, policy in zip(Scope, said, strict=False):
        known.say(level, policy)
    return known.counting


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ((NODE, GROUP, DEFAULT), NODE),
        ((None, GROUP, DEFAULT), GROUP),
        ((None, None, DEFAULT), DEFAULT),
        ((None, None, None), None),
        ((NODE, None, None), NODE),
    ],
)
def test_the_nodes_own_object_comes_before_its_groups_and_that_before_the_default(
    said: tuple[PolicyObject | None, ...], counts: PolicyObject | None
) -> None:
    assert counting(*said) == counts


def test_what_counted_goes_on_until_what_could_come_first_is_known() -> None:
    known = Known(GROUP)
    assert not known.say(Scope.DEFAULT, DEFAULT)
    assert not known.say(Scope.GROUP, None)
    assert known.counting == GROUP
    assert known.say(Scope.NODE, None)
    assert known.counting == DEFAULT


def test_what_comes_first_counts_at_once() -> None:
    known = Known()
    assert known.say(Scope.NODE, NODE)
    assert known.counting == NODE


def test_another_group_is_not_known_until_it_has_answered() -> None:
    known = Known()
    for level, policy in ((Scope.NODE, None), (Scope.GROUP, GROUP), (Scope.DEFAULT, DEFAULT)):
        known.say(level, policy)
    known.forget(Scope.GROUP)
    assert not known.say(Scope.DEFAULT, DEFAULT)
    assert known.counting == GROUP
    assert known.say(Scope.GROUP, None)
    assert known.counting == DEFAULT


def test_a_status_is_no_change() -> None:
    known = Known()
    known.say(Scope.NODE, NODE)
    own = PolicyObject(name="node.a", generation=1, spec={}, nodes=frozenset({"a"}))
    assert not known.say(Scope.NODE, own)
    assert known.say(Scope.NODE, PolicyObject(name="node.a", generation=2, spec={"pinCPU": False}))


def test_names_are_those_of_the_topology_aware_policy() -> None:
    assert [name_of(Scope.NODE, "n.x"), name_of(Scope.GROUP, "g"), name_of(Scope.DEFAULT)] == [
        "node.n.x",
        "group.g",
        "default",
    ]
