"""Hosts that are set aside, as the controller does it: statuses, leaders, groups that run."""

from __future__ import annotations

from typing import Any

from tests.support.placement_world import Play, empty, full_racks
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"
TIMEOUT = HOLD_TIMEOUT = 600.0
PATIENT: Any = {"failure": {"policy": "PodTermination", "failFast": False}}


def stay(play: Play, name: str, host: str, cpu: str) -> None:
    """Have a pod on a host that never ends by itself."""
    spec = pod_spec({"cpu": cpu}, nodeName=host, restartPolicy="Always")
    play.world.put("pods", {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": spec})


def later(play: Play, seconds: float) -> None:
    play.now += seconds
    play.rest()


def test_a_gang_of_whole_hosts_beside_a_daemonset_closes_nothing() -> None:
    play = empty()
    for at in range(6):
        stay(play, f"agent-{at}", f"h{at}", "1")
    play.world.submit("whole", 2, 4, RACK)
    play.rest()
    later(play, TIMEOUT)
    status = play.world.group("job-whole").status
    assert (status.state, status.reserved) == ("Waiting", [])
    assert status.message == (
        "fits nowhere beside what stays:"
        " DaemonSets and services leave at most 3 of 4 CPUs on each host"
    )
    play.world.submit("small", 2, 1, RACK)
    play.rest()
    assert play.world.let_go("small") == (2, 2)
    for at in (0, 1):
        play.world.delete("pods", f"agent-{at}")
    play.rest()
    assert play.world.group("job-whole").status.message != status.message, "it is tried again"


def test_a_hold_that_ends_is_in_the_status_and_another_leader_goes_on_with_its_pause() -> None:
    play = full_racks()
    later(play, TIMEOUT)
    status = play.world.group("job-gang").status
    assert status.reserved
    assert status.hold is not None
    assert (status.hold.since, status.hold.ended) == ("2026-01-01T00:10:00Z", 0)
    later(play, HOLD_TIMEOUT)
    status = play.world.group("job-gang").status
    assert (status.reserved, status.state) == ([], "Waiting")
    assert status.hold is not None
    assert (status.hold.since, status.hold.ended) == ("", 1)
    assert status.hold.paused_until == "2026-01-01T00:30:00Z"
    play.away, play.now = play.now, 0.0  # it has a clock of its own
    play.begin()
    play.rest()
    later(play, TIMEOUT - 1)
    assert play.world.group("job-gang").status.reserved == []
    later(play, 1.0)
    assert play.world.group("job-gang").status.reserved


def test_another_leader_goes_on_with_the_time_that_hosts_are_set_aside() -> None:
    play = full_racks()
    later(play, TIMEOUT)
    later(play, 200.0)
    play.away, play.now = play.now, 0.0
    play.begin()
    play.world.submit("small", 1, 1, RACK)
    play.rest()
    hold = play.world.group("job-gang").status.hold
    assert hold is not None
    assert hold.since == "2026-01-01T00:10:00Z"
    assert ", since 3 min; " in play.world.group("job-gang").status.message


def test_the_holds_of_a_group_that_is_placed_are_forgotten() -> None:
    play = full_racks()
    later(play, TIMEOUT)
    later(play, HOLD_TIMEOUT)
    play.world.finish("b")
    play.rest()
    assert play.world.let_go("gang") == (8, 8)
    assert play.world.group("job-gang").status.hold is None


def lost() -> tuple[Play, str]:
    """A gang of two hosts in r0 has lost one; small Jobs have what is left of the cluster."""
    play = empty(hosts_in_rack=3, **PATIENT)
    play.world.submit("train", 2, 4, RACK)
    play.rest()
    (rack,) = {f"r{int(host[1:]) // 3}" for host in hosts(play, "train")}
    for number in range(4):
        play.world.submit(f"s{number}", 4, 1, "kubernetes.io/hostname")
        play.rest()
    failed = hosts(play, "train")[1]
    play.world.evict(failed)
    play.world.delete("nodes", failed)
    play.world.control_jobs()
    play.rest()
    return play, rack


def hosts(play: Play, job: str) -> list[str]:
    (assignment,) = play.world.group(f"job-{job}").status.assignments
    return sorted(each.values[-1] for each in assignment.domains)


def test_a_group_that_has_lost_a_host_gets_one_before_small_jobs_do() -> None:
    play, rack = lost()
    assert play.world.group("job-train").status.state == "Degraded"
    later(play, TIMEOUT)
    status = play.world.group("job-train").status
    (reserved,) = status.reserved
    assert f"r{int(reserved[1:]) // 3}" == rack
    assert status.message.startswith("reserved: rack ")
    assert "0 of 1 pod fit now" in status.message
    (there,) = [name for name in ("s0", "s1", "s2", "s3") if hosts(play, name) == [reserved]]
    play.world.submit("next", 1, 1, RACK)
    play.rest()
    for index in range(4):  # one by one, and small Jobs wait for each of its places
        item = play.world.objects["pods"][f"{there}-{index}"]
        play.world.put("pods", item | {"status": {"phase": "Succeeded"}})
        play.rest()
        assert play.world.let_go("next") == (0, 1) or index == 3
    assert play.world.let_go("train") == (2, 2)
    status = play.world.group("job-train").status
    assert (status.state, status.reserved, status.hold) == ("Running", [], None)


def test_events_do_not_repeat_how_long_a_degraded_group_holds() -> None:
    play, _ = lost()
    said = play.notices["job-train"]
    for _ in range(5):
        play.world.submit(f"x{play.now:.0f}", 1, 1, RACK)
        later(play, TIMEOUT)
    assert play.notices["job-train"] == said


def test_a_group_that_runs_keeps_its_hold_across_leaders() -> None:
    play, _ = lost()
    later(play, TIMEOUT)
    before = play.world.group("job-train").status.reserved
    play.away, play.now = play.now, 0.0
    play.begin()
    play.rest()
    assert play.world.group("job-train").status.reserved == before
    play.world.submit("next", 1, 1, RACK)
    play.rest()
    assert play.controller.placer.waiting.reserved(("default", "job-train")) == (*before,)


def larger() -> tuple[Play, str]:
    """A Job that runs has one more pod; each other host has small Jobs, one is set aside."""
    play = empty(hosts_in_rack=3)
    play.world.submit("train", 1, 4, RACK)
    play.rest()
    for number in range(5):
        play.world.submit(f"s{number}", 4, 1, "kubernetes.io/hostname")
        play.rest()
    job = play.world.objects["jobs"]["train"]
    play.world.put("jobs", job | {"spec": {"parallelism": 2}})
    play.world.make_pod("train", 1, "train-1")
    play.rest()
    assert play.world.let_go("train") == (1, 2)
    later(play, TIMEOUT)
    (reserved,) = play.world.group("job-train").status.reserved
    return play, reserved


def test_a_larger_job_keeps_the_hosts_for_its_new_pods_across_leaders() -> None:
    play, reserved = larger()
    (there,) = [name for name in ("s0", "s1", "s2", "s3", "s4") if hosts(play, name) == [reserved]]
    item = play.world.objects["pods"][f"{there}-0"]
    play.world.put("pods", item | {"status": {"phase": "Succeeded"}})
    play.world.submit("next", 1, 1, RACK)
    play.away, play.now = play.now, 0.0
    play.begin()
    play.rest()
    assert play.world.let_go("next") == (0, 1)
    status = play.world.group("job-train").status
    assert (status.reserved, status.hold and status.hold.since) == (
        [reserved],
        "2026-01-01T00:10:00Z",
    )
    later(play, HOLD_TIMEOUT)
    assert play.world.group("job-train").status.reserved == [], "without progress its hold ends"


def test_a_larger_job_gets_hosts_for_its_new_pods() -> None:
    play, reserved = larger()
    status = play.world.group("job-train").status
    assert status.message.startswith("reserved: rack ")
    assert "1 more pod cannot be placed" in status.message
    revision = play.world.revision
    play.rest()
    assert play.world.revision == revision, "it does not write in a loop"
    (there,) = [name for name in ("s0", "s1", "s2", "s3", "s4") if hosts(play, name) == [reserved]]
    play.world.finish(there)
    play.rest()
    status = play.world.group("job-train").status
    assert play.world.let_go("train") == (2, 2)
    assert (status.state, status.reserved, status.hold) == ("Running", [], None)
