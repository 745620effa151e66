"""Plans of moves are as good as their word: tried in a cluster made anew, the group fits."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import Any

from nri_policy.cluster.numa.host_fit import find_host_reason
from nri_policy.cluster.objects.document import PODS
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ClusterSettings, read_settings
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.planning.moves import MovePlan, plan_moves
from nri_policy.cluster.requests.group import PlacementGroup, hosts_of, read_group
from nri_policy.cluster.snapshot import ClusterSnapshot, read_snapshot
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
        assert not find_host_reason(nodes[each.to], used[each.to], pod.spec)
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
    allowed = {each.name: each.allowed for each in snapshot.budgets}
    for pod in snapshot.pods:
        may = pod.annotations["placement.nri/movable"] == "true"
        if not may or not allowed.get(pod.labels["app"], 1):
            continue
        engine = engine_of(snapshot, USING)
        engine.state.remove_pod(pod.namespace, pod.name)
        status = engine.place(asked)
        if status.assignments:
            own = hosts_of(PlacementGroup("default", "g", asked.pod_sets, status=status))
            used = used_on(snapshot, {pod.name})
            if any(
                each.name not in (*own, pod.node)
                and not find_host_reason(each, used[each.name], pod.spec)
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
    before = engine.place(asked), engine.state.pods()
    found = plan_moves(engine, asked, snapshot, most)
    assert (engine.place(asked), engine.state.pods()) == before
    assert not engine.state.groups
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


def fewest_moves(  # noqa: C901 - a search
    snapshot: ClusterSnapshot, asked: PlacementGroup
) -> int | None:
    """The fewest moves of up to three after which equal pods fit, by trying everything."""
    (pod_set,) = asked.pod_sets
    cpu = pod_set.template.spec.effective()["cpu"]
    racks = {each.name: each.labels[RACK] for each in snapshot.nodes}
    left = {each.name: each.allocatable["cpu"] for each in snapshot.nodes}
    for pod in snapshot.pods:
        left[pod.node] -= pod.spec.effective()["cpu"]

    def fits() -> bool:
        if pod_set.request is not None and pod_set.request.required:
            sums: Counter[str] = Counter()
            for name, amount in left.items():
                sums[racks[name]] += amount // cpu
            return max(sums.values()) >= pod_set.count
        return sum(amount // cpu for amount in left.values()) >= pod_set.count

    def go(pods: tuple[Pod, ...]) -> bool:
        if not pods:
            return fits()
        own = pods[0].spec.effective()["cpu"]
        for name in [*left]:
            if name != pods[0].node and left[name] >= own:
                left[name] -= own
                found = go(pods[1:])
                left[name] += own
                if found:
                    return True
        return False

    movable = [each for each in snapshot.pods if each.annotations]
    for number in range(4):
        for chosen in combinations(movable, number):
            for pod in chosen:
                left[pod.node] += pod.spec.effective()["cpu"]
            found = go(chosen)
            for pod in chosen:
                left[pod.node] -= pod.spec.effective()["cpu"]
            if found:
                return number
    return None


def small_cluster(draw: random.Random) -> tuple[ClusterSnapshot, PlacementGroup]:
    """Two racks of two hosts with a few pods, and a group of a few large ones."""
    nodes = [node(f"n{at}", RACK=f"r{at // 2}", cpu=6) for at in range(4)]
    left = {f"n{at}": 6 for at in range(4)}
    pods = []
    for number in range(draw.randint(5, 8)):
        at, cpu = draw.choice([*left]), draw.choice([1, 2, 3])
        if left[at] >= cpu:
            left[at] -= cpu
            owner = {"kind": "ReplicaSet", "name": "w", "controller": True}
            annotations = {"placement.nri/movable": "true"} if draw.random() < 0.8 else {}
            metadata = {
                "name": f"p{number}",
                "annotations": annotations,
                "ownerReferences": [owner],
            }
            spec = {"nodeName": at, **pod_spec({"cpu": cpu})}
            pods.append({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    snapshot = read_snapshot({"nodes": nodes, "pods": pods})
    request: dict[str, Any] = draw.choice([{"required": RACK}, {"unconstrained": True}])
    asked = read_group(group(pod_set(draw.randint(1, 3), request, cpu=draw.choice([3, 4]))))
    return snapshot, asked


def test_no_plan_of_up_to_three_moves_is_missed_or_longer_than_needed() -> None:
    lengths: Counter[int | None] = Counter()
    for seed in range(120):
        snapshot, asked = small_cluster(random.Random(seed))
        least = fewest_moves(snapshot, asked)
        found = plan_moves(engine_of(snapshot, USING), asked, snapshot)
        check(snapshot, asked, found, 10)
        if least is not None:
            assert found.status.assignments, (seed, least)
            assert len(found.moves) == least, (seed, least, found.moves)
        lengths[least] += 1
    assert min(lengths[number] for number in (1, 2, None)) > 2, lengths
