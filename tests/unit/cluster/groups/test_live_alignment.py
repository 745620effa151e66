"""The controller places groups where the zones of nodes that align pods take them, or they wait."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.numa.promises import CHOSEN_SECONDS
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.zones.zone import read_zones
from tests.support.placement_world import GATE, HOSTS, OTHER, Play
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import HOSTNAME

RACK = "example.com/rack"
CONTAINERS = [{"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1"}}}]


def aligned(settings: Any = None, **free: tuple[int, int]) -> Play:
    """Hosts with a free CPU in each zone, but for those with so many *free*."""
    play = Play(**(settings or {}))
    for at in range(HOSTS):
        host = f"h{at}"
        report(play, host, *free.get(host, (1, 1)))
    return play


def report(play: Play, host: str, *free: int) -> None:
    play.cluster.set_zones(read_zones(zone_report(host, *free, cpus=2, memory=8), ""))


def submit(play: Play, name: str, pods: int, cpu: int = 2, **spec: Any) -> None:
    """A Job of Guaranteed pods of 2 CPUs, or of so many."""
    amounts = {"cpu": str(cpu), "memory": "1"}
    containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
    play.world.submit(name, pods, cpu, RACK, containers=containers, **spec)


def hosts(play: Play, job: str) -> list[str]:
    """The hosts to which the pods of a Job were sent."""
    pods = play.world.pods_of(job).values()
    return sorted(each["spec"]["nodeSelector"][HOSTNAME] for each in pods)


@pytest.mark.parametrize(
    ("free", "found"), [({"h4": (2, 2)}, "r2"), ({"h2": (2, 1), "h3": (1, 2)}, "r1")]
)
def test_a_group_goes_where_zones_take_its_pods(free: Any, found: str) -> None:
    """By totals it would go to the first rack."""
    play = aligned(**free)
    submit(play, "gang", 2)
    play.rest()
    nodes = play.world.objects["nodes"]
    racks = {nodes[host]["metadata"]["labels"][RACK] for host in hosts(play, "gang")}
    assert racks == {found}


def test_groups_of_one_step_do_not_get_the_same_zone() -> None:
    play = aligned(h2=(2, 1), h4=(1, 2))
    for name in ("a", "b"):
        submit(play, name, 1)
    play.rest()
    assert sorted(hosts(play, "a") + hosts(play, "b")) == ["h2", "h4"]


def test_pods_of_a_failed_host_go_where_zones_take_them() -> None:
    play = aligned(h2=(2, 1), h5=(2, 1))
    submit(play, "a", 1)
    play.rest()
    (before,) = hosts(play, "a")
    play.world.delete("nodes", before)
    play.rest()
    (place,) = play.world.group("job-a").status.assignments[0].domains
    assert {before, place.values[0]} == {"h2", "h5"}


def test_a_group_waits_while_no_zones_take_it_and_goes_as_soon_as_they_do() -> None:
    play = aligned()
    submit(play, "gang", 2)
    play.rest()
    assert play.world.let_go("gang") == (0, 2)
    status = play.world.group("job-gang").status
    [condition] = status.conditions
    assert (status.state, condition.type, condition.reason) == (
        "Waiting",
        "ZonesRefuse",
        "ZonesFull",
    )
    assert condition.message in status.message
    assert condition.message in play.notices["job-gang"]
    assert "2 asked, 1 left in node-0, 2 in an empty zone" in condition.message
    assert play.controller.placer.statistics.tries["no room in zones"] == 1
    report(play, "h4", 2, 2)
    play.rest()
    assert hosts(play, "gang") == ["h4", "h4"]
    status = play.world.group("job-gang").status
    assert (status.state, status.conditions) == ("Running", [])


def test_a_group_that_no_empty_zones_take_is_unplaceable() -> None:
    play = aligned(h4=(2, 2))
    submit(play, "large", 1, cpu=3)
    play.rest()
    status = play.world.group("job-large").status
    assert (status.state, status.conditions[0].reason) == ("Unplaceable", "ZonesTooSmall")
    assert play.controller.placer.statistics.tries["unplaceable"] == 1


def test_a_group_is_tried_again_when_a_promise_ends() -> None:
    """The extender has chosen the only host for another pod, which is never bound."""
    play = aligned(h4=(2, 1))
    play.rest()
    other = read_pod({"metadata": {"name": "other"}, "spec": {"containers": CONTAINERS}}, "")
    request = play.zones.fits.request(other)
    assert play.zones.choose(other, request, ["h4"]) == "h4"
    submit(play, "gang", 1)
    play.rest()
    assert play.world.group("job-gang").status.conditions
    play.now += CHOSEN_SECONDS
    play.rest()
    assert hosts(play, "gang") == ["h4"]


def test_groups_leave_for_zones_and_no_more_while_nodes_have_not_reported_that() -> None:
    """A group of one pod, on a host with a free zone less, leaves for one of higher priority."""
    play = aligned({"groups": {"preemption": True}}, h2=(2, 1), h4=(2, 1))
    placed = {}
    for name in ("old", "young"):
        submit(play, name, 1, priority=1)
        play.rest()
        [placed[name]] = hosts(play, name)
        report(play, placed[name], 0, 1)
    assert {*placed.values()} == {"h2", "h4"}
    submit(play, "urgent", 1, priority=5)
    play.rest()
    report(play, "h0", 1, 1)  # it is tried again
    play.rest()
    assert play.controller.placer.statistics.preemptions == 1
    assert play.world.pods_of("old")
    assert not play.world.pods_of("young")
    assert play.world.let_go("urgent") == (0, 1)
    report(play, placed["young"], 2, 1)
    play.rest()
    assert hosts(play, "urgent") == [placed["young"]]
    assert play.controller.placer.statistics.preemptions == 1


def test_hosts_are_set_aside_whose_zones_could_hold_the_group() -> None:
    """Every host but h4 has one zone of 2 CPUs: two pods in a rack fit into an empty r2 only."""
    play = aligned()
    for at in range(HOSTS):
        report(play, f"h{at}", *((1, 1) if at == 4 else (1,)))
    submit(play, "gang", 3)
    play.rest()
    play.now += play.settings.groups.timeout
    play.rest()
    status = play.world.group("job-gang").status
    assert status.reserved == ["h4", "h5"]
    assert status.message.startswith("reserved: rack r2, 0 of 3 pods fit now, since 0 min; ")


def put_pod(play: Play, index: int, cpu: int) -> None:
    """Make a Guaranteed pod of a StatefulSet whose two pods are a group."""
    amounts = {"cpu": str(cpu), "memory": "1"}
    metadata = {
        "name": f"db-{index}",
        "uid": f"db-{index}-{cpu}",
        "annotations": {
            "kueue.x-k8s.io/podset-required-topology": RACK,
            "placement.nri/group": "db",
            "placement.nri/group-size": "2",
        },
        "ownerReferences": [
            {"kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}
        ],
    }
    spec = {
        "containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}],
        "schedulingGates": [{"name": GATE}, {"name": OTHER}],
    }
    play.world.put("pods", {"metadata": metadata, "spec": spec})


@pytest.mark.parametrize(("free", "expected"), [((2, 1), "h1"), ((1, 1), "h0"), ((0, 0), "")])
def test_a_pod_that_an_update_makes_larger_goes_where_zones_of_the_rack_take_it(
    free: tuple[int, int], expected: str
) -> None:
    """To its own host, h0, if that takes it; to no other rack."""
    play = aligned(h0=(2, 1))
    play.world.delete("pods", "web")
    for index in (0, 1):
        put_pod(play, index, 1)
    play.rest()
    assert {play.world.objects["pods"][f"db-{index}"]["spec"]["nodeName"] for index in (0, 1)} == {
        "h0"
    }
    report(play, "h0", *((2, 0) if expected == "h0" else (0, 1)))
    report(play, "h1", *free)
    report(play, "h2", 2, 2)
    play.world.delete("pods", "db-1")
    put_pod(play, 1, 2)
    play.rest()
    assert play.world.objects["pods"]["db-1"]["spec"].get("nodeName", "") == expected
