"""What pods of a pod set demand of each other: apart in a level, and balanced over a label."""

from __future__ import annotations

from itertools import combinations, product
from random import Random
from typing import Any

import pytest

from nri_policy.cluster import offline
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

ZONE, RACK = "example.com/zone", "example.com/rack"
USING = settings("zone", "rack", HOSTNAME)
SELECTOR = {"labelSelector": {"matchLabels": {"app": "web"}}}


def cluster(*racks: int, used: Any = ()) -> Object:
    """Racks of so many hosts of 4 CPUs, two racks in a zone."""
    nodes = [
        node(f"r{rack}h{host}", ZONE=f"z{rack // 2}", RACK=f"r{rack}", **dict(used))
        for rack, hosts in enumerate(racks)
        for host in range(hosts)
    ]
    return {"nodes": nodes}


def asking(count: int, request: Object | None = None, **spec: Any) -> Object:
    made = pod_set(count, request, spec=spec)
    made["template"]["metadata"] = {"labels": {"app": "web"}}
    return group(made)


def apart(key: str) -> Object:
    term = {**SELECTOR, "topologyKey": key}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"affinity": {"podAntiAffinity": terms}}


def even(key: str, skew: int = 1, **more: Any) -> Object:
    constraint = {**SELECTOR, "topologyKey": key, "maxSkew": skew, **more}
    constraint["whenUnsatisfiable"] = "DoNotSchedule"
    return {"topologySpreadConstraints": [constraint]}


def by(status: Object, length: int) -> dict[str, int]:
    """Pods by the first letters of their hosts' names."""
    found: dict[str, int] = {}
    for host, pods in placed(status)["main"].items():
        found[host[:length]] = found.get(host[:length], 0) + pods
    return found


def test_pods_that_exclude_each_other_in_a_rack_have_one_each() -> None:
    found = offline.place(cluster(2, 2, 2), asking(3, **apart(RACK)), USING)
    assert by(found, 2) == {"r0": 1, "r1": 1, "r2": 1}
    found = offline.place(cluster(2, 2, 2), asking(4, **apart(RACK)), USING)
    assert found["state"] == "Unplaceable"
    assert "allows to fit only 3 out of 4 pod(s), at most one in each example.com/rack" in str(
        found["message"]
    )


def test_a_required_level_above_is_chosen_by_how_many_racks_it_has() -> None:
    request = {"required": ZONE}
    found = offline.place(cluster(5, 0, 1, 1), asking(2, request, **apart(RACK)), USING)
    assert by(found, 2) == {"r2": 1, "r3": 1}
    found = offline.place(cluster(3), asking(2, {"required": RACK}, **apart(RACK)), USING)
    assert found["state"] == "Unplaceable"


@pytest.mark.parametrize("shared", [RACK, HOSTNAME])
def test_pods_of_one_shared_domain_are_not_apart_above_it(shared: str) -> None:
    given = asking(2, {"apartOver": [ZONE]})
    assert offline.place(cluster(2, 2, 2), given, USING)["state"] == "Placed"
    given["spec"]["together"] = {"required": shared}
    found = offline.place(cluster(2, 2, 2), given, USING)
    assert found["state"] == "Unplaceable"
    given["spec"]["podSets"][0]["count"] = 1
    assert offline.place(cluster(2, 2, 2), given, USING)["state"] == "Placed"


def test_a_leader_takes_a_rack_of_its_workers_own() -> None:
    workers = pod_set(2, {"required": ZONE, "leaderGroup": "g"}, name="w", spec=apart(RACK))
    workers["template"]["metadata"] = {"labels": {"app": "web"}}
    leader = pod_set(1, {"required": ZONE, "leaderGroup": "g"}, name="l")
    found = placed(offline.place(cluster(1, 1), group(workers, leader), USING))
    assert found["w"] == {"r0h0": 1, "r1h0": 1}


def test_a_lost_pod_goes_to_a_rack_without_one_of_the_others() -> None:
    given = asking(2, **apart(RACK))
    domains = [{"values": [f"r{rack}h0"], "count": 1} for rack in (0, 1)]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    given["status"] = {"assignments": [assignment], "unhealthyNodes": ["r1h0"]}
    found = offline.place(cluster(3, 1, 1), given, USING)
    assert by(found, 2) == {"r0": 1, "r2": 1}
    assert offline.place(cluster(3, 1), given, USING)["state"] == "Unplaceable"


