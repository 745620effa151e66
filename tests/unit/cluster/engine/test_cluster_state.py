"""What is used where: an event that fails leaves all as it was."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.engine.usage import in_use
from nri_policy.cluster.objects.group import read_group
from nri_policy.cluster.objects.pod import read_pod
from tests.unit.cluster.engine.test_preemption import RACK, engine
from tests.unit.cluster.written import group, pod, pod_set, pod_spec


def test_a_group_that_cannot_be_counted_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine(group(pod_set(4, RACK), name="g"))
    made.set_pod(read_pod(pod("p", "a1", group="g", cpu=1), ""))
    before, groups = made.tree("default").rows.dump(), dict(made.groups)
    calls: list[Any] = []

    def break_second(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise ZeroDivisionError
        return in_use(*given)

    monkeypatch.setattr("nri_policy.cluster.engine.group_usages.in_use", break_second)
    with pytest.raises(ZeroDivisionError):
        made.set_group(
            read_group(
                group(
                    pod_set(4, RACK),
                    name="g",
                    status={
                        "assignments": [
                            {
                                "podSet": "main",
                                "levels": ["kubernetes.io/hostname"],
                                "domains": [{"values": ["b1"], "count": 4}],
                            }
                        ]
                    },
                )
            )
        )
    assert made.tree("default").rows.dump() == before
    assert made.groups == groups


def test_tolerations_tell_no_pods_apart_where_no_node_has_taints() -> None:
    """Else each kind of them is counted by itself."""
    tree = engine().tree("default")
    plain, tolerating = (
        read_pod(pod("p", "") | {"spec": pod_spec({"cpu": 1}, tolerations=each)}, "").spec
        for each in ([], [{"key": "k", "operator": "Exists"}])
    )
    assert tree.filter(tolerating, scored=False) is tree.filter(plain, scored=False)
