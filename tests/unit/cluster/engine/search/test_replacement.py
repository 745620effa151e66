"""Replacement: lost pods go where their group was promised to be, the others stay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.snapshot import read_snapshot
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import (
    HOSTNAME,
    Object,
    group,
    node,
    placed,
    pod,
    pod_set,
    settings,
)

USING = settings("block", "rack", HOSTNAME)
REQUIRED = {"required": "example.com/rack"}


def nodes(failed: str = "", *, gone: str = "") -> list[Object]:
    return [
        node(f"{rack}{n}", BLOCK=rack[0], RACK=rack, ready=f"{rack}{n}" != failed)
        for rack in ("xa", "xb", "yc")
        for n in (1, 2, 3)
        if f"{rack}{n}" != gone
    ]


def assigned(failed: str, request: Object | None, where: dict[str, int], **more: Any) -> Object:
    domains = [{"values": [host], "count": count} for host, count in where.items()]
    status = {
        "assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}],
        "unhealthyNodes": [failed],
    }
    return group(pod_set(sum(where.values()), request, **more), status=status)


def replaced(failed: str, request: Object | None, where: dict[str, int], **more: Any) -> Object:
    given = assigned(failed, request, where)
    own = {**given, "status": {"assignments": given["status"]["assignments"]}}
    cluster = {"nodes": nodes(failed), "groups": [own], **more}
    return offline.place(cluster, given, USING)


RACKS = {"level": "example.com/rack", "size": 4}
PAIRS = {"level": HOSTNAME, "size": 2}
BLOCK = {"preferred": "example.com/block"}


@dataclass(frozen=True)
class Case:
    """Pods of a group by host; xa1 fails."""

    request: Object | None
    where: dict[str, int]
    then: dict[str, int] | str  # the whole assignment, or the end of the message
    full: str = ""  # hosts without room


CASES = {
    "required: where the rest is": Case(REQUIRED, {"xa1": 2, "xa2": 1}, {"xa2": 3}),
    "required, its domain is full: refused, though there is room elsewhere": Case(
        REQUIRED, {"xa1": 2, "xa2": 4}, 'resource "cpu": 2, topologyDomain: 6', full="xa3"
    ),
    "required, no rest: anywhere": Case(REQUIRED, {"xa1": 4}, {"xb1": 4}, full="xa2 xa3"),
    "preferred: anywhere": Case(
        BLOCK, {"xa1": 4, "xa2": 1}, {"xa2": 1, "yc1": 4}, full="xb1 xb2 xb3 xa3"
    ),
    "a broken slice: in its domain": Case(
        BLOCK | {"slices": [RACKS]}, {"xa1": 2, "xa2": 2, "xb1": 4}, {"xa2": 4, "xb1": 4}
    ),
    "a broken slice whose domain is full: refused": Case(
        BLOCK | {"slices": [RACKS]},
        {"xa1": 2, "xa2": 2, "xb1": 4},
        'resource "cpu": 2, topologyDomain: 6',
        full="xa2 xa3",
    ),
    "a slice of which none is left is not broken: anywhere": Case(
        BLOCK | {"slices": [RACKS]},
        {"xa1": 4, "xb1": 4},
        {"xb1": 4, "yc1": 4},
        full="xa2 xa3 xb2 xb3",
    ),
    "an inner layer is looked at first": Case(
        BLOCK | {"slices": [{"level": "example.com/block", "size": 4}, RACKS | {"size": 2}]},
        {"xa1": 1, "xa2": 1, "xb1": 2},
        {"xa2": 2, "xb1": 2},
        full="xb2 xb3",  # which make xb the tightest rack
    ),
    "slices alone, no whole slice: the broken one is completed": Case(
        {"slices": [RACKS]}, {"xa1": 3, "xa2": 1}, {"xa2": 4}
    ),
    "slices alone, no whole slice, no room beside the rest: refused": Case(
        {"slices": [RACKS]},
        {"xa1": 3, "xa2": 1},
        'resource "cpu": 2, topologyDomain: 6',
        full="xa2 xa3",
    ),
    "slices alone, an inner layer divides what is missing": Case(
        {"slices": [RACKS, PAIRS]}, {"xa1": 2, "xa2": 2}, {"xa2": 4}
    ),
    "the answer is the whole assignment": Case(
        REQUIRED, {"xa1": 1, "xa2": 1, "xa3": 2}, {"xa2": 1, "xa3": 3}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_where_what_a_failed_host_had_goes(name: str) -> None:
    case = CASES[name]
    given = assigned("xa1", case.request, case.where)
    others = []
    for number, host in enumerate(case.full.split()):
        room = 4 - case.where.get(host, 0)
        place = [{"values": [host], "count": room}]
        status = {"assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": place}]}
        others.append(group(pod_set(room), name=f"full{number}", status=status))
    own = {**given, "status": {"assignments": given["status"]["assignments"]}}
    found = offline.place({"nodes": nodes("xa1"), "groups": [own, *others]}, given, USING)
    if isinstance(case.then, str):
        assert found["message"].endswith(case.then)
    else:
        assert placed(found) == {"main": case.then}


def test_excluded_hosts_count_by_taint_before_the_domain_and_by_the_domain_before_room() -> None:
    given = assigned("xa1", REQUIRED, {"xa1": 4, "xa2": 4})
    tainted = nodes("xa1")
    for each in tainted:
        if each["metadata"]["name"] in ("xa3", "yc1"):
            each["spec"]["taints"] = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    own = {**given, "status": {"assignments": given["status"]["assignments"]}}
    status = offline.place({"nodes": tainted, "groups": [own]}, given, USING)
    assert status["message"].endswith(
        'excluded: resource "cpu": 1, taint "k=v:NoSchedule": 2, topologyDomain: 5'
    )


def test_the_rest_stays_and_a_required_domain_is_kept() -> None:
    status = replaced("xa1", REQUIRED, {"xa1": 2, "xa2": 2})
    assert placed(status) == {"main": {"xa2": 4}}
    status = replaced("xa1", REQUIRED, {"xa1": 4, "xa2": 3})
    assert placed(status) == {"main": {"xa2": 3, "xa3": 4}}


def test_a_required_domain_that_is_full_refuses() -> None:
    status = replaced("xa1", REQUIRED, {"xa1": 4, "xa2": 4, "xa3": 4})
    assert status["message"] == (
        'topology "default" doesn\'t allow to fit any of 4 pod(s). Total nodes: 8; excluded:'
        ' resource "cpu": 2, topologyDomain: 6'
    )


def test_where_nothing_was_promised_any_place_will_do() -> None:
    status = replaced("xa1", {"preferred": "example.com/rack"}, {"xa1": 4, "xa2": 4, "xa3": 4})
    assert placed(status) == {"main": {"xa2": 4, "xa3": 4, "xb1": 4}}


def test_a_broken_slice_is_completed_in_its_own_domain() -> None:
    request = {
        "preferred": "example.com/block",
        "slices": [{"level": "example.com/rack", "size": 4}],
    }
    status = replaced("xa1", request, {"xa1": 2, "xa2": 2, "xb1": 4})
    assert placed(status) == {"main": {"xa2": 4, "xb1": 4}}


@pytest.mark.parametrize("more", [{}, {"required": "example.com/block"}])
def test_single_pods_complete_the_broken_slice_and_the_others_go_in_whole_ones(
    more: Object,
) -> None:
    """8 of 9 pods are lost: 2 beside the one that stays, 6 wherever the level allows."""
    slices = {"slices": [{"level": "example.com/rack", "size": 3}]}
    given = assigned("a1", slices | more, {"a1": 8, "a2": 1})
    given["status"]["unhealthyNodes"] = ["a1"]
    hosts = [
        node("a1", BLOCK="x", RACK="a", cpu=9, ready=False),
        node("a2", BLOCK="x", RACK="a", cpu=4),
        node("b1", BLOCK="x", RACK="b", cpu=6),
        node("c1", BLOCK="y", RACK="c", cpu=9),
    ]
    own = {**given, "status": {"assignments": given["status"]["assignments"]}}
    found = placed(offline.place({"nodes": hosts, "groups": [own]}, given, USING))
    assert found == {"main": {"a2": 3, "b1": 6}}


def test_all_layers_below_the_one_that_divides_what_is_missing_stay_whole() -> None:
    """Racks and hosts of 4 pods: on two hosts with 3 and 1 of them, the host's layer is broken."""
    layers = [("block", 12), ("rack", 4), (HOSTNAME, 4)]
    slices = [
        {"level": level if "/" in level else f"example.com/{level}", "size": size}
        for level, size in layers
    ]
    others = [pod("p", "xb2", cpu=1), pod("q", "xa3", cpu=1)]
    request = {"slices": slices, "algorithm": "Mixed"}
    status = replaced("xa1", request, {"xa1": 4, "xa2": 4, "xb1": 4}, pods=others)
    assert placed(status) == {"main": {"xa2": 4, "xb1": 4, "xb3": 4}}


