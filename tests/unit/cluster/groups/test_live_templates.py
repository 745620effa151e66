"""Owners that go on with another template, as in a rolling update of a LeaderWorkerSet.

All pods of a group are deleted and made anew, and ask for more; the PlacementGroup stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.placement_world import GATE, OTHER, Play, empty, racks_of
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"
LWS = "leaderworkerset.sigs.k8s.io/"
ASKS = {"kueue.x-k8s.io/podset-required-topology": RACK}
NAMES = [f"m-0-{index}" for index in range(3)]


def make(play: Play, cpu: int, pod_set: str, uid: str, names: Sequence[str] = NAMES) -> None:
    """Make pods of a replica of a LeaderWorkerSet; all three if none are named."""
    for name in names:
        index = NAMES.index(name)
        labels = {"name": "m", "group-index": "0", "worker-index": str(index), "size": "3"}
        named = {"placement.nri/pod-set": pod_set} if pod_set else {}
        owner = {"kind": "StatefulSet", "name": "m", "uid": "u-m", "controller": True}
        metadata = {
            "name": name,
            "uid": f"{uid}-{index}",
            "labels": {f"{LWS}{key}": value for key, value in labels.items()},
            "annotations": ASKS | named,
            "ownerReferences": [owner],
        }
        spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
        play.world.put("pods", {"metadata": metadata, "spec": spec})


def test_a_new_leader_waits_until_the_old_workers_are_gone() -> None:
    """Its place is one of those that are too small for them all."""
    play = empty()
    make(play, 1, "", "old")
    play.rest()
    make(play, 2, "", "new", NAMES[:1])
    play.rest()
    assert racks_of(play, NAMES[0]) == []
    make(play, 2, "", "new", NAMES[1:])
    play.rest()
    assert cpus(play) == [2000]
    assert len(racks_of(play, "m-0")) == 3


def cpus(play: Play) -> list[int]:
    """What the group's pods ask for, in thousandths of a CPU."""
    return [each.template.spec.effective()["cpu"] for each in play.world.group("lws-m-0").pod_sets]


@pytest.mark.parametrize("pod_set", ["", "own"])
@pytest.mark.parametrize("seen", [True, False])
def test_new_pods_of_another_template_are_placed_by_what_they_ask_for(
    seen: bool, pod_set: str
) -> None:
    """Whether the controller sees the group without pods in between, or not."""
    play = empty()
    make(play, 1, pod_set, "old")
    play.rest()
    assert cpus(play) == [1000]
    for name in NAMES:
        play.world.delete("pods", name)
    if seen:
        play.rest()
    make(play, 2, pod_set, "new")
    play.rest()
    assert cpus(play) == [2000]
    assert len(racks_of(play, "m-0")) == 3
    status = play.world.group("lws-m-0").status
    assert sum(one.count for each in status.assignments for one in each.domains) == 3
    pods = play.world.objects["pods"]
    hosts = [pods[name]["spec"]["nodeSelector"]["kubernetes.io/hostname"] for name in NAMES]
    assert len({*hosts}) == 2, "a host of four CPUs has room for two of them"


# StatefulSets, which replace pods one by one


