"""What `cluster explain` says would make a group fit does so: tried in a cluster made anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations, islice, product
from typing import Any

from nri_policy.cluster import offline
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.planning.changes import SuggestedChange
from nri_policy.cluster.planning.explanation import GroupExplanation
from nri_policy.cluster.planning.group_answers import explain_group
from nri_policy.cluster.planning.more_hosts import find_more_hosts
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.snapshot import read_snapshot
from tests.property.seeds import seeds
from tests.unit.cluster.written import HOSTNAME, Object, amounts, group, node, settings

BLOCK, RACK = "example.com/block", "example.com/rack"
TAINT = {"key": "x/gpu", "effect": "NoSchedule"}
TOLERATES = [{"key": "x/gpu", "operator": "Exists"}]
USING = settings("block", "rack", HOSTNAME)
MAX_CHOICES = 300


def spec_of(requests: dict[str, Any], **more: Any) -> Object:
    """A Guaranteed pod, which nodes that align pods put into one zone."""
    given = amounts({"memory": "1Gi"} | requests)
    return {
        "containers": [{"name": "c", "resources": {"requests": given, "limits": given}}],
        **more,
    }


def report_of(name: str, cpus: int) -> Object:
    """What an empty node of two zones reports that aligns pods."""
    return {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [
                    {"name": each, "capacity": most, "allocatable": most, "available": most}
                    for each, most in (("cpu", cpus // 2), ("memory", "64Gi"))
                ],
            }
            for at in range(2)
        ],
    }


def zone_cpu(report: Object, zone: int) -> Object:
    found: Object = report["zones"][zone]["resources"][0]
    return found


def cluster_of(draw: random.Random) -> Object:
    """Hosts of several kinds in racks and blocks, with pods of theirs and DaemonSets on them."""
    nodes, reports, pods = [], [], []
    aligned = draw.random() < 0.4
    for at in range(draw.randint(3, 8)):
        cpus, gpus = draw.choice([2, 4, 4, 8]), draw.choice([0, 0, 1, 2])
        tainted = gpus and draw.random() < 0.5
        name = f"n{at}"
        own: Object = {"gpu": gpus} if gpus else {}
        nodes.append(
            node(
                name,
                BLOCK=f"b{at // 4}",
                RACK=f"r{at // 2}",
                taints=[TAINT] if tainted else [],
                ready=draw.random() < 0.95,
                cpu=cpus,
                memory="128Gi",
                **own,
            )
        )
        report = report_of(name, cpus) if aligned and draw.random() < 0.7 else None
        if report is not None:
            reports.append(report)
        for number in range(draw.choice([0, 1, 1, 2, 3])):
            cpu, zone = draw.choice([1, 1, 2, 3]), draw.randrange(2)
            annotations = {}
            if report is not None:
                free = zone_cpu(report, zone)
                if free["available"] < cpu:
                    continue
                free["available"] -= cpu
                annotations = {"placement.nri/zone": f"node-{zone}"}
            owner = draw.choice(["DaemonSet", "ReplicaSet", "ReplicaSet"])
            pods.append(
                {
                    "metadata": {
                        "name": f"p{at}-{number}",
                        "annotations": annotations,
                        "ownerReferences": [{"kind": owner, "name": "w", "controller": True}],
                    },
                    "spec": spec_of({"cpu": cpu}, nodeName=name, priority=draw.choice([0, 0, 3])),
                    "status": {"phase": "Running"},
                }
            )
    return {"nodes": nodes, "pods": pods, "zones": reports, "groups": []}


def pod_set_of(draw: random.Random, name: str, most: int, request: Object | None) -> Object:
    tolerates = {"tolerations": TOLERATES} if draw.random() < 0.5 else {}
    requests = {"cpu": draw.choice([1, 1, 2, 3])} | ({"gpu": 1} if draw.random() < 0.25 else {})
    size = (request or {}).get("slices", [{"size": 1}])[0]["size"]
    made: Object = {
        "name": name,
        "count": size * draw.randint(1, max(1, most // size)),
        "template": {"spec": spec_of(requests, **tolerates)},
    }
    return made if request is None else made | {"request": request}


def request_of(draw: random.Random) -> Object | None:
    found: Object | None = draw.choice(
        [
            {"required": RACK},
            {"required": RACK},
            {"required": HOSTNAME},
            {"required": BLOCK},
            {"preferred": RACK},
            {"unconstrained": True},
            {"spreadOver": [RACK]},
            {"spreadOver": [RACK], "maxPerHost": 1},
            {"required": BLOCK, "slices": [{"level": RACK, "size": 2}]},
            {"required": RACK, "slices": [{"level": HOSTNAME, "size": 2}]},
            None,
        ]
    )
    return found


def group_of(draw: random.Random, name: str, most: int) -> Object:
    kind = draw.choice(["one", "one", "two", "three", "leader"])
    priority = draw.choice([0, 1, 5])
    if kind == "leader":
        asked = draw.choice([{"required": RACK}, {"required": BLOCK}, {"preferred": RACK}])
        asked |= {"leaderGroup": "lead"}
        leader = pod_set_of(draw, "leader", 1, asked)
        return group(leader, pod_set_of(draw, "w", most, asked), name=name, priority=priority)
    number = {"one": 1, "two": 2, "three": 3}[kind]
    pod_sets = [
        pod_set_of(draw, f"s{at}", max(2, most // number), request_of(draw)) for at in range(number)
    ]
    return group(*pod_sets, name=name, priority=priority)


def refusal(draw: random.Random) -> tuple[Object, Object]:
    """A cluster, with groups in it, and a group that does not fit there."""
    while True:
        cluster = cluster_of(draw)
        for number in range(draw.randint(0, 4)):
            made = group_of(draw, f"g{number}", 4)
            status = offline.place(cluster, made, USING)
            if status["state"] == "Placed":
                cluster["groups"].append(made | {"status": status})
        for _ in range(5):
            asked = group_of(draw, "new", draw.choice([6, 12]))
            if offline.place(cluster, asked, USING)["state"] != "Placed":
                return cluster, asked


def explained(cluster: Object, asked: Object) -> GroupExplanation:
    snapshot, own = read_snapshot(cluster), read_group(asked)
    engine = offline.engine_of(snapshot, read_settings(USING))
    found = explain_group(engine, own, snapshot.pods)
    found.changes.extend(find_more_hosts(engine, own, snapshot))
    return found


def fits(cluster: Object, asked: Object) -> bool:
    return bool(offline.place(cluster, asked, USING)["state"] == "Placed")


def with_counts(asked: Object, counts: dict[str, int]) -> Object:
    changed = deepcopy(asked)
    for each in changed["spec"]["podSets"]:
        each["count"] = counts.get(each["name"], each["count"])
    return changed


def without(cluster: Object, groups: set[str], pods: set[str]) -> Object:
    """The cluster after groups and pods were removed."""
    changed = deepcopy(cluster)
    reports = {each["metadata"]["name"]: each for each in changed["zones"]}
    changed["groups"] = [
        each for each in changed["groups"] if f"default/{each['metadata']['name']}" not in groups
    ]
    kept = []
    for each in changed["pods"]:
        if f"default/{each['metadata']['name']}" not in pods:
            kept.append(each)
            continue
        zone = each["metadata"]["annotations"].get("placement.nri/zone")
        if zone is not None:
            free = zone_cpu(reports[each["spec"]["nodeName"]], int(zone[-1]))
            free["available"] += int(each["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    changed["pods"] = kept
    return changed


def with_hosts(cluster: Object, number: int, like: str) -> Object:
    """The cluster with so many more hosts, on which nothing runs but what DaemonSets put there."""
    changed = deepcopy(cluster)
    for at in range(number):
        name = f"{like}-{at}"
        [model] = [each for each in cluster["nodes"] if each["metadata"]["name"] == like]
        made = deepcopy(model)
        made["metadata"]["name"] = made["metadata"]["labels"][HOSTNAME] = name
        changed["nodes"].append(made)
        for each in cluster["zones"]:
            if each["metadata"]["name"] == like:
                own = zone_cpu(each, 0)["allocatable"]
                changed["zones"].append(report_of(name, 2 * own))
        for each in cluster["pods"]:
            daemon = each["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
            if each["spec"]["nodeName"] == like and daemon:
                own = deepcopy(each)
                own["metadata"]["name"] += f"-{at}"
                own["metadata"]["annotations"] = {}
                own["spec"]["nodeName"] = name
                changed["pods"].append(own)
    return changed


def applied(cluster: Object, asked: Object, change: SuggestedChange) -> tuple[Object, Object]:
    """The cluster and the group after a change."""
    if change.hosts:
        return with_hosts(cluster, change.hosts, change.like), asked
    if change.leaving or change.leaving_pods:
        return without(cluster, {*change.leaving}, {*change.leaving_pods}), asked
    changed = with_counts(asked, change.counts)
    for each in changed["spec"]["podSets"]:
        if each["name"] in change.pod_sets:
            request = each["request"]
            if change.level is not None:
                request["required"] = change.level
            elif change.slice_level is not None:
                request["slices"][0]["level"] = change.slice_level
            else:
                request["maxPerHost"] = change.max_per_host
    return cluster, changed


def larger_counts(asked: Object, least: int) -> Iterator[dict[str, int]]:
    """Fewer pods of some pod sets than are asked for, more than *least* in sum; some of many."""
    leads = len(asked["spec"]["podSets"]) > 1 and asked["spec"]["podSets"][0]["name"] == "leader"
    choices = {}
    for each in asked["spec"]["podSets"][1 if leads else 0 :]:
        size = each.get("request", {}).get("slices", [{"size": 1}])[0]["size"]
        choices[each["name"]] = range(size, each["count"] + 1, size)
    every = (dict(zip(choices, some, strict=True)) for some in product(*choices.values()))
    found = (each for each in every if sum(each.values()) > least)
    return islice(found, MAX_CHOICES)


def check(cluster: Object, asked: Object, found: GroupExplanation) -> None:
    check_rows(asked, found)
    for change in found.changes:
        assert fits(*applied(cluster, asked, change)), change
        if change.hosts > 1:
            assert not fits(with_hosts(cluster, change.hosts - 1, change.like), asked), change
    check_counts(cluster, asked, found)
    check_leaving(cluster, asked, found)


def check_counts(cluster: Object, asked: Object, found: GroupExplanation) -> None:
    """Assert that no larger count fits than the answer names; without one, that no count fits."""
    whole = {each["name"]: each["count"] for each in asked["spec"]["podSets"]}
    fewer = [each for each in found.changes if each.counts]
    for change in fewer:
        [(name, count), *more] = change.counts.items()
        assert change.most
        if not more:
            size = count // change.slices.get(name, count)
            for larger in range(count + size, whole[name], size):
                assert not fits(cluster, with_counts(asked, {name: larger})), (change, larger)
    if not fewer:
        for counts in larger_counts(asked, 0):
            assert not fits(cluster, with_counts(asked, counts)), counts


def check_leaving(cluster: Object, asked: Object, found: GroupExplanation) -> None:
    """Assert that each named group must leave, and that no smaller choice of groups is enough.

    Without a named one, the group must not fit even when all that it may preempt have left.
    """
    priority = asked["spec"]["priority"]
    groups = {
        f"default/{each['metadata']['name']}"
        for each in cluster["groups"]
        if each["spec"]["priority"] < priority
    }
    pods = {
        f"default/{each['metadata']['name']}"
        for each in cluster["pods"]
        if each["spec"]["priority"] < priority
        and each["metadata"]["ownerReferences"][0]["kind"] != "DaemonSet"
    }
    leaving = [each for each in found.changes if each.leaving or each.leaving_pods]
    if not leaving:
        assert not fits(without(cluster, groups, pods), asked)
    for change in leaving:
        assert {*change.leaving} <= groups
        assert {*change.leaving_pods} <= pods
        both = [*change.leaving, *change.leaving_pods]
        for some in combinations(both, len(both) - 1):
            assert not fits(without(cluster, {*some}, {*some}), asked), (change, some)
        if not change.leaving_pods:
            for size in range(1, len(change.leaving)):
                for some in combinations(groups, size):
                    assert not fits(without(cluster, {*some}, set()), asked), (change, some)


def check_rows(asked: Object, found: GroupExplanation) -> None:
    """No row says of a level that a domain holds all of what is refused there."""
    workers, *others = [each for each in found.pod_sets if not each.leads]
    request = asked["spec"]["podSets"][-1].get("request", {})  # that of the leader, too
    if not others and "required" in request:
        [row] = [each for each in workers.levels if each.level == request["required"]]
        assert row.holding_all == 0, row


@seeds(12)
def test_each_change_that_is_said_to_help_does_and_none_is_missed(seed: int) -> None:
    cluster, asked = refusal(random.Random(seed))
    check(cluster, asked, explained(cluster, asked))
