from __future__ import annotations

import pytest

from nri_policy.settings_source.objects import Known, Level, Policy, name_of

NODE, GROUP, DEFAULT = (
    Policy(name=name, generation=1, spec={}) for name in ("node.a", "group.g", "default")
)


def counting(*said: Policy | None, before: Policy | None = None) -> Policy | None:
    known = Known(before)
    for level, policy in zip(Level, said, strict=False):
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
    said: tuple[Policy | None, ...], counts: Policy | None
) -> None:
    assert counting(*said) == counts


def test_what_counted_goes_on_until_what_could_come_first_is_known() -> None:
    known = Known(GROUP)
    assert not known.say(Level.DEFAULT, DEFAULT)
    assert not known.say(Level.GROUP, None)
    assert known.counting == GROUP
    assert known.say(Level.NODE, None)
    assert known.counting == DEFAULT


def test_what_comes_first_counts_at_once() -> None:
    known = Known()
    assert known.say(Level.NODE, NODE)
    assert known.counting == NODE


def test_another_group_is_not_known_until_it_has_answered() -> None:
    known = Known()
    for level, policy in ((Level.NODE, None), (Level.GROUP, GROUP), (Level.DEFAULT, DEFAULT)):
        known.say(level, policy)
    known.forget(Level.GROUP)
    assert not known.say(Level.DEFAULT, DEFAULT)
    assert known.counting == GROUP
    assert known.say(Level.GROUP, None)
    assert known.counting == DEFAULT


def test_a_status_is_no_change() -> None:
    known = Known()
    known.say(Level.NODE, NODE)
    told = Policy(name="node.a", generation=1, spec={}, nodes=frozenset({"a"}))
    assert not known.say(Level.NODE, told)
    assert known.say(Level.NODE, Policy(name="node.a", generation=2, spec={"pinCPU": False}))


def test_names_are_those_of_the_topology_aware_policy() -> None:
    assert [name_of(Level.NODE, "n.x"), name_of(Level.GROUP, "g"), name_of(Level.DEFAULT)] == [
        "node.n.x",
        "group.g",
        "default",
    ]
