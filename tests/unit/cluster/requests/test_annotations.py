"""Requests by annotation: each rule and its message."""

from __future__ import annotations

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.requests.annotations import read_request, read_size
from nri_policy.cluster.requests.group import PlacementRequest, Slice, read_group
from nri_policy.cluster.requests.request import units_of

K = "kueue.x-k8s.io/podset-"
P = "metadata.annotations"


def read(**given: str) -> PlacementRequest | None:
    """Keys are Kueue's with `_` for `-`; those that begin with `our_` are ours."""
    names = {
        "placement.nri/" + key[4:].replace("_", "-")
        if key.startswith("our_")
        else K + key.replace("_", "-"): value
        for key, value in given.items()
    }
    return read_request(names, {}, "metadata")


def test_without_annotations_there_is_no_request() -> None:
    assert read() is None
    assert read_request({"a": "b"}, {"placement.nri/group": "g"}, "") is None


def test_kueues_annotations_are_read_as_they_are() -> None:
    assert read(required_topology="rack") == PlacementRequest(required="rack")
    assert read(preferred_topology="rack", group_name="j") == PlacementRequest(
        preferred="rack", leader_group="j"
    )
    assert read(unconstrained_topology="true") == PlacementRequest(unconstrained=True)
    assert read(unconstrained_topology="F") == PlacementRequest()
    assert read(slice_required_topology="host", slice_size="2") == PlacementRequest(
        slices=[Slice("host", 2)]
    )
    layers = '[{"topology": "rack", "size": 8}, {"topology": "host", "size": 2}]'
    assert read(
        slice_required_topology_constraints=layers, required_topology="z"
    ) == PlacementRequest(required="z", slices=[Slice("rack", 8), Slice("host", 2)])


def test_ours_may_be_labels_and_stand_beside_kueues() -> None:
    labels = {"placement.nri/topology": "t", "placement.nri/max-per-host": "3"}
    annotations = {
        "placement.nri/max-per-host": "2",
        "placement.nri/algorithm": "LeastFree",
        "placement.nri/spread-over": "zone={a: 2, b: 1}, pack:rack",
        K + "required-topology": "block",
    }
    assert read_request(annotations, labels, "") == PlacementRequest(
        required="block",
        topology="t",
        max_per_host=2,
        algorithm="LeastFree",
        spread_over=["zone={a: 2, b: 1}", "pack:rack"],
    )
    assert read_size({"placement.nri/group-size": "64"}, {}, "") == 64
    assert read_size({}, {}, "") is None