def test_max_per_host_counts_the_pods_that_stay() -> None:
    request = {**REQUIRED, "maxPerHost": 3}
    status = replaced("xa1", request, {"xa1": 3, "xa2": 2})
    assert placed(status) == {"main": {"xa2": 2, "xa3": 3}}


def test_whole_slices_may_go_elsewhere() -> None:
    request = {"slices": [{"level": "example.com/rack", "size": 4}]}
    status = replaced("xa1", request, {"xa1": 4, "xb1": 4})
    assert status["state"] == "Placed"
    assert sum(placed(status)["main"].values()) == 8


def test_an_assignment_that_lost_another_domain_is_refused() -> None:
    given = assigned("xa1", REQUIRED, {"xa1": 2, "xa2": 2})
    status = offline.place({"nodes": nodes("xa1", gone="xa2")}, given, USING)
    assert status["message"].endswith("it contains the stale domain xa2")


def test_all_of_a_required_group_goes_where_there_is_room_for_all_of_it() -> None:
    """Not to a domain that has just enough for what the first of its failed nodes had."""
    given = assigned("xa1", REQUIRED, {"xa1": 2, "xa2": 3})
    given["status"]["unhealthyNodes"].append("xa2")
    full = group(pod_set(9), name="full")
    places = [{"values": [f"xb{n}"], "count": 3} for n in (1, 2, 3)]
    full["status"] = {"assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": places}]}
    cluster = {"nodes": nodes(), "groups": [full]}
    status = offline.place(cluster, given, USING)
    assert placed(status) == {"main": {"yc1": 4, "yc2": 1}}


