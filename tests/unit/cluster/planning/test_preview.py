"""Groups that are found by name, and tried one after another."""

from __future__ import annotations

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.planning.preview import find_group
from tests.unit.cluster.engine.test_preemption import RACK, engine
from tests.unit.cluster.written import Object, group, pod_set


def test_a_group_is_found_with_its_namespace_or_in_the_default_one() -> None:
    made = engine(group(pod_set(4, RACK), name="train"))
    assert find_group(made.state.groups, "train") is find_group(made.state.groups, "default/train")


def in_namespace(namespace: str, name: str) -> Object:
    made = group(pod_set(4, RACK), name=name)
    made["metadata"]["namespace"] = namespace
    return made


def test_a_bare_name_that_is_unique_is_of_any_namespace() -> None:
    made = engine(group(pod_set(4, RACK), name="train"), in_namespace("team", "solver"))
    assert find_group(made.state.groups, "solver") is made.state.groups["team", "solver"]
    made = engine(in_namespace("shop", "solver"), in_namespace("team", "solver"))
    with pytest.raises(
        DocumentError, match="did you mean 'shop/solver' or 'team/solver'"
    ) as raised:
        find_group(made.state.groups, "solver")
    assert "there is no group 'solver'" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian", "; did you mean 'train'?"),
        ("default/trian", "; did you mean 'default/train'?"),
        ("team/solvr", "; did you mean 'team/solver'?"),
        ("odd", "; there are: default/train, team/solver"),
    ],
)
def test_a_name_is_compared_with_those_of_its_kind(name: str, hint: str) -> None:
    made = engine(group(pod_set(4, RACK), name="train"), in_namespace("team", "solver"))
    with pytest.raises(DocumentError) as raised:
        find_group(made.state.groups, name)
    assert str(raised.value) == f"there is no group {name!r} in the cluster{hint}"