BAD = [
    (
        {"required_topology": "a", "preferred_topology": "b"},
        (
            f"{P}: must not contain more than one topology annotation:"
            f" {K}required-topology: 'a' and {K}preferred-topology: 'b'"
        ),
    ),
    ({"required_topology": ""}, f"{P}.{K}required-topology: '' is not the name of a level"),
    (
        {"unconstrained_topology": "maybe"},
        f"{P}.{K}unconstrained-topology: 'maybe' must be a boolean value",
    ),
    (
        {"slice_required_topology": "h"},
        f"{P}.{K}slice-required-topology: 'h' needs {K}slice-size",
    ),
    (
        {"slice_size": "2"},
        f"{P}.{K}slice-size: '2' may not be set when {K}slice-required-topology is not",
    ),
    (
        {"slice_required_topology": "h", "slice_size": "two"},
        f"{P}.{K}slice-size: 'two' must be a numeric value",
    ),
    (
        {"slice_required_topology": "h", "slice_size": "0"},
        f"{P}.{K}slice-size: '0' must be from 1 to 2147483647",
    ),
    (
        {"group_name": "7", "required_topology": "a"},
        f"{P}.{K}group-name: '7' must be a name and not a number",
    ),
    (
        {"group_name": "g"},
        (
            f"{P}.{K}group-name: 'g' may not be set when neither {K}required-topology"
            f" nor {K}preferred-topology is"
        ),
    ),
    (
        {
            "slice_required_topology": "h",
            "slice_size": "2",
            "slice_required_topology_constraints": '[{"topology": "a", "size": 4}]',
        },
        f"may not be set when {K}slice-required-topology is",
    ),
    ({"slice_required_topology_constraints": "[]"}, "must have 1 to 3 layers"),
    ({"slice_required_topology_constraints": "{"}, "must be a valid JSON array"),
    (
        {"slice_required_topology_constraints": '[{"topology": "a", "size": 0}]'},
        "has the size 0; it must be 1 or more",
    ),
    (
        {
            "slice_required_topology_constraints": (
                '[{"topology": "a", "size": 4}, {"topology": "a", "size": 2}]'
            )
        },
        "has 'a' twice",
    ),
    (
        {
            "slice_required_topology_constraints": (
                '[{"topology": "a", "size": 4}, {"topology": "b", "size": 3}]'
            )
        },
        "has the size 3, which must evenly divide the size 4 before",
    ),
    ({"our_algorithm": "bestfit"}, "did you mean 'BestFit'?"),
    ({"our_max_per_host": "-1"}, f"{P}.placement.nri/max-per-host: '-1' must be from 1 to"),
    ({"our_spread_over": "a,,b"}, "must be a list of labels, coarse to fine"),
    (
        {"our_spread_over": "a, b={c: -2}"},
        f"{P}.placement.nri/spread-over: 'a, b={{c: -2}}' is not taken: 'c: -2' is not VALUE",
    ),
    (
        {"require_topology": "a"},
        "no such annotation; did you mean 'kueue.x-k8s.io/podset-required-topology'?",
    ),
    ({"our_spread_ovre": "a"}, "no such annotation; did you mean 'placement.nri/spread-over'?"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_breaks_a_rule_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(**given)
    assert message in str(caught.value)


def test_a_template_without_a_request_has_that_of_its_annotations() -> None:
    template = {"metadata": {"annotations": {K + "required-topology": "rack"}}}
    pod_set = {"name": "main", "count": 2, "template": template}
    group = read_group({"metadata": {"name": "g"}, "spec": {"podSets": [pod_set]}})
    assert units_of(group)[0].workers.request == PlacementRequest(required="rack")
    template["metadata"]["annotations"] = {K + "slice-size": "2"}
    with pytest.raises(DocumentError) as caught:
        units_of(read_group({"metadata": {"name": "g"}, "spec": {"podSets": [pod_set]}}))
    assert str(caught.value).startswith("spec.podSets[0].template.metadata.annotations.kueue")


REAL = """
    admission-gated-by cluster-queue-name component-workload-index concurrent-admission
    concurrent-admission-parent elastic-job is-group-workload job-completions-equal-parallelism
    job-min-parallelism job-owner-gvk job-owner-name job-uid local-queue-name managed manager
    max-exec-time-seconds multikueue multikueue-origin multikueue-origin-uid parent-workload
    original-node-selectors original-pod-sets-info pod-group-fast-admission pod-group-name
    pod-group-pod-index pod-group-pod-index-label pod-group-role pod-group-serving pod-group-sets
    pod-group-total-count pod-index-offset pod-suspending-parent podset prebuilt-workload-name
    priority-boost priority-class queue-name raycluster-generation resource-in-use
    retriable-in-group role-hash safe-to-forcefully-delete stopping tas topology workload
    workload-slice-name workload-slice-replacement-for
"""


def test_other_keys_of_kueue_are_none_of_ours() -> None:
    given = {f"kueue.x-k8s.io/{name}": "x" for name in [*REAL.split(), "of-a-later-version"]}
    assert read_request(given, given, "metadata") is None


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("pod-group-nmae", "pod-group-name"),
        ("pod-group-total", "pod-group-total-count"),
        ("pod-group-index", "pod-group-pod-index"),
        ("required-topology", "podset-required-topology"),
        ("pod-set-slice-size", "podset-slice-size"),
    ],
)
def test_a_key_that_is_like_one_of_kueues_is_refused(mistyped: str, meant: str) -> None:
    given = {f"kueue.x-k8s.io/{mistyped}": "x"}
    text = f"kueue.x-k8s.io/{mistyped}: no such name; did you mean 'kueue.x-k8s.io/{meant}'?"
    for annotated, labels, path in ((given, {}, "annotations"), ({}, given, "labels")):
        with pytest.raises(DocumentError) as caught:
            read_request(annotated, labels, "metadata")
        assert str(caught.value) == f"metadata.{path}.{text}"