def test_nodes_that_are_gone_may_have_broken_a_slice_together() -> None:
    request = {
        "preferred": "example.com/block",
        "slices": [{"level": "example.com/rack", "size": 4}],
    }
    given = assigned("xa1", request, {"xa1": 1, "xa2": 1, "xa3": 2, "xb1": 4})
    given["status"]["unhealthyNodes"].append("xa2")
    alive = [each for each in nodes() if each["metadata"]["name"] not in ("xa1", "xa2")]
    status = offline.place({"nodes": alive}, given, USING)
    assert placed(status) == {"main": {"xa3": 4, "xb1": 4}}


def test_two_failed_nodes_of_one_domain_are_replaced_in_it() -> None:
    given = assigned("xa1", REQUIRED, {"xa1": 2, "xa2": 1, "xa3": 1})
    given["status"]["unhealthyNodes"].append("xa3")
    alive = [each for each in nodes("xa1") if each["metadata"]["name"] != "xa3"]
    status = offline.place({"nodes": alive}, given, USING)
    assert placed(status) == {"main": {"xa2": 4}}


def test_a_node_listed_as_failed_is_not_used_though_it_looks_healthy() -> None:
    given = assigned("xa1", REQUIRED, {"xa1": 2, "xa2": 2})
    status = offline.place({"nodes": nodes()}, given, USING)
    assert placed(status)["main"].get("xa1") is None


