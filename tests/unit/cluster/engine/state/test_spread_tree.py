"""Spreading by example, and against what SwarmKit's scheduler ended with."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.requests.spread_preferences import Preference, read_preferences
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.view import Cluster
from tests.support import spreading_twin as twin
from tests.support.shared_data import NOT_HERE

SHARED = Path(os.environ.get("NRI_POLICY_SHARED", Path(__file__).parents[6] / "shared"))

Object = dict[str, Any]


def node(name: str, *, cpu: int = 10, ready: bool = True, **labels: str) -> Object:
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "allocatable": {"cpu": cpu, "pods": 110},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def running(name: str, at: str, *, group: str = "", cpu: int = 0, phase: str = "Running") -> Object:
    return {
        "metadata": {"name": name, "labels": {"placement.nri/group": group} if group else {}},
        "spec": {
            "nodeName": at,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": phase},
    }


def group(count: int, *over: str, cpu: int = 1, **more: Any) -> Object:
    spec = more.pop("spec", {})
    template = {
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **spec}
    }
    request = {"spreadOver": list(over), **more}
    pod_set = {"name": "main", "count": count, "template": template, "request": request}
    return {"metadata": {"name": "g"}, "spec": {"podSets": [pod_set]}}


RACKS = [node(f"{rack}{host}", rack=rack) for rack in "abc" for host in (1, 2)]

ROOMS = [node(rack, cpu=cpu, rack=rack) for rack, cpu in (("a", 9), ("b", 5), ("c", 3))]
ZONES = [node(f"{zone}{rack}", zone=zone, rack=rack) for zone in "xy" for rack in "ab"]
UNEVEN = [node("n1", zone="x", rack="a"), node("n2", zone="x", rack="b"), node("n3", zone="y")]
UNREADY = [node("a1", rack="a", ready=False), node("a2", rack="a"), node("b", rack="b")]
TAINTED = RACKS[0] | {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
OWN = [running("p", "a1", group="g"), running("q", "b2", group="g")]
TWO_EACH = [
    running(f"{at}-{number}", at, group="g")
    for number, at in enumerate(["xa", "xb", "ya", "ya", "a1", "a2", "b2", "b2"])
]
THREE = [running(name, "a1", group="g") for name in "pqr"]
UNLABELLED = [RACKS[0], node("x"), node("y")]
AT_X = running("q", "x", group="g")
OTHERS = [
    running("p", "a1", group="g", phase="Succeeded"),
    running("q", "a2", group="h"),
    running("r", "a2", phase="Failed"),
]

CASES: list[tuple[str, Object, Object, Object]] = [
    ("evenly, the lowest value first", {"nodes": RACKS}, group(4, "rack"),
     {"a1": 1, "a2": 1, "b1": 1, "c1": 1}),
    ("one label over the other", {"nodes": UNEVEN},
     group(4, "zone", "rack"), {"n1": 1, "n2": 1, "n3": 2}),
    ("without preferences, over hosts", {"nodes": RACKS}, group(3), {"a1": 1, "a2": 1, "b1": 1}),
    ("of equal zones the one that is more even then", {"nodes": ZONES, "pods": TWO_EACH[:4]},
     group(1, "zone", "rack"), {"yb": 1}),
    ("and where the hosts are", {"nodes": RACKS[:4], "pods": TWO_EACH[4:]},
     group(1, "rack"), {"b1": 1}),
    ("a missing label is a value", {"nodes": [*RACKS[:2], node("x")]},
     group(2, "rack"), {"a1": 1, "x": 1}),
    ("of equal branches, nodes without the label come last", {"nodes": [*RACKS[:2], node("x")]},
     group(3, "rack"), {"a1": 1, "a2": 1, "x": 1}),
    ("also where the others have more on a host", {"nodes": UNLABELLED, "pods": [*OWN[:1], AT_X]},
     group(1, "rack"), {"a1": 1}),
    ("packed: nodes without the label come last", {"nodes": [ROOMS[0], node("x", cpu=9)]},
     group(4, "pack:rack"), {"a": 4}),
    ("no room: the siblings", {"nodes": ROOMS[1:]}, group(8, "rack"), {"b": 5, "c": 3}),
    ("no room at all", {"nodes": [node("a", cpu=1), node("b", cpu=2)]},
     group(5), {"a": 1, "b": 2, "": 2}),
    ("no nodes", {}, group(5), {"": 5}),
    ("who runs counts", {"nodes": RACKS, "pods": OWN},
     group(2, "rack"), {"c1": 1, "a2": 1}),
    ("also where no pod may go", {"nodes": UNREADY, "pods": OWN[:1]},
     group(2, "rack"), {"b": 1, "a2": 1}),
    ("finished pods and other groups do not", {"nodes": RACKS, "pods": OTHERS},
     group(1, "rack"), {"a1": 1}),
    ("the host with fewest pods in all", {"nodes": RACKS, "pods": [running("p", "a1")]},
     group(1, "rack"), {"a2": 1}),
    ("a host that fails comes last", {"nodes": RACKS[:2], "failures": {"a1": 5}},
     group(2), {"a2": 2}),
    ("four failures are none", {"nodes": RACKS[:2], "failures": {"a1": 4}},
     group(2), {"a1": 1, "a2": 1}),
    ("fails least, fails most", {"nodes": RACKS[:3], "failures": {"a1": 9, "a2": 6, "b1": 7}},
     group(21), {"a2": 10, "b1": 10, "a1": 1}),
    ("by weight", {"nodes": RACKS}, group(8, "rack={b: 2, c: 1}"),
     {"a1": 1, "a2": 1, "b1": 2, "b2": 2, "c1": 1, "c2": 1}),
    ("the larger weight first", {"nodes": RACKS}, group(1, "rack={b: 2}"), {"b1": 1}),
    ("a weight for none", {"nodes": [*RACKS[:2], node("x")]},
     group(3, 'rack={"": 2}'), {"a1": 1, "x": 2}),
    ("packed: the smallest that holds all", {"nodes": ROOMS}, group(4, "pack:rack"), {"b": 4}),
    ("packed: the largest first", {"nodes": ROOMS}, group(11, "pack:rack"), {"a": 9, "c": 2}),
    ("packed above, spread below", {"nodes": ZONES},
     group(4, "pack:zone", "rack"), {"xa": 2, "xb": 2}),
    ("no more on a host", {"nodes": RACKS[:2]}, group(5, maxPerHost=2), {"a1": 2, "a2": 2, "": 1}),
    ("with those that run there", {"nodes": RACKS[:2], "pods": THREE},
     group(3, maxPerHost=2), {"a2": 2, "": 1}),
    ("a place for what runs", {"nodes": ROOMS[2:], "pods": [running("p", "c", cpu=1)]},
     group(3), {"c": 2, "": 1}),
    ("a place for the group's own",
     {"nodes": ROOMS[2:], "pods": [running("p", "c", cpu=1, group="g")]},
     group(3), {"c": 2, "": 1}),
    ("selected nodes only", {"nodes": RACKS},
     group(2, "rack", spec={"nodeSelector": {"rack": "b"}}), {"b1": 1, "b2": 1}),
    ("tolerated nodes only", {"nodes": [TAINTED, RACKS[1]]}, group(2), {"a2": 2}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "given", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_where_pods_go(cluster: Object, given: Object, expected: Object) -> None:
    assert offline.spread(cluster, given) == expected


def test_pod_sets_go_one_after_the_other_and_leave_no_trace() -> None:
    two = group(3, "rack")
    two["spec"]["podSets"].append(group(3, "rack")["spec"]["podSets"][0] | {"name": "more"})
    engine = Engine(ClusterSettings(), Cluster(read_snapshot({"nodes": ROOMS}).nodes).view)
    assert engine.spread(read_group(two)) == {"a": 2, "b": 2, "c": 2}
    assert engine.spread(read_group(group(3, "rack"))) == {"a": 1, "b": 1, "c": 1}
    assert engine.spread(read_group(group(17, "rack"))) == {"a": 9, "b": 5, "c": 3}


def test_assignments_of_groups_take_room_on_their_hosts() -> None:
    other = group(2, cpu=2)
    other["metadata"]["name"] = "other"
    other["status"] = {
        "assignments": [
            {
                "podSet": "main",
                "levels": ["kubernetes.io/hostname"],
                "domains": [{"values": ["c"], "count": 1}],
            }
        ]
    }
    nodes = [
        each | {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        for name, each in zip("abc", ROOMS, strict=True)
    ]
    pods = [running("p", "c", cpu=2, group="other")]  # is in the assignment
    cluster = {"nodes": nodes, "groups": [other], "pods": pods}
    assert offline.spread(cluster, group(17)) == {"a": 9, "b": 5, "c": 1, "": 2}


def test_a_tree_that_is_kept_is_like_a_new_one() -> None:
    """Whatever comes between."""
    cluster = Cluster(read_snapshot({"nodes": RACKS}).nodes)
    engine = Engine(ClusterSettings(), cluster.view)
    cluster.follow(engine.state)
    assert engine.spread(read_group(group(2, "rack"))) == {"a1": 1, "b1": 1}
    moved = [node("a1", rack="c"), node("b1", rack="b", ready=False), node("d", rack="d")]
    for each in read_snapshot({"nodes": moved}).nodes:
        cluster.set_node(each)
    cluster.remove_node("c1")
    (pod, *_), (back, *_) = (
        read_snapshot({"pods": [running("p", "a2", group="g", phase=phase)]}).pods
        for phase in ("Running", "Failed")
    )
    engine.state.set_pod(pod)
    assert engine.spread(read_group(group(4, "rack"))) == {"b2": 1, "a1": 1, "d": 1, "c2": 1}
    engine.state.set_pod(back)
    assert engine.spread(read_group(group(4, "rack"))) == {"a2": 1, "b2": 1, "a1": 1, "d": 1}
    engine.state.remove_pod("default", "p")
    for number in range(20):
        engine.spread(read_group(group(1, f"label{number}")))
    assert engine.spread(read_group(group(1, "rack"))) == {"a2": 1}


def test_a_node_that_is_tainted_later_takes_no_pods_that_nobody_asked_for_before() -> None:
    cluster = Cluster(read_snapshot({"nodes": RACKS}).nodes)
    engine = Engine(ClusterSettings(), cluster.view)
    cluster.follow(engine.state)
    assert engine.spread(read_group(group(2, "rack"))) == {"a1": 1, "b1": 1}
    taint = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    (tainted,) = read_snapshot({"nodes": [node("a1", rack="a") | {"spec": taint}]}).nodes
    cluster.set_node(tainted)
    other = {"tolerations": [{"key": "other", "operator": "Exists"}]}
    assert "a1" not in engine.spread(read_group(group(3, "rack", spec=other)))
    tolerating = {"tolerations": [{"key": "k", "operator": "Exists"}]}
    assert "a1" in engine.spread(read_group(group(3, "rack", spec=tolerating)))


def test_preferences_are_read() -> None:
    texts = [
        "topology.kubernetes.io/zone",
        " pack: rack ",
        'host = { a: 2, "":1 , b.c-d: 3 }',
        "x={}",
    ]
    assert read_preferences(texts, "") == [
        Preference("topology.kubernetes.io/zone"),
        Preference("rack", packed=True),
        Preference("host", weights={"a": 2, "": 1, "b.c-d": 3}),
        Preference("x"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not KEY, KEY={VALUE: WEIGHT, …} or pack:KEY"),
        ("a b", "is not KEY"),
        ("pack:", "is not KEY"),
        ("a={b: 1", "is not KEY"),
        ("a={b}", "'b' is not VALUE: WEIGHT, from 1 to 1000000"),
        ("a={b: 0}", "'b: 0' is not VALUE"),
        ("a={b: -1}", "is not VALUE"),
        ("a={b: 1000001}", "is not VALUE"),
        ("a={b: 99999999999999999999}", "is not VALUE"),
        ("a={b: 1, b: 2}", "'b' has two weights"),
        ("a={b: 1,}", "'' is not VALUE"),
        ("pack:a={b: 1}", "pack: takes no weights"),
        ("x", "'x' is given twice"),
    ],
)
def test_preferences_that_make_no_sense_are_refused_with_their_place(
    text: str, message: str
) -> None:
    with pytest.raises(DocumentError) as error:
        offline.spread({}, group(1, "x", text))
    assert str(error.value).startswith("spec.podSets[0].request.spreadOver[1]: ")
    assert message in str(error.value)


ORACLE = SHARED / "oracles" / "spreading.json.gz"


def converted(case: Object) -> tuple[Object, Object, list[twin.Host]]:
    """A recorded case as cluster and group, and as the twin has it."""
    task, preferences = case["task"], [each["spread"][12:] for each in case["task"]["preferences"]]
    cpu = task["reservations"]["nano_cpus"] // 10**6
    cluster: Object = {"nodes": [], "pods": [], "failures": {}}
    hosts = []
    selector = dict(
        each.removeprefix("node.labels.").split("==")
        for each in task["constraints"] or ()
        if "==" in each
    )
    others = [
        {"key": key, "operator": "NotIn", "values": [value]}
        for key, _, value in (
            each.removeprefix("node.labels.").partition("!=")
            for each in task["constraints"] or ()
            if "!=" in each
        )
    ]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": others}]
            }
        }
    }
    for host in case["nodes"]:
        name, free = host["id"], host["available"]["nano_cpus"] // 10**6
        labels = host.get("labels") or {}
        one = node(name, ready=host["ready"], **labels)
        one["status"]["allocatable"] = {"cpu": f"{free}m", "pods": 999}
        one["spec"] = {"unschedulable": host["availability"] != "ACTIVE"}
        cluster["nodes"].append(one)
        cluster["failures"][name] = host.get("recent_failures", 0)
        for service, number in host["active_by_service"].items():
            for at in range(number):
                pod = running(f"{service}-{name}-{at}", name, group="g" if service == "svc" else "")
                cluster["pods"].append(pod)
        may = host["ready"] and host["availability"] == "ACTIVE"
        may &= all(labels.get(key) == value for key, value in selector.items())
        may &= all(labels.get(each["key"]) not in each["values"] for each in others)
        hosts.append(
            twin.Host(
                name,
                tuple(labels.get(key, "") for key in preferences),
                (free // cpu if cpu else case["count"]) if may else 0,
                host["active_by_service"].get("svc", 0),
                host["active_tasks"],
                host.get("recent_failures", 0),
            )
        )
    spec: Object = {"nodeSelector": selector}
    if others:
        spec["affinity"] = affinity
    most = task["max_replicas"] or None
    asked: Object = group(case["count"], *preferences, spec=spec, maxPerHost=most)
    (container,) = asked["spec"]["podSets"][0]["template"]["spec"]["containers"]
    container["resources"]["requests"]["cpu"] = f"{cpu}m"
    return cluster, asked, hosts


def balance(hosts: list[twin.Host], placed: Object) -> list[list[int]]:
    """Per level, by path, the counts of siblings in ascending order: more is better."""
    levels = []
    for level in range(len(hosts[0].values)):
        siblings: dict[tuple[str, ...], Counter[str]] = {}
        for host in hosts:
            count = host.own + placed.get(host.name, 0)
            siblings.setdefault(host.values[:level], Counter())[host.values[level]] += count
        levels.append(
            [count for _, each in sorted(siblings.items()) for count in sorted(each.values())]
        )
    return levels[:1]  # what lies below depends on what the branches above got


@pytest.mark.skipif(not ORACLE.exists(), reason=NOT_HERE)
def test_no_recorded_outcome_is_better() -> None:
    """Hosts are the twin's; the balance is at least that of every run that was recorded."""
    cases = json.loads(gzip.decompress(ORACLE.read_bytes()))["vectors"]
    better = 0
    for case in cases:
        cluster, asked, hosts = converted(case)
        found = offline.spread(cluster, asked)
        preferences = [twin.Preference() for _ in case["task"]["preferences"]]
        most = case["task"]["max_replicas"] or None
        placed, left = twin.spread(hosts, case["count"], preferences, most)
        assert found == placed | ({"": left} if left else {}), case["name"]
        for outcome in case["outcomes"]:
            assert outcome["unscheduled"] == left, case["name"]
            if preferences:
                recorded = balance(hosts, outcome["per_node"])
                assert balance(hosts, found) >= recorded, case["name"]
                better += balance(hosts, found) > recorded
    assert len(cases) > 400
    assert better > 100


