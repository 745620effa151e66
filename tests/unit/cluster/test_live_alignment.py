"""The controller places groups where the zones of nodes that align pods take them."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.zone import read_zones
from tests.support.placement_world import HOSTS, Play
from tests.unit.cluster.written import HOSTNAME

RACK = "example.com/rack"


def zones(host: str, *free: int) -> Any:
    """A report of zones of 2 CPUs, of which so many are free."""
    memory = {"name": "memory", "capacity": 8, "allocatable": 8, "available": 8}
    cpu = {"name": "cpu", "capacity": 2, "allocatable": 2}
    return {
        "metadata": {"name": host},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [memory, cpu | {"available": each}],
            }
            for at, each in enumerate(free)
        ],
    }


def aligned(**free: tuple[int, int]) -> Play:
    """Hosts with a free CPU in each zone, but for those with so many *free*."""
    play = Play()
    for at in range(HOSTS):
        host = f"h{at}"
        play.cluster.set_zones(read_zones(zones(host, *free.get(host, (1, 1))), ""))
    return play


def submit(play: Play, name: str, pods: int) -> None:
    """A Job of Guaranteed pods of 2 CPUs."""
    amounts = {"cpu": "2", "memory": "1"}
    containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
    play.world.submit(name, pods, 2, RACK, containers=containers)


def hosts(play: Play, job: str) -> list[str]:
    """The hosts to which the pods of a Job were sent."""
    pods = play.world.pods_of(job).values()
    return sorted(each["spec"]["nodeSelector"][HOSTNAME] for each in pods)


@pytest.mark.parametrize(
    ("free", "found"), [({}, "r0"), ({"h4": (2, 2)}, "r2"), ({"h2": (2, 1), "h3": (1, 2)}, "r1")]
)
def test_a_group_goes_where_zones_take_its_pods(free: Any, found: str) -> None:
    """By what hosts have in all it goes to the first rack, as it does if no zones take its pods."""
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
