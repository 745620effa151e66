"""Nodes fail under groups that have places: when, and what becomes of the pods, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from nri_policy.cluster.groups.writes import CreateGroup, DeletePod, FailPod, OpenGate, WriteStatus
from tests.support.placement_world import Object, Play, assigned, empty, hosts_of
from tests.unit.cluster.written import HOSTNAME, pod_spec

RACK = "example.com/rack"
EXECUTE = {"key": "x", "value": "1", "effect": "NoExecute"}
SCHEDULE = {"key": "x", "value": "1", "effect": "NoSchedule"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
PREFER = {"key": "x", "value": "1", "effect": "PreferNoSchedule"}
SLOW: Object = {"failure": {"policy": "Fixed30s", "failFast": True}}
PATIENT: Object = {"failure": {"policy": "PodTermination", "failFast": False}}


@dataclass(frozen=True)
class Case:
    """A Job of three pods on h0 (two) and h1; something happens to h0."""

    node: str | Object  # what happens
    pods: str = "run"  # what those on h0 do: run; end (are about to be deleted); wait (not bound)
    seconds: float = 0.0  # until it is looked at
    settings: Any = ()
    room: bool = True  # in the rack beside h0
    tolerated: Any = ()
    then: str = "kept"  # kept; replaced; degraded; evicted


CASES = {
    "deleted": Case("deleted", then="replaced"),
    "deleted, after 30 s all the same": Case("deleted", settings=SLOW, then="replaced"),
    "without a Ready condition": Case("unknown", then="replaced"),
    "without a Ready condition, Fixed30s": Case("unknown", settings=SLOW, then="replaced"),
    "not ready, its pods run": Case("not ready", seconds=600.0),
    "not ready, its pods end": Case("not ready", pods="end", then="replaced"),
    "not ready, its pods never got there": Case("not ready", pods="wait", then="replaced"),
    "not ready, Fixed30s, too early": Case("not ready", seconds=29.0, settings=SLOW),
    "not ready, Fixed30s": Case("not ready", seconds=30.0, settings=SLOW, then="replaced"),
    "cordoned, its pods run": Case("cordoned", seconds=600.0),
    "cordoned, its pods end": Case("cordoned", pods="end", then="replaced"),
    "cordoned, its pods never got there": Case("cordoned", pods="wait", then="replaced"),
    "cordoned, tolerated": Case("cordoned", pods="end", tolerated=[{"operator": "Exists"}]),
    "NoExecute, its pods run": Case(EXECUTE, seconds=600.0),
    "NoExecute, its pods end": Case(EXECUTE, pods="end", then="replaced"),
    "NoExecute, its pods never got there": Case(EXECUTE, pods="wait", then="replaced"),
    "NoExecute, Fixed30s, too early": Case(EXECUTE, seconds=29.0, settings=SLOW),
    "NoExecute, Fixed30s": Case(EXECUTE, seconds=30.0, settings=SLOW, then="replaced"),
    "NoExecute, another taint is tolerated": Case(
        EXECUTE, pods="end", tolerated=[{"key": "y", "operator": "Exists"}], then="replaced"
    ),
    "NoExecute, tolerated": Case(
        EXECUTE, pods="end", tolerated=[{"key": "x", "operator": "Exists"}]
    ),
    "NoExecute, tolerated for a minute, which is not over": Case(
        EXECUTE,
        pods="end",
        seconds=59.0,
        tolerated=[{"key": "x", "operator": "Exists", "tolerationSeconds": 60}],
    ),
    "NoExecute, tolerated for a minute, which is over": Case(
        EXECUTE,
        pods="end",
        seconds=60.0,
        tolerated=[{"key": "x", "operator": "Exists", "tolerationSeconds": 60}],
        then="replaced",
    ),
    "NoExecute, tolerated for a minute, Fixed30s, too early": Case(
        EXECUTE,
        seconds=89.0,
        settings=SLOW,
        tolerated=[{"key": "x", "operator": "Exists", "tolerationSeconds": 60}],
    ),
    "NoExecute, tolerated for a minute, Fixed30s": Case(
        EXECUTE,
        seconds=90.0,
        settings=SLOW,
        tolerated=[{"key": "x", "operator": "Exists", "tolerationSeconds": 60}],
        then="replaced",
    ),
    "NoSchedule, tolerated": Case(
        SCHEDULE, pods="end", tolerated=[{"key": "x", "operator": "Exists"}]
    ),
    "PreferNoSchedule, its pods end": Case(PREFER, pods="end"),
    "NoSchedule, its pods never got there": Case(SCHEDULE, pods="wait", then="replaced"),
    "NoSchedule, its pods run": Case(SCHEDULE, seconds=600.0),
    "NoSchedule, Fixed30s, its pods run": Case(SCHEDULE, seconds=600.0, settings=SLOW),
    "NoSchedule, its pods end": Case(SCHEDULE, pods="end", then="replaced"),
    "no room, fail fast": Case("deleted", room=False, then="evicted"),
    "no room, tried again": Case("deleted", room=False, settings=PATIENT, then="degraded"),
}


def started(case: Case) -> Play:
    play = Play(hosts_in_rack=3, **dict(case.settings))
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 3, 2, RACK, tolerations=[*case.tolerated])
    play.rest(schedule=case.pods != "wait")
    if not case.room:
        world.submit("big", 3, 2, RACK)
        play.rest()
        assert hosts_of(play, "big") == {"h1": 1, "h2": 2}
    assert hosts_of(play, "j") == {"h0": 2, "h1": 1}
    return play


def happen(play: Play, case: Case) -> None:
    world = play.world
    if case.pods == "end":
        end(play, "h0")
    if case.node == "deleted":
        world.delete("nodes", "h0")
        return
    node = world.objects["nodes"]["h0"]
    if case.node == "not ready":
        node["status"]["conditions"][0]["status"] = "Unknown"
    elif case.node == "cordoned":
        node["spec"]["unschedulable"] = True
    elif case.node == "unknown":
        node["status"]["conditions"] = []
    else:
        node["spec"]["taints"] = [case.node]
    world.put("nodes", node)


def end(play: Play, host: str) -> None:
    """The pods there are about to be deleted."""
    for item in play.world.pods_of("j").values():
        if item["spec"].get("nodeName") == host:
            item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            play.world.put("pods", item)


@pytest.mark.parametrize("name", CASES)
def test_when_a_host_fails_and_what_follows(name: str) -> None:
    case = CASES[name]
    play = started(case)
    world = play.world
    happen(play, case)
    play.rest(schedule=False)
    play.now += case.seconds
    play.rest(schedule=False)
    status = world.group("job-j").status
    if case.then == "kept":
        assert (status.state, assigned(play)) == ("Running", {"h0": 2, "h1": 1})
        assert {about for about, _ in world.events} == {"job-j"}  # no pod was failed
        return
    if case.then == "degraded":
        assert (status.state, status.unhealthy_nodes) == ("Degraded", ["h0"])
        assert assigned(play) == {"h0": 2, "h1": 1}
        assert "doesn't allow to fit any of 2 pod(s)" in status.message
    elif case.then == "evicted":
        assert (status.state, assigned(play)) == ("Unplaceable", {})
        assert "doesn't allow to fit any of 2 pod(s)" in status.message
        assert not hosts_of(play, "j")
    else:
        assert (status.state, assigned(play)) == ("Placed", {"h1": 1, "h2": 2})
        assert ("job-j", "Replaced") in world.events
    world.evict("h0")
    world.control_jobs()
    play.rest()
    status = world.group("job-j").status
    if case.then == "degraded":
        assert hosts_of(play, "j") == {"": 2, "h1": 1}
        world.finish("big")
        play.rest()
    if case.then == "evicted":  # elsewhere, as a group that comes anew
        assert {*hosts_of(play, "j")} == {"h3", "h4"}
    else:
        assert hosts_of(play, "j") == {"h1": 1, "h2": 2}
    assert world.group("job-j").status.state == "Running"


def test_pods_that_never_got_there_are_failed_and_no_others() -> None:
    play = started(CASES["not ready, its pods never got there"])
    happen(play, CASES["not ready, its pods never got there"])
    play.rest(schedule=False)
    failed = {about for about, reason in play.world.events if reason == "NodeFailed"}
    assert failed == {"j-0", "j-1"}
    pod = play.world.objects["pods"]["j-0"]
    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["conditions"][0]["type"] == "DisruptionTarget"


def test_a_second_host_fails_while_the_first_has_not_been_replaced() -> None:
    play = Play(hosts_in_rack=3, **PATIENT)
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 5, 2, RACK)
    play.rest()
    nodes = {host: world.objects["nodes"][host] for host in ("h0", "h1")}
    for host in nodes:
        world.delete("nodes", host)
        play.rest()
    assert world.group("job-j").status.unhealthy_nodes == ["h0", "h1"]
    world.evict("h0", "h1")
    world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == {"": 4, "h2": 1}  # in its rack is room for one
    world.put("nodes", nodes["h1"])
    play.rest()
    assert world.group("job-j").status.unhealthy_nodes == ["h0"]
    assert hosts_of(play, "j") == {"": 2, "h1": 2, "h2": 1}
    world.put("nodes", nodes["h0"])
    play.rest()
    assert hosts_of(play, "j") == {"h0": 2, "h1": 2, "h2": 1}
    assert world.group("job-j").status.state == "Running"


@pytest.mark.parametrize("restarted", [False, True])
def test_pods_on_a_cordoned_host_stay_while_those_of_a_failed_one_are_replaced(
    restarted: bool,
) -> None:
    """With `failFast`, which would delete all of them."""
    play = Play(hosts_in_rack=3)
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 4, 2, RACK)
    play.rest()
    assert hosts_of(play, "j") == {"h0": 2, "h1": 2}
    cordoned = world.objects["nodes"]["h1"]
    cordoned["spec"] |= {"unschedulable": True, "taints": [CORDONED]}
    world.put("nodes", cordoned)
    play.rest()
    if restarted:
        play.begin()
        play.rest()
    world.delete("nodes", "h0")
    world.evict("h0")
    world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == {"h1": 2, "h2": 2}
    assert ("job-j", "Replaced") in world.events
    assert not world.disrupted


def test_pods_on_a_host_that_is_set_aside_for_others_stay_while_lost_ones_are_replaced() -> None:
    """A group of higher priority waits for the host."""
    play = Play(hosts_in_rack=3)
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 2, 4, RACK)
    play.rest()
    assert hosts_of(play, "j") == {"h0": 1, "h1": 1}
    fast = world.objects["nodes"]["h0"]
    fast["metadata"]["labels"] |= {"fast": "yes"}
    world.put("nodes", fast)
    world.submit("urgent", 1, 4, HOSTNAME, priority=1000, nodeSelector={"fast": "yes"})
    play.rest()
    play.now += 600.0
    play.rest()
    assert world.group("job-urgent").status.reserved == ["h0"]
    world.delete("nodes", "h1")
    world.evict("h1")
    world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == {"h0": 1, "h2": 1}
    assert not world.disrupted


def test_a_host_that_is_well_again_is_off_the_list() -> None:
    play = started(CASES["no room, tried again"])
    world = play.world
    item = world.objects["nodes"]["h0"]
    world.delete("nodes", "h0")
    play.rest()
    assert world.group("job-j").status.state == "Degraded"
    world.put("nodes", item)
    play.rest()
    status = world.group("job-j").status
    assert (status.state, status.message, status.unhealthy_nodes) == ("Running", "", [])
    assert ("job-j", "Healthy") in world.events


def test_a_group_on_healthy_hosts_again_grows_at_once_on_the_host_that_had_failed() -> None:
    """That a lost place could not be replaced says nothing of the pods that the group lacks."""
    play = Play(hosts_in_rack=3, **PATIENT)
    world = play.world
    world.delete("pods", "web")
    for host, cpu in (("h0", 2), ("h1", 2), ("h2", 4)):
        spec = pod_spec({"cpu": cpu}, nodeName=host)
        world.put("pods", {"metadata": {"name": f"on-{host}", "uid": host}, "spec": spec})
    world.submit("j", 2, 2, RACK)
    play.rest()
    world.put("jobs", world.objects["jobs"]["j"] | {"spec": {"parallelism": 3}})
    world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == {"h0": 1, "h1": 1, "": 1}
    well = world.objects["nodes"]["h0"]
    world.delete("nodes", "h0")
    play.rest()
    assert world.group("job-j").status.state == "Degraded"
    world.delete("pods", "on-h0")
    world.put("nodes", well)
    play.rest()
    assert hosts_of(play, "j") == {"h0": 2, "h1": 1}
    assert world.group("job-j").status.message == ""


def test_the_next_service_goes_on_with_what_the_last_one_has_begun() -> None:
    """It knows that h0 failed, though it has not seen for how long."""
    case = Case("not ready", settings=SLOW | {"failure": {"policy": "Fixed30s", "failFast": False}},
                room=False)  # fmt: skip
    play = started(case)
    happen(play, case)
    play.rest(schedule=False)
    play.now += 30.0
    play.rest(schedule=False)
    assert play.world.group("job-j").status.state == "Degraded"
    play.begin()
    play.rest(schedule=False)
    assert play.world.group("job-j").status.state == "Degraded"
    play.world.finish("big")
    play.rest(schedule=False)
    assert assigned(play) == {"h1": 1, "h2": 2}


def test_pods_that_nobody_makes_anew_are_not_deleted() -> None:
    """A group of pods without an owner waits until its lost places can be replaced."""
    play = Play(hosts_in_rack=3)
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 3, 2, RACK)
    for item in world.pods_of("j").values():
        del item["metadata"]["ownerReferences"]
        item["metadata"]["labels"] |= {
            "placement.nri/group": "job-j",
            "placement.nri/group-size": "3",
        }
        world.put("pods", item)
    play.rest()
    world.submit("big", 3, 2, RACK)
    play.rest()
    world.delete("nodes", "h0")
    play.rest()
    assert world.group("job-j").status.state == "Degraded"
    assert {"j-0", "j-1", "j-2"} <= world.objects["pods"].keys()


def test_who_had_succeeded_before_its_group_left_is_not_waited_for() -> None:
    play = started(CASES["no room, fail fast"])
    world = play.world
    world.put("pods", world.objects["pods"]["j-2"] | {"status": {"phase": "Succeeded"}})
    play.rest()
    world.delete("nodes", "h0")
    play.rest()
    world.evict("h0")
    world.control_jobs()
    play.rest()
    running = world.let_go("j")
    assert running == (3, 3)  # two anew, and the one that is done
    assert world.group("job-j").status.assignments


def step_by_step(play: Play) -> list[WriteStatus]:
    """What the next step gives of places, or takes; nothing of it is done."""
    return [each for each in play.controller.step() if isinstance(each, WriteStatus)]


def test_a_place_is_nobody_elses_while_a_pod_is_there_of_a_group_that_lost_it() -> None:
    """Its host is well again, and the pods are still there, before the new places are seen."""
    play = started(CASES["deleted"])
    world = play.world
    node = world.objects["nodes"]["h0"]
    world.submit("next", 6, 2, RACK)
    play.rest()
    world.delete("nodes", "h0")
    play.listen()
    (replaced,) = step_by_step(play)
    assert {one.values[0] for one in replaced.group.status.assignments[0].domains} == {"h1", "h2"}
    world.put("nodes", node)
    world.submit("one", 1, 2, HOSTNAME)
    world.submit("two", 1, 2, HOSTNAME)
    tell_all_but_groups(play)
    for each in play.controller.step():
        if isinstance(each, CreateGroup):
            world.write(each)
            play.notify("groups", each.group.name)
    placed = {
        place.values[0]
        for each in step_by_step(play)
        for given in each.group.status.assignments
        for place in given.domains
    }
    assert placed == {"h1"}  # what is left beside the new places
    world.write(replaced)
    play.rest()  # checks that no host has more than it can have


def tell_all_but_groups(play: Play) -> None:
    changes, play.world.changes[:] = [*play.world.changes], []
    for kind, name in changes:
        if kind != "groups":
            play.notify(kind, name)


def test_a_place_is_nobody_elses_while_a_pod_is_on_its_way_to_it_whose_group_has_left() -> None:
    """A pod that was let go may be bound until it is deleted."""
    case = Case("deleted", pods="wait", room=False)
    play = Play(hosts_in_rack=3)
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 3, 2, RACK)
    play.rest(schedule=False)  # h0 and h1, and nobody is bound
    world.submit("big", 3, 2, RACK)
    play.rest(schedule=False)
    world.submit("next", 3, 2, RACK)
    world.submit("last", 3, 2, RACK)
    play.rest(schedule=False)
    world.submit("one", 1, 2, HOSTNAME)
    play.rest(schedule=False)
    happen(play, case)
    play.listen()
    play.step()
    assert world.group("job-j").status.evicted
    play.listen()
    writes = play.controller.step()
    leaving = {each.pod.name for each in writes if isinstance(each, DeletePod)}
    assert leaving == {"j-0", "j-1", "j-2"} - failed(play)
    assert not [each for each in writes if isinstance(each, WriteStatus)
                and each.group.status.assignments]  # fmt: skip
    world.schedule()  # before they are deleted
    play.rest()


def failed(play: Play) -> set[str]:
    return {
        name
        for name, item in play.world.pods_of("j").items()
        if item.get("status", {}).get("phase") == "Failed"
    }


def test_the_end_of_a_pod_is_said_once_however_often_it_is_asked() -> None:
    case = CASES["not ready, its pods never got there"]
    play = started(case)
    play.world.refuse = lambda write: "no" if isinstance(write, FailPod) else ""
    happen(play, case)
    for _ in range(3):
        play.rest(schedule=False)
        play.now += 600
    play.world.refuse = lambda _write: ""
    play.rest(schedule=False)
    assert play.world.objects["pods"]["j-0"]["status"]["phase"] == "Failed"
    assert play.world.events.count(("j-0", "NodeFailed")) == 1


def test_nothing_is_replaced_while_a_pod_is_being_let_go() -> None:
    play = Play(hosts_in_rack=3)
    world = play.world
    world.delete("pods", "web")
    world.submit("j", 3, 2, RACK)
    for _ in range(2):
        play.listen()
        play.step()
    play.listen()
    opened = [each for each in play.controller.step() if isinstance(each, OpenGate)]
    assert len(opened) == 3
    for each in opened:
        play.controller.note_no_answer(each)
    world.delete("nodes", "h0")
    play.listen()
    play.now += 1.0
    assert play.controller.step() == opened  # asked again, to a host that is gone or not
    play.notify("pods", "j-0")
    assert not [each for each in play.controller.step() if isinstance(each, OpenGate)], "once"
    for each in opened:
        world.write(each)
    play.rest()
    assert {about for about, reason in world.events if reason == "NodeFailed"} == {"j-0", "j-1"}


def test_who_begins_counts_all_pods_before_it_places_any() -> None:
    """Whichever group it looks at first: here one that has lost its host, and would fit on h0."""
    play = empty(hosts_in_rack=3, **PATIENT)
    world = play.world
    for name, pods in (("j", 3), ("full", 4), ("b", 2)):
        tolerated = [{"key": "x", "operator": "Exists"}] * (name == "b")
        world.submit(name, pods, 2, RACK, tolerations=tolerated)
        play.rest()
    assert (hosts_of(play, "b"), hosts_of(play, "full")) == ({"h5": 2}, {"h3": 2, "h4": 2})
    node = world.objects["nodes"]["h0"]
    world.delete("nodes", "h0")
    play.rest(schedule=False)
    node["spec"]["taints"] = [SCHEDULE]
    world.put("nodes", node)
    play.rest(schedule=False)
    assert assigned(play) == {"h1": 1, "h2": 2}  # and two pods are on h0 still
    world.delete("nodes", "h5")
    for _ in range(10):
        play.begin()
        play.rest(schedule=False)
        assert world.group("job-b").status.state == "Degraded"