@pytest.mark.parametrize("key", [RACK, ZONE, "example.com/other"])
def test_a_skew_is_kept_over_any_label(key: str) -> None:
    nodes = cluster(2, 2, 2)
    for number, each in enumerate(nodes["nodes"]):
        each["metadata"]["labels"]["example.com/other"] = f"o{number // 3}"
    found = offline.place(nodes, asking(6, **even(key)), USING)
    hosts = {each["metadata"]["name"]: each["metadata"]["labels"] for each in nodes["nodes"]}
    counts: dict[str, int] = {}
    for host, pods in placed(found)["main"].items():
        value = hosts[host][key]
        counts[value] = counts.get(value, 0) + pods
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == len({labels[key] for labels in hosts.values()})


def test_a_skew_that_cannot_be_kept_is_refused_with_the_values() -> None:
    given = asking(6, **even(RACK))
    small = cluster(2, 2)
    small["nodes"].append(node("r2h0", ZONE="z1", RACK="r2", cpu=1))
    assert by(offline.place(small, asking(4, **even(RACK)), USING), 2) == {
        "r0": 2,
        "r1": 1,
        "r2": 1,
    }
    found = offline.place(small, given, USING)
    assert found["message"] == (
        "topology spread over example.com/rack, maxSkew 1: 3 pods in r0 would be too many beside"
        " 1 pod in r2"
    )
    wider = asking(6, **even(RACK, 2))
    assert by(offline.place(small, wider, USING), 2) == {"r0": 3, "r1": 2, "r2": 1}


def test_values_that_no_pod_may_use_do_not_count() -> None:
    nodes = cluster(1, 1)
    taint = {"key": "k", "effect": "NoSchedule"}
    nodes["nodes"].append(node("r2h0", ZONE="z1", RACK="r2", taints=[taint]))
    nodes["nodes"].append(node("n", ZONE="z1"))
    assert by(offline.place(nodes, asking(6, **even(RACK)), USING), 2) == {"r0": 3, "r1": 3}


def test_slices_whose_pods_break_a_skew_are_refused() -> None:
    request = {"slices": [{"level": RACK, "size": 3}]}
    found = offline.place(cluster(1, 1), asking(3, request, **even(RACK)), USING)
    assert "3 pods in r0 would be too many beside 0 pods in r1" in found["message"]
    assert by(offline.place(cluster(1, 1), asking(6, request, **even(RACK)), USING), 2) == {
        "r0": 3,
        "r1": 3,
    }


def test_lost_pods_that_were_balanced_are_again() -> None:
    given = asking(4, **even(RACK))
    domains = [{"values": [f"r{rack}h0"], "count": 2} for rack in (0, 1)]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    given["status"] = {"assignments": [assignment], "unhealthyNodes": ["r1h0"]}
    assert by(offline.place(cluster(2, 2), given, USING), 4) == {"r0h0": 2, "r1h1": 2}


def test_a_lost_pod_that_is_spread_goes_to_a_rack_without_the_others() -> None:
    given = asking(2, {"spreadOver": [f"pack:{ZONE}"]}, **apart(RACK))
    domains = [{"values": [f"r{rack}h0"], "count": 1} for rack in (0, 1)]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    given["status"] = {"assignments": [assignment], "unhealthyNodes": ["r1h0"]}
    assert placed(offline.place(cluster(3, 1, 1), given, USING)) == {"main": {"r0h0": 1, "r2h0": 1}}


def test_a_refusal_says_that_spread_pods_exclude_each_other() -> None:
    found = offline.place(
        cluster(2, 2), asking(3, {"spreadOver": [HOSTNAME]}, **apart(RACK)), USING
    )
    assert found["message"] == (
        "spreading allows to fit only 2 out of 3 pod(s), at most one in each example.com/rack"
    )


