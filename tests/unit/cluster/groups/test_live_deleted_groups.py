"""PlacementGroups that are deleted while their pods run: these bring the places back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nri_policy.cluster.groups.writes import CreateGroup, OpenGate, WriteStatus
from nri_policy.cluster.zones.zone import read_zones
from tests.support.placement_world import GATE, HOSTS, OTHER, Object, Play, empty, hosts_of
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import HOSTNAME, pod_spec

RACK = "example.com/rack"
LWS = "leaderworkerset.sigs.k8s.io/"


def placed(pods: int = 6, asks: Any = (), **settings: Any) -> Play:
    """Return a play with a Job whose pods run, in one rack unless it *asks* for something else."""
    play = empty(**settings)
    for at in range(HOSTS):
        report = zone_report(f"h{at}", 2, 2, memory=8)
        play.cluster.set_zones(read_zones(report | {"attributes": []}, ""))
    play.world.submit("j", 0, 1, RACK)
    annotations, spec = play.world.templates["j"]
    play.world.templates["j"] = (dict(asks) or annotations, spec)
    play.world.put("jobs", play.world.objects["jobs"]["j"] | {"spec": {"parallelism": pods}})
    for index in range(pods):
        play.world.make_pod("j", index, f"j-{index}")
    play.rest()
    assert play.world.let_go("j") == (pods, pods)
    return play


def delete(play: Play, group: str = "job-j", *, restarts: bool = False) -> None:
    """Delete a PlacementGroup; the service sees that, or *restarts* and never has known it."""
    play.world.delete("groups", group)
    if restarts:
        reports = play.cluster.view.zones
        play.begin()
        for each in reports.values():
            play.cluster.set_zones(each)


def seen(play: Play, group: str = "job-j") -> tuple[object, ...]:
    """What an object of a group says."""
    found = play.world.group(group)
    metadata = play.world.objects["groups"][group]["metadata"]
    return found.pod_sets, found.status, found.together, metadata["ownerReferences"]


ASKS: dict[str, dict[str, str]] = {
    "required": {},
    "spread": {"placement.nri/spread-over": RACK},
    "zones": {
        "kueue.x-k8s.io/podset-required-topology": RACK,
        "kueue.x-k8s.io/podset-slice-required-topology": "zone/Node",
        "kueue.x-k8s.io/podset-slice-size": "2",
    },
}


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_deleted_group_gets_its_places_back(asks: str, restarts: bool) -> None:
    play = placed(asks=ASKS[asks], topology={"belowHost": ["Node"]})
    before = seen(play)
    delete(play, restarts=restarts)
    play.rest()
    assert seen(play) == before


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_is_made_again_gets_the_place_left_over(asks: str, restarts: bool) -> None:
    play = placed(asks=ASKS[asks], topology={"belowHost": ["Node"]})
    before, hosts = seen(play), hosts_of(play, "j")
    play.world.delete("pods", "j-2")
    play.world.control_jobs()
    delete(play, restarts=restarts)
    play.rest()
    assert hosts_of(play, "j") == hosts
    assert seen(play)[1:] == before[1:]


def put_pod(play: Play, name: str, labels: Any, uid: str = "", **annotations: str) -> None:
    """Make a pod of a StatefulSet, for a required rack."""
    owner = {"kind": "StatefulSet", "name": "m", "uid": "u-m", "controller": True}
    metadata = {
        "name": name,
        "uid": uid or f"u-{name}",
        "labels": labels,
        "annotations": {"kueue.x-k8s.io/podset-required-topology": RACK, **annotations},
        "ownerReferences": [owner],
    }
    spec = pod_spec({"cpu": 1}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
    play.world.put("pods", {"metadata": metadata, "spec": spec})


@pytest.mark.parametrize("kind", ["stateful set", "leader and workers"])
def test_a_pod_of_a_stateful_set_that_is_made_again_gets_its_place(kind: str) -> None:
    play = empty()

    def make(at: int, uid: str = "") -> None:
        if kind == "stateful set":
            named = {"placement.nri/group": "g", "placement.nri/group-size": "6"}
            put_pod(play, f"m-{at}", named, uid)
        else:
            labels = {"name": "m", "group-index": "0", "worker-index": str(at), "size": "6"}
            named = {f"{LWS}{key}": value for key, value in labels.items()}
            put_pod(play, f"m-0-{at}", named, uid, **{"placement.nri/pod-set": "w" if at else "l"})

    for at in range(6):
        make(at)
    play.rest()
    name, last = ("g", "m-5") if kind == "stateful set" else ("lws-m-0", "m-0-5")
    before, host = seen(play, name), play.world.objects["pods"][last]["spec"]["nodeName"]
    delete(play, name)
    play.rest()
    assert seen(play, name) == before
    delete(play, name)
    play.world.delete("pods", last)
    make(5, "again")
    play.rest()
    assert play.world.objects["pods"][last]["spec"]["nodeName"] == host
    assert seen(play, name) == before


def test_a_place_that_another_group_has_taken_is_waited_for() -> None:
    """The pod that is made again goes to no other rack, and nobody leaves."""
    play = placed(8)
    (host,) = {play.world.objects["pods"]["j-2"]["spec"]["nodeName"]}
    delete(play)
    play.world.delete("pods", "j-2")
    play.world.submit("one", 1, 1, HOSTNAME, nodeSelector={HOSTNAME: host})
    play.rest()
    play.world.control_jobs()
    play.rest()
    assert (play.world.let_go("one"), play.world.let_go("j")) == ((1, 1), (7, 8))
    assert "1 more pod cannot be placed" in play.world.group("job-j").status.message
    play.world.finish("one")
    play.rest()
    assert play.world.let_go("j") == (8, 8)
    assert play.world.disrupted == []


def test_pods_on_their_way_to_their_hosts_keep_their_places() -> None:
    play = empty()
    play.world.submit("j", 8, 1, RACK)
    play.rest(schedule=False)
    before = seen(play)
    delete(play)
    play.world.submit("k", 8, 1, RACK)
    play.rest(schedule=False)
    assert seen(play) == before
    assert hosts_of(play, "j").keys().isdisjoint(hosts_of(play, "k"))


@pytest.mark.parametrize("done", [False, True])
def test_a_gate_of_which_it_is_not_known_whether_it_was_opened_keeps_its_place(done: bool) -> None:
    play = empty()
    play.world.submit("j", 8, 1, RACK)
    play.listen()
    opened: list[OpenGate] = []
    while not opened:
        for write in play.controller.step():
            if isinstance(write, OpenGate) and not opened:
                opened.append(write)
                play.controller.note_no_answer(write)
                if done:
                    play.world.write(write)
            else:
                play.world.write(write)
        if not opened:
            play.listen()
    for name in play.world.pods_of("j"):
        if name != opened[0].opening.pod.name:
            play.notify("pods", name)
    places = play.world.group("job-j").status.assignments
    delete(play)
    written = [*statuses(play)]
    assert [each.group.status.assignments for each in written] == [places]
    play.now += 60.0
    play.rest()
    assert play.world.let_go("j") == (8, 8)


@pytest.mark.parametrize("listed", [False, True])
def test_places_to_which_gates_are_being_opened_are_not_given_to_others(listed: bool) -> None:
    """A group is deleted before a gate is seen open; its pods may be *listed* again, closed."""
    play = empty()
    for name in ("a", "b"):  # in two of three racks
        play.world.submit(name, 8, 1, RACK)
    play.rest()
    for name in ("j", "k"):
        play.world.submit(name, 8, 1, RACK)
    opened = list[OpenGate]()
    for at in range(5):
        play.listen()
        for write in play.controller.step():
            if isinstance(write, OpenGate):
                opened.append(write)
            else:
                play.world.write(write)
        if at == 2:
            delete(play)
            play.listen()
            for name in play.world.pods_of("j") if listed else ():
                play.notify("pods", name)
    assert len(opened) == 8
    for each in opened:
        play.world.write(each)
    play.rest()
    assert (play.world.let_go("j"), play.world.let_go("k")) == ((8, 8), (0, 8))


def statuses(play: Play) -> Iterator[WriteStatus]:
    """Have the controller hear of a deleted group and go on; yield statuses, then write them."""
    play.notify("groups", "job-j")
    while writes := play.controller.step():
        for write in writes:
            if isinstance(write, WriteStatus):
                yield write
            if not isinstance(write, OpenGate):
                play.world.write(write)
        if "job-j" in play.world.objects["groups"]:
            play.notify("groups", "job-j")


def test_a_place_that_is_about_to_be_restored_is_not_given_to_others() -> None:
    """Its pod is deleted before the status is written."""
    play = placed(8)
    for name in ("k", "l"):  # in the other racks
        play.world.submit(name, 8, 1, RACK)
    play.rest()
    delete(play)
    for _ in statuses(play):
        play.world.delete("pods", "j-2")
        play.world.submit("one", 1, 1, HOSTNAME)
        for kind, name in [("pods", "j-2"), ("jobs", "one"), ("pods", "one-0")]:
            play.notify(kind, name)
        while writes := play.controller.step():
            for write in writes:
                play.world.write(write)
            play.notify("groups", "job-one")
    play.world.control_jobs()
    play.rest()
    assert (play.world.let_go("one"), play.world.let_go("j")) == ((0, 1), (8, 8))


def test_a_status_that_is_not_believed_is_written_again_from_the_running_pods() -> None:
    play = placed()
    before = seen(play)
    item: Object = play.world.objects["groups"]["job-j"]
    item["status"]["assignments"] *= 2
    play.world.put("groups", item)
    play.rest()
    assert seen(play) == before


def test_pods_in_more_racks_than_their_group_may_have_bring_no_places_back() -> None:
    """A host has moved to another rack: the status says so, and how to go on."""
    play = placed()
    delete(play)
    item = play.world.objects["nodes"][max(hosts_of(play, "j"))]
    item["metadata"]["labels"][RACK] = "r9"
    play.world.put("nodes", item)
    play.world.delete("pods", "j-0")
    play.world.control_jobs()
    play.rest()
    assert play.world.let_go("j") == (5, 6)
    assert play.world.group("job-j").status.message == (
        "its pods are in 2 domains of example.com/rack, and it asks for one: once all of them are"
        " deleted, it is placed anew"
    )
    for name in play.world.pods_of("j"):
        play.world.delete("pods", name)
    play.world.control_jobs()
    play.rest()
    assert play.world.let_go("j") == (6, 6)
    assert len({int(each[1]) // 2 for each in hosts_of(play, "j")}) == 1


def test_a_host_that_failed_meanwhile_is_replaced_in_the_rack_of_the_other_pods() -> None:
    play = placed(6)
    few, many = sorted(hosts_of(play, "j"), key=hosts_of(play, "j").__getitem__)
    delete(play)
    play.world.delete("nodes", few)
    play.world.evict(few)
    play.world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == {many: 4, "": 2}
    assert "2 more pods cannot be placed" in play.world.group("job-j").status.message


def test_a_job_that_ends_makes_no_group_again() -> None:
    play = placed()
    delete(play)
    play.world.delete("jobs", "j")
    play.listen()
    assert not [each for each in play.controller.step() if isinstance(each, CreateGroup)]