def test_a_topology_with_the_same_labels_changes_no_answer() -> None:
    """Its tree is used again: what is full, tainted or set aside counts, and what changes later."""
    nodes = [node(f"{rack}{host}", cpu=4, rack=rack) for rack in "cab" for host in (2, 1)]
    for each in nodes:
        each["metadata"]["labels"][HOSTNAME] = each["metadata"]["name"]
    nodes[0]["spec"] = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    snapshot = read_snapshot({"nodes": nodes, "pods": [running("p", "a1", cpu=3)]})
    cluster = offline.cluster_of(snapshot)
    alike, other = (
        offline.engine_of(
            snapshot, ClusterSettings(topologies=[Topology(levels=[*above, HOSTNAME])]), cluster
        )
        for above in (["rack"], [])
    )
    cluster.follow(alike.state, other.state)
    asked = read_group(group(12, "rack"))
    first = alike.spread(asked)
    assert first == other.spread(asked)
    assert "c2" not in first
    assert alike.place(asked).assignments == other.place(asked).assignments
    without = alike.without_nodes(["b1"]).spread(asked)
    assert without == other.without_nodes(["b1"]).spread(asked) != first
    cluster.set_node(msgspec.structs.replace(alike.state.nodes["a2"], unschedulable=True))
    cluster.set_node(msgspec.structs.replace(alike.state.nodes["c2"], taints=()))
    assert alike.spread(asked) == other.spread(asked) != first