def put_pod(play: Play, index: int, cpu: int, uid: str, **spec: Any) -> None:
    """Make a pod of a StatefulSet whose three pods are a group."""
    group = {"placement.nri/group": "db", "placement.nri/group-size": "3"}
    owner = {"kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}
    metadata = {
        "name": f"db-{index}",
        "uid": f"{uid}-{index}",
        "annotations": ASKS | group,
        "ownerReferences": [owner],
    }
    spec["schedulingGates"] = [{"name": GATE}, {"name": OTHER}]
    play.world.put("pods", {"metadata": metadata, "spec": pod_spec({"cpu": cpu}, **spec)})


def run_db(play: Play, cpu: int) -> dict[str, str]:
    """Run the StatefulSet; return the hosts of its pods."""
    for index in range(3):
        put_pod(play, index, cpu, "old")
    play.rest()
    assert play.world.group("db").status.state == "Running"
    return hosts_of_db(play)


def hosts_of_db(play: Play) -> dict[str, str]:
    pods = play.world.objects["pods"]
    return {
        name: pods[name]["spec"].get("nodeName", "") for name in sorted(pods) if name[:2] == "db"
    }


def replace_pod(play: Play, index: int, cpu: int, **spec: Any) -> None:
    play.world.delete("pods", f"db-{index}")
    put_pod(play, index, cpu, "new", **spec)
    play.rest()


def cpus_of_db(play: Play) -> list[int]:
    return [each.template.spec.effective()["cpu"] for each in play.world.group("db").pod_sets]


@pytest.mark.parametrize(("old", "new"), [(3, 1), (3, 4)])
def test_pods_that_a_statefulset_replaces_get_the_places_of_the_old_ones(
    old: int, new: int
) -> None:
    """The group then has the template that they have, so that lost pods are placed by it."""
    play = empty(hosts_in_rack=3)
    before = run_db(play, old)
    for index in (2, 1, 0):
        replace_pod(play, index, new)
        assert hosts_of_db(play) == before
        status = play.world.group("db").status
        assert (status.state, status.message) == ("Running", "")
    assert cpus_of_db(play) == [1000 * new]
    play.world.submit("other", 2, 4, RACK)
    play.rest()
    assert play.world.let_go("other") == (2, 2)


def test_room_is_free_again_that_the_new_pods_do_not_need() -> None:
    play = empty(hosts_in_rack=3)
    before = run_db(play, 3)
    for index in (2, 1, 0):
        replace_pod(play, index, 1)
    for at in range(3, 6):
        play.world.delete("nodes", f"h{at}")
    play.world.submit("other", 3, 3, RACK)
    play.rest()
    assert play.world.let_go("other") == (3, 3)
    assert hosts_of_db(play) == before


WAITS = (
    "1 pod with another template than those that its places are for: db-1; db-1 needs more than"
    " host h0 has left, and {}; the group is placed anew once none of the old is there"
)


def fill(play: Play, host: str, cpu: int) -> None:
    spec = pod_spec({"cpu": cpu}, nodeName=host)
    play.world.put("pods", {"metadata": {"name": f"on-{host}", "uid": host}, "spec": spec})


def test_a_new_pod_that_needs_more_than_its_host_has_goes_to_another_of_its_rack() -> None:
    play = empty()
    assert {*run_db(play, 1).values()} == {"h0"}
    fill(play, "h1", 1)
    for index in (2, 1, 0):
        replace_pod(play, index, 2)
    assert hosts_of_db(play) == {"db-0": "h0", "db-1": "h1", "db-2": "h0"}
    status = play.world.group("db").status
    assert (status.state, status.message) == ("Running", "")
    assert cpus_of_db(play) == [2000]
    assert "db-1 needs more than host h0 has left: its place moves" in play.notices["db"]
    play.world.submit("other", 1, 1, RACK)
    play.rest()
    assert play.world.let_go("other") == (1, 1)


def test_a_new_pod_waits_if_no_host_of_its_rack_has_room() -> None:
    """Other racks have, and h1 has room for a pod of the old template."""
    play = empty()
    assert {*run_db(play, 1).values()} == {"h0"}
    fill(play, "h1", 3)
    replace_pod(play, 2, 2)
    assert hosts_of_db(play)["db-2"] == "h0"
    replace_pod(play, 1, 2)
    assert hosts_of_db(play)["db-1"] == ""
    status = play.world.group("db").status
    assert status.state == "Placed"
    why = "no other host that the group may use has room for it"
    assert status.message == WAITS.format(why)
    assert play.notices["db"].endswith(status.message)
    play.world.delete("pods", "on-h1")
    play.now += 30.0
    play.rest()
    assert hosts_of_db(play)["db-1"] == "h1"


def test_a_new_pod_with_a_volume_waits_for_room_on_its_host() -> None:
    """The volume may be a local one."""
    play = empty()
    assert {*run_db(play, 1).values()} == {"h0"}
    fill(play, "h0", 1)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db"}}]
    replace_pod(play, 1, 2, volumes=volumes)
    assert hosts_of_db(play)["db-1"] == ""
    status = play.world.group("db").status
    assert status.message == WAITS.format("stays there as it has a persistent volume")
    play.world.delete("pods", "on-h0")
    play.now += 30.0
    play.rest()
    assert hosts_of_db(play)["db-1"] == "h0"


def test_new_pods_that_need_more_go_one_by_one() -> None:
    """What one of them uses beyond its place counts once it is bound."""
    play = empty()
    assert {*run_db(play, 1).values()} == {"h0"}
    fill(play, "h1", 4)
    for index in (1, 2):
        play.world.delete("pods", f"db-{index}")
        put_pod(play, index, 2, "new")
    play.rest()
    assert sorted(hosts_of_db(play).values()) == ["", "h0", "h0"]


def test_a_gang_that_is_not_whole_gets_no_place_for_a_pod_of_another_template() -> None:
    play = empty()
    put_pod(play, 0, 1, "old")
    put_pod(play, 2, 2, "new")
    play.rest()
    assert "db" not in play.world.objects["groups"]
    assert {*hosts_of_db(play).values()} == {""}


def test_a_pod_that_asks_for_other_nodes_waits_while_pods_of_the_old_template_are_there() -> None:
    """The rolling update waits for it, too: the status names it."""
    play = empty()
    run_db(play, 1)
    tolerates = {"tolerations": [{"key": "spot", "operator": "Exists"}]}
    replace_pod(play, 2, 1, **tolerates)
    status = play.world.group("db").status
    assert status.state == "Placed"
    assert status.message == (
        "1 pod with another template than those that its places are for: db-2;"
        " the group is placed anew once none of the old is there"
    )
    assert play.notices["db"] == status.message
    for index in (0, 1):
        play.world.delete("pods", f"db-{index}")
        put_pod(play, index, 1, "new", **tolerates)
    play.rest()
    status = play.world.group("db").status
    assert (status.state, status.message) == ("Running", "")
    assert len(racks_of(play, "db")) == 3
