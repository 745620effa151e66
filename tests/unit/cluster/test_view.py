"""Nodes and their reports, held once: who is told of what, and what is read in between."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.node import ClusterNode, read_node
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import NodeZones, read_zones
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set, settings


class Listener:
    """What one was told, and what the cluster had then."""

    def __init__(self, cluster: Cluster) -> None:
        self.view = cluster.view
        self.told: list[Any] = []
        cluster.follow(self)

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        self.told.append((old, new, [*self.view.nodes.values()]))

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        self.told.append((node, old, new, [*self.view.zones.values()], {*self.view.stale}))


def test_a_node_is_held_before_anybody_is_told_of_it() -> None:
    first, other = (read_node(node("n", ready=ready), "") for ready in (True, False))
    cluster = Cluster([first])
    listener = Listener(cluster)
    cluster.set_node(read_node(node("n"), ""))
    assert listener.told == [], "nothing has changed"
    cluster.set_node(other)
    cluster.remove_node("n")
    cluster.remove_node("n")
    assert listener.told == [(first, other, [other]), (other, None, [])]


def test_a_report_is_told_again_and_one_without_sense_counts_as_none() -> None:
    report = NodeZones(node="n", zones=())
    cluster = Cluster(zones=[report])
    listener = Listener(cluster)
    cluster.set_zones(report)  # it is a new one, though it says the same
    cluster.remove_zones("n", stale=True)
    cluster.set_zones(report)
    cluster.remove_zones("n")
    assert listener.told == [
        ("n", report, report, [report], set()),
        ("n", report, None, [], {"n"}),
        ("n", None, report, [report], set()),
        ("n", report, None, [], set()),
    ]


def test_a_group_for_zones_gets_none_of_a_node_whose_report_makes_no_sense() -> None:
    zone = {
        "name": "node-0",
        "type": "Node",
        "resources": [
            {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"},
        ],
    }
    cluster = Cluster([read_node(node("n", RACK="r"), "")])
    using = settings("rack", HOSTNAME, topology={"belowHost": ["Node"]})
    engine = Engine(read_settings(using), cluster.view)
    cluster.follow(engine.state)
    request = {"required": "example.com/rack", "slices": [{"level": "zone/Node", "size": 1}]}
    asked = read_group(group(pod_set(1, request, cpu=1)))
    cluster.set_zones(read_zones({"metadata": {"name": "n"}, "zones": [zone]}, ""))
    assert engine.place(asked).state == "Placed"
    cluster.remove_zones("n", stale=True)
    assert engine.place(asked).state == "Unplaceable"


def test_a_refusal_does_not_count_domains_whose_nodes_are_gone() -> None:
    """The leader fits nowhere; of its workers, the first rack that has nodes would take some."""
    rack = {"required": "example.com/rack", "leaderGroup": "j"}
    lead, work = pod_set(1, rack, name="leader", cpu=9), pod_set(9, rack, name="workers")
    cluster = Cluster([read_node(node(name, RACK=name), "") for name in "ab"])
    engine = Engine(read_settings(settings("rack", HOSTNAME)), cluster.view)
    cluster.follow(engine.state)
    asked = read_group(group(lead, work))
    assert "allows to fit only 4 out of 9 pod(s)" in engine.place(asked).message
    cluster.remove_node("a")
    assert "allows to fit only 4 out of 9 pod(s)" in engine.place(asked).message


def test_who_reads_the_view_cannot_change_what_it_shows() -> None:
    cluster = Cluster([read_node(node("n"), "")], [NodeZones(node="n")])
    cluster.remove_zones("other", stale=True)
    view: Any = cluster.view
    for shown in (view.nodes, view.zones):
        with pytest.raises(TypeError):
            shown["n"] = None
    with pytest.raises(AttributeError):
        view.stale.discard("other")
    with pytest.raises(AttributeError):
        view.nodes = {}


def test_nodes_are_found_by_hostname_as_they_come_change_and_go() -> None:
    def named(name: str, host: str | None) -> ClusterNode:
        return ClusterNode(name, {} if host is None else {HOSTNAME: host}, {})

    def found(host: str) -> list[str]:
        return [each.name for each in cluster.view.on_host(host)]

    cluster = Cluster([named("a", "x"), named("b", "b"), named("c", None)])
    assert (found("a"), found("x"), found("b"), found("c")) == ([], ["a"], ["b"], ["c"])
    cluster.set_node(named("d", "x"))
    cluster.set_node(named("x", "a"))
    assert (found("a"), found("x")) == (["x"], ["a", "d"])
    cluster.set_node(named("x", "x"))
    assert (found("a"), found("x")) == ([], ["x"]), "the one with that name stands for all"
    cluster.remove_node("x")
    cluster.set_node(named("a", "a"))
    assert (found("a"), found("x")) == (["a"], ["d"])
    cluster.remove_node("d")
    cluster.remove_node("a")
    assert (found("a"), found("x")) == ([], [])
    assert not cluster.view.other_hostnames