def test_lost_pods_are_balanced_in_the_domain_that_their_group_requires() -> None:
    given = asking(4, {"required": ZONE}, **even(RACK))
    domains = [{"values": [f"r{rack}h{host}"], "count": 1} for rack in (0, 1) for host in (0, 1)]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    given["status"] = {"assignments": [assignment], "unhealthyNodes": ["r0h0"]}
    assert by(offline.place(cluster(2, 2, 2), given, USING), 2) == {"r0": 2, "r1": 2}


def test_a_failed_host_is_no_value_to_balance_with() -> None:
    given = asking(4, {"required": RACK}, **even(HOSTNAME))
    domains = [{"values": [f"r0h{host}"], "count": 2} for host in (0, 1)]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    given["status"] = {"assignments": [assignment], "unhealthyNodes": ["r0h0"]}
    assert placed(offline.place(cluster(2, 2), given, USING)) == {"main": {"r0h1": 4}}


@pytest.mark.parametrize("asked", [{"unconstrained": True}, {"preferred": RACK}])
@pytest.mark.parametrize("key", [RACK, HOSTNAME])
def test_a_skew_is_kept_before_a_preference(asked: Object, key: str) -> None:
    found = offline.place(cluster(2, 2), asking(4, asked, **even(key)), USING)
    assert set(placed(found)["main"].values()) == {1}


def test_a_preferred_rack_whose_hosts_keep_a_skew_is_taken() -> None:
    found = offline.place(cluster(2, 2), asking(4, {"preferred": RACK}, **even(HOSTNAME, 2)), USING)
    assert placed(found)["main"] == {"r0h0": 2, "r0h1": 2}


@pytest.mark.parametrize("key", ["apartOver", "maxSkew"])
def test_they_may_stand_in_a_request(key: str) -> None:
    value: Any = [RACK] if key == "apartOver" else {RACK: 1}
    found = offline.place(cluster(3, 1), asking(2, {key: value}), USING)
    assert by(found, 2) == {"r0": 1, "r1": 1}


def test_racks_are_refused_only_where_no_arrangement_exists() -> None:
    """Brute force: each choice of a zone and one host in each of its racks; spread or not."""
    chance = Random(7)
    for _ in range(400):
        racks = [chance.randint(0, 2) for _ in range(4)]
        nodes = cluster(*racks)
        for each in nodes["nodes"]:
            each["status"]["allocatable"]["cpu"] = str(chance.randint(0, 2))
        count, size = chance.randint(1, 4), chance.randint(1, 2)
        required = chance.choice([None, ZONE])
        request = {"required": required} if required else {}
        over: list[str] = chance.choice(
            [[], [RACK], [HOSTNAME], [ZONE, HOSTNAME], [f"pack:{RACK}"], [f"pack:{ZONE}"]]
        )
        given = asking(
            count, request | ({"spreadOver": over} if over else {}) or None, **apart(RACK)
        )
        container = given["spec"]["podSets"][0]["template"]["spec"]["containers"][0]
        container["resources"]["requests"]["cpu"] = str(size)
        room = {
            each["metadata"]["labels"][RACK]: each["metadata"]["labels"][ZONE]
            for each in nodes["nodes"]
            if int(each["status"]["allocatable"]["cpu"]) >= size
        }
        fits = any(
            required is None or len({room[rack] for rack in chosen}) == 1
            for chosen in combinations(room, count)
        )
        found = offline.place(nodes, given, USING)
        assert (found["state"] == "Placed") == fits, (racks, count, size, required, over)
        if fits:
            assert set(by(found, 2).values()) == {1}


def test_skews_are_refused_only_where_no_arrangement_exists() -> None:
    """Brute force: each number of pods in each rack."""
    chance = Random(8)
    for _ in range(150):
        room = [chance.randint(0, 4) for _ in range(3)]
        nodes = {
            "nodes": [node(f"r{at}h0", ZONE="z", RACK=f"r{at}", cpu=n) for at, n in enumerate(room)]
        }
        count, skew = chance.randint(1, 8), chance.randint(1, 2)
        fits = any(
            sum(each) == count and max(each) - min(each) <= skew
            for each in product(*(range(most + 1) for most in room))
        )
        found = offline.place(nodes, asking(count, **even(RACK, skew)), USING)
        assert (found["state"] == "Placed") == fits, (room, count, skew, found)
