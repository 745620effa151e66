"""Kinds of other projects whose pods come from several templates."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.workloads.replica_kinds import read_owner
from nri_policy.cluster.workloads.workload import read_groups
from tests.unit.cluster.written import pod_spec

RACK = {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}


def template(cpu: int, **annotations: str) -> Any:
    return {"metadata": {"annotations": annotations}, "spec": pod_spec({"cpu": cpu})}


def read(kind: str, **spec: Any) -> Any:
    return read_groups([{"kind": kind, "metadata": {"name": "train"}, "spec": spec}])


def sets(kind: str, **spec: Any) -> Any:
    (group,) = read(kind, **spec)
    assert group.name == "train"
    return {each.name: (each.count, each.template.spec.effective()) for each in group.pod_sets}


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs"),
        ("TFJob", "tfReplicaSpecs"),
        ("MPIJob", "mpiReplicaSpecs"),
        ("XGBoostJob", "xgbReplicaSpecs"),
    ],
)
def test_each_replica_type_is_a_pod_set(kind: str, field: str) -> None:
    types = {
        "Master": {"template": template(2)},
        "Worker": {"replicas": 4, "template": template(8, **RACK)},
    }
    assert sets(kind, **{field: types}) == {
        "master": (1, {"cpu": 2000}),
        "worker": (4, {"cpu": 8000}),
    }
    (group,) = read(kind, **{field: types})
    assert [each.request and each.request.required for each in group.pod_sets] == [
        None,
        "example.com/rack",
    ]


def test_the_head_and_each_worker_group_of_ray_are_pod_sets() -> None:
    ray = {
        "headGroupSpec": {"template": template(2)},
        "workerGroupSpecs": [
            {"groupName": "small", "replicas": 3, "template": template(4)},
            {"groupName": "large", "replicas": 2, "numOfHosts": 4, "template": template(8)},
        ],
    }
    expected = {
        "head": (1, {"cpu": 2000}),
        "small": (3, {"cpu": 4000}),
        "large": (8, {"cpu": 8000}),
    }
    assert sets("RayCluster", **ray) == expected
    assert sets("RayJob", rayClusterSpec=ray) == expected
    assert sets("RayService", rayClusterConfig=ray) == expected
    assert sets("RayCluster", headGroupSpec=ray["headGroupSpec"]) == {"head": (1, {"cpu": 2000})}


def test_the_launcher_of_an_mpi_job_is_a_group_of_its_own() -> None:
    launcher, worker = {"template": template(1)}, {"replicas": 2, "template": template(8)}
    groups = read("MPIJob", mpiReplicaSpecs={"Launcher": launcher, "Worker": worker})
    assert [(group.name, *(each.name for each in group.pod_sets)) for group in groups] == [
        ("train", "worker"),
        ("train-launcher", "launcher"),
    ]
    (group,) = read("MPIJob", mpiReplicaSpecs={"Launcher": launcher})
    assert group.name == "train-launcher"


RAY_WORKERS = [  # a worker group, and the pods that KubeRay makes of it
    ({"replicas": 0, "minReplicas": 2}, 2),
    ({"minReplicas": 2}, 2),
    ({}, 0),
    ({"replicas": 20, "maxReplicas": 8, "numOfHosts": 2}, 16),
    ({"replicas": 5, "minReplicas": 2, "maxReplicas": 8}, 5),
    ({"minReplicas": 9, "maxReplicas": 8}, 8),
    ({"replicas": 5, "minReplicas": 2, "suspend": True}, 0),
    ({"replicas": 5, "suspend": False}, 5),
]


@pytest.mark.parametrize(("fields", "count"), RAY_WORKERS)
def test_a_worker_group_of_ray_has_as_many_pods_as_kuberay_makes(fields: Any, count: int) -> None:
    workers = {"groupName": "workers", "template": template(1), **fields}
    spec = {"headGroupSpec": {"template": template(1)}, "workerGroupSpecs": [workers]}
    assert {name: pods for name, (pods, _) in sets("RayCluster", **spec).items()} == {
        "head": 1,
        "workers": count,
    }
    cluster = {"metadata": {"name": "ray"}, "spec": spec}
    assert read_owner(cluster, "RayCluster", "").pods == {"head": 1, "workers": count}


def test_a_suspended_ray_cluster_has_no_pods() -> None:
    """A file's is placed as it will run, like a suspended Job."""
    workers = {"groupName": "workers", "replicas": 2, "template": template(1)}
    head = {"template": template(1)}
    spec = {"suspend": True, "headGroupSpec": head, "workerGroupSpecs": [workers]}
    cluster = {"metadata": {"name": "ray"}, "spec": spec}
    assert read_owner(cluster, "RayCluster", "").pods == {"head": 0, "workers": 0}
    assert {name: pods for name, (pods, _) in sets("RayCluster", **spec).items()} == {
        "head": 1,
        "workers": 2,
    }


BAD: list[tuple[str, Any, str]] = [
    ("PyTorchJob", {}, "spec.pytorchReplicaSpecs: it is missing"),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": "x"},
        "spec.pytorchReplicaSpecs: 'x' is neither a map nor a list",
    ),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Worker": 3}},
        "spec.pytorchReplicaSpecs.Worker: 3 is not an object",
    ),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Worker": {"replicas": "3", "template": template(1)}}},
        "spec.pytorchReplicaSpecs.Worker.replicas: '3' is not a number of pods",
    ),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Worker": {"replicas": -3, "template": template(1)}}},
        "spec.pytorchReplicaSpecs.Worker: -3 pods are not from 0 to",
    ),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Worker": {}}},
        "spec.pytorchReplicaSpecs.Worker.template",
    ),
    (
        "RayCluster",
        {
            "headGroupSpec": {"template": template(1)},
            "workerGroupSpecs": [{"groupName": "a", "minReplicas": "2", "template": template(1)}],
        },
        "spec.workerGroupSpecs[0].minReplicas: '2' is not a number of pods",
    ),
    (
        "RayCluster",
        {"headGroupSpec": {"template": template(1)}, "workerGroupSpecs": [{}]},
        "spec.workerGroupSpecs[0].groupName: null is no name",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "error"), BAD)
def test_what_is_wrong_is_said_with_its_place(kind: str, spec: Any, error: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(kind, **spec)
    assert str(caught.value).startswith(error), caught.value
