"""What is read of Kueue's objects."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.assignment import DomainAssignment
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.requests.group import GroupStatus
from nri_policy.cluster.workloads.kueue import group_of, read_check, read_flavor, read_workload
from tests.unit.cluster.kueue_objects import admission_check, flavor, pod_set, workload

HOSTNAME = "kubernetes.io/hostname"
INDIVIDUAL = {
    "domainCount": 2,
    "valuesPerLevel": [{"individual": {"prefix": "h", "suffix": ".x", "roots": ["1", "2"]}}],
    "podCounts": {"individual": [3, 1]},
}
UNIVERSAL = {
    "domainCount": 2,
    "valuesPerLevel": [{"universal": "h9"}],
    "podCounts": {"universal": 2},
}


def test_a_topology_assignment_has_its_values_and_counts_whichever_way_they_are_written() -> None:
    topology = {"levels": [HOSTNAME], "slices": [INDIVIDUAL, UNIVERSAL]}
    (found,) = read_workload(workload("w", pod_set(8, 1), topology=topology), "").pod_sets
    assert found.assignment is not None
    assert found.assignment.levels == [HOSTNAME]
    assert found.assignment.domains == [
        DomainAssignment(["h1.x"], 3),
        DomainAssignment(["h2.x"], 1),
        DomainAssignment(["h9"], 2),
        DomainAssignment(["h9"], 2),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"domainCount": 3},
        {**UNIVERSAL, "domainCount": 2_000_000_000},
        {"valuesPerLevel": []},
        {"podCounts": {"individual": [1]}},
        {"podCounts": {}},
        {"podCounts": {"universal": -1}},
    ],
)
def test_a_slice_that_makes_no_sense_is_an_error(changed: Any) -> None:
    topology = {"levels": [HOSTNAME], "slices": [{**INDIVIDUAL, **changed}]}
    with pytest.raises(DocumentError, match=r"status\.admission\.podSetAssignments"):
        read_workload(workload("w", pod_set(8, 1), topology=topology), "")


def test_a_workload_is_reserved_with_its_quota_and_over_when_it_has_ended() -> None:
    assert read_workload(workload("w", pod_set(1, 1)), "").reserved
    assert not read_workload(workload("w", pod_set(1, 1), reserved=False), "").reserved
    for condition in ("Finished", "Evicted"):
        assert read_workload(workload("w", pod_set(1, 1), conditions=[condition]), "").over
    assert read_workload(workload("w", pod_set(1, 1), active=False), "").over
    assert not read_workload(workload("w", pod_set(1, 1)), "").over


def test_assigned_places_are_a_groups_while_the_workload_has_its_quota() -> None:
    topology = {"levels": [HOSTNAME], "slices": [UNIVERSAL]}
    group = group_of(read_workload(workload("w", pod_set(4, 1), topology=topology), ""))
    assert (group.name, group.status.state) == ("kueue/w", "Placed")
    changes: list[dict[str, Any]] = [
        {"conditions": ["Finished"]},
        {"reserved": False},
        {"topology": None},
    ]
    for changed in changes:
        item = workload("w", pod_set(4, 1), **{"topology": topology, **changed})
        assert group_of(read_workload(item, "")).status == GroupStatus()


def test_checks_and_flavors() -> None:
    check = read_check(admission_check(parameters={"name": "p"}), "")
    assert (check.controller, check.has_parameters) == ("placement.nri/numa-fit", True)
    made = read_flavor(flavor("a", {"x": "y"}, [{"key": "k", "operator": "Exists"}]), "")
    assert (made.node_labels, made.tolerations[0].key) == ({"x": "y"}, "k")
    assert read_flavor({"metadata": {"name": "b"}}, "").node_labels == {}


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"metadata": {"name": "w"}, "spec": {"podSets": [{"count": "x"}]}}, "count"),
        ({"metadata": {"name": "w"}, "spec": {"podSets": [{"count": -1}]}}, "count"),
        (
            {
                "metadata": {"name": "w"},
                "spec": {},
                "status": {"admissionChecks": [{"state": "Ready"}]},
            },
            "admissionChecks",
        ),
    ],
)
def test_a_damaged_workload_is_an_error_with_a_path(item: Any, path: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read_workload(item, "")
    assert path in str(raised.value)
