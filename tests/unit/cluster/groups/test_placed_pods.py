"""Which pods the engine counts as a group's own."""

from __future__ import annotations

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.clock import Clock
from tests.unit.cluster.written import HOSTNAME, group, node, pod, pod_set, settings


def test_a_pod_counts_for_the_group_that_its_owner_makes() -> None:
    """It has no label of ours: that it is of the group follows from its Job."""
    cluster = Cluster([read_node(node(name, RACK=name), "") for name in "ab"])
    engine = Engine(read_settings(settings("rack", HOSTNAME)), cluster.view)
    placed_pods = PlacedPods(engine.state, Members(Clock(now=lambda: 0.0)))
    asked = read_group(group(pod_set(1, {"spreadOver": ["example.com/rack"]}), name="job-j"))
    assert engine.spread(asked) == {"a": 1}
    placed_pods.count(("default", "job-j"), read_pod(pod("j-0", "a"), ""))
    assert engine.spread(asked) == {"b": 1}
    placed_pods.count(("default", "job-j"), read_pod(pod("j-0", "a", phase="Succeeded"), ""))
    assert engine.spread(asked) == {"a": 1}


def test_a_pod_that_ended_leaves_its_place_to_its_group() -> None:
    cluster = Cluster([read_node(node("a", RACK="r"), "")])
    engine = Engine(read_settings(settings("rack", HOSTNAME)), cluster.view)
    placed_pods = PlacedPods(engine.state, Members(Clock(now=lambda: 0.0)))
    domains = [{"values": ["a"], "count": 2}]
    places = [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}]
    engine.state.set_group(read_group(group(pod_set(2), status={"assignments": places})))
    for phase in ("Running", "Succeeded"):
        placed_pods.count(("default", "g"), read_pod(pod("p", "a", phase=phase), ""))
        assert engine.state.tree("default").rows.room(0)["cpu"] == 2000
