"""PodGroups of Kubernetes: their pods are one group, once there are as many as the gang needs."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.workloads.membership import read_pod_group
from nri_policy.cluster.workloads.workload import read_groups
from tests.support.placement_world import GATE, OTHER, Object, Play, empty, racks_of
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"
REQUIRED = {"kueue.x-k8s.io/podset-required-topology": RACK}


def pod_group(name: str, least: int | None) -> Object:
    policy: Object = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {"schedulingPolicy": policy}}


def pod(name: str, of: str) -> Object:
    """A pod of a PodGroup; nobody owns it."""
    gates = [{"name": GATE}, {"name": OTHER}]
    spec: dict[str, Any] = pod_spec({"cpu": 1}, schedulingGates=gates)
    spec["schedulingGroup"] = {"podGroupName": of}
    return {"metadata": {"name": name, "uid": f"u-{name}", "annotations": REQUIRED}, "spec": spec}


def come(play: Play, of: str, *numbers: int) -> None:
    for number in numbers:
        play.world.put("pods", pod(f"{of}-{number}", of))
        play.rest()


def playing(least: int | None = 3) -> Play:
    play = empty()
    play.world.put("podgroups", pod_group("g", least))
    return play


def test_pods_wait_until_there_are_as_many_as_the_gang_needs() -> None:
    play = playing()
    come(play, "g", 0, 1)
    assert racks_of(play, "g") == []
    assert "2 of 3 pods are there" in play.notices["g-0"]
    come(play, "g", 2)
    assert len(racks_of(play, "g")) == 3
    assert len({*racks_of(play, "g")}) == 1
    owner = play.world.objects["groups"]["podgroup-g"]["metadata"]["ownerReferences"]
    assert [(one["kind"], one["name"], one["uid"]) for one in owner] == [("PodGroup", "g", "u-g")]
    assert owner[0]["apiVersion"] == "scheduling.k8s.io/v1alpha2"


def test_more_pods_get_places_where_the_group_was_promised_to_be_as_long_as_there_is_room() -> None:
    play = playing()
    come(play, "g", 0, 1, 2, 3, 4)
    assert len(racks_of(play, "g")) == 5
    assert len({*racks_of(play, "g")}) == 1
    come(play, "g", 5, 6, 7, 8)  # a rack has 8 CPUs
    assert len(racks_of(play, "g")) == 8
    assert "1 more pod cannot be placed" in play.world.group("podgroup-g").status.message
    play.world.delete("pods", "g-0")
    play.rest()
    assert len(racks_of(play, "g")) == 8


def test_all_that_are_there_when_the_gang_is_complete_are_placed_at_once() -> None:
    play = playing()
    for number in range(5):
        play.world.put("pods", pod(f"g-{number}", "g"))
    play.rest()
    assert len(racks_of(play, "g")) == 5


def test_a_gang_without_room_waits_as_a_whole_whatever_comes_later() -> None:
    play = playing(9)
    come(play, "g", *range(9))
    assert racks_of(play, "g") == []
    play.world.put("podgroups", pod_group("h", 3))
    come(play, "h", 0, 1, 2)
    assert len(racks_of(play, "h")) == 3


def test_pods_may_come_before_their_pod_group() -> None:
    play = Play()
    come(play, "g", 0, 1, 2)
    assert not play.world.objects["groups"]
    play.world.put("podgroups", pod_group("g", 3))
    play.rest()
    assert len(racks_of(play, "g")) == 3


def test_pods_of_a_pod_group_that_is_no_gang_are_groups_alone() -> None:
    play = playing(None)
    come(play, "g", 0, 1)
    assert {*play.world.objects["groups"]} == {"pod-g-0", "pod-g-1"}


def test_another_leader_goes_on() -> None:
    play = playing()
    come(play, "g", 0, 1, 2)
    before = racks_of(play, "g")
    play.begin()
    play.rest()
    come(play, "g", 3)
    assert racks_of(play, "g") == [before[0]] * 4


def test_a_gang_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"gang\.minCount: 0 is not a number of pods"):
        read_pod_group(pod_group("g", 0), "")


def test_pods_in_a_file_that_name_a_pod_group_are_one_group() -> None:
    pods = [{"kind": "Pod", **pod(f"g-{number}", "g")} for number in range(2)]
    [group] = read_groups(pods)
    assert (group.name, [each.count for each in group.pod_sets]) == ("g", [2])


@pytest.mark.parametrize(("least", "expected"), [(5, [("g", 5)]), (2, [("g", 3)])])
def test_a_gang_in_a_file_has_its_least_pods_or_all_that_name_it(
    least: int, expected: list[tuple[str, int]]
) -> None:
    pods = [{"kind": "Pod", **pod(f"g-{number}", "g")} for number in range(3)]
    groups = read_groups([*pods, {"kind": "PodGroup", **pod_group("g", least)}])
    assert [(each.name, each.pod_sets[0].count) for each in groups] == expected


def test_pods_in_a_file_whose_pod_group_is_no_gang_are_alone() -> None:
    pods = [{"kind": "Pod", **pod(f"g-{number}", "g")} for number in range(2)]
    groups = read_groups([{"kind": "PodGroup", **pod_group("g", None)}, *pods])
    assert [each.name for each in groups] == ["g-0", "g-1"]


def test_a_pod_group_in_a_file_with_a_mistyped_field_is_refused() -> None:
    mistyped = {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"schedulingPolcy": {}}}
    with pytest.raises(DocumentError, match=r"schedulingPolcy: .*did you mean .schedulingPolicy"):
        read_groups([mistyped, {"kind": "Pod", **pod("g-0", "g")}])