@pytest.mark.parametrize("listed", ["not at all", "as it is", "with other places", "not placed"])
@pytest.mark.parametrize("running", [False, True])
def test_the_groups_own_kept_pods_are_counted_once(listed: str, running: bool) -> None:
    """Four pods fit on a host; two of this group are on xa2, and two places are left there."""
    given = assigned("xa1", REQUIRED, {"xa1": 2, "xa2": 2})
    listings: dict[str, list[Object]] = {
        "not at all": [],
        "as it is": [given],
        "with other places": [assigned("xa1", REQUIRED, {"xa1": 2, "xa3": 2})],
        "not placed": [group(pod_set(4, REQUIRED))],
    }
    pods = [pod(f"p{number}", "xa2", group="g", cpu=1) for number in range(2)] if running else []
    full = [pod("full", "xa3", cpu=4)]
    cluster = {"nodes": nodes("xa1"), "pods": pods + full, "groups": listings[listed]}
    assert placed(offline.place(cluster, given, USING)) == {"main": {"xa2": 4}}
    larger = assigned("xa1", REQUIRED, {"xa1": 4, "xa2": 2})
    cluster["groups"] = [] if listed == "not at all" else listings[listed]
    refused = offline.place(cluster, larger, USING)
    assert refused["state"] == "Unplaceable"
    assert "allows to fit only 2 out of 4 pod(s)" in refused["message"]


@pytest.mark.parametrize(
    "request_", [None, REQUIRED, {"required": HOSTNAME, "slices": [PAIRS]}, {"unconstrained": True}]
)
@pytest.mark.parametrize("left", ["none is ready", "none is there"])
def test_without_a_node_that_takes_part_nothing_is_replaced(
    request_: Object | None, left: str
) -> None:
    every = [node("xa1", BLOCK="x", RACK="xa", ready=False)] if left == "none is ready" else []
    given = assigned("xa1", request_, {"xa1": 2})
    refused = offline.place({"nodes": every, "groups": [given]}, given, USING)
    assert refused["state"] == "Unplaceable"
    assert refused["message"].startswith("no topology domains at level: ")


def test_pods_go_where_the_rest_of_their_own_pod_set_is() -> None:
    sets = (pod_set(3, REQUIRED), pod_set(2, REQUIRED, name="other"))
    places = {"main": {"yc1": 2, "yc2": 1}, "other": {"xa1": 2}}
    assignments = [
        {
            "podSet": name,
            "levels": [HOSTNAME],
            "domains": [{"values": [host], "count": count} for host, count in where.items()],
        }
        for name, where in places.items()
    ]
    given = group(*sets, status={"assignments": assignments, "unhealthyNodes": ["yc1"]})
    own = group(*sets, status={"assignments": assignments})
    found = offline.place({"nodes": nodes("yc1"), "groups": [own]}, given, USING)
    assert placed(found) == {"main": {"yc2": 3}, "other": {"xa1": 2}}


@pytest.mark.parametrize("leader", [{}, {"required": "example.com/block"}])
@pytest.mark.parametrize(
    "workers", [{"slices": [RACKS]}, {"required": "example.com/block", "slices": [RACKS]}]
)
def test_a_lost_leader_follows_the_request_of_its_workers(workers: Object, leader: Object) -> None:
    sets = [
        pod_set(4, {**workers, "leaderGroup": "g"}, name="w"),
        pod_set(1, {**leader, "leaderGroup": "g"}, name="l", cpu=4),
    ]
    there = {"w": {"xb1": 2, "xb2": 2}, "l": {"xa1": 1}}
    status = {
        "assignments": [
            {
                "podSet": name,
                "levels": [HOSTNAME],
                "domains": [{"values": [at], "count": pods} for at, pods in hosts.items()],
            }
            for name, hosts in there.items()
        ],
        "unhealthyNodes": ["xa1"],
    }
    cluster = {"nodes": [each for each in nodes("xa1") if each["metadata"]["name"] != "xb3"]}
    found = placed(offline.place(cluster, group(*sets, status=status), USING))
    assert found["w"] == there["w"]
    (host,) = found["l"]
    assert "required" not in workers or host[0] == "x"


