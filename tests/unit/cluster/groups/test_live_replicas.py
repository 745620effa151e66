"""Pods of Kubeflow's and Ray's objects are groups, whose sizes are in these objects."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.placement_world import GATE, OTHER, Object, Play, empty
from tests.unit.cluster.written import HOSTNAME, pod_spec

RACK = "example.com/rack"
TYPE, INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"


def pod(play: Play, owner: str, name: str, **labels: str) -> None:
    """A pod of an object, named APIVERSION/KIND/NAME, that waits behind the gate."""
    version, kind, of = owner.rsplit("/", 2)
    own = {"apiVersion": version, "kind": kind, "name": of, "uid": f"u-{of}", "controller": True}
    metadata = {
        "name": name,
        "uid": f"u-{name}",
        "labels": labels,
        "annotations": {"kueue.x-k8s.io/podset-required-topology": RACK},
        "ownerReferences": [own],
    }
    spec = pod_spec({"cpu": 1}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
    play.world.put("pods", {"metadata": metadata, "spec": spec})


def kubeflow(kind: str, field: str, **replicas: int) -> Object:
    template = {"spec": pod_spec({"cpu": 1})}
    types = {name: {"replicas": count, "template": template} for name, count in replicas.items()}
    return {"kind": kind, "metadata": {"name": "train"}, "spec": {field: types}}


def ray(**replicas: int) -> Object:
    template = {"spec": pod_spec({"cpu": 1})}
    groups = [
        {"groupName": name, "replicas": count, "template": template}
        for name, count in replicas.items()
    ]
    spec = {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}
    return {"kind": "RayCluster", "metadata": {"name": "ray"}, "spec": spec}


def ray_pods(play: Play, group: str, *numbers: int) -> None:
    for number in numbers:
        labels: dict[str, Any] = {"ray.io/node-type": "worker", "ray.io/group": group}
        if group == "head":
            labels = {"ray.io/node-type": "head", "ray.io/group": "headgroup"}
        pod(play, "ray.io/v1/RayCluster/ray", f"ray-{group}-{number}", **labels)


def let_go(play: Play) -> int:
    pods = play.world.objects["pods"].values()
    return sum(HOSTNAME in each["spec"].get("nodeSelector", {}) for each in pods)


def sizes(play: Play, group: str) -> Counter[str]:
    return Counter({each.name: each.count for each in play.world.group(group).pod_sets})


@pytest.mark.parametrize(
    ("version", "kind", "field"),
    [
        ("kubeflow.org/v1", "PyTorchJob", "pytorchReplicaSpecs"),
        ("kubeflow.org/v1", "TFJob", "tfReplicaSpecs"),
        ("kubeflow.org/v1", "XGBoostJob", "xgbReplicaSpecs"),
    ],
)
def test_all_pods_of_a_training_job_are_placed_together(
    version: str, kind: str, field: str
) -> None:
    play = empty()
    owner = f"{version}/{kind}/train"
    pod(play, owner, "m-0", **{TYPE: "master", INDEX: "0"})
    pod(play, owner, "w-0", **{TYPE: "worker", INDEX: "0"})
    play.rest()
    assert not play.world.objects["groups"]
    play.world.put("owners", kubeflow(kind, field, Master=1, Worker=2))
    play.rest()
    assert "2 of 3 pods are there" in play.notices["m-0"]
    pod(play, owner, "w-1", **{TYPE: "worker", INDEX: "1"})
    play.rest()
    assert let_go(play) == 3
    assert sizes(play, f"{kind.lower()}-train") == {"master": 1, "worker": 2}


def test_the_launcher_of_an_mpi_job_is_in_no_group_of_its_workers() -> None:
    """It is the pod of a Job, by default created with them."""
    play = empty()
    play.world.put("owners", kubeflow("MPIJob", "mpiReplicaSpecs", Launcher=1, Worker=2))
    launcher = {"name": "train-launcher", "uid": "u-train-launcher"}
    play.world.put("jobs", {"metadata": launcher, "spec": {"parallelism": 1}})
    pod(play, "batch/v1/Job/train-launcher", "launcher", **{TYPE: "launcher"})
    play.rest()
    assert let_go(play) == 1
    for number in range(2):
        labels = {TYPE: "worker", INDEX: str(number)}
        pod(play, "kubeflow.org/v2beta1/MPIJob/train", f"w-{number}", **labels)
    play.rest()
    assert let_go(play) == 3
    assert sizes(play, "mpijob-train") == {"worker": 2}
    assert sizes(play, "job-train-launcher").total() == 1


def test_an_object_that_is_not_followed_has_pods_that_are_groups_alone() -> None:
    play = empty()
    pod(play, "kubeflow.org/v1/MPIJob/train", "w-0", **{TYPE: "worker", INDEX: "0"})
    play.rest()
    assert [*play.world.objects["groups"]] == ["pod-w-0"]


def test_a_ray_cluster_grows_and_shrinks_with_its_object() -> None:
    play = empty()
    play.world.put("owners", ray(small=2))
    ray_pods(play, "small", 0, 1)
    play.rest()
    assert let_go(play) == 0
    ray_pods(play, "head", 0)
    play.rest()
    assert let_go(play) == 3
    assert sizes(play, "raycluster-ray") == {"head": 1, "small": 2}
    play.world.put("owners", ray(small=4))
    ray_pods(play, "small", 2, 3)
    play.rest()
    assert let_go(play) == 5
    play.world.put("owners", ray(small=1))
    for number in (1, 2, 3):
        play.world.delete("pods", f"ray-small-{number}")
    play.rest()
    status = play.world.group("raycluster-ray").status
    assert sum(one.count for each in status.assignments for one in each.domains) == 2


def test_a_ray_cluster_that_is_suspended_gives_its_places_back_and_is_placed_anew() -> None:
    play = empty()
    cluster = ray(small=2)
    play.world.put("owners", cluster)
    ray_pods(play, "head", 0)
    ray_pods(play, "small", 0, 1)
    play.rest()
    assert let_go(play) == 3
    play.world.put("owners", {**cluster, "spec": {**cluster["spec"], "suspend": True}})
    play.world.delete("pods", "ray-small-1")
    play.rest()
    status = play.world.group("raycluster-ray").status
    assert sum(one.count for each in status.assignments for one in each.domains) == 2
    play.world.delete("pods", "ray-small-0")
    play.world.delete("pods", "ray-head-0")
    play.rest()
    play.world.put("owners", cluster)
    ray_pods(play, "head", 1)
    ray_pods(play, "small", 2)
    play.rest()
    assert let_go(play) == 0
    ray_pods(play, "small", 3)
    play.rest()
    assert let_go(play) == 3


def test_a_pod_that_failed_keeps_its_place_for_the_next_one() -> None:
    play = empty()
    play.world.put("owners", ray(small=2))
    ray_pods(play, "head", 0)
    ray_pods(play, "small", 0, 1)
    play.rest()
    play.world.delete("pods", "ray-small-1")
    play.rest()
    status = play.world.group("raycluster-ray").status
    assert sum(one.count for each in status.assignments for one in each.domains) == 3
    ray_pods(play, "small", 7)
    play.rest()
    assert let_go(play) == 3


def test_pods_wait_once_their_object_went() -> None:
    play = empty()
    play.world.put("owners", ray())
    play.world.delete("owners", "ray")
    ray_pods(play, "head", 0)
    play.rest()
    assert not play.world.objects["groups"]
    play.world.delete("pods", "ray-head-0")
    play.rest()


def test_a_kind_that_may_not_be_read_stops_only_its_own_groups() -> None:
    play = empty()
    play.world.put("owners", ray(small=1))
    ray_pods(play, "head", 0)
    ray_pods(play, "small", 0)
    play.rest()
    assert let_go(play) == 2
    play.world.delete("pods", "ray-small-0")
    owner = play.world.objects["owners"].pop("ray")
    play.begin()  # another leader, which may not list RayClusters
    play.controller.set_unreadable("rayclusters", "it is forbidden")
    places = play.world.group("raycluster-ray").status
    pod(play, "ray.io/v1/RayCluster/new", "new-head-0", **{"ray.io/node-type": "head"})
    play.world.submit("j", 2, 1, RACK)
    play.rest()
    assert let_go(play) == 1 + 2  # of the running head and the Job
    assert play.world.group("raycluster-ray").status == places
    why = "it waits, as rayclusters may not be read: it is forbidden"
    assert play.notices["new-head-0"] == why
    play.controller.set_unreadable("rayclusters", "")
    new = {**ray(), "metadata": {"name": "new"}}
    for each in (owner, new):
        play.world.put("owners", each)
    ray_pods(play, "small", 1)
    play.rest()
    assert let_go(play) == 1 + 2 + 2


def test_a_leader_of_a_kind_that_may_not_be_read_says_why_it_waits() -> None:
    play = empty()
    play.controller.set_unreadable("leaderworkersets", "it is forbidden")
    labels = {
        f"leaderworkerset.sigs.k8s.io/{key}": value
        for key, value in (
            ("name", "l"),
            ("group-index", "0"),
            ("size", "2"),
            ("worker-index", "0"),
        )
    }
    pod(play, "apps/v1/StatefulSet/l", "l-0", **labels)
    item = play.world.objects["pods"]["l-0"]
    level = {"leaderworkerset.sigs.k8s.io/exclusive-topology": RACK}
    item["metadata"]["annotations"] = level
    play.world.put("pods", item)
    play.rest()
    assert "LeaderWorkerSet 'l' is not known: it is forbidden" in play.notices["l-0"]


@pytest.mark.parametrize("suspend", [True, False, None])
def test_a_training_job_that_is_suspended_gives_its_places_back(suspend: bool | None) -> None:
    play = empty()
    job = kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=2)
    play.world.put("owners", job)
    for number in range(2):
        labels = {TYPE: "worker", INDEX: str(number)}
        pod(play, "kubeflow.org/v1/PyTorchJob/train", f"w-{number}", **labels)
    play.rest()
    assert let_go(play) == 2
    policy = {"runPolicy": {"suspend": suspend}}
    play.world.put("owners", {**job, "spec": {**job["spec"], **policy}})
    play.world.delete("pods", "w-1")
    play.rest()
    status = play.world.group("pytorchjob-train").status
    places = sum(one.count for each in status.assignments for one in each.domains)
    assert places == (1 if suspend else 2)
