"""Whole groups are spread by share: no domain gets another while it has too many of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.objects.document import DocumentError
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, settings

RACK, ZONE = "example.com/rack", "example.com/zone"
LEVELS = settings("zone", "rack", HOSTNAME)
SPREADING = "kueue.x-k8s.io/podset-topology-spreading"
LWS = "leaderworkerset.sigs.k8s.io/name"


def cluster(racks: int = 3, **own: Any) -> Object:
    """Racks of two hosts with 4 CPUs each; two racks make a zone."""
    nodes = [
        node(f"h{at}", RACK=f"r{at // 2}", ZONE=f"z{at // 4}", **own) for at in range(2 * racks)
    ]
    return {"nodes": nodes, "groups": []}


def rule(share: int, key: str = RACK, **own: str) -> Object:
    return {"key": key, "maxShareAllowingPlacement": share, **own}


def replica(
    name: str, *rules: Object, labels: Any = (), selector: str | None = "app=web", **own: Any
) -> Object:
    """A group of pods that carry Kueue's annotation."""
    asked = {"rules": [*rules], **({"workloadLabelSelector": selector} if selector else {})}
    pods = {"count": 1, "request": {"required": RACK}, **own}
    made = pod_set(pods.pop("count"), **{key: pods[key] for key in pods if key != "request"})
    made["template"]["metadata"] = {
        "labels": {"app": "web", **dict(labels)},
        "annotations": {
            "kueue.x-k8s.io/podset-required-topology": pods["request"]["required"],
            **({SPREADING: json.dumps(asked)} if rules else {}),
        },
    }
    return group(made, name=name)


def place(given: Object, asked: Object) -> str:
    """Place a group, and keep it; return the rack it is in, or the message."""
    status = offline.place(given, asked, LEVELS)
    if status["state"] != "Placed":
        return str(status["message"])
    given["groups"].append({**asked, "status": status})
    hosts = [each["values"][-1] for each in status["assignments"][0]["domains"]]
    return f"r{int(hosts[0][1:]) // 2}"


def test_the_share_opens_as_many_racks_as_it_takes() -> None:
    """The example of KEP-13746, with 34 percent: three racks before one is used again."""
    given = cluster(4)
    found = [place(given, replica(f"g{at}", rule(34))) for at in range(6)]
    assert found == ["r0", "r1", "r2", "r0", "r1", "r2"]


def test_with_half_of_them_two_racks_do() -> None:
    given = cluster()
    assert [place(given, replica(f"g{at}", rule(50))) for at in range(4)] == [
        *("r0", "r1", "r0", "r1"),
    ]


def test_without_rules_they_are_packed() -> None:
    given = cluster()
    assert {place(given, replica(f"g{at}")) for at in range(6)} == {"r0"}


def test_a_required_rule_refuses_and_says_which_racks_have_too_many() -> None:
    given = cluster(1)
    assert place(given, replica("g0", rule(45))) == "r0"
    message = place(given, replica("g1", rule(45)))
    assert message.startswith('topology "default" doesn\'t allow to fit any of 1 pod(s)')
    assert message.endswith("topology spreading: rack r0 has 1 of 1, more than 45%")


def test_a_preferred_rule_takes_the_least_crowded_where_nothing_else_is_left() -> None:
    given = cluster(2)
    soft = rule(10, enforcementMode="Preferred")
    found = [place(given, replica(f"g{at}", soft)) for at in range(6)]
    assert found == ["r0", "r1", "r0", "r1", "r0", "r1"]


def test_two_rules_hold_together() -> None:
    """At most half of them in a zone, and a third in a rack."""
    given = cluster(4)
    found = [place(given, replica(f"g{at}", rule(50, ZONE), rule(30))) for at in range(4)]
    assert found == ["r0", "r2", "r1", "r3"]


def test_groups_count_by_their_labels_whether_they_have_rules_or_not() -> None:
    given = cluster()
    assert place(given, replica("plain")) == "r0"
    assert place(given, replica("g", rule(45))) == "r1"
    assert place(given, replica("h", rule(45), selector="app=db")) == "r0"
    assert place(given, replica("i", rule(30), selector="app in (db, web),!canary")) == "r2"


def test_only_groups_of_the_namespace_count() -> None:
    given = cluster()
    other = replica("other")
    other["metadata"]["namespace"] = "elsewhere"
    assert place(given, other) == "r0"
    assert place(given, replica("g", rule(1))) == "r0"


@pytest.mark.parametrize("key", [LWS, "pod-template-hash"])
def test_without_a_selector_groups_of_one_owner_count(key: str) -> None:
    given = cluster()
    found = [
        place(given, replica(f"g{at}", rule(45), selector=None, labels={key: owner}))
        for at, owner in enumerate(["a", "a", "b", "a"])
    ]
    assert found == ["r0", "r1", "r0", "r2"]


