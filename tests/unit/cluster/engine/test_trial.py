"""Groups that are found by name, and tried one after another."""

from __future__ import annotations

import pytest

from nri_policy.cluster.engine.trial import find_group
from nri_policy.cluster.objects.document import DocumentError
from tests.unit.cluster.engine.test_preemption import RACK, engine
from tests.unit.cluster.written import group, pod_set


def test_a_group_is_found_with_its_namespace_or_in_the_default_one() -> None:
    made = engine(group(pod_set(4, RACK), name="train"))
    assert find_group(made.groups, "train") is find_group(made.groups, "default/train")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian", "; did you mean 'train'?"),
        ("default/trian", "; did you mean 'default/train'?"),
        ("solver", "; did you mean 'team/solver'?"),
        ("odd", "; there are: default/train, team/solver"),
    ],
)
def test_a_name_is_compared_with_those_of_its_kind(name: str, hint: str) -> None:
    elsewhere = group(pod_set(4, RACK), name="solver")
    elsewhere["metadata"]["namespace"] = "team"
    made = engine(group(pod_set(4, RACK), name="train"), elsewhere)
    with pytest.raises(DocumentError) as raised:
        find_group(made.groups, name)
    assert str(raised.value) == f"there is no group {name!r} in the cluster{hint}"
