"""What would make a group fit: fewer pods, a coarser level, others leaving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.planning.changes import MAX_TRIES, _largest
from nri_policy.cluster.planning.explanation import Excluded, explain
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod, pod_set, settings

NODES = [node(f"{rack}{n}", ZONE=rack[0], RACK=rack) for rack in ("xa", "xb", "yc") for n in (1, 2)]
USING = settings("zone", "rack", HOSTNAME)


def explained(
    given: Object, *others: Object, pods: Sequence[Object] = (), nodes: Sequence[Object] = NODES
) -> Any:
    engine = Engine(read_settings(USING), Cluster([read_node(each, "") for each in nodes]).view)
    bound = [read_pod(each, "") for each in pods]
    for one in bound:
        engine.state.set_pod(one)
    for each in others:
        status = msgspec.to_builtins(engine.place(read_group(each)))
        engine.state.set_group(read_group(each | {"status": status}))
    before = engine.state.tree("default").rows.dump()
    answer = msgspec.to_builtins(explain(engine, read_group(given), bound))
    assert engine.state.tree("default").rows.dump() == before
    return answer


def test_each_level_says_how_much_fits() -> None:
    answer = explained(group(pod_set(9, {"required": "example.com/rack"})))
    [only] = answer["podSets"]
    assert (only["unit"], only["wanted"], only["nodes"], only["excluded"]) == ("pods", 9, 6, {})
    assert [tuple(each.values()) for each in only["levels"]] == [
        ("example.com/zone", 2, 1, 16, 24),
        ("example.com/rack", 3, 0, 8, 24),
        (HOSTNAME, 6, 0, 4, 24),
    ]


ZONE, RACK = "example.com/zone", "example.com/rack"


@pytest.mark.parametrize(
    ("request_", "leader", "workers", "levels", "message"),
    [
        (
            {"required": RACK},
            2,
            4,
            [(2, 1, 7, 11), (3, 0, 3, 11), (6, 0, 2, 11)],
            "4 out of 4 pod(s), 3 beside the leader",
        ),
        (
            {"required": HOSTNAME},
            2,
            2,
            [(2, 2, 7, 11), (3, 3, 3, 11), (6, 0, 1, 11)],
            "2 out of 2 pod(s), 1 beside the leader",
        ),
        (
            {"required": RACK},
            5,
            3,
            [(2, 0, 0, 0), (3, 0, 0, 0), (6, 0, 0, 0)],
            "4 out of 3 pod(s), none beside the leader",
        ),
        (
            {"required": RACK},
            2,
            5,
            [(2, 1, 7, 11), (3, 0, 3, 11), (6, 0, 2, 11)],
            "4 out of 5 pod(s), 3 beside the leader",
        ),
        # the leader can be in another zone than the most workers
        (
            {"preferred": RACK},
            2,
            12,
            [(2, 0, 8, 11), (3, 0, 4, 11), (6, 0, 2, 11)],
            "11 out of 12 pod(s)",
        ),
    ],
)
def test_workers_are_counted_with_one_leader(
    request_: Object, leader: int, workers: int, levels: Any, message: str
) -> None:
    asked = request_ | {"leaderGroup": "lead"}
    answer = explained(
        group(
            pod_set(1, asked, name="leader", cpu=leader),
            pod_set(workers, asked, name="workers", cpu=2),
        )
    )
    only, alone = answer["podSets"]
    assert (only["podSet"], only["leader"], only["wanted"]) == ("workers", "leader", workers)
    assert (alone["podSet"], alone["leader"], alone["wanted"]) == ("leader", "", 1)
    assert [tuple(each.values())[1:] for each in only["levels"]] == levels
    assert answer["status"]["message"] == f'topology "default" allows to fit only {message}'


def test_fewer_pods_or_a_coarser_level_would_do() -> None:
    answer = explained(group(pod_set(9, {"required": "example.com/rack"})))
    assert answer["changes"] == [
        {"counts": {"main": 8}},
        {"podSets": ["main"], "level": "example.com/zone"},
    ]


def test_each_taint_whose_toleration_is_enough_is_named_and_else_those_that_are_together() -> None:
    ml, old = ({"key": key, "effect": "NoSchedule"} for key in ("ml", "old"))
    lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    taints: list[list[Object]] = [[], [ml], [ml | {"value": "x"}, old], [lost]]
    nodes = [node(f"n{at}", ZONE="x", RACK="r", taints=each) for at, each in enumerate(taints)]
    pods = pod_set(8, {"required": "example.com/rack"})
    assert explained(group(pods), nodes=nodes)["changes"][1:] == [
        {"taints": [ml | {"value": None}]}
    ]
    both = explained(group(pod_set(12)), nodes=nodes)["changes"][1:]
    assert [[each["key"] for each in one["taints"]] for one in both] == [["ml", "old"]], (
        "the first for any value"
    )
    most = pod_set(16, spec={"tolerations": [{"operator": "Exists"}]})
    assert explained(group(most), nodes=nodes[:1])["changes"] == [{"counts": {"main": 4}}]


def test_only_groups_of_lower_priority_would_have_to_leave_and_none_in_vain() -> None:
    racks = {"required": "example.com/rack"}
    others = [
        group(pod_set(8, racks), name=name, priority=priority)
        for name, priority in (("low", 1), ("lower", 0), ("high", 9))
    ]
    answer = explained(group(pod_set(8, racks), priority=5), *others)
    assert answer["status"]["state"] == "Unplaceable"
    assert answer["changes"] == [{"leaving": ["default/lower"]}]


def test_a_group_leaves_alone_if_that_is_enough() -> None:
    """In order of priority, the small ones would be out before the one whose place is needed."""
    others = [
        group(pod_set(4, {"required": HOSTNAME}), name=f"small{at}", priority=0) for at in range(4)
    ] + [group(pod_set(8, {"required": RACK}), name="large", priority=1)]
    answer = explained(group(pod_set(8, {"required": RACK}), priority=5), *others)
    assert answer["changes"] == [{"leaving": ["default/large"]}]


def owned(name: str, at: str, kind: str, priority: int) -> Object:
    made = pod(name, at, cpu=2)
    made["metadata"]["ownerReferences"] = [{"kind": kind, "name": "w", "controller": True}]
    made["spec"]["priority"] = priority
    return made


def test_pods_of_lower_priority_and_of_no_group_would_have_to_leave() -> None:
    """Those of DaemonSets, and those of no lower priority, stay."""
    pods = [
        owned("daemon", "xa1", "DaemonSet", 0),
        owned("equal", "xb1", "ReplicaSet", 5),
        owned("high", "yc1", "ReplicaSet", 2),
        owned("low", "yc2", "ReplicaSet", 1),
    ]
    answer = explained(group(pod_set(8, {"required": RACK}), priority=5), pods=pods)
    assert answer["changes"][-1] == {"leavingPods": ["default/high", "default/low"]}
    answer = explained(group(pod_set(8, {"required": RACK}), priority=2), pods=pods)
    assert answer["changes"] == [{"counts": {"main": 6}}, {"podSets": ["main"], "level": ZONE}]


def test_fewer_pods_of_two_pod_sets_at_once_would_do() -> None:
    asked = [pod_set(6, {"required": HOSTNAME}, name=name) for name in ("a", "b")]
    answer = explained(group(*asked))
    assert answer["changes"] == [{"counts": {"a": 4, "b": 4}}]


def test_the_largest_number_is_found_where_fewer_pods_do_not_fit() -> None:
    """9 of the first pod set leave room for the second, 7 and 8 go where that has to be."""
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number in {1, 2, 3, 9}

    assert _largest(fits, 11) == (9, True)
    assert tried == [11, 10, 9]


def test_a_number_that_was_found_by_halving_is_not_said_to_be_the_largest() -> None:
    assert _largest(lambda number: number <= 9, 9 + MAX_TRIES + 1) == (9, False)
    assert _largest(lambda number: number <= 30 or number == 60, 61) == (60, True)


def test_a_leader_that_no_node_takes_is_named() -> None:
    """It does not tolerate the taint of all nodes; its workers do."""
    taint = {"key": "x/gpu", "effect": "NoSchedule"}
    tolerates = {"tolerations": [{"key": "x/gpu", "operator": "Exists"}]}
    asked = {"required": HOSTNAME, "leaderGroup": "lead"}
    nodes = [node(f"n{at}", ZONE="x", RACK="xa", taints=[taint]) for at in range(3)]
    answer = explained(
        group(pod_set(1, asked, name="leader"), pod_set(2, asked, name="w", spec=tolerates)),
        nodes=nodes,
    )
    workers, leader = answer["podSets"]
    assert [each["holdingAll"] for each in workers["levels"]] == [0, 0, 0]
    assert (leader["podSet"], leader["leads"], leader["wanted"]) == ("leader", "w", 1)
    assert leader["excluded"] == {'taint "x/gpu:NoSchedule"': 3}
    assert "only 4 out of 2 pod(s), none beside the leader" in answer["status"]["message"]
    toleration = {"taints": [{**taint, "value": None}]}
    assert answer["changes"] == [toleration]


def test_what_fits_needs_no_change() -> None:
    answer = explained(group(pod_set(8, {"required": "example.com/rack"})))
    assert (answer["status"]["state"], answer["changes"]) == ("Placed", [])


def test_an_unknown_level_has_no_counts() -> None:
    answer = explained(group(pod_set(8, {"required": "rak"})))
    assert answer["status"]["message"].startswith("no requested topology level: rak")
    assert (answer["podSets"], answer["changes"]) == ([], [])


def test_room_that_is_in_no_whole_slice_is_said_and_a_coarser_slice_would_do() -> None:
    slices = [{"level": HOSTNAME, "size": 3}]
    answer = explained(group(pod_set(9, {"required": "example.com/zone", "slices": slices})))
    assert answer["status"]["state"] == "Placed"
    answer = explained(group(pod_set(15, {"required": "example.com/zone", "slices": slices})))
    [only] = answer["podSets"]
    assert (only["unit"], only["wanted"], only["inNoSlice"]) == ("slices", 5, 6)
    assert answer["changes"] == [
        {"counts": {"main": 12}, "slices": {"main": 4}},
        {"podSets": ["main"], "sliceLevel": "example.com/zone"},
    ]
    answer = explained(group(pod_set(3, {"required": "example.com/rack", "slices": slices}, cpu=2)))
    assert answer["podSets"][0]["inNoSlice"] == 12
    assert answer["changes"] == [{"podSets": ["main"], "sliceLevel": "example.com/rack"}]


def test_nothing_of_a_resource_that_no_node_has_excludes_no_host() -> None:
    answer = explained(group(pod_set(1, {"required": HOSTNAME}, cpu=5, gpu=0)))
    [only] = answer["podSets"]
    assert (only["asks"], only["excluded"]) == ({"cpu": 5000}, {'resource "cpu"': 6})


def test_more_pods_on_a_host_would_do() -> None:
    asked = {"spreadOver": ["example.com/rack"], "maxPerHost": 1}
    answer = explained(group(pod_set(15, asked)))
    message = "spreading allows to fit only 6 out of 15 pod(s), at most 1 on each host"
    assert answer["status"]["message"] == message
    assert answer["changes"] == [
        {"counts": {"main": 6}},
        {"podSets": ["main"], "maxPerHost": 3},
    ]


def test_it_says_where_a_group_stands_in_the_queue_and_what_is_set_aside() -> None:
    racks = {"required": "example.com/rack"}
    waits = {"state": "Waiting", "reserved": ["xa1", "xa2"]}
    engine = Engine(read_settings(USING), Cluster([read_node(each, "") for each in NODES]).view)
    gang = read_group(group(pod_set(8, racks), name="gang", status=waits))
    engine.state.set_group(gang)
    found = explain(engine, gang).standing
    assert found is not None
    assert (found.ahead, found.waiting, found.reserved, found.fitting, found.pods) == (
        (0, 1, ["xa1", "xa2"], 8, 8)
    )
    late = read_group(group(pod_set(20, {"unconstrained": True}), name="late"))
    answer = explain(engine, late)
    assert answer.standing is not None
    assert (answer.standing.ahead, answer.standing.waiting) == (1, 2)
    assert answer.standing.set_aside == {"default/gang": ["xa1", "xa2"]}
    assert "only 16 out of 20 pod(s)" in answer.status.message
    urgent = read_group(group(pod_set(20, {"unconstrained": True}), name="urgent", priority=1))
    assert explain(engine, urgent).status.state == "Placed"


def test_examples_are_of_hosts_that_take_part_with_what_they_are_short_of() -> None:
    """A host that is closed is no example; one with more pods than room has less than nothing."""
    nodes = [node("closed", ZONE="x", RACK="xa"), node("full", ZONE="x", RACK="xa")]
    engine = Engine(read_settings(USING), Cluster([read_node(each, "") for each in nodes]).view)
    for name in ("closed", "full"):
        engine.state.set_pod(read_pod(pod(name, name, cpu=7), ""))
    others = engine.without_nodes({"closed"})
    (found,) = explain(others, read_group(group(pod_set(1)))).pod_sets
    assert found.excluded == {'resource "cpu"': 1}
    assert found.examples == {'resource "cpu"': Excluded(["full"], "cpu", -3000)}
