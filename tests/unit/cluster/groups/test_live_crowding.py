"""Groups of a service that are spread by share, as the controller places them."""

from __future__ import annotations

import json

from tests.support.placement_world import Play, empty

RACK = "example.com/rack"
SPREADING = "kueue.x-k8s.io/podset-topology-spreading"


def submit(play: Play, name: str, pods: int, share: int) -> None:
    """A Job whose pods are of the service, with Kueue's annotation."""
    play.world.submit(name, 0, 1, RACK)
    rule = {"key": RACK, "maxShareAllowingPlacement": share}
    asked = {"workloadLabelSelector": "app=web", "rules": [rule]}
    annotations, spec = play.world.templates[name]
    play.world.templates[name] = (annotations | {SPREADING: json.dumps(asked)}, spec)
    play.world.put(
        "jobs", {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {"parallelism": pods}}
    )
    for index in range(pods):
        play.world.make_pod(name, index, f"{name}-{index}")
        item = play.world.objects["pods"][f"{name}-{index}"]
        item["metadata"]["labels"]["app"] = "web"
        play.world.put("pods", item)
    play.rest()


def rack_of(play: Play, name: str) -> set[str]:
    status = play.world.group(f"job-{name}").status
    hosts = {one.values[-1] for each in status.assignments for one in each.domains}
    return {f"r{int(host[1:]) // 2}" for host in hosts}


def test_another_leader_counts_what_is_stored() -> None:
    play = empty()
    for name in ("a", "b"):
        submit(play, name, 2, 45)
        play.begin()
    submit(play, "c", 2, 45)
    assert [rack_of(play, name) for name in ("a", "b", "c")] == [{"r0"}, {"r1"}, {"r2"}]


def test_a_group_that_waits_is_tried_when_another_changes_the_shares() -> None:
    """With one of one in r0, and r1 and r2 full, it waits; 1 of 2 would be half of them."""
    play = empty()
    submit(play, "a", 2, 50)
    for name in ("x", "y"):
        play.world.submit(name, 8, 1, RACK)
        play.rest()
    submit(play, "b", 2, 50)
    status = play.world.group("job-b").status
    assert (status.state, status.assignments) == ("Waiting", [])
    assert "rack r0 has 1 of 1, more than 50%" in status.message
    play.world.finish("x")
    submit(play, "c", 8, 99)  # the whole rack that became free, unless b is there before
    assert rack_of(play, "b") == {"r1"}
    play.world.finish("y")
    play.rest()
    assert rack_of(play, "c") == {"r2"}


def test_hosts_are_set_aside_where_the_rules_let_the_group_go() -> None:
    """r0 has most room, but the only replica, too."""
    play = empty()
    submit(play, "a", 1, 50)
    for name in ("x", "y"):
        play.world.submit(name, 8, 1, RACK)
        play.rest()
    submit(play, "b", 2, 50)
    play.now += 600.0
    play.rest()
    reserved = play.world.group("job-b").status.reserved
    assert reserved
    assert not {"h0", "h1"} & {*reserved}
