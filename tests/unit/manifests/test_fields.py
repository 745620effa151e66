"""Mistyped fields of pods and workloads: found where a reader of some fields would ignore them."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.workloads.workload import make_pod_document, read_groups
from nri_policy.manifests.fields import mistyped, mistyped_workload
from nri_policy.manifests.pod import read_pod
from nri_policy.manifests.resources import ManifestError

REQUEST = "spec.containers[0].resources.request: no such field; did you mean 'requests'?"


def pod(container: Any = (), **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", **dict(container)}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": containers, **spec},
    }


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (pod({"resources": {"request": {"cpu": 1}}}), REQUEST),
        (
            pod({"resources": {"cpu": 1}}),
            "spec.containers[0].resources.cpu: no such field; there are: requests, limits, claims",
        ),
        (
            pod({"resource": {"limits": {"cpu": 1}}}),
            "spec.containers[0].resource: no such field; did you mean 'resources'?",
        ),
        (
            pod(nodeSelectors={"disk": "ssd"}),
            "spec.nodeSelectors: no such field; did you mean 'nodeSelector'?",
        ),
        (
            pod(initContainers=[{"name": "i", "resources": {"limit": {"cpu": 1}}}]),
            "spec.initContainers[0].resources.limit: no such field; did you mean 'limits'?",
        ),
        (pod({"resources": {"requests": {"cpu": 1}, "claims": []}}, resourceClaims=[]), ""),
        (
            pod() | {"metadata": {"name": "p", "anotations": {}}},
            "metadata.anotations: no such field; did you mean 'annotations'?",
        ),
        (
            pod({"resources": {"requests": {"cpu": 1, "cpus": 2}}}),
            "spec.containers[0].resources.requests.cpus: no such resource; did you mean 'cpu'?",
        ),
        (pod({"resources": {"limits": {"hugepages-2Mi": 2, "gpu": 1}}}), ""),
        (pod(somethingOfALaterVersion=True), ""),
        ({"spec": 3}, ""),
        ({"spec": {"containers": [3, {"resources": 3}], "initContainers": {}}}, ""),
    ],
)
def test_a_field_that_is_like_one_that_there_is(given: Any, problem: str) -> None:
    assert mistyped(given) == problem


MISTYPED = pod({"resources": {"request": {"cpu": 1}}})


def test_a_node_refuses_it() -> None:
    with pytest.raises(ManifestError, match="did you mean 'requests'"):
        read_pod(MISTYPED)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (MISTYPED, ""),
        (
            {
                "kind": "Job",
                "metadata": {"name": "j"},
                "spec": {"template": {"spec": MISTYPED["spec"]}},
            },
            "spec.template.",
        ),
        (
            {
                "kind": "PlacementGroup",
                "metadata": {"name": "g"},
                "spec": {
                    "podSets": [
                        {"name": "m", "count": 1, "template": {"spec": MISTYPED["spec"]}},
                    ]
                },
            },
            "spec.podSets[0].template.",
        ),
    ],
)
def test_the_cluster_side_refuses_it_in_files(document: dict[str, Any], path: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_groups([document])
    assert str(caught.value) == path + REQUEST
    if document["kind"] != "PlacementGroup":
        with pytest.raises(DocumentError) as caught:
            make_pod_document(document, "")
        assert str(caught.value) == path + REQUEST


def workload(kind: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "w"}, "spec": spec}


TEMPLATE = {"spec": pod()["spec"]}
JOB = {"name": "j", "template": {"spec": {"paralelism": 64, "template": TEMPLATE}}}
WORKERS = {"workerTemplate": TEMPLATE}
MISTYPED_WORKLOADS = [
    (
        workload("Job", paralelism=64, template=TEMPLATE),
        "spec.paralelism: no such field; did you mean 'parallelism'?",
    ),
    (
        workload("Deployment", replica=3, template=TEMPLATE),
        "spec.replica: no such field; did you mean 'replicas'?",
    ),
    (
        workload("JobSet", replicatedJobs=[JOB]),
        (
            "spec.replicatedJobs[0].template.spec.paralelism: no such field;"
            " did you mean 'parallelism'?"
        ),
    ),
    (
        workload("JobSet", replicatedJobs=[JOB | {"replica": 2}]),
        "spec.replicatedJobs[0].replica: no such field; did you mean 'replicas'?",
    ),
    (
        workload("LeaderWorkerSet", leaderWorkerTemplate=WORKERS | {"sizes": 4}),
        "spec.leaderWorkerTemplate.sizes: no such field; did you mean 'size'?",
    ),
]


@pytest.mark.parametrize(("document", "problem"), MISTYPED_WORKLOADS)
def test_the_cluster_side_refuses_a_mistyped_field_of_a_workload(
    document: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DocumentError) as caught:
        read_groups([document])
    assert str(caught.value) == problem
    if "template" in document["spec"]:
        with pytest.raises(DocumentError) as caught:
            make_pod_document(document, "")
        assert str(caught.value) == problem


@pytest.mark.parametrize(
    "document",
    [
        workload("Job", fieldOfALaterVersion=1, parallelism=2, template=TEMPLATE),
        workload("JobSet", replicatedJobs=[3, {"template": 3}]),
        workload("JobSet", replicatedJobs={}),
        workload("LeaderWorkerSet", leaderWorkerTemplate=3),
        {"kind": "Job", "spec": 3},
        {"kind": "CronJob", "spec": {"paralelism": 1}},
    ],
)
def test_other_fields_of_workloads_are_left_to_their_reader(document: dict[str, Any]) -> None:
    assert mistyped_workload(document) == ""
