"""Plans of moves are as good as their word: tried in a cluster made anew, the group fits."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from nri_policy.cluster.groups.moves import MovePlan, plan_moves
from nri_policy.cluster.numa.host_fit import host_reason
from nri_policy.cluster.objects.document import PODS
from nri_policy.cluster.objects.group import PlacementGroup, hosts_of, read_group
from nri_policy.cluster.objects.settings import ClusterSettings, read_settings
from nri_policy.cluster.objects.snapshot import ClusterSnapshot, read_snapshot
from nri_policy.cluster.offline import engine_of
from tests.property.seeds import seeds
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set, pod_spec, settings

RACK = "example.com/rack"
TAINT = {"key": "mine", "effect": "NoSchedule"}
USING: ClusterSettings = read_settings(settings("rack", HOSTNAME))


def crowded(draw: random.Random) -> dict[str, Any]:
    """Three racks of three hosts, full of pods, most of which may move; two budgets."""
    nodes = [
        node(f"n{at}", RACK=f"r{at // 3}", taints=[TAINT] * (draw.random() < 0.1), cpu=8)
        for at in range(9)
    ]
    left = {f"n{at}": 8 for at in range(9)}
    pods: list[Any] = []
    for number in range(40):
        at, cpu = draw.choice([*left]), draw.choice([1, 1, 2, 3])
        if left[at] < cpu:
            continue
        left[at] -= cpu
        owner = {"kind": "ReplicaSet", "name": "w", "controller": True}
        metadata = {
            "name": f"p{number}",
            "labels": {"app": draw.choice("abc")},
            "annotations": {"placement.nri/movable": draw.choice(["true", "true", "false"])},
            "ownerReferences": [owner],
        }
        spec: dict[str, Any] = {"nodeName": at, **pod_spec({"cpu": cpu})}
        if draw.random() < 0.2:
            spec["nodeSelector"] = {RACK: draw.choice(["r0", "r1", "r2"])}
        pods.append({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    budgets = [
        {
            "metadata": {"name": app},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": draw.randint(0, 3)},
        }
        for app in "ab"
    ]
    return {"nodes": nodes, "pods": pods, "budgets": budgets}


def wanted(draw: random.Random) -> PlacementGroup:
    request: dict[str, Any] = draw.choice(
        [
            {"required": RACK},
            {"required": RACK},
            {"required": HOSTNAME},
            {"preferred": RACK},
            {"unconstrained": True},
            {"spreadOver": [RACK]},
            {"required": RACK, "slices": [{"level": HOSTNAME, "size": 2}]},
        ]
    )
    pod_sets = [pod_set(2 * draw.randint(1, 3), request, cpu=draw.choice([2, 3, 4]))]
    if draw.random() < 0.2:
        pod_sets.append(pod_set(1, name="other", cpu=draw.choice([1, 5])))
    return read_group(group(*pod_sets))


def used_on(snapshot: ClusterSnapshot, gone: set[str]) -> dict[str, Counter[str]]:
    """What pods request on each node, without some of them."""
    used: dict[str, Counter[str]] = {each.name: Counter() for each in snapshot.nodes}
    for pod in snapshot.pods:
        if pod.name not in gone:
            used[pod.node].update({**pod.spec.effective(), PODS: 1})
    return used


def check(snapshot: ClusterSnapshot, asked: PlacementGroup, found: MovePlan, most: int) -> None:
    by_name = {pod.name: pod for pod in snapshot.pods}
    nodes = {each.name: each for each in snapshot.nodes}
    moved = {each.name: each for each in found.moves}
    assert len(moved) == len(found.moves) <= most
    for budget in snapshot.budgets:
        assert sum(budget.covers(by_name[name]) for name in moved) <= budget.allowed
    used = used_on(snapshot, {*moved})
    for each in found.moves:
        pod = by_name[each.name]
        assert pod.annotations["placement.nri/movable"] == "true"
        assert each.source == pod.node != each.to
        assert not host_reason(nodes[each.to], used[each.to], pod.spec)
        used[each.to].update({**pod.spec.effective(), PODS: 1})
    cpu = {each.name: each.template.spec.effective()["cpu"] for each in asked.pod_sets}
    for assignment in found.status.assignments:
        for place in assignment.domains:
            used[place.values[-1]]["cpu"] += place.count * cpu[assignment.pod_set]
    for name, amounts in used.items():
        assert amounts["cpu"] <= nodes[name].allocatable["cpu"], name


def after(cluster: dict[str, Any], found: MovePlan) -> ClusterSnapshot:
    """The cluster once the pods have moved."""
    to = {each.name: each.to for each in found.moves}
    pods = [
        {**pod, "spec": {**pod["spec"], "nodeName": to.get(pod["metadata"]["name"], at)}}
        for pod in cluster["pods"]
        for at in [pod["spec"]["nodeName"]]
    ]
    return read_snapshot({**cluster, "pods": pods})


def one_is_enough(snapshot: ClusterSnapshot, asked: PlacementGroup) -> bool:
    """Whether there is one pod whose move makes the group fit, by trying each."""
    allowed = {each.labels["app"]: each.allowed for each in snapshot.budgets}
    for pod in snapshot.pods:
        may = pod.annotations["placement.nri/movable"] == "true"
        if not may or not allowed.get(pod.labels["app"], 1):
            continue
        engine = engine_of(snapshot, USING)
        engine.remove_pod(pod.namespace, pod.name)
        status = engine.place(asked)
        if status.assignments:
            own = hosts_of(PlacementGroup("default", "g", asked.pod_sets, status=status))
            used = used_on(snapshot, {pod.name})
            if any(
                each.name not in (*own, pod.node)
                and not host_reason(each, used[each.name], pod.spec)
                for each in snapshot.nodes
            ):
                return True
    return False


@seeds(60)
def test_a_plan_is_as_good_as_its_word(seed: int) -> None:
    draw = random.Random(seed)
    cluster, asked, most = crowded(draw), wanted(draw), draw.choice([1, 2, 5, 10])
    snapshot = read_snapshot(cluster)
    engine = engine_of(snapshot, USING)
    before = engine.place(asked), engine.pods()
    found = plan_moves(engine, asked, snapshot, most)
    assert (engine.place(asked), engine.pods()) == before
    assert not engine.groups
    check(snapshot, asked, found, most)
    if found.moves:
        assert not before[0].assignments
        assert engine_of(after(cluster, found), USING).place(asked).state == "Placed"
    if len(asked.pod_sets) == 1 and not before[0].assignments and one_is_enough(snapshot, asked):
        assert found.moves


def test_there_are_plans() -> None:
    sizes = Counter[int]()
    for seed in range(40):
        draw = random.Random(seed)
        cluster, asked = crowded(draw), wanted(draw)
        snapshot = read_snapshot(cluster)
        sizes[len(plan_moves(engine_of(snapshot, USING), asked, snapshot).moves)] += 1
    assert sizes[1] >= 3
    assert sum(number for size, number in sizes.items() if size > 1) >= 3
