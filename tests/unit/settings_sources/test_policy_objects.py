from __future__ import annotations

import pytest

from nri_policy.settings_sources.policy_objects import (
    PolicyObject,
    PolicyScope,
    PolicySelection,
    name_of,
)

NODE, GROUP, DEFAULT = (
    PolicyObject(name=name, generation=1, spec={}) for name in ("node.a", "group.g", "default")
)


def counting(*said: PolicyObject | None, before: PolicyObject | None = None) -> PolicyObject | None:
    known = PolicySelection(before)
    for level, policy in zip(PolicyScope, said, strict=False):
        known.record(level, policy)
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
    known = PolicySelection(GROUP)
    assert not known.record(PolicyScope.DEFAULT, DEFAULT)
    assert not known.record(PolicyScope.GROUP, None)
    assert known.counting == GROUP
    assert known.record(PolicyScope.NODE, None)
    assert known.counting == DEFAULT


def test_what_comes_first_counts_at_once() -> None:
    known = PolicySelection()
    assert known.record(PolicyScope.NODE, NODE)
    assert known.counting == NODE


def test_another_group_is_not_known_until_it_has_answered() -> None:
    known = PolicySelection()
    for level, policy in (
        (PolicyScope.NODE, None),
        (PolicyScope.GROUP, GROUP),
        (PolicyScope.DEFAULT, DEFAULT),
    ):
        known.record(level, policy)
    known.forget(PolicyScope.GROUP)
    assert not known.record(PolicyScope.DEFAULT, DEFAULT)
    assert known.counting == GROUP
    assert known.record(PolicyScope.GROUP, None)
    assert known.counting == DEFAULT


def test_a_status_is_no_change() -> None:
    known = PolicySelection()
    known.record(PolicyScope.NODE, NODE)
    own = PolicyObject(name="node.a", generation=1, spec={}, nodes=frozenset({"a"}))
    assert not known.record(PolicyScope.NODE, own)
    assert known.record(
        PolicyScope.NODE, PolicyObject(name="node.a", generation=2, spec={"pinCPU": False})
    )


def test_names_are_those_of_the_topology_aware_policy() -> None:
    assert [
        name_of(PolicyScope.NODE, "n.x"),
        name_of(PolicyScope.GROUP, "g"),
        name_of(PolicyScope.DEFAULT),
    ] == [
        "node.n.x",
        "group.g",
        "default",
    ]
