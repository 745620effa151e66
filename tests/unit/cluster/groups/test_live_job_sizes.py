"""Jobs that become smaller or larger, are suspended, or are over: the places of their groups."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.groups.writes import WriteSpec, WriteStatus
from tests.support.placement_world import Object, Play, empty
from tests.unit.cluster.groups.test_live_claims import make_pod, places, running
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"


def resize(play: Play, job: str, pods: int, **more: Any) -> None:
    """Another parallelism; the Job controller deletes pods, or makes some."""
    item = play.world.objects["jobs"][job]
    play.world.put("jobs", item | {"spec": item["spec"] | {"parallelism": pods} | more})
    active = 0 if more.get("suspend") else pods
    for name, pod in sorted(play.world.pods_of(job).items()):
        if int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]) >= active:
            play.world.delete("pods", name)
    if active:
        play.world.control_jobs()


def test_a_job_is_made_smaller_and_larger() -> None:
    play = empty(hosts_in_rack=3)
    world = play.world
    world.submit("j", 12, 2, "example.com/zone")
    world.templates["j"] = ({"kueue.x-k8s.io/podset-unconstrained-topology": "true"},
                            world.templates["j"][1])  # fmt: skip
    for item in world.pods_of("j").values():
        item["metadata"]["annotations"] = dict(world.templates["j"][0])
        world.put("pods", item)
    play.rest()
    assert (running(play), places(play, "job-j")) == (12, 12)
    resize(play, "j", 4)
    play.rest()
    assert (running(play), places(play, "job-j")) == (4, 4)
    make_pod(play, "other")
    play.rest()
    assert running(play) == 5  # where the Job was
    resize(play, "j", 8)
    play.rest()
    assert (running(play), places(play, "job-j")) == (9, 8)
    resize(play, "j", 14)  # two more than ever, of which none fits beside the other pod
    play.rest()
    status = play.world.group("job-j").status
    assert (status.state, places(play, "job-j")) == ("Placed", 8)
    assert status.message.startswith("6 more pods cannot be placed: topology")
    assert world.let_go("j") == (8, 14)
    play.begin()
    play.rest()
    assert world.let_go("j") == (8, 14)
    resize(play, "j", 10)
    play.rest()
    assert (world.let_go("j"), places(play, "job-j")) == ((10, 10), 10)
    status = play.world.group("job-j").status
    assert (status.state, status.message) == ("Running", "")


def test_a_job_that_grows_beyond_its_first_size_stays_where_it_was_promised_to_be() -> None:
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 4, 2, RACK)
    play.rest()
    resize(play, "j", 6)
    play.rest()
    group = play.world.group("job-j")
    assert [each.count for each in group.pod_sets] == [6]
    hosts = {
        play.world.objects["nodes"][one.values[0]]["metadata"]["labels"][RACK]
        for each in group.status.assignments
        for one in each.domains
    }
    assert len(hosts) == 1
    assert play.world.let_go("j") == (6, 6)
    resize(play, "j", 7)
    play.rest()
    assert play.world.let_go("j") == (6, 7)  # there is room in the other rack alone
    assert "1 more pod cannot be placed" in play.world.group("job-j").status.message
    play.world.submit("next", 6, 2, RACK)
    play.rest()
    assert play.world.let_go("next") == (6, 6)  # nobody waits for the one that cannot grow


@pytest.mark.parametrize("kill", range(6))
def test_a_service_that_dies_while_a_job_grows_is_followed_by_one_that_goes_on(kill: int) -> None:
    """At no time do status and spec contradict each other: nothing is placed anew."""
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 4, 2, RACK)
    play.rest()
    before = {name: item["spec"]["nodeName"] for name, item in play.world.pods_of("j").items()}
    resize(play, "j", 6)
    for _ in range(10):
        play.listen()
        for write in play.controller.step():
            if isinstance(write, WriteSpec | WriteStatus):
                kill -= 1
            if kill < 0:
                break
            play.world.write(write)
        if kill < 0:
            play.begin()
            kill = 100
    play.rest()
    assert play.world.let_go("j") == (6, 6)
    after = {name: item["spec"]["nodeName"] for name, item in play.world.pods_of("j").items()}
    assert before.items() <= after.items()
    assert ("job-j", "Malformed") not in play.world.events


def test_a_job_that_waits_has_the_size_that_it_has_by_now() -> None:
    play = empty(hosts_in_rack=3)
    world = play.world
    world.submit("old", 6, 2, RACK)
    world.submit("older", 6, 2, RACK)
    play.rest()
    world.submit("j", 4, 2, RACK)
    play.rest()
    for pods in (6, 2):
        resize(play, "j", pods)
        play.rest()
        assert [each.count for each in world.group("job-j").pod_sets] == [pods]
        assert f"of {pods} pod(s)" in world.group("job-j").status.message
    world.finish("old")
    play.rest()
    assert world.let_go("j") == (2, 2)


def test_a_job_that_is_suspended_gives_its_places_back_and_gets_others_when_it_goes_on() -> None:
    play = empty(hosts_in_rack=3)
    world = play.world
    world.submit("j", 6, 2, RACK)
    world.submit("old", 6, 2, RACK)
    world.submit("next", 6, 2, RACK)
    play.rest()
    assert world.let_go("next") == (0, 6)
    resize(play, "j", 6, suspend=True)
    play.rest()
    assert world.let_go("next") == (6, 6)
    assert places(play, "job-j") == 0
    resize(play, "j", 6, suspend=False)
    play.rest()
    assert world.let_go("j") == (0, 6)
    world.finish("old")
    play.rest()
    assert world.let_go("j") == (6, 6)


def fail_for_good(play: Play, job: str, index: int) -> None:
    """Have a pod fail whose index has no retries left (backoffLimitPerIndex)."""
    name = f"{job}-{index}"
    play.world.put("pods", {**play.world.objects["pods"][name], "status": {"phase": "Failed"}})
    item = play.world.objects["jobs"][job]
    play.world.put("jobs", {**item, "status": {"failedIndexes": str(index)}})


def test_an_index_that_failed_for_good_gives_its_place_back() -> None:
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 3, 4, RACK, job={"completions": 3})
    play.world.submit("other", 3, 4, RACK)
    play.world.submit("next", 1, 4, RACK)
    play.rest()
    assert play.world.let_go("next") == (0, 1)
    fail_for_good(play, "j", 1)
    play.rest()
    assert places(play, "job-j") == 2
    assert play.world.let_go("next") == (1, 1)


def test_a_job_that_goes_on_needs_no_pod_of_an_index_that_failed_for_good() -> None:
    """It has been suspended meanwhile: the group waits for the pods that there will be."""
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 3, 4, RACK, job={"completions": 3})
    play.rest()
    fail_for_good(play, "j", 1)
    play.rest()
    job = play.world.objects["jobs"]["j"]
    play.world.put("jobs", {**job, "spec": {**job["spec"], "suspend": True}})
    for index in (0, 2):
        play.world.delete("pods", f"j-{index}")
    play.rest()
    assert places(play, "job-j") == 0
    play.world.put("jobs", job)
    for index in (0, 2):
        play.world.make_pod("j", index, f"j-{index}-again")
    play.rest()
    assert play.world.let_go("j") == (2, 2)
    assert places(play, "job-j") == 2


@pytest.mark.parametrize("seen_first", ["pods", "job"])
@pytest.mark.parametrize("end", ["Failed", "Complete", "gone"])
def test_a_job_that_is_over_claims_no_place(end: str, seen_first: str) -> None:
    """In either order of events: the end of the Job, and the end of its pods."""
    play = empty(hosts_in_rack=3)
    world = play.world
    world.submit("j", 6, 2, RACK)
    play.rest()

    def delete_pods() -> None:
        for name in world.pods_of("j"):
            world.delete("pods", name)
        play.rest()

    def end_job() -> None:
        if end == "gone":
            world.delete("jobs", "j")
        else:
            status: Object = {"conditions": [{"type": end, "status": "True"}]}
            world.put("jobs", world.objects["jobs"]["j"] | {"status": status})
        play.rest()

    steps = [delete_pods, end_job] if seen_first == "pods" else [end_job, delete_pods]
    steps[0]()
    assert places(play, "job-j") == 6
    steps[1]()
    assert places(play, "job-j") == 0


def test_a_group_that_somebody_wrote_by_hand_keeps_its_size() -> None:
    play = empty(hosts_in_rack=3)
    template = {"spec": pod_spec({"cpu": 2})}
    request = {"required": RACK}
    pod_sets = [{"name": "main", "count": 4, "template": template, "request": request}]
    play.world.put("groups", {"metadata": {"name": "job-j"}, "spec": {"podSets": pod_sets}})
    play.world.submit("j", 4, 2, RACK)
    play.rest()
    resize(play, "j", 6)
    play.rest()
    assert play.world.let_go("j") == (4, 6)
    assert [each.count for each in play.world.group("job-j").pod_sets] == [4]
