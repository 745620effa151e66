"""Spreading of services without a gate: scores of nodes, and hosts that have enough."""

from __future__ import annotations

from typing import Any

from nri_policy.cluster.numa.service_spread import (
    FAILURE_SECONDS,
    FEW_FAILURES,
    PROMISE_SECONDS,
    ServiceSpread,
)
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.clock import Clock
from tests.unit.cluster.written import node, pod_spec

ZONE, RACK = "example.com/zone", "example.com/rack"
NODES = ["a1", "a2", "a3", "b1"]  # three in zone a, of which a3 in a rack of its own; one in zone b


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        cluster = Cluster()
        self.spread = ServiceSpread(cluster.view, Clock(now=lambda: self.now))
        for name in NODES:
            rack = "x" if name == "a3" else f"r{name[0]}"
            cluster.set_node(read_node(node(name, ZONE=name[0], RACK=rack), ""))

    def scores(self, **annotations: str) -> dict[str, int] | None:
        return self.spread.scores(pod("new", "", **annotations), NODES)

    def order(self, **annotations: str) -> list[str]:
        """The nodes, best first."""
        scores = self.scores(**annotations)
        assert scores is not None
        return sorted(NODES, key=lambda name: (-scores[name], name))


def pod(
    name: str, at: str, service: str = "web", phase: str = "Running", **annotations: str
) -> Pod:
    given = {f"placement.nri/{key.replace('_', '-')}": each for key, each in annotations.items()}
    owner = {"kind": "ReplicaSet", "name": f"{service}-5d8f", "uid": "u", "controller": True}
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {"pod-template-hash": "5d8f"},
        "annotations": given,
        "ownerReferences": [owner],
    }
    spec = pod_spec({"cpu": 1}, nodeName=at)
    return read_pod({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, "")


def test_who_does_not_ask_is_not_scored_and_what_makes_no_sense_holds_nobody_up() -> None:
    world = World()
    assert world.scores() is None
    assert world.scores(spread_over="=,") is None
    assert world.scores(group="g", spread_over=ZONE) is None  # its group has placed it


def test_the_first_level_counts_before_the_second_and_that_before_hosts() -> None:
    world = World()
    over = f"{ZONE}, {RACK}"
    world.spread.set_pod(pod("p1", "a1", spread_over=over))
    world.spread.set_pod(pod("p2", "b1", spread_over=over))
    assert world.order(spread_over=over) == ["a3", "a2", "a1", "b1"]
    world.spread.set_pod(pod("p3", "a3", spread_over=over))
    assert world.order(spread_over=over)[0] == "b1"
    world.spread.remove_pod("default", "p3")
    assert world.order(spread_over=over)[0] == "a3"


def test_of_equal_branches_nodes_without_the_label_come_last() -> None:
    world = World()
    world.spread.set_pod(pod("p", "b1", spread_over="other"))
    assert world.order(spread_over="other")[-1] == "b1"  # nobody has the label
    other = node("c1", RACK="rc")  # of no zone
    cluster = Cluster()
    spread = ServiceSpread(cluster.view, Clock(now=lambda: 0.0))
    for each in (other, node("d1", ZONE="d", RACK="rd")):
        cluster.set_node(read_node(each, ""))
    assert spread.scores(pod("new", "", spread_over=ZONE), ["c1", "d1"]) == {"c1": 0, "d1": 10}
    spread.set_pod(pod("q", "d1", spread_over=ZONE))
    assert spread.scores(pod("new", "", spread_over=ZONE), ["c1", "d1"]) == {"c1": 10, "d1": 0}


def test_scores_go_from_ten_to_nought() -> None:
    world = World()
    world.spread.set_pod(pod("p", "a1", spread_over=ZONE))
    assert world.scores(spread_over=ZONE) == {"a1": 0, "a2": 5, "a3": 5, "b1": 10}


def test_pods_of_other_services_count_last_and_those_that_ended_not_at_all() -> None:
    world = World()
    world.spread.set_pod(pod("q", "a1", service="db", spread_over=ZONE))
    best = world.order(spread_over=ZONE)
    assert best.index("a2") < best.index("a1")
    world.spread.set_pod(pod("q", "a1", service="db", phase="Succeeded", spread_over=ZONE))
    assert world.order(spread_over=ZONE)[0] == "a1"


def test_weights_and_packing() -> None:
    world = World()
    for number, at in enumerate(("a1", "b1")):
        world.spread.set_pod(pod(f"p{number}", at, spread_over=ZONE))
    assert world.order(spread_over=f"{ZONE}={{a: 1, b: 3}}")[0] == "b1"
    world.spread.remove_pod("default", "p1")
    assert world.order(spread_over=f"pack:{ZONE}")[0] == "a2"


def test_hosts_where_its_pods_fail_come_later_for_a_while() -> None:
    world = World()
    for number in range(FEW_FAILURES):
        scores = world.scores(spread_over=ZONE)
        assert scores is not None
        assert scores["a1"] == scores["a2"], "fewer failures count as none"
        world.spread.set_pod(pod(f"p{number}", "a1", spread_over=ZONE))
        world.spread.set_pod(pod(f"p{number}", "a1", phase="Failed", spread_over=ZONE))
    scores = world.scores(spread_over=ZONE)
    assert scores is not None
    assert scores["a1"] < scores["a2"]
    world.now += FAILURE_SECONDS
    scores = world.scores(spread_over=ZONE)
    assert scores is not None
    assert scores["a1"] == scores["a2"]


def test_a_host_that_has_enough_gets_no_more() -> None:
    world = World()
    for number in range(2):
        world.spread.set_pod(pod(f"p{number}", "a1", max_per_host="2"))
    assert world.spread.full(pod("new", "", max_per_host="2"), NODES).keys() == {"a1"}
    assert not world.spread.full(pod("new", "", max_per_host="3"), NODES)
    assert not world.spread.full(pod("new", "", service="db", max_per_host="2"), NODES)
    assert not world.spread.full(pod("new", ""), NODES)


def test_a_burst_of_pods_gets_no_more_per_host_than_allowed() -> None:
    """Each asks before the last one is bound."""
    world = World()
    limit = {"max_per_host": "1", "spread_over": ZONE}
    every = [pod(f"p{number}", "", **limit) for number in range(5)]
    chosen = [choose(world, each) for each in every]
    assert sorted(str(each) for each in chosen[:4]) == NODES
    assert chosen[4] is None
    world.spread.set_pod(every[0])  # it changes, but is not bound yet
    assert choose(world, every[1]) == chosen[1], "who asks again gets its place again"
    world.spread.set_pod(pod("p0", str(chosen[0]), **limit))
    world.now += PROMISE_SECONDS
    world.spread.expire()
    assert len(world.spread.full(every[4], NODES)) == 1  # the others were never bound
    world.spread.promise(every[4], "b1")
    world.spread.remove_pod("default", "p4")
    assert [*world.spread.full(every[3], NODES)] == chosen[:1]


def test_a_pod_without_a_limit_is_sent_nowhere_but_counts_where_it_is_bound() -> None:
    world = World()
    assert world.spread.choose(pod("p", "", spread_over=ZONE), NODES) is None
    world.spread.promise(pod("p", "", spread_over=ZONE), "b1")
    assert world.order(spread_over=ZONE)[-1] == "b1"
    world.spread.withdraw("default", "p")
    assert world.order(spread_over=ZONE)[0] == "a1"


def choose(world: World, asking: Pod) -> str | None:
    """The node that a filter would answer, which counts from then on."""
    world.spread.withdraw(asking.namespace, asking.name)
    full = world.spread.full(asking, NODES)
    chosen = world.spread.choose(asking, [each for each in NODES if each not in full])
    if chosen is not None:
        world.spread.promise(asking, chosen)
    return chosen
