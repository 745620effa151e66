"""A place of a group lives as long as a pod or an owner can claim it."""

from __future__ import annotations

import pytest

from nri_policy.cluster.requests.group import GroupStatus, PlacementRequest
from tests.support.placement_world import GATE, OTHER, Play, empty
from tests.unit.cluster.written import HOSTNAME, pod_spec

RACK = "example.com/rack"
SIZE = "placement.nri/group-size"


def make_pod(play: Play, name: str, owner: str = "", *, cpu: int = 4, **labels: str) -> None:
    """A pod that waits behind the gate, of an owner (KIND/NAME) or of none."""
    kind, _, own = owner.partition("/")
    owners = [{"kind": kind, "name": own, "uid": f"u-{own}", "controller": True}] if owner else []
    metadata = {
        "name": name,
        "uid": f"u-{name}-{play.world.revision}",
        "labels": {key.replace("_", "-"): value for key, value in labels.items()},
        "ownerReferences": owners,
    }
    spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
    play.world.put("pods", {"metadata": metadata, "spec": spec})


def of_group(play: Play, name: str, owner: str, size: int) -> None:
    make_pod(play, name, owner)
    item = play.world.objects["pods"][name]
    item["metadata"]["labels"] |= {"placement.nri/group": "g", SIZE: str(size)}
    play.world.put("pods", item)


def places(play: Play, group: str) -> int:
    status = play.world.group(group).status
    return sum(one.count for each in status.assignments for one in each.domains)


def running(play: Play) -> int:
    pods = play.world.objects["pods"].values()
    return sum(bool(each["spec"].get("nodeName")) for each in pods)


@pytest.mark.parametrize("owner", ["", "ReplicaSet/web-5", "StatefulSet/web", "RayCluster/ray"])
def test_pods_that_are_groups_alone_come_and_go_and_their_places_are_free_again(owner: str) -> None:
    """Six fill the cluster, seven times; the next ones have other names."""
    play = empty(hosts_in_rack=3)
    for turn in range(7):
        for number in range(6):
            make_pod(play, f"w-{turn}-{number}", owner)
        play.rest()
        assert running(play) == 6
        for number in range(6):
            play.world.delete("pods", f"w-{turn}-{number}")
        play.rest()
    assert not any(places(play, group) for group in play.world.objects["groups"])


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_place_of_a_pod_alone_that_has_ended_is_free_though_it_is_still_there(
    phase: str,
) -> None:
    play = empty(hosts_in_rack=3)
    for number in range(6):
        make_pod(play, f"w-{number}", "ReplicaSet/web-5")
    play.rest()
    for number in range(6):
        item = play.world.objects["pods"][f"w-{number}"]
        play.world.put("pods", item | {"status": {"phase": phase}})
        make_pod(play, f"v-{number}", "ReplicaSet/web-5")
    play.rest()
    assert running(play) == 12


def test_a_pod_that_is_a_group_alone_owns_its_group() -> None:
    play = empty(hosts_in_rack=3)
    make_pod(play, "a", "ReplicaSet/web-5")
    play.rest()
    (owner,) = play.world.objects["groups"]["pod-a"]["metadata"]["ownerReferences"]
    uid = play.world.objects["pods"]["a"]["metadata"]["uid"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid}


def test_a_pod_of_the_same_name_gets_a_place_anew() -> None:
    """The first group is its predecessor's, until the cluster has collected it."""
    play = empty(hosts_in_rack=3)
    make_pod(play, "web-0", "StatefulSet/web")
    play.rest()
    play.world.delete("pods", "web-0")
    play.world.delete("groups", "pod-web-0")
    make_pod(play, "web-0", "StatefulSet/web")
    play.rest()
    assert running(play) == 1
    assert play.world.group("pod-web-0").status.state == "Running"


