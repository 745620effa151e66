"""Attempts to place groups: which victims leave, and the status that follows."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.clock import Clock
from tests.support.placement_world import GATE, OTHER, Play
from tests.unit.cluster.written import HOSTNAME, group, pod, pod_set, pod_spec, settings

KEY = ("default", "g")


def ending(phase: str) -> Pod:
    made: Any = pod("p", "a", phase=phase)
    made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made["metadata"]["labels"] = {"placement.nri/group": "g", "placement.nri/group-size": "1"}
    return read_pod(made, "")


@pytest.mark.parametrize("gone", [True, False])
def test_a_pod_leaves_until_it_has_ended_or_is_gone(gone: bool) -> None:
    using, view = read_settings(settings("rack", HOSTNAME)), Cluster().view
    clock = Clock(now=lambda: 0.0)
    zones = LiveZones(using.extender, view, clock)
    controller = Controller(using, view, clock, zones)
    controller.engine.state.set_group(read_group(group(pod_set(1))))
    controller.set_pod(ending("Running"))
    assert controller.members.leaving.keys() == {KEY}
    assert controller.placer._is_any_leaving()
    if gone:
        controller.remove_pod("default", "p")
    else:
        controller.set_pod(ending("Failed"))
    assert not controller.placer._is_any_leaving()


def put_pods(play: Play, sets: dict[str, tuple[int, int, Any]]) -> None:
    """Gated pods of one group: by pod set how many, of how many CPUs, and their annotations."""
    size = sum(count for count, _, _ in sets.values())
    for name, (count, cpu, given) in sets.items():
        for number in range(count):
            metadata = {
                "name": f"{name}-{number}",
                "uid": f"u-{name}-{number}",
                "annotations": given,
                "labels": {
                    "placement.nri/group": "g",
                    "placement.nri/group-size": f"{size}",
                    "placement.nri/pod-set": name,
                },
            }
            gates = [{"name": GATE}, {"name": OTHER}]
            spec = pod_spec({"cpu": cpu}, schedulingGates=gates)
            play.world.put("pods", {"metadata": metadata, "spec": spec})


def test_the_status_says_in_which_order_pod_sets_were_placed_while_they_run() -> None:
    """The driver would take a host of the only rack that holds the workers."""
    play = Play(hosts_in_rack=5)
    required = {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}
    put_pods(play, {"driver": (1, 4, {}), "worker": (4, 4, required)})
    play.rest()
    status = play.world.group("g").status
    assert (status.state, status.message) == ("Running", "placed in the order worker, driver")
    assert play.notices["g"] == status.message


def test_pod_sets_that_are_to_be_together_share_a_rack_also_after_a_restart() -> None:
    """Without that, the first of them goes to h0, where another pod runs already."""
    play = Play(hosts_in_rack=2)
    together = {"placement.nri/group-required-topology": "example.com/rack"}
    put_pods(play, {"decode": (1, 4, together), "prefill": (1, 3, {})})
    play.step()  # the object is written
    play.begin()
    play.rest()
    hosts = {
        name: play.world.objects["pods"][name]["spec"]["nodeName"]
        for name in play.world.objects["pods"]
    }
    assert {hosts["decode-0"], hosts["prefill-0"]} == {"h0", "h1"}
    assert play.world.objects["groups"]["g"]["spec"]["together"] == {"required": "example.com/rack"}