def test_what_a_topology_has_counted_counts_for_labels_that_are_no_level() -> None:
    """Of nodes that take part in it, and of those that did before; what changes later, too."""
    nodes = [
        node(f"{rack}{host}", cpu=4, rack=rack, zone=zone)
        for zone, rack in (("y", "c"), ("y", "a"), ("x", "b"))
        for host in (3, 1, 2)
    ]
    for each in nodes:
        each["metadata"]["labels"][HOSTNAME] = each["metadata"]["name"]
    nodes[0]["spec"] = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    snapshot = read_snapshot({"nodes": nodes, "pods": [running("p", "a1", cpu=3)]})
    cluster = offline.cluster_of(snapshot)
    settings = ClusterSettings(topologies=[Topology(levels=["zone", HOSTNAME])])
    counted, fresh = (offline.engine_of(snapshot, settings, cluster) for _ in range(2))
    cluster.follow(counted.state, fresh.state)
    counted.state.tree("default")
    packed = read_group(group(2, unconstrained=True) | {"metadata": {"name": "packed"}})
    placed = msgspec.structs.replace(packed, status=fresh.place(packed))
    for made in (counted, fresh):
        made.state.set_group(placed)
    known = counted.state.nodes
    cluster.set_node(msgspec.structs.replace(known["a2"], unschedulable=True))
    no_zone = {"rack": "c", HOSTNAME: "c2"}  # open, but without a place in the topology
    taint = known["c3"].taints
    cluster.set_node(msgspec.structs.replace(known["c2"], labels=no_zone, taints=taint))
    cluster.set_node(msgspec.structs.replace(known["b1"], labels={"rack": "b", HOSTNAME: "b1"}))
    del fresh.state.ledger._trees["default", 0]  # it is made by `place`
    asked = read_group(group(20, "rack"))
    first = counted.spread(asked)
    assert first == fresh.spread(asked)
    assert not {"a2", "c2", "c3"} & {*first}
    assert "b1" in first
    cluster.set_node(msgspec.structs.replace(known["a2"], unschedulable=False))
    cluster.set_node(msgspec.structs.replace(known["c2"], taints=()))
    for made in (counted, fresh):
        made.state.remove_group("default", "packed")
    assert counted.spread(asked) == fresh.spread(asked) != first