@pytest.mark.parametrize("owner", ["", "ReplicaSet/web-5", "StatefulSet/g"])
def test_a_group_whose_pods_are_all_gone_gives_its_places_back(owner: str) -> None:
    """Of a Deployment, a LeaderWorkerSet, or of nobody; the next pods are placed anew."""
    play = empty(hosts_in_rack=3)
    for turn in range(3):
        for number in range(6):
            of_group(play, f"w-{turn}-{number}", owner, 6)
        play.rest()
        assert running(play) == 6
        assert play.world.group("g").status.state == "Running"
        for number in range(6):
            play.world.delete("pods", f"w-{turn}-{number}")
        play.rest()
        status = play.world.group("g").status
        assert (status.state, status.assignments) == ("Waiting" if owner else "Finished", [])
        make_pod(play, f"other-{turn}")
        play.rest()
        assert running(play) == 1
        play.world.delete("pods", f"other-{turn}")
        play.rest()


def test_who_makes_a_pod_anew_keeps_its_place_while_others_of_its_pods_are_there() -> None:
    play = empty(hosts_in_rack=3)
    for number in range(3):
        of_group(play, f"w-{number}", "ReplicaSet/web-5", 3)
    play.rest()
    play.world.delete("pods", "w-0")
    play.rest()
    assert places(play, "g") == 3
    of_group(play, "w-again", "ReplicaSet/web-5", 3)
    play.rest()
    assert running(play) == 3


def test_the_place_of_a_pod_of_nobody_is_free_and_a_new_pod_gets_one_again() -> None:
    play = empty(hosts_in_rack=3)
    for number in range(3):
        of_group(play, f"w-{number}", "", 3)
    play.rest()
    play.world.delete("pods", "w-0")
    play.rest()
    assert places(play, "g") == 2
    assert play.world.group("g").status.given_back == 1
    of_group(play, "w-3", "", 3)
    play.rest()
    assert (running(play), places(play, "g")) == (3, 3)
    status = play.world.group("g").status
    assert (status.state, status.given_back) == ("Running", 0)


def test_the_priority_of_a_group_is_that_of_its_pods() -> None:
    """Whoever writes one by hand may write any number: it does not count."""
    play = empty(hosts_in_rack=3)
    play.world.submit("old", 6, 2, RACK)
    play.world.submit("older", 6, 2, RACK)
    play.rest()
    template = {"spec": pod_spec({"cpu": 2}), "x": "as its author wrote it"}
    pod_sets = [{"name": "main", "count": 6, "template": template, "request": {"required": RACK}}]
    spec = {"podSets": pod_sets, "priority": 2147483647}
    play.world.put("groups", {"metadata": {"name": "job-bold"}, "spec": spec})
    play.world.submit("urgent", 6, 2, RACK, priority=5)
    play.world.submit("bold", 6, 2, RACK, priority=1)
    play.rest()
    assert play.world.group("job-bold").priority == 1
    assert play.world.objects["groups"]["job-bold"]["spec"]["podSets"] == pod_sets
    play.world.finish("old")
    play.rest()
    assert (play.world.let_go("urgent"), play.world.let_go("bold")) == ((6, 6), (0, 6))


def test_pods_that_are_let_go_have_a_selector() -> None:
    play = empty(hosts_in_rack=3)
    make_pod(play, "a")
    play.rest()
    assert HOSTNAME in play.world.objects["pods"]["a"]["spec"]["nodeSelector"]


def test_nothing_is_missing_of_a_group_whose_job_was_deleted() -> None:
    """Its owner makes no more pods; those that are left are deleted one by one."""
    play = empty(hosts_in_rack=3)
    world = play.world
    world.submit("j", 3, 9, RACK)
    play.rest()
    assert world.let_go("j") == (0, 3)
    world.delete("jobs", "j")
    world.delete("groups", "job-j")
    for name in [*world.pods_of("j")]:
        world.delete("pods", name)
        play.rest()
    assert "Incomplete" not in {reason for _, reason in world.events}