def test_a_leader_and_its_workers_count_once() -> None:
    def with_leader(name: str) -> Object:
        made = replica(name, rule(50))
        (workers,) = made["spec"]["podSets"]
        workers["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-group-name"] = "all"
        leader = json.loads(json.dumps(workers))
        leader["name"], workers["count"] = "leader", 2
        made["spec"]["podSets"].append(leader)
        return made

    given = cluster()
    assert [place(given, with_leader(f"g{at}")) for at in range(2)] == ["r0", "r1"]
    # 2 of 4 would not be more than half; with both counted it is 1 of 2 in the same way
    assert place(given, replica("one", rule(49))) == "r2"


def test_spread_pods_keep_out_of_a_crowded_rack_too() -> None:
    given = cluster()
    place(given, replica("g0"))
    asked = replica("g1", rule(45))
    annotations = asked["spec"]["podSets"][0]["template"]["metadata"]["annotations"]
    del annotations["kueue.x-k8s.io/podset-required-topology"]
    annotations["placement.nri/spread-over"] = ZONE
    assert place(given, asked) == "r1"


def test_a_group_that_is_stored_with_its_request_has_the_same_rules() -> None:
    given = cluster()
    place(given, replica("g0"))
    spreading = {"rules": [rule(45)], "workloadLabelSelector": "app=web"}
    asked = group(pod_set(1, {"required": RACK, "topologySpreading": spreading}), name="g1")
    assert place(given, asked) == "r1"


def test_a_group_counts_in_its_rack_although_no_node_is_left_there() -> None:
    given = cluster()
    racks = settings("zone", "rack")
    asked = replica("g0", rule(45))
    status = offline.place(given, asked, racks)
    (assignment,) = status["assignments"]
    assert assignment["domains"] == [{"values": ["z0", "r0"], "count": 1}]
    given["groups"].append({**asked, "status": status})
    given["nodes"] = [each for each in given["nodes"] if each["metadata"]["name"] > "h1"]
    full = replica("g1", rule(45), request={"required": RACK}, count=9)
    message = offline.place(given, full, racks)["message"]
    assert message.endswith("topology spreading: rack r0 has 1 of 1, more than 45%"), message


def test_a_rule_about_what_is_no_level_is_refused_with_the_levels() -> None:
    message = place(cluster(), replica("g", rule(45, "example.com/rakc")))
    assert message.startswith("no requested topology level: example.com/rakc")
    assert "example.com/rack (6 nodes)" in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "must be a valid JSON object"),
        ("[]", "must be a valid JSON object"),
        ("{}", "must be a valid JSON object: rules is missing"),
        ('{"rules": []}', "there are 1 to 2 rules"),
        ('{"rules": [{"key": "a"}]}', "rules[0]: maxShareAllowingPlacement is missing"),
        ('{"rules": [{"key": "a", "maxShareAllowingPlacement": 0}]}', "0 is not from 1 to 99"),
        ('{"rules": [{"key": "a", "maxShareAllowingPlacement": 100}]}', "100 is not from 1 to 99"),
        ('{"rules": [{"key": "", "maxShareAllowingPlacement": 5}]}', "it is the name of a level"),
        (
            '{"rules": [{"key": "a", "maxShareAllowingPlacement": 5, "enforcementMode": "Soft"}]}',
            "Invalid enum value",
        ),
        (
            (
                '{"rules": [{"key": "a", "maxShareAllowingPlacement": 5},'
                ' {"key": "a", "maxShareAllowingPlacement": 6}]}'
            ),
            "'a' is given twice",
        ),
        (
            (
                '{"rules": [{"key": "a", "maxShareAllowingPlacement": 5}],'
                ' "workloadLabelSelector": "a in b"}'
            ),
            "'a in b' is not KEY=VALUE",
        ),
        ('{"rules": [{"key": "a", "maxShareAllowingPlacement": 5}], "selector": ""}', "selector"),
    ],
)
def test_what_is_wrong_is_said_with_the_annotation(text: str, problem: str) -> None:
    asked = replica("g", rule(45))
    asked["spec"]["podSets"][0]["template"]["metadata"]["annotations"][SPREADING] = text
    with pytest.raises(DocumentError) as raised:
        offline.place(cluster(), asked, LEVELS)
    assert SPREADING in str(raised.value)
    assert problem in str(raised.value)


def test_a_leader_group_has_one_set_of_rules() -> None:
    spreading = {"rules": [rule(45)]}
    sets = [
        pod_set(1, {"required": RACK, "leaderGroup": "x"}, name="leader"),
        pod_set(
            3, {"required": RACK, "leaderGroup": "x", "topologySpreading": spreading}, name="w"
        ),
    ]
    with pytest.raises(DocumentError, match="different topologySpreading"):
        offline.place(cluster(), group(*sets), LEVELS)
