"""What the pod sets of a group ask for."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.requests.request import units_of
from tests.unit.cluster.written import group, pod_set


def test_units_follow_from_the_pod_sets_that_a_group_has() -> None:
    given = read_group(group(pod_set(3)))
    (unit,) = units_of(given)
    larger = replace(given, pod_sets=tuple(replace(each, count=5) for each in given.pod_sets))
    assert [each.workers.count for each in units_of(larger)] == [5]
    assert [*units_of(replace(given, priority=7))] == [unit]