def test_a_group_of_bare_pods_is_finished_once_they_went_and_goes_on_with_new_ones() -> None:
    play = empty(hosts_in_rack=3)
    for number in range(3):
        of_group(play, f"p-{number}", "", size=3)
    play.rest()
    assert play.world.group("g").status.state == "Running"
    for end in ("Succeeded", "Failed", None):
        pods = [name for name in play.world.objects["pods"] if name.startswith("p-")]
        for name in pods:
            item = play.world.objects["pods"][name]
            if end is None:
                play.world.delete("pods", name)
            else:
                play.world.put("pods", item | {"status": {"phase": end}})
        play.rest()
        assert play.world.group("g").status == GroupStatus(state="Finished")
    of_group(play, "q-0", "", size=3)
    play.rest()
    status = play.world.group("g").status
    assert (status.state, status.message) == ("Waiting", "1 of 3 pods are there, 2 are missing")
    for number in (1, 2):
        of_group(play, f"q-{number}", "", size=3)
    play.rest()
    assert running(play) == 3
    assert play.world.group("g").status.state == "Running"


def test_a_name_that_is_used_again_has_the_pods_that_come_then() -> None:
    """Of another number, size and request."""
    play = empty(hosts_in_rack=3)
    for number in range(3):
        of_group(play, f"p-{number}", "", size=3)
    play.rest()
    for number in range(3):
        play.world.delete("pods", f"p-{number}")
    play.rest()
    for number in range(2):
        make_pod(play, f"q-{number}", cpu=2)
        item = play.world.objects["pods"][f"q-{number}"]
        item["metadata"]["labels"] |= {"placement.nri/group": "g", SIZE: "2"}
        item["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": HOSTNAME}
        play.world.put("pods", item)
        play.rest()
    (pod_set,) = play.world.group("g").pod_sets
    assert pod_set.count == 2
    assert pod_set.request == PlacementRequest(required=HOSTNAME)
    assert running(play) == 2


def test_a_group_of_which_all_pods_went_before_they_had_a_place_is_finished() -> None:
    play = empty(hosts_in_rack=3)
    for number in range(7):  # one more than there are hosts
        of_group(play, f"p-{number}", "", size=7)
    play.rest()
    assert play.world.group("g").status.state == "Unplaceable"
    for number in range(7):
        play.world.delete("pods", f"p-{number}")
    play.rest()
    assert play.world.group("g").status.state == "Finished"
    assert play.controller.groups.states() == {"Finished": 1}
    assert len(play.controller.queue) == 0


def test_a_group_that_somebody_wrote_waits_for_its_first_pods() -> None:
    """Once placed, it ends like other groups; its `spec` does not change."""
    play = empty(hosts_in_rack=3)
    template = {"spec": pod_spec({"cpu": 4})}
    spec = {"podSets": [{"name": "main", "count": 2, "template": template}]}
    play.world.put("groups", {"metadata": {"name": "g"}, "spec": spec})
    play.rest()
    status = play.world.group("g").status
    assert (status.state, status.message) == ("Waiting", "pod set 'main': 0 of 2 pods are there")
    for number in range(2):
        of_group(play, f"p-{number}", "", size=2)
    play.rest()
    for number in range(2):
        play.world.delete("pods", f"p-{number}")
    play.rest()
    assert play.world.group("g").status.state == "Finished"
    of_group(play, "q", "", size=1)
    play.rest()
    status = play.world.group("g").status
    assert (status.state, status.message) == ("Waiting", "pod set 'main': 1 of 2 pods are there")


def test_a_suspended_job_is_not_finished() -> None:
    play = empty(hosts_in_rack=3)
    play.world.submit("job", 2, 4, RACK)
    play.rest()
    job = play.world.objects["jobs"]["job"]
    play.world.put("jobs", job | {"spec": job["spec"] | {"suspend": True}})
    for pod in play.world.pods_of("job"):
        play.world.delete("pods", pod)
    play.rest()
    assert play.world.group("job-job").status.state == "Waiting"
