"""Pods that lose their places to ordinary ones, before or after they were let go."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.groups.pod_writes import PendingPodWrites
from nri_policy.cluster.groups.unbound_pods import UNBOUND_SECONDS
from nri_policy.cluster.groups.writes import WriteStatus
from tests.support.placement_world import Object, Play, assigned, empty
from tests.unit.cluster.written import HOSTNAME, pod_spec

RACK = "example.com/rack"
WORDS = "0/6 nodes are available: 1 Insufficient cpu. preemption: not helpful."


def started(pods: int = 3, hosts_in_rack: int = 3) -> Play:
    """A Job that was let go to the hosts of a rack of three, and nothing else."""
    play = empty(hosts_in_rack=hosts_in_rack)
    play.world.submit("j", pods, 2, RACK)
    play.rest(schedule=False)
    assert play.world.let_go("j") == (pods, pods)
    return play


def occupy(play: Play, host: str, cpus: int) -> None:
    """An ordinary pod is bound there."""
    spec = pod_spec({"cpu": cpus}, nodeName=host)
    item = {"metadata": {"name": f"web-{host}", "uid": host}, "spec": spec}
    play.world.put("pods", item | {"status": {"phase": "Running"}})


def refuse(play: Play, *names: str, **status: Any) -> None:
    """kube-scheduler has no node for pods."""
    for name in names:
        item = play.world.objects["pods"][name]
        item["spec"]["schedulingGates"] = None
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        item["status"] = {"conditions": [condition | {"message": WORDS}], **status}
        play.world.put("pods", item)
    play.rest(schedule=False)


def wait(play: Play, seconds: float = UNBOUND_SECONDS) -> None:
    play.now += seconds
    play.rest(schedule=False)


def conditions(play: Play) -> list[tuple[str, str]]:
    status = play.world.group("job-j").status
    return [(each.type, each.message) for each in status.conditions]


def phases(play: Play) -> dict[str, str]:
    pods: dict[str, Object] = play.world.pods_of("j")
    return {name: each.get("status", {}).get("phase", "") for name, each in pods.items()}


def test_a_pod_that_is_not_bound_gets_a_place_on_another_host() -> None:
    play = started()
    assert assigned(play) == {"h0": 2, "h1": 1}
    occupy(play, "h1", 3)
    refuse(play, "j-2")
    wait(play, UNBOUND_SECONDS - 1)
    assert (assigned(play), conditions(play)) == ({"h0": 2, "h1": 1}, [])
    wait(play, 1.0)
    assert assigned(play) == {"h0": 2, "h2": 1}, "in the rack that was promised"
    assert ("j-2", "PodsNotBound") in play.world.events
    assert WORDS in play.notices["j-2"]
    assert ("job-j", "Replaced") in play.world.events
    assert phases(play) == {"j-0": "", "j-1": "", "j-2": "Failed"}, "its owner makes it anew"
    failed = play.world.objects["pods"]["j-2"]["status"]
    assert (failed["reason"], failed["conditions"][0]["type"]) == (
        "PodsNotBound",
        "DisruptionTarget",
    )
    play.world.control_jobs()
    play.rest()
    (new,) = play.world.pods_of("j").keys() - {"j-0", "j-1", "j-2"}
    assert play.world.objects["pods"][new]["spec"]["nodeName"] == "h2"
    assert conditions(play) == []


def test_of_two_pods_on_a_host_only_the_one_that_is_not_bound_moves() -> None:
    play = started()
    for name in ("j-0", "j-2"):
        item = play.world.objects["pods"][name]
        item["spec"]["nodeName"] = item["spec"]["nodeSelector"][HOSTNAME]
        play.world.put("pods", item | {"status": {"phase": "Running"}})
    occupy(play, "h0", 1)
    refuse(play, "j-1")
    wait(play)
    assert sum(assigned(play).values()) == 3
    assert assigned(play)["h0"] == 1
    assert phases(play) == {"j-0": "Running", "j-1": "Failed", "j-2": "Running"}


def test_a_group_of_which_no_pod_is_bound_moves_as_a_whole() -> None:
    play = started(2)
    assert assigned(play) == {"h0": 2}
    occupy(play, "h0", 4)
    refuse(play, "j-0", "j-1")
    wait(play)
    assert sum(assigned(play).values()) == 2
    assert "h0" not in assigned(play)
    assert set(phases(play).values()) == {"Failed"}


def test_without_room_elsewhere_it_is_said_and_tried_again() -> None:
    play = started(hosts_in_rack=2)
    assert assigned(play) == {"h0": 2, "h1": 1}
    occupy(play, "h1", 3)
    refuse(play, "j-2")
    wait(play)
    expected = [("PodsNotBound", f"1 of 3 pods not bound: j-2: {WORDS}")]
    assert (assigned(play), conditions(play)) == ({"h0": 2, "h1": 1}, expected)
    assert phases(play)["j-2"] == ""
    wait(play)
    reasons = [reason for about, reason in play.world.events if about == "j-2"]
    assert reasons == ["PodsNotBound"], "it is said once"
    play.world.delete("pods", "web-h1")
    item = play.world.objects["pods"]["j-2"]
    item["spec"]["nodeName"] = "h1"
    play.world.put("pods", item | {"status": {"phase": "Running"}})
    play.rest()
    assert conditions(play) == []


def test_a_pod_that_nobody_makes_anew_stays() -> None:
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 2, 2, RACK)
    for item in [*play.world.pods_of("j").values()]:
        item["metadata"]["labels"] = {"placement.nri/group": "job-j"}
        item["metadata"]["annotations"]["placement.nri/group-size"] = "2"
        del item["metadata"]["ownerReferences"]
        play.world.put("pods", item)
    play.world.delete("jobs", "j")
    play.rest(schedule=False)
    assert assigned(play) == {"h0": 2}
    occupy(play, "h0", 2)
    refuse(play, "j-1")
    wait(play)
    assert assigned(play) == {"h0": 2}
    assert [kind for kind, _ in conditions(play)] == ["PodsNotBound"]
    assert "status" in play.world.objects["pods"]["j-1"]
    assert "phase" not in play.world.objects["pods"]["j-1"]["status"]


@pytest.mark.parametrize("why", ["another gate", "others are preempted for it", "an error"])
def test_a_pod_that_may_still_be_bound_is_left_alone(why: str) -> None:
    play = started()
    more = {"nominatedNodeName": "h1"} if why.startswith("others") else {}
    refuse(play, "j-2", **more)
    item = play.world.objects["pods"]["j-2"]
    if why == "another gate":
        item["spec"]["schedulingGates"] = [{"name": "example.com/other"}]
    elif why == "an error":
        item["status"]["conditions"][0]["reason"] = "SchedulerError"
    play.world.put("pods", item)
    play.rest(schedule=False)
    wait(play)
    assert (assigned(play), conditions(play)) == ({"h0": 2, "h1": 1}, [])


def test_gates_stay_closed_while_pods_on_their_way_may_take_the_places() -> None:
    play = empty(hosts_in_rack=3)
    play.contested = True
    play.world.submit("j", 3, 2, RACK)
    play.rest()
    assert (assigned(play), play.world.let_go("j")) == ({"h0": 2, "h1": 1}, (0, 3))
    play.contested = False
    play.rest()
    assert play.world.let_go("j") == (3, 3)


def test_a_group_whose_hosts_are_full_before_its_pods_are_let_go_is_placed_anew() -> None:
    play = empty(hosts_in_rack=3)
    play.contested = True
    play.world.submit("j", 3, 2, RACK)
    play.rest()
    play.contested = False
    occupy(play, "h1", 3)
    play.rest()
    assert (assigned(play), play.world.let_go("j")) == ({"h0": 2, "h2": 1}, (3, 3))
    assert ("job-j", "Waiting") in play.world.events
    assert play.notices["job-j"] == "other pods were bound to its hosts before its own"


def test_without_other_hosts_such_a_group_waits_whole_until_it_fits() -> None:
    play = empty(hosts_in_rack=2)
    play.contested = True
    play.world.submit("j", 4, 2, RACK)
    play.rest()
    play.contested = False
    for host in ("h0", "h2", "h4"):
        occupy(play, host, 1)
    play.rest()
    assert (assigned(play), play.world.let_go("j")) == ({}, (0, 4))
    play.world.delete("pods", "web-h2")
    play.rest()
    assert (assigned(play), play.world.let_go("j")) == ({"h2": 2, "h3": 2}, (4, 4))


def test_a_group_stays_on_a_host_that_has_less_of_what_it_does_not_ask_for() -> None:
    play = empty(hosts_in_rack=3)
    play.contested = True
    play.world.submit("j", 3, 2, RACK)
    play.rest()
    play.contested = False
    spec = pod_spec({"cpu": 0, "x/gpu": 9}, nodeName="h0")
    item = {"metadata": {"name": "odd", "uid": "odd"}, "spec": spec}
    play.world.put("pods", item | {"status": {"phase": "Running"}})
    play.rest()
    assert (assigned(play), play.world.let_go("j")) == ({"h0": 2, "h1": 1}, (3, 3))


@pytest.mark.parametrize("ours", [True, False])
def test_a_pod_that_is_not_bound_is_seen_after_a_pause_of_its_group(
    ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is for a status that was refused, or an error of ours; it ends after 30 seconds."""
    play = started()
    occupy(play, "h1", 3)
    refuse(play, "j-2")
    wait(play, UNBOUND_SECONDS - 0.1)
    item = play.world.objects["nodes"]["h0"]
    del item["metadata"]["labels"][RACK]
    play.world.put("nodes", item)
    with monkeypatch.context() as patched:
        if ours:
            patched.setattr(PendingPodWrites, "fail_lost", None)
        patched.setattr(play.world, "refuse", lambda each: "no" * isinstance(each, WriteStatus))
        play.rest(schedule=False)
    wait(play, 0.1)
    assert conditions(play) == []
    wait(play, 60.0)
    assert [name for name, _ in conditions(play)] == ["PodsNotBound"]
