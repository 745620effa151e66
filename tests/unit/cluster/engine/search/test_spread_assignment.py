"""Groups that are spread when they are placed, everywhere or inside what they are packed into."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.objects.document import DocumentError
from tests.unit.cluster.written import HOSTNAME, group, node, placed, pod, pod_set, settings

RACK = "example.com/rack"
NODES = [
    node(f"{rack}{shelf}{n}", RACK=rack, SHELF=f"{rack}{shelf}", cpu=4)
    for rack in "ab"
    for shelf in "xy"
    for n in "12"
]
USING = settings("rack", "shelf", HOSTNAME)


def place(*pod_sets: Any, cluster: Any = (), status: Any = None) -> dict[str, Any]:
    given = {"nodes": NODES, **dict(cluster)}
    return offline.place(given, group(*pod_sets, status=status), USING)


def test_required_is_packed_and_inside_of_it_spread() -> None:
    asked = {"required": RACK, "spreadOver": ["example.com/shelf"]}
    assert placed(place(pod_set(6, asked))) == {"main": {"ax1": 2, "ax2": 1, "ay1": 2, "ay2": 1}}
    assert placed(place(pod_set(6, {"required": RACK}))) == {"main": {"ax1": 4, "ax2": 2}}


def test_a_preferred_level_that_holds_not_all_gives_way_to_the_one_above() -> None:
    asked = {"preferred": "example.com/shelf", "spreadOver": [HOSTNAME]}
    assert placed(place(pod_set(8, asked))) == {"main": {"ax1": 4, "ax2": 4}}
    assert placed(place(pod_set(12, asked))) == {
        "main": dict.fromkeys(("ax1", "ax2", "ay1", "ay2"), 3)
    }


def test_what_does_not_fit_into_one_is_refused_as_ever() -> None:
    answer = place(pod_set(17, {"required": RACK, "spreadOver": [HOSTNAME]}))
    assert answer["state"] == "Unplaceable"
    assert answer["message"].startswith('topology "default" allows to fit only 16 out of 17 pod(s)')


def test_a_group_that_is_only_spread_has_no_level() -> None:
    answer = placed(place(pod_set(4, {"spreadOver": [RACK]})))
    assert Counter(host[0] for host in answer["main"]) == {"a": 2, "b": 2}
    refused = place(pod_set(33, {"spreadOver": [RACK]}))
    assert refused["message"] == "spreading allows to fit only 32 out of 33 pod(s)"


def test_pods_that_find_no_room_beside_those_that_are_spread_go_first() -> None:
    small = pod_set(8, {"spreadOver": [HOSTNAME]}, name="small")
    large = pod_set(2, {"required": RACK}, name="large", cpu=4)
    answer = place(small, large)
    assert [each["podSet"] for each in answer["assignments"]] == ["small", "large"]
    assert placed(answer) == placed(place(large, small))
    assert sorted(placed(answer)["small"].values()) == [1, 1, 1, 1, 2, 2]
    wider = pod_set(25, {"spreadOver": [HOSTNAME]}, name="small")
    refused = place(wider, large)["message"]  # in the order that was given
    assert refused.startswith('topology "default" doesn\'t allow to fit any of 2 pod(s)')


def test_the_annotation_of_the_template_counts_as_the_request() -> None:
    made = pod_set(2)
    made["template"]["metadata"] = {"annotations": {"placement.nri/spread-over": RACK}}
    assert Counter(host[0] for host in placed(place(made))["main"]) == {"a": 1, "b": 1}
    spread = offline.spread({"nodes": NODES}, group(made), USING)
    assert Counter(host[0] for host in spread) == {"a": 1, "b": 1}


def test_a_leader_has_its_place_before_the_workers_are_spread() -> None:
    asked = {"required": RACK, "leaderGroup": "g", "spreadOver": [HOSTNAME]}
    leader = pod_set(1, asked, name="leader", cpu=4)
    answer = placed(place(pod_set(12, asked, name="workers"), leader))
    (host,) = answer["leader"]
    assert host not in answer["workers"]
    assert len({each[0] for each in [host, *answer["workers"]]}) == 1


def test_a_leader_without_a_level_takes_none_of_its_workers_places() -> None:
    asked = {"leaderGroup": "g", "spreadOver": [HOSTNAME]}
    leader = pod_set(1, asked, name="leader", cpu=4)
    answer = placed(place(pod_set(28, asked, name="workers"), leader))
    assert not answer["leader"].keys() & answer["workers"].keys()
    refused = place(pod_set(29, asked, name="workers"), leader)
    assert refused["message"] == "spreading allows to fit only 28 out of 29 pod(s)"


def test_a_leader_that_is_lost_with_workers_takes_none_of_their_places() -> None:
    asked = {"leaderGroup": "g", "spreadOver": [HOSTNAME]}
    lost = {"levels": [HOSTNAME], "domains": [{"values": ["ax1"], "count": 1}]}
    status = {
        "assignments": [{"podSet": "workers", **lost}, {"podSet": "leader", **lost}],
        "unhealthyNodes": ["ax1"],
    }
    sets = [pod_set(1, asked, name=name, cpu=3) for name in ("workers", "leader")]
    answer = placed(place(*sets, status=status))
    assert answer["leader"] != answer["workers"]


def test_a_lost_leader_stays_in_the_domain_of_its_spread_workers() -> None:
    asked = {"required": RACK, "leaderGroup": "g", "spreadOver": [HOSTNAME]}
    sets = pod_set(3, asked, name="workers"), pod_set(1, asked, name="leader", cpu=4)
    there = {"workers": ("bx2", "by1", "by2"), "leader": ("bx1",)}
    assignments = [
        {
            "podSet": name,
            "levels": [HOSTNAME],
            "domains": [{"values": [host], "count": 1} for host in hosts],
        }
        for name, hosts in there.items()
    ]
    status = {"assignments": assignments, "unhealthyNodes": ["bx1"]}
    refused = place(*sets, status=status)
    assert refused["message"] == "spreading allows to fit only 0 out of 1 pod(s)"
    small = sets[0], pod_set(1, asked, name="leader")
    (host,) = placed(place(*small, status=status))["leader"]
    assert host[0] == "b"


def test_a_leader_and_workers_without_a_level_are_spread_in_the_domain_of_their_group() -> None:
    asked = {"leaderGroup": "g", "spreadOver": [HOSTNAME]}
    sets = pod_set(8, asked, name="workers"), pod_set(1, asked, name="leader")
    given = group(*sets)
    given["spec"]["together"] = {"required": RACK}
    answer = placed(offline.place({"nodes": NODES}, given, USING))
    assert {host[0] for host in [*answer["workers"], *answer["leader"]]} == {"a"}


def test_unconstrained_pods_are_spread_everywhere() -> None:
    asked = {"unconstrained": True, "spreadOver": [HOSTNAME]}
    assert set(placed(place(pod_set(8, asked)))["main"].values()) == {1}


def test_at_most_so_many_of_the_group_are_on_a_host() -> None:
    """Whatever pod sets they are of, and running ones included."""
    asked = {"required": "example.com/shelf", "maxPerHost": 2}
    first, second = (pod_set(2, asked, name=name) for name in ("one", "two"))
    answer = placed(place(first, second))
    hosts = Counter(answer["one"]) + Counter(answer["two"])
    assert max(hosts.values()) == 2
    running = [pod(f"p{n}", "ax1", group="g", cpu=1) for n in range(2)]
    assert "ax1" not in placed(place(pod_set(2, asked), cluster={"pods": running}))["main"]


def test_pods_of_a_failed_node_are_spread_again_where_the_others_are() -> None:
    asked = {"required": RACK, "spreadOver": ["example.com/shelf"]}
    domains = [{"values": [host], "count": 1} for host in ("ax1", "ax2", "ay1", "ay2")]
    status = {
        "assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}],
        "unhealthyNodes": ["ay1"],
    }
    assert placed(place(pod_set(4, asked), status=status)) == {
        "main": {"ax1": 1, "ax2": 1, "ay2": 2}
    }


@pytest.mark.parametrize("failed", ["ax1", "out1", "gone"])
def test_pods_are_spread_again_beside_those_on_hosts_that_are_in_no_topology(failed: str) -> None:
    hosts = ["out2", failed]
    status = {
        "assignments": [
            {
                "podSet": "main",
                "levels": [HOSTNAME],
                "domains": [{"values": [host], "count": 1} for host in hosts],
            }
        ],
        "unhealthyNodes": [failed],
    }
    others = [node("out1"), node("out2"), node("out3", cpu=8)]
    asked = pod_set(2, {"spreadOver": [HOSTNAME]}, cpu=4)
    cluster = {"nodes": [NODES[0], *others]}
    assert placed(place(asked, cluster=cluster, status=status)) == {
        "main": {"out2": 1, "out1" if failed == "ax1" else "ax1": 1}
    }


def test_a_host_that_stays_and_is_gone_is_told() -> None:
    domains = [{"values": [host], "count": 1} for host in ("ax1", "gone")]
    status = {
        "assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}],
        "unhealthyNodes": ["ax1"],
    }
    found = place(pod_set(2, {"spreadOver": [HOSTNAME]}), status=status)
    assert found["message"].endswith("contains the stale domain gone")


def test_slices_are_not_spread() -> None:
    slices = [{"level": HOSTNAME, "size": 2}]
    with pytest.raises(DocumentError, match="pods of slices cannot be spread"):
        place(pod_set(4, {"spreadOver": [RACK], "slices": slices}))


def used(levels: list[str], values: list[str], count: int) -> dict[str, Any]:
    domains = [{"values": values, "count": count}]
    status = {"assignments": [{"podSet": "main", "levels": levels, "domains": domains}]}
    return group(pod_set(count), name="other", status=status)


def test_an_assignment_to_a_host_counts_in_a_tree_of_racks() -> None:
    cluster = {"nodes": NODES, "groups": [used([HOSTNAME], ["ax1"], 4)]}
    answer = offline.place(cluster, group(pod_set(16, {"required": RACK})), settings("rack"))
    assert placed(answer) == {"main": {"b": 16}}


def test_an_assignment_to_a_rack_counts_on_its_hosts_once_its_pods_run() -> None:
    running = [pod(f"p{n}", "ax1", group="other", cpu=1) for n in range(3)]
    cluster = {"nodes": NODES, "groups": [used([RACK], ["a"], 4)], "pods": running}
    answer = offline.place(cluster, group(pod_set(13, {"required": RACK})), USING)
    assert {host[0] for host in placed(answer)["main"]} == {"a"}
    answer = offline.place(cluster, group(pod_set(14, {"required": RACK})), USING)
    assert {host[0] for host in placed(answer)["main"]} == {"b"}
    spread = offline.spread(cluster, group(pod_set(29, {"spreadOver": [HOSTNAME]})), USING)
    assert (spread["ax1"], spread.get("")) == (1, None)