def test_workers_and_their_leader_that_lost_one_host_go_where_both_fit() -> None:
    asked = {"required": HOSTNAME, "leaderGroup": "g"}
    sets = [pod_set(2, asked, name="w"), pod_set(1, asked, name="l")]
    hosts = [node("a", BLOCK="x", RACK="r", ready=False)]
    hosts += [node(f"b{cpu}", BLOCK="x", RACK="r", cpu=cpu) for cpu in (2, 3)]
    lost = [
        {
            "podSet": each["name"],
            "levels": [HOSTNAME],
            "domains": [{"values": ["a"], "count": each["count"]}],
        }
        for each in sets
    ]
    given = group(*sets, status={"assignments": lost, "unhealthyNodes": ["a"]})
    found = placed(offline.place({"nodes": hosts}, given, USING))
    assert found == {"w": {"b3": 2}, "l": {"b3": 1}}


def test_inner_slices_that_the_broken_ones_domain_does_not_hold_go_elsewhere() -> None:
    """Two complete the four of a rack; the other four go to another one."""
    slices = [{"level": "example.com/rack", "size": 4}, PAIRS]
    given = assigned("xa1", {"slices": slices}, {"xa1": 6, "xa2": 2})
    hosts = [node("xa1", BLOCK="x", RACK="xa", ready=False, cpu=8)]
    hosts += [node(name, BLOCK="x", RACK=name[:2], cpu=4) for name in ("xa2", "xb1")]
    found = placed(offline.place({"nodes": hosts}, given, USING))
    assert found == {"main": {"xa2": 4, "xb1": 4}}
    hosts[2]["status"]["allocatable"]["cpu"] = "3"
    refused = offline.place({"nodes": hosts}, given, USING)
    assert refused["state"] == "Unplaceable"


def stored(lost: dict[str, dict[str, int]]) -> list[Object]:
    return [
        {
            "podSet": name,
            "levels": [HOSTNAME],
            "domains": [{"values": [host], "count": pods} for host, pods in own.items()],
        }
        for name, own in lost.items()
    ]


def test_a_lost_leader_goes_before_workers_that_would_take_its_only_host() -> None:
    asked = {"required": "example.com/rack", "leaderGroup": "g"}
    leader = pod_set(1, asked, name="l", spec={"nodeSelector": {HOSTNAME: "b"}})
    sets = [pod_set(2, asked, name="w"), leader]
    hosts = [node("a", BLOCK="x", RACK="r", ready=False)]
    hosts += [node(name, BLOCK="x", RACK="r", cpu=cpu) for name, cpu in (("b", 1), ("c", 2))]
    lost = stored({"w": {"a": 1, "c": 1}, "l": {"a": 1}})
    given = group(*sets, status={"assignments": lost, "unhealthyNodes": ["a"]})
    assert placed(offline.place({"nodes": hosts}, given, USING)) == {"w": {"c": 2}, "l": {"b": 1}}


def test_of_deleted_nodes_those_that_broke_an_inner_slice_come_first() -> None:
    """Four in a rack and eight in a block: only beside the other's two do four complete eight."""
    slices = [
        {"level": "example.com/block", "size": 8},
        {"level": "example.com/rack", "size": 4},
    ]
    there = {"yc1": 4, "yd1": 2, "yd2": 2}
    given = group(
        pod_set(8, {"slices": slices}),
        status={"assignments": stored({"main": there}), "unhealthyNodes": ["yc1", "yd2"]},
    )
    left = ("xa1", "xa2", "yc2", "yd1", "yd3")
    hosts = [node(name, BLOCK=name[0], RACK=name[:2], cpu=4) for name in left]
    found = placed(offline.place({"nodes": hosts}, given, USING))["main"]
    racks: Counter[str] = Counter()
    for host, pods in found.items():
        racks[host[:2]] += pods
    assert racks == {"yc": 4, "yd": 4}


@pytest.mark.parametrize("listed", [True, False])
def test_kept_pods_count_in_the_zones_of_their_hosts(listed: bool) -> None:
    hosts = [node("a", BLOCK="x", RACK="r", ready=False)]
    hosts += [node(name, BLOCK="x", RACK="r", cpu=8) for name in ("b", "c")]
    zones = [zone_report("b", 4, 4, memory="8Gi"), zone_report("c", 5, 3, memory="8Gi")]
    made = pod_set(4, name="main")
    amounts = {"cpu": "3", "memory": "1Mi"}
    made["template"]["spec"]["containers"][0]["resources"] = {
        "requests": amounts,
        "limits": amounts,
    }
    lost = stored({"main": {"a": 1, "b": 2, "c": 1}})
    given = group(made, status={"assignments": lost, "unhealthyNodes": ["a"]})
    own = {**given, "status": {"assignments": lost}}
    cluster = {"nodes": hosts, "zones": zones, "groups": [own] if listed else []}
    assert placed(offline.place(cluster, given, USING)) == {"main": {"b": 2, "c": 2}}
    zones[1] = zone_report("c", 6, 2, memory="8Gi")
    assert placed(offline.place(cluster, given, USING)) == {"main": {"b": 2, "c": 2}}
    zones[1] = zone_report("c", 4, 2, memory="8Gi")
    assert offline.place(cluster, given, USING)["state"] == "Unplaceable"


