"""Opening gates with ranks and without, as a table: which waiting pod goes where."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.groups.assembly import Member
from nri_policy.cluster.groups.ungating import Ungating, assign_gated_pods, find_pods_without_place
from nri_policy.cluster.groups.writes import OpenGate
from nri_policy.cluster.objects.assignment import Assignment, DomainAssignment
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.workloads.membership import Membership
from tests.unit.cluster.written import HOSTNAME, node, pod_spec

GATE = "placement.nri/group"
NODES = {name: read_node(node(name), "") for name in ("h1", "h2", "h3")}


def member(name: str, rank: int | None, *, to: str = "", at: str = "", zone: str = "") -> Member:
    """A pod that waits; one that was let go *to* a host, or runs *at* one."""
    spec: dict[str, Any] = pod_spec({"cpu": 1})
    if to or at:
        spec |= {"nodeSelector": {HOSTNAME: to} if to else {}, "nodeName": at}
    else:
        spec |= {"schedulingGates": [{"name": GATE}, {"name": "other"}]}
    annotations = {"placement.nri/zone": zone} if zone else {}
    pod = read_pod({"metadata": {"name": name, "annotations": annotations}, "spec": spec}, "")
    return Member(pod, Membership(("default", "g"), 4, None, rank))


def assignment(**pods: int) -> Assignment:
    return Assignment("main", [HOSTNAME], [DomainAssignment([host], n) for host, n in pods.items()])


def opened(members: list[Member], closed: str = "", **pods: int) -> str:
    found = assign_gated_pods(assignment(**pods), members, GATE, NODES, frozenset(closed.split()))
    return " ".join(f"{each.pod.name}:{each.selector[HOSTNAME]}" for each in found)


CASES = {
    "ranks, in order of rank and not of name": (
        [member("a", 3), member("b", 2), member("c", 1), member("d", 0)],
        "a:h2 b:h2 c:h1 d:h1",
    ),
    "ranks, two run where they belong": (
        [member("a", 0, at="h1"), member("b", 3, to="h2"), member("c", 2), member("d", 1)],
        "c:h2 d:h1",
    ),
    "ranks, one is missing: the others keep their places": (
        [member("a", 0), member("c", 2), member("d", 3)],
        "a:h1 c:h2 d:h2",
    ),
    "no ranks: filled up by name": (
        [member("d", None), member("c", None), member("b", None), member("a", None)],
        "a:h1 b:h1 c:h2 d:h2",
    ),
    "one without a rank": (
        [member("a", None), member("b", 0), member("c", 1), member("d", 2)],
        "a:h1 b:h1 c:h2 d:h2",
    ),
    "a rank twice": (
        [member("a", 3), member("b", 3), member("c", 1), member("d", 0)],
        "a:h1 b:h1 c:h2 d:h2",
    ),
    "a rank out of range": (
        [member("a", 4), member("b", 2), member("c", 1), member("d", 0)],
        "a:h1 b:h1 c:h2 d:h2",
    ),
    "one runs where its rank does not say: the rest is filled up": (
        [member("a", 0, at="h2"), member("b", 1), member("c", 2), member("d", 3)],
        "b:h1 c:h1 d:h2",
    ),
    "grown, the new places come first: the new ranks in their order": (
        [member("a-10", 3), member("a-9", 2), member("x", 0, at="h2"), member("y", 1, at="h2")],
        "a-9:h1 a-10:h1",
    ),
    "one that was let go to nowhere in it takes no place": (
        [member("a", None, to="h3"), member("b", None), member("c", None)],
        "b:h1 c:h1",
    ),
    "more pods than places": (
        [member(name, None) for name in "abcdef"],
        "a:h1 b:h1 c:h2 d:h2",
    ),
    "its node says where a pod is, whatever its selector": (
        [member("a", None, to="h1", at="h2"), member("b", None), member("c", None)],
        "b:h1 c:h1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_goes_where(case: str) -> None:
    members, expected = CASES[case]
    assert opened(members, h1=2, h2=2) == expected


def test_pods_for_an_unhealthy_node_stay_gated() -> None:
    members = [member(name, rank) for rank, name in enumerate("abcd")]
    assert opened(members, "h1", h1=2, h2=2) == "c:h2 d:h2"


def test_below_the_host_the_last_zone_says_where_a_pod_is() -> None:
    levels = [HOSTNAME, "zone/socket", "zone/Node"]
    places = [
        DomainAssignment(["h1", "s0", "node-0"], 1),
        DomainAssignment(["h1", "s0", "node-1"], 2),
    ]
    members = [member("a", None, to="h1", zone="node-1"), member("b", None), member("c", None)]
    found = assign_gated_pods(Assignment("main", levels, places), members, GATE, NODES)
    assert [(each.pod.name, each.selector, each.zone) for each in found] == [
        ("b", {HOSTNAME: "h1"}, "node-0"),
        ("c", {HOSTNAME: "h1"}, "node-1"),
    ]


def test_levels_above_the_host_are_selected_by_their_labels() -> None:
    levels = ["example.com/block", "example.com/rack"]
    found = assign_gated_pods(
        Assignment("main", levels, [DomainAssignment(["b1", "r1"], 1)]),
        [member("a", None)],
        GATE,
        NODES,
    )
    assert found[0].selector == {"example.com/block": "b1", "example.com/rack": "r1"}


@pytest.mark.parametrize("zone", ["", "node-1"])
def test_a_pod_that_is_let_go_gets_its_place_and_loses_our_gate_alone(zone: str) -> None:
    pod = member("a", 0).pod
    opening = Ungating(pod, {HOSTNAME: "h1"}, zone)
    patch = OpenGate(opening, "g", GATE).patch()
    assert patch["spec"] == {
        "schedulingGates": [{"name": "other"}],
        "nodeSelector": {HOSTNAME: "h1"},
    }
    annotations = patch["metadata"]["annotations"]
    assert annotations == {"placement.nri/group": "g"} | (
        {"placement.nri/zone": zone} if zone else {}
    )


def outside(places: Assignment, *members: Member) -> list[str]:
    pods = [each.pod for each in members]
    return [pod.name for pod in find_pods_without_place([places], pods, NODES)]


def test_pods_are_outside_where_no_place_is() -> None:
    """Whether they run, or were only let go; a place on a host is that of its zones, too."""
    some = [member("a", 0, at="h1"), member("b", 1, to="h2"), member("c", 2, at="h3")]
    assert outside(assignment(h1=1, h2=1), *some) == ["c"]
    zoned = Assignment("main", [HOSTNAME, "zone/Node"], [DomainAssignment(["h1", "node-1"], 2)])
    there = [member("a", 0, at="h1", zone="node-1"), member("b", 1, at="h1")]
    other = [member("c", 0, at="h1", zone="node-0"), member("d", 0, at="h2", zone="node-1")]
    assert outside(zoned, *there, *other) == ["c", "d"]
    racks = Assignment("main", ["example.com/rack"], [DomainAssignment(["none"], 1)])
    assert outside(racks, member("a", 0, at="h1")) == ["a"]


def test_of_more_pods_than_places_on_a_host_those_on_their_way_are_outside_first() -> None:
    own = [member("a", 0, to="h1"), member("b", 1, at="h1"), member("c", 2, at="h1")]
    assert outside(assignment(h1=2), *own) == ["a"]
    assert outside(assignment(h1=1), *own) == ["c", "a"]
    assert outside(assignment(h1=1), own[0]) == []
