"""Hosts that failed and are in order again while pods still run there: their group follows them."""

from __future__ import annotations

import json

import pytest

from tests.support.job_set_play import SHARED, job_set, replicated, start
from tests.support.placement_world import HOSTS, Play, assigned, empty, hosts_of, racks_of
from tests.unit.cluster.groups.test_live_unbound import occupy, refuse
from tests.unit.cluster.written import HOSTNAME

RACK = "example.com/rack"


def fail(play: Play, host: str, *, deleted: bool) -> str:
    """Have a host fail, whose pods get other places and still run; return its node as it was."""
    node = json.dumps(play.world.objects["nodes"][host])
    if deleted:
        play.world.delete("nodes", host)
    else:
        item = json.loads(node)
        item["status"]["conditions"][0]["status"] = "False"
        play.world.put("nodes", item)
        play.rest()
        play.now += 30.0
    play.rest()
    return node


def bring_back(play: Play, node: str, *, restarts: bool = False) -> None:
    """Have a node register, or become ready; the service sees that, or *restarts* meanwhile."""
    play.world.put("nodes", json.loads(node))
    if restarts:
        play.begin()
    play.rest()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_group_has_its_places_where_its_pods_still_run(deleted: bool, restarts: bool) -> None:
    play = empty(hosts_in_rack=3, failure={"policy": "Fixed30s"})
    play.world.submit("j", 6, 1, RACK)
    play.rest()
    before = assigned(play)
    few = min(before, key=before.__getitem__)
    node = fail(play, few, deleted=deleted)
    assert play.world.group("job-j").status.state != "Running"
    bring_back(play, node, restarts=restarts)
    assert (play.world.group("job-j").status.state, assigned(play)) == ("Running", before)
    assert hosts_of(play, "j") == before


def test_the_places_that_a_group_leaves_so_are_free() -> None:
    play = empty()
    play.world.submit("j", 4, 1, HOSTNAME)
    play.rest()
    (host,) = assigned(play)
    node = fail(play, host, deleted=True)
    (other,) = assigned(play)
    for at in range(HOSTS):
        if f"h{at}" not in (host, other):
            occupy(play, f"h{at}", 4)
    bring_back(play, node)
    play.world.submit("k", 4, 1, HOSTNAME)
    play.rest()
    assert hosts_of(play, "k") == {other: 4}


def test_a_host_that_is_still_not_ready_gets_no_places_back() -> None:
    play = empty()
    play.world.submit("j", 4, 1, HOSTNAME)
    play.rest()
    (host,) = assigned(play)
    item = json.loads(fail(play, host, deleted=True))
    (other,) = assigned(play)
    item["status"]["conditions"][0]["status"] = "False"
    bring_back(play, json.dumps(item))
    assert assigned(play) == {other: 4}


def test_a_pod_that_was_made_again_keeps_its_new_place_beside_one_that_still_runs() -> None:
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 2, 2, RACK)
    play.rest()
    (host,) = assigned(play)
    node = fail(play, host, deleted=True)
    (other,) = assigned(play)
    play.world.delete("pods", "j-0")
    play.world.control_jobs()
    bring_back(play, node)
    assert hosts_of(play, "j") == assigned(play) == {host: 1, other: 1}
    assert play.world.group("job-j").status.state == "Running"


def test_pods_in_two_racks_have_no_places_in_both() -> None:
    """One of two went with its host, and runs in another rack than the one that still runs."""
    play = empty()
    play.world.submit("j", 2, 2, RACK)
    play.rest()
    (host,) = assigned(play)
    beside = f"h{int(host[1]) ^ 1}"
    occupy(play, beside, 4)
    node = fail(play, host, deleted=True)
    (other,) = assigned(play)
    play.world.delete("pods", "j-0")
    play.world.control_jobs()
    bring_back(play, node)
    assert hosts_of(play, "j") == {host: 1, other: 1}
    assert assigned(play) == {other: 2}
    message = play.world.group("job-j").status.message
    assert message == "pods run where the group has no place: j-1"
    play.world.delete("pods", "j-1")
    play.world.control_jobs()
    play.rest()
    assert hosts_of(play, "j") == {other: 2}
    status = play.world.group("job-j").status
    assert (status.state, status.message) == ("Running", "")


def test_later_steps_of_a_job_set_go_where_the_first_still_runs() -> None:
    play = empty()
    order = {"startupPolicyOrder": "InOrder"}
    job_set(play, replicated("driver", 1), replicated("w", 2), startupPolicy=order)
    (driver,) = start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    host = play.world.objects["pods"][driver]["spec"]["nodeName"]
    beside = f"h{int(host[1]) ^ 1}"
    occupy(play, beside, 4)
    node = fail(play, host, deleted=True)
    assert host not in assigned(play, "jobset-s")
    play.world.delete("pods", f"web-{beside}")
    bring_back(play, node)
    start(play, "w", 2, 2, asks=SHARED)
    play.rest()
    assert len(racks_of(play, "s-")) == 3
    assert len({*racks_of(play, "s-")}) == 1


def test_a_pod_that_is_bound_when_its_place_has_moved_keeps_its_host() -> None:
    """kube-scheduler binds it before the service can have it fail."""
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 1, 2, RACK)
    play.rest(schedule=False)
    (host,) = assigned(play)
    occupy(play, host, 4)
    refuse(play, "j-0")
    play.now += 30.0
    play.world.refuse = lambda write: "no" if type(write).__name__ == "FailPod" else ""
    play.rest(schedule=False)
    assert host not in assigned(play)
    play.world.delete("pods", f"web-{host}")
    bind(play, "j-0", host)
    play.now += 60.0
    play.rest()
    assert (play.world.group("job-j").status.state, assigned(play)) == ("Running", {host: 1})


def test_a_pod_that_is_bound_beside_another_when_its_place_has_moved_keeps_its_host() -> None:
    """The group has a place on the host for the other one alone."""
    play = empty(hosts_in_rack=3)
    play.world.submit("j", 2, 2, RACK)
    play.rest(schedule=False)
    (host,) = assigned(play)
    occupy(play, host, 2)
    refuse(play, "j-1")
    bind(play, "j-0", host)
    play.now += 30.0
    play.world.refuse = lambda write: "no" if type(write).__name__ == "FailPod" else ""
    play.rest(schedule=False)
    assert assigned(play)[host] == 1
    play.world.delete("pods", f"web-{host}")
    bind(play, "j-1", host)
    play.now += 60.0
    play.rest()
    assert (play.world.group("job-j").status.state, assigned(play)) == ("Running", {host: 2})


def bind(play: Play, name: str, host: str) -> None:
    item = play.world.objects["pods"][name]
    item["spec"]["nodeName"] = host
    play.world.put("pods", item | {"status": {"phase": "Running"}})