def test_a_tree_of_a_topology_is_taken_over_whatever_its_nodes_are() -> None:
    """In another order than that of their names; some went, some take no part, some have taints."""

    def team(name: str, **more: Any) -> Object:
        made = node(name, rack=f"r{ord(name[0]) % 2}", team=f"t{ord(name[0]) % 3}", **more)
        made["metadata"]["labels"][HOSTNAME] = name
        return made

    def placed() -> list[Any]:
        asked = [group(count, "team", cpu=4) for count in (1, 3, 9, 40)]
        return [engine.spread(read_group(each)) for each in asked]

    found: list[list[Any]] = []
    for first in (True, False):
        cluster = Cluster(read_snapshot({"nodes": [team(name) for name in "hcafbegd"]}).nodes)
        using = ClusterSettings(topologies=[Topology(levels=["rack", HOSTNAME])])
        engine = Engine(using, cluster.view)
        cluster.follow(engine.state)
        pods = [running(f"p{at}", at, group="g", cpu=3) for at in "aeg"]
        for pod in read_snapshot({"pods": pods}).pods:
            engine.state.set_pod(pod)
        if first:
            engine.state.tree("default")
        taint = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
        tainted, gone = team("b") | taint, team("c") | taint
        out = tainted | {
            "spec": {"unschedulable": True, **tainted["spec"]},
            "metadata": team("f")["metadata"],
        }
        for each in read_snapshot({"nodes": [tainted, gone, out, team("a", ready=False)]}).nodes:
            cluster.set_node(each)
        cluster.remove_node("c")
        results = placed()
        for each in read_snapshot({"nodes": [team("a"), team("f"), team("c")]}).nodes:
            cluster.set_node(each)
            results += placed()
        cluster.remove_node("e")
        results += placed()
        found.append(results)
    assert found[0] == found[1]
    assert found[0][0] == {"h": 1}
