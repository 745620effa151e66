"""What is used where: an event that fails leaves the trees as they were."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.engine.usage import in_use
from nri_policy.cluster.objects.group import read_group
from nri_policy.cluster.objects.pod import read_pod
from tests.unit.cluster.engine.test_preemption import RACK, engine
from tests.unit.cluster.written import group, pod, pod_set


def test_a_group_that_cannot_be_counted_leaves_the_trees_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine(group(pod_set(4, RACK), name="g"))
    made.set_pod(read_pod(pod("p", "a1", group="g", cpu=1), ""))
    before = made.tree("default").rows.dump()
    calls: list[Any] = []

    def break_second(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise ZeroDivisionError
        return in_use(*given)

    monkeypatch.setattr("nri_policy.cluster.engine.cluster_state.in_use", break_second)
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
