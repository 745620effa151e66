"""Groups that are found by name, and tried one after another."""

from __future__ import annotations

import pytest

from nri_policy.cluster.engine.trial import find_group
from nri_policy.cluster.objects.document import DocumentError
from tests.unit.cluster.engine.test_preemption import RACK, engine
from tests.unit.cluster.written import group, pod_set


def test_a_group_is_found_with_its_namespace_or_in_the_default_one() -> None:
    made = engine(group(pod_set(4, RACK), name="train"))
    assert find_group(made, "train") is find_group(made, "default/train")
    with pytest.raises(DocumentError, match="there is no group 'trian' in the cluster; did you"):
        find_group(made, "trian")
