"""JobSets and LeaderWorkerSets with exclusive domains: their followers come after their leader.

The controllers of both make the other pods of a group once its leader is bound.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.placement_world import GATE, INDEX, OTHER, Play, empty, racks_of
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"
JOBSET = "jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
IN_JOBSET = {f"alpha.{JOBSET}exclusive-topology": RACK}
IN_LWS = {f"{LWS}exclusive-topology": RACK}


def job(play: Play, name: str, *, kind: str = "w", annotations: Any = IN_JOBSET) -> None:
    """A Job of two pods, of a JobSet."""
    labels = {f"{JOBSET}jobset-name": "s", f"{JOBSET}replicatedjob-name": kind}
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, "annotations": annotations}
    play.world.put("jobs", {"metadata": metadata, "spec": {"parallelism": 2}})


def pod(  # noqa: PLR0917
    play: Play, name: str, owner: str, labels: Any, annotations: Any, cpu: int = 2
) -> None:
    kind, _, own = owner.partition("/")
    metadata = {
        "name": name,
        "uid": f"u-{name}",
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [{"kind": kind, "name": own, "uid": f"u-{own}", "controller": True}],
    }
    spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
    play.world.put("pods", {"metadata": metadata, "spec": spec})


def of_job(play: Play, job: str, index: int, annotations: Any = IN_JOBSET, **more: Any) -> None:
    labels = {f"{JOBSET}jobset-name": "s", f"{JOBSET}replicatedjob-name": more.get("kind", "w")}
    labels |= {f"{JOBSET}global-replicas": "3", f"{JOBSET}job-index": "0", INDEX: str(index)}
    pod(play, f"{job}-{index}", f"Job/{job}", labels, annotations)


def of_lws(play: Play, group: int, index: int, cpu: int = 1) -> None:
    labels = {f"{LWS}name": "m", f"{LWS}group-index": str(group), f"{LWS}worker-index": str(index)}
    owner = "StatefulSet/m" if index == 0 else f"StatefulSet/m-{group}"
    annotations = {f"{LWS}size": "3", **IN_LWS}
    pod(play, f"m-{group}-{index}", owner, labels, annotations, cpu)


def lws(play: Play, cpu: int) -> None:
    workers = {"size": 3, "workerTemplate": {"spec": pod_spec({"cpu": cpu})}}
    metadata = {"name": "m", "annotations": IN_LWS}
    play.world.put("lws", {"metadata": metadata, "spec": {"leaderWorkerTemplate": workers}})


def test_each_job_of_an_exclusive_jobset_has_a_rack_and_its_leader_goes_first() -> None:
    play = empty()
    for name in ("s-w-0", "s-w-1"):
        job(play, name)
        of_job(play, name, 0)
    play.rest()
    assert racks_of(play, "s-w-0") == ["r0"]
    assert racks_of(play, "s-w-1") == ["r1"]
    of_job(play, "s-w-0", 1)
    of_job(play, "s-w-1", 1)
    play.rest()
    assert racks_of(play, "s-w-0") == ["r0", "r0"]
    assert racks_of(play, "s-w-1") == ["r1", "r1"]
    assert play.world.group("job-s-w-0").status.state == "Running"


def test_a_leader_waits_until_there_is_room_for_its_followers() -> None:
    play = empty()
    for host in range(6):
        play.world.submit(f"x{host}", 1, 3 if host < 5 else 2, RACK)
        play.rest()
    job(play, "s-w-0")
    of_job(play, "s-w-0", 0)
    play.rest()
    assert racks_of(play, "s-w-0") == []
    assert play.world.group("job-s-w-0").pod_sets[0].count == 2


def test_a_follower_waits_for_its_leader() -> None:
    play = empty()
    job(play, "s-w-0")
    of_job(play, "s-w-0", 1)
    play.rest()
    assert "1 of 2 pods are there" in play.notices["s-w-0-1"]


def test_where_nodes_were_labeled_before_all_pods_of_a_job_come_at_once() -> None:
    """With its strategy by node selectors JobSet makes no pod wait for another."""
    play = empty()
    annotations = IN_JOBSET | {f"alpha.{JOBSET}node-selector": "true"}
    job(play, "s-w-0", annotations=annotations)
    of_job(play, "s-w-0", 0, annotations)
    play.rest()
    assert racks_of(play, "s-w-0") == []
    of_job(play, "s-w-0", 1, annotations)
    play.rest()
    assert racks_of(play, "s-w-0") == ["r0", "r0"]


@pytest.mark.parametrize("late", [True, False])
def test_the_other_jobs_of_a_jobset_are_one_group_without_the_exclusive_one(late: bool) -> None:
    play = empty()
    for name in ("s-a-0", "s-b-0"):
        job(play, name, kind=name[2], annotations={})
        for index in range(2):
            of_job(play, name, index, {"placement.nri/topology": "default"}, kind=name[2])
    if late:
        play.rest()
        assert "Jobs of the JobSet that are missing: 1" in play.notices["s-a-0-0"]
    job(play, "s-w-0")
    play.rest()
    assert len(racks_of(play, "s-a")) == len(racks_of(play, "s-b")) == 2
    assert [each.count for each in play.world.group("jobset-s").pod_sets] == [2, 2]


def test_a_leader_of_lws_goes_where_its_workers_have_room() -> None:
    """Its workers are larger than it; a rack has eight CPUs on two hosts."""
    play = empty()
    of_lws(play, 0, 0)
    play.rest()
    assert "LeaderWorkerSet 'm' is not known" in play.notices["m-0-0"]
    play.world.submit("x", 1, 2, RACK)
    play.rest()
    lws(play, 3)
    play.rest()
    assert racks_of(play, "m-0") == ["r1"]
    group = play.world.group("lws-m-0")
    assert {each.name: each.count for each in group.pod_sets} == {"leader": 1, "workers": 2}
    of_lws(play, 1, 0)
    for index in (1, 2):
        of_lws(play, 0, index, 3)
    play.rest()
    assert racks_of(play, "m-0") == ["r1"] * 3
    assert racks_of(play, "m-1") == ["r2"]
    play.world.delete("lws", "m")
    of_lws(play, 2, 0)
    play.rest()
    assert racks_of(play, "m-2") == []


@pytest.mark.parametrize("annotations", [{}, IN_LWS])
def test_a_replica_of_lws_that_changes_its_size_has_a_place_for_each_pod(
    annotations: dict[str, str],
) -> None:
    """Also in the rack that it has to itself: LWS makes the leader anew, then the workers."""
    play = empty()
    size = 0

    def make(indices: range) -> None:
        for index in indices:
            labels = {f"{LWS}name": "m", f"{LWS}group-index": "0"}
            labels[f"{LWS}worker-index"] = str(index)
            owner = "StatefulSet/m" if index == 0 else "StatefulSet/m-0"
            given = {f"{LWS}size": str(size), **annotations}
            pod(play, f"m-0-{index}", owner, labels, given, 1)

    for old, size in pairwise((0, 4, 3, 5, 2)):
        workers = {"size": size, "workerTemplate": {"spec": pod_spec({"cpu": 1})}}
        metadata = {"name": "m", "annotations": annotations}
        play.world.put("lws", {"metadata": metadata, "spec": {"leaderWorkerTemplate": workers}})
        if old:
            play.world.delete("pods", "m-0-0")
        make(range(1))
        play.rest()
        for index in range(1, old):
            play.world.delete("pods", f"m-0-{index}")
        play.rest()
        make(range(1, size))
        play.rest()
        assert len(racks_of(play, "m-0")) == size
        status = play.world.group("lws-m-0").status
        assert sum(one.count for each in status.assignments for one in each.domains) == size
        assert status.state == "Running"


def test_sub_groups_of_lws_have_racks_of_their_own() -> None:
    play = empty()
    for index in range(5):
        sub = max(index - 1, 0) // 2
        labels = {f"{LWS}name": "m", f"{LWS}group-index": "0", f"{LWS}worker-index": str(index)}
        annotations = {f"{LWS}size": "5", f"{LWS}subgroup-size": "2"}
        annotations |= {f"{LWS}subgroup-exclusive-topology": RACK}
        labels |= {f"{LWS}subgroup-index": str(sub)}
        pod(play, f"m-0-{index}", "StatefulSet/m", labels, annotations)
    play.rest()
    assert racks_of(play, "m-0") == ["r0", "r0", "r0", "r1", "r1"]
    assert {"lws-m-0-0", "lws-m-0-1"} <= play.world.objects["groups"].keys()
