"""Owners that go on with another template, as in a rolling update of a LeaderWorkerSet.

All pods of a group are deleted and made anew, and ask for more; the PlacementGroup stays.
"""

from __future__ import annotations

from collections.abc import Sequence

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


@pytest.mark.parametrize(("old", "new"), [(2, 1), (1, 2)])
def test_a_pod_of_another_template_waits_while_pods_of_the_old_one_have_the_places(
    old: int, new: int
) -> None:
    """As in the rolling update of a StatefulSet, which waits for it: the status names it."""
    play = empty()

    def make_one(index: int, cpu: int, uid: str) -> None:
        group = {"placement.nri/group": "db", "placement.nri/group-size": "3"}
        owner = {"kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}
        metadata = {
            "name": f"db-{index}",
            "uid": f"{uid}-{index}",
            "annotations": ASKS | group,
            "ownerReferences": [owner],
        }
        spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}, {"name": OTHER}])
        play.world.put("pods", {"metadata": metadata, "spec": spec})

    for index in range(3):
        make_one(index, old, "old")
    play.rest()
    assert play.world.group("db").status.state == "Running"
    play.world.delete("pods", "db-2")
    make_one(2, new, "new")
    play.rest()
    status = play.world.group("db").status
    assert status.state == "Placed"
    assert status.message == (
        "1 pod with another template than those that its places are for: db-2;"
        " the group is placed anew once none of the old is there"
    )
    assert play.notices["db"] == status.message
    for index in (0, 1):
        play.world.delete("pods", f"db-{index}")
        make_one(index, new, "new")
    play.rest()
    status = play.world.group("db").status
    assert (status.state, status.message) == ("Running", "")
    assert len(racks_of(play, "db")) == 3