def out_of_use(*hosts: str, how: str = "cordoned") -> list[Object]:
    """All nodes; xa1 has failed, and these are cordoned or not ready."""
    made = nodes("xa1")
    for each in made:
        if each["metadata"]["name"] in hosts and how == "cordoned":
            each["spec"]["unschedulable"] = True
        elif each["metadata"]["name"] in hosts:
            each["status"]["conditions"][0]["status"] = "Unknown"
    return made


@pytest.mark.parametrize("how", ["cordoned", "not ready"])
@pytest.mark.parametrize(
    ("request_", "where", "then"),
    [
        (REQUIRED, {"xa1": 2, "xa2": 2}, {"xa2": 2, "xa3": 2}),
        (BLOCK | {"slices": [RACKS]}, {"xa1": 2, "xa2": 2}, {"xa2": 2, "xa3": 2}),
        (REQUIRED | {"maxPerHost": 2}, {"xa1": 2, "xa2": 2}, {"xa2": 2, "xa3": 2}),
        (REQUIRED | {"spreadOver": [HOSTNAME]}, {"xa1": 1, "xa2": 1}, {"xa2": 1, "xa3": 1}),
        (None, {"xa1": 1, "xa2": 1}, {"xa2": 1, "xa3": 1}),
    ],
)
def test_pods_on_a_host_that_takes_no_more_stay_and_the_lost_ones_go_beside_them(
    how: str, request_: Object | None, where: dict[str, int], then: dict[str, int]
) -> None:
    cluster = {"nodes": out_of_use("xa2", how=how)}
    assert placed(offline.place(cluster, assigned("xa1", request_, where), USING)) == {"main": then}


def test_where_all_other_hosts_of_the_rack_take_no_more_there_is_no_room() -> None:
    given = assigned("xa1", REQUIRED, {"xa1": 2, "xa2": 2})
    status = offline.place({"nodes": out_of_use("xa2", "xa3")}, given, USING)
    assert status["state"] == "Unplaceable"
    assert status["message"].endswith("Total nodes: 6; excluded: topologyDomain: 6")


def test_a_rack_whose_hosts_take_no_more_keeps_the_pods_that_run_there() -> None:
    """Where hosts are no level."""
    domains = [{"values": ["x", rack], "count": 2} for rack in ("xa", "xb")]
    using = settings("block", "rack")
    levels = using["spec"]["topologies"][0]["levels"]
    status = {"assignments": [{"podSet": "main", "levels": levels, "domains": domains}]}
    given = group(pod_set(4, {"required": "example.com/block"}), status=status)
    cluster = {"nodes": out_of_use("xb1", "xb2", "xb3"), "groups": [given]}
    engine = offline.engine_of(read_snapshot(cluster), read_settings(using))
    more = engine.place(read_group(given), more={"main": 1})
    ((assignment),) = more.assignments
    assert [(each.values, each.count) for each in assignment.domains] == [
        (["x", "xa"], 3),
        (["x", "xb"], 2),
    ]


def test_a_node_that_took_the_place_of_one_that_is_not_ready_takes_part() -> None:
    """It has the same labels, and its name comes later."""
    old, new = (node(name, BLOCK="x", RACK="xa", labels={HOSTNAME: "h"}) for name in ("a", "b"))
    old["status"]["conditions"][0]["status"] = "Unknown"
    status = offline.place({"nodes": [old, new]}, group(pod_set(2, REQUIRED)), USING)
    assert placed(status) == {"main": {"h": 2}}
