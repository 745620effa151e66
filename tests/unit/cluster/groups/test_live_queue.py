"""Hosts are set aside for a group that has waited long: its status says so, across leaders."""

from __future__ import annotations

import pytest

from nri_policy.cluster.engine.reservation import Reservations
from nri_policy.cluster.groups import controller
from nri_policy.cluster.objects.settings import read_settings
from tests.support.placement_world import Play, empty, full_racks
from tests.unit.cluster.written import HOSTNAME, pod_spec, settings

RACK = "example.com/rack"
TIMEOUT = 600.0


def test_a_group_gets_the_room_of_a_pod_that_was_deleted() -> None:
    play = Play()
    metadata = {"name": "web", "uid": "u", "annotations": {"placement.nri/group": ""}}
    play.world.put("pods", {"metadata": metadata, "spec": pod_spec({"cpu": 1}, nodeName="h0")})
    for name in ("a", "b", "gang"):
        play.world.submit(name, 8, 1, RACK)
        play.rest()
    assert play.world.let_go("gang") == (0, 8)
    play.world.delete("pods", "web")  # its labels are invalid, so it is in no group
    play.rest()
    assert play.world.let_go("gang") == (8, 8)


def test_a_new_leader_knows_for_how_long_a_group_has_waited() -> None:
    """By the time of the cluster: that of the pod that was created last."""
    play = full_racks()
    for index in range(8):
        item = play.world.objects["pods"][f"gang-{index}"]
        item["metadata"]["creationTimestamp"] = "2025-12-31T23:00:00Z"
        play.world.put("pods", item)
    metadata = {"name": "late", "creationTimestamp": "2026-01-01T00:00:00Z"}
    play.world.put("pods", {"metadata": metadata, "spec": pod_spec({"cpu": 1})})
    play.begin()
    play.rest()
    assert play.controller.queue.oldest(play.now) >= 3600.0


def test_a_group_is_tried_again_with_other_settings() -> None:
    play = Play()
    play.controller.configure(read_settings(settings(HOSTNAME)))
    play.world.submit("gang", 4, 1, RACK)
    play.rest()
    assert "no requested topology level" in play.world.group("job-gang").status.message
    play.controller.configure(read_settings(settings("rack", HOSTNAME)))
    play.rest()
    assert play.world.let_go("gang") == (4, 4)


def test_a_group_is_tried_again_when_it_asks_for_something_else() -> None:
    play = Play()
    play.world.submit("gang", 8, 1, RACK, nodeSelector={RACK: "r9"})
    play.rest()
    assert play.world.group("job-gang").status.state == "Unplaceable"
    changed = play.world.objects["groups"]["job-gang"]
    del changed["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"]
    play.world.put("groups", changed)
    play.rest()
    assert play.world.group("job-gang").status.assignments


def test_a_refused_group_says_what_fits_though_its_priority_is_being_written() -> None:
    play = empty()
    for host in play.world.objects["nodes"]:
        spec = pod_spec({"cpu": 1}, nodeName=host)
        play.world.put("pods", {"metadata": {"name": f"on-{host}", "uid": host}, "spec": spec})
    play.world.submit("gang", 8, 1, RACK)
    play.rest()
    assert "only 6 out of 8 pod(s)" in play.world.group("job-gang").status.message
    play.world.delete("pods", "on-h0")
    for item in play.world.pods_of("gang").values():
        play.world.put("pods", item | {"spec": item["spec"] | {"priority": 5}})
    play.rest()
    assert "only 7 out of 8 pod(s)" in play.world.group("job-gang").status.message


def test_its_status_says_what_is_set_aside_and_how_much_fits_there() -> None:
    play = full_racks()
    assert play.world.group("job-gang").status.reserved == []
    play.now += TIMEOUT
    play.rest()
    status = play.world.group("job-gang").status
    rack = "r1" if "h2" in status.reserved else "r0" if "h0" in status.reserved else "r2"
    assert status.reserved == [f"h{2 * int(rack[1])}", f"h{2 * int(rack[1]) + 1}"]
    reserved = f"reserved: rack {rack}, 3 of 8 pods fit now, since 0 min; topology"
    assert status.message.startswith(reserved)
    assert (status.state, play.notices["job-gang"].count("reserved")) == ("Waiting", 0)


def test_small_jobs_go_on_elsewhere() -> None:
    play = full_racks()
    play.now += TIMEOUT
    play.rest()
    for name in ("x", "y"):
        play.world.submit(name, 2, 1, RACK)
        play.rest()
    assert [play.world.let_go(name) for name in ("x", "y")] == [(2, 2), (2, 2)]
    play.world.submit("z", 2, 1, RACK)
    play.rest()
    assert play.world.let_go("z") == (0, 2)
    message = play.world.group("job-z").status.message
    assert message.startswith("2 hosts set aside for default/job-gang; topology")
    play.world.finish("b")
    play.rest()
    assert play.world.let_go("gang") == (8, 8)
    assert play.world.group("job-gang").status.reserved == []


def test_another_leader_goes_on_with_the_same_hosts() -> None:
    play = full_racks()
    play.now += TIMEOUT
    play.rest()
    before = play.world.group("job-gang").status
    play.world.submit("late", 3, 1, RACK)
    play.now = 0.0  # it has a clock of its own
    play.begin()
    play.rest()
    after = play.world.group("job-gang").status
    assert after.reserved == before.reserved
    assert play.world.let_go("late") == (0, 3)


def test_an_error_of_ours_in_choosing_hosts_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    play = full_racks()
    monkeypatch.setattr(Reservations, "choose", fail)
    play.now += TIMEOUT
    play.rest()
    play.world.submit("x", 2, 1, RACK)
    play.rest()
    assert play.world.let_go("x") == (2, 2)
    assert play.controller.errors > 0


def test_a_waiting_group_whose_priority_changes_moves_in_the_queue() -> None:
    """One of its pods is made anew with another PriorityClass, without a moment that lacks it."""
    play = full_racks()
    play.world.submit("late", 8, 1, RACK)
    play.rest()
    annotations, spec = play.world.templates["late"]
    play.world.templates["late"] = (annotations, spec | {"priority": 7})
    play.world.delete("pods", "late-0")
    play.world.make_pod("late", 0, "late-0")
    play.rest()
    assert play.world.group("job-late").priority == 7
    play.world.finish("b")
    play.rest()
    assert [play.world.let_go(name) for name in ("gang", "late")] == [(0, 8), (8, 8)]


def test_groups_that_are_looked_at_one_a_step_go_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that begins with many groups looks at a slice of them in a step."""
    whole = full_racks()
    monkeypatch.setattr(controller, "SLICE", 1)
    play = full_racks()
    for each in (whole, play):
        each.begin()
        each.world.finish("b")
        each.rest()
    assert play.world.let_go("gang") == (8, 8)
    hosts = [
        {name: item["spec"]["nodeSelector"] for name, item in each.world.pods_of("gang").items()}
        for each in (whole, play)
    ]
    assert hosts[0] == hosts[1]


@pytest.mark.parametrize("seed", range(4))
def test_no_group_gets_places_before_all_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    play = full_racks()
    play.world.submit("urgent", 8, 1, RACK, priority=9)
    play.rest()
    monkeypatch.setattr(controller, "SLICE", 1)
    play.world.finish("b")
    play.chance.seed(seed)
    play.begin()  # its groups are listed in any order
    play.rest()
    assert [play.world.let_go(name) for name in ("gang", "urgent")] == [(0, 8), (8, 8)]
