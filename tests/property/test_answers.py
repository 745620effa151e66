"""Extender, service and commands give the same answer about a pod or group, in any cluster."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.unit_capacity import UnitCapacity
from nri_policy.cluster.numa.extender import Verbs
from nri_policy.cluster.numa.promises import LiveZones, size_of
from nri_policy.cluster.numa.report import list_node_fits
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.numa.zone_limits import ZoneLimits
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import ClusterSettings, read_settings
from nri_policy.cluster.offline import cluster_of, engine_of, load
from nri_policy.cluster.planning.group_answers import explain_group, try_groups
from nri_policy.cluster.planning.moves import plan_moves
from nri_policy.cluster.planning.preview import TriedGroup
from nri_policy.cluster.requests.group import read_group, write_status
from nri_policy.cluster.requests.request import units_of
from nri_policy.cluster.service.queries import answer_explain, answer_place
from nri_policy.cluster.snapshot import ClusterSnapshot, read_snapshot
from nri_policy.foundation.clock import Clock
from tests.property.seeds import seeds
from tests.unit.cluster.written import HOSTNAME, amounts, group, node, settings

RACK = "example.com/rack"
Object = dict[str, Any]
TAINT = {"key": "mine", "effect": "NoSchedule"}


def using(draw: random.Random) -> ClusterSettings:
    extender = {
        "strict": draw.random() < 0.3,
        "choose": True,
        "strategy": draw.choice(["LeastAllocated", "MostAllocated"]),
    }
    return read_settings(
        settings("rack", HOSTNAME, topology={"belowHost": ["Node"]}, extender=extender)
    )


def host(draw: random.Random, at: int) -> Object:
    """A node of 8 CPUs and 2 GPUs, as they come."""
    made = node(
        f"n{at}",
        RACK=f"r{at % 3}",
        ready=draw.random() < 0.9,
        taints=[TAINT] * (draw.random() < 0.15),
        cpu=8,
        gpu=2,
    )
    made["spec"]["unschedulable"] = draw.random() < 0.1
    if draw.random() < 0.3:
        made["metadata"]["labels"][HOSTNAME] = f"host-{at}"
    return made


def report(draw: random.Random, name: str) -> Object:
    """Two NUMA nodes, of which some is in use."""
    attributes = {
        "topologyManagerPolicy": draw.choice(
            ["single-numa-node", "single-numa-node", "restricted", "none"]
        ),
        "topologyManagerScope": draw.choice(["container", "pod"]),
    }
    if draw.random() < 0.3:
        attributes["nri-policy/pods"] = ""
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [
                {"name": resource, "capacity": most, "allocatable": most, "available": left}
                for resource, most in (("cpu", 4), ("memory", 4 << 30), ("x/gpu", 1))
                for left in [draw.choice([most, most, most // 2, 0])]
            ],
        }
        for number in range(2)
    ]
    given = [{"name": key, "value": value} for key, value in attributes.items()]
    return {"metadata": {"name": name}, "attributes": given, "zones": zones}


def container(draw: random.Random) -> Object:
    kind = draw.choice(["exclusive", "exclusive", "exclusive", "shared", "gpu", "nothing"])
    if kind == "nothing":
        return {"name": "c"}
    asked = {"gpu": 1} if kind == "gpu" else {"cpu": draw.choice([1, 2, 3, 5]), "memory": "1Gi"}
    if kind == "exclusive" and draw.random() < 0.2:
        asked["gpu"] = 1
    given = amounts(asked)
    return {"name": "c", "resources": {"requests" if kind == "shared" else "limits": given}}


def spec(draw: random.Random) -> Object:
    made: Object = {"containers": [container(draw) for _ in range(draw.choice([1, 1, 2]))]}
    if draw.random() < 0.3:
        init = container(draw) | ({"restartPolicy": "Always"} if draw.random() < 0.5 else {})
        made["initContainers"] = [init]
    if draw.random() < 0.3:
        made["tolerations"] = [{"key": "mine", "operator": "Exists"}]
    return made


def cluster(draw: random.Random) -> Object:
    """Nodes with and without reports; pods that run, and pods that are on their way."""
    nodes = [host(draw, at) for at in range(draw.randint(1, 6))]
    names = [each["metadata"]["name"] for each in nodes]
    pods = [
        {
            "metadata": {
                "name": f"p{number}",
                "annotations": {"placement.nri/movable": "true"} if draw.random() < 0.5 else {},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "w", "controller": True}],
            },
            "spec": spec(draw) | {"nodeName": draw.choice(names)},
            "status": {"phase": draw.choice(["Running", "Running", "Pending", "Succeeded"])},
        }
        for number in range(draw.randint(0, 8))
    ]
    reports = [report(draw, name) for name in names if draw.random() < 0.8]
    stale = [name for name in names if draw.random() < 0.1]
    return {"nodes": nodes, "pods": pods, "zones": reports, "stale": stale}


def wanted(draw: random.Random, name: str) -> Object:
    """A group of no pods, of one, or of several pod sets."""
    sets = []
    for number in range(draw.choice([1, 1, 2])):
        request: Object = draw.choice(
            [
                {"required": RACK},
                {"preferred": RACK},
                {"unconstrained": True},
                {"spreadOver": [RACK]},
                {"required": "zone/Node"},
                {},
            ]
        )
        if draw.random() < 0.2:
            request = request | {"maxPerHost": draw.randint(1, 2)}
        one: Object = {"name": f"s{number}", "count": draw.choice([0, 1, 2, 3, 5])}
        one["template"] = {"spec": spec(draw)}
        sets.append(one | ({"request": request} if request else {}))
    return {"kind": "PlacementGroup"} | group(*sets, name=name)


class Asked:
    """A cluster that is asked in every way."""

    def __init__(self, document: Object, using: ClusterSettings) -> None:
        self.using = using
        self.snapshot: ClusterSnapshot = read_snapshot(document)

    def place(self, *groups: Object) -> list[TriedGroup]:
        engine = engine_of(self.snapshot, self.using)
        return try_groups(engine, map(read_group, groups))

    def service(self) -> tuple[Engine, LiveZones]:
        """The engine and the zones of a service that has followed this cluster."""
        here = cluster_of(self.snapshot)
        zones = LiveZones(self.using.extender, here.view, Clock(now=lambda: 0.0))
        for pod in self.snapshot.pods:
            zones.set_pod(pod)
        engine = Engine(self.using, here.view, partial(ZoneLimits, lambda: zones))
        load(engine, self.snapshot)
        return engine, zones

    def refused_by_extender(self, placed: TriedGroup, asked: Object) -> int:
        """Return how many pods find no zone when kube-scheduler asks for each at its own place.

        It asks for the largest pods first, and binds each one that finds a zone.
        """
        engine, zones = self.service()
        verbs = Verbs(zones, ServiceSpread(engine.state.view, Clock(now=lambda: 0.0)))
        specs = {each["name"]: each["template"]["spec"] for each in asked["spec"]["podSets"]}
        pods = [
            (name, host)
            for assignment in placed.status.assignments
            for place in assignment.domains
            for name, host in [(assignment.pod_set, place.values[0])] * place.count
        ]
        made = [
            {"metadata": {"name": f"pod-{at}"}, "spec": specs[name] | {"nodeName": host}}
            for at, (name, host) in enumerate(pods)
        ]
        made.sort(key=lambda pod: -size_of(zones.fits.request(read_pod(pod, ""))))
        refused = 0
        for pod in made:
            nodes = engine.state.view.on_host(pod["spec"]["nodeName"])
            body = {"Pod": pod, "NodeNames": [each.name for each in nodes]}
            fitting = json.loads(verbs.filter(json.dumps(body).encode()))["NodeNames"]
            if fitting:
                bound = pod | {"spec": pod["spec"] | {"nodeName": fitting[0]}}
                zones.set_pod(read_pod(bound, ""))
            else:
                refused += 1
        return refused


@seeds(60)
def test_all_say_the_same_of_a_group(seed: int) -> None:
    draw = random.Random(seed)
    here, asked = Asked(cluster(draw), using(draw)), wanted(draw, "g")
    (placed,) = here.place(asked)
    said = (placed.status, placed.notes)
    engine, group = engine_of(here.snapshot, here.using), read_group(asked)
    explained = explain_group(engine, group)
    notes = explained.notes
    if placed.status.state == "Placed":  # then only it says which nodes are left out
        notes = [each for each in notes if " left out: " not in each]
    assert (explained.status, notes) == said
    assert not explained.refused
    plan = plan_moves(engine, group, here.snapshot)
    if placed.status.state == "Placed":
        assert not plan.moves
        assert (plan.status, plan.notes) == said
    else:
        assert plan.moves or plan.status == placed.status
    check_service(here, asked)
    status = write_status(msgspec.structs.replace(group, status=placed.status))
    check_service(here, asked | {"status": status})


def check_service(here: Asked, asked: Object) -> None:
    """It answers as the commands do that read the cluster from files."""
    (placed,) = here.place(asked)
    engine = engine_of(here.snapshot, here.using)
    explained = explain_group(engine, read_group(asked))
    engine, _ = here.service()
    for answer, found in (
        (answer_place(engine, json.dumps([asked]).encode()), [placed]),
        (answer_explain(engine, json.dumps([asked]).encode()), explained),
    ):
        assert json.loads(answer) == msgspec.to_builtins(found)


@seeds(60)
def test_the_extender_refuses_nothing_that_is_placed(seed: int) -> None:
    draw = random.Random(seed)
    here, asked = Asked(cluster(draw), using(draw)), wanted(draw, "g")
    for each in asked["spec"]["podSets"]:
        if each.get("request", {}).get("required") == "zone/Node":
            del each["request"]  # the extender knows no zones that others have assigned
    (placed,) = here.place(asked)
    assert not here.refused_by_extender(placed, asked)


@seeds(60)
def test_a_group_of_one_pod_fits_where_the_pod_does(seed: int) -> None:
    draw = random.Random(seed)
    here, one = Asked(cluster(draw), using(draw)), spec(draw)
    asked = group({"name": "main", "count": 1, "template": {"spec": one}})
    (placed,) = here.place(asked)
    pod = read_pod({"metadata": {"name": "p"}, "spec": one}, "")
    rows = {row.node: row for row in list_node_fits(here.snapshot, pod, here.using)}
    if placed.status.state == "Placed":
        ((node,),) = (
            cluster_of(here.snapshot).view.on_host(place.values[0])
            for each in placed.status.assignments
            for place in each.domains
        )
        assert rows[node.name].fits
    else:
        assert not any(row.fits for row in rows.values())


@seeds(30)
def test_groups_placed_one_by_one_take_what_they_take_in_one_go(seed: int) -> None:
    """A group that has places, but no pods yet, takes as much as one that was just placed."""
    draw = random.Random(seed)
    document, settings = cluster(draw), using(draw)
    first, second = wanted(draw, "first"), wanted(draw, "second")
    placed, after = Asked(document, settings).place(first, second)
    status = write_status(msgspec.structs.replace(read_group(first), status=placed.status))
    known = Asked({**document, "groups": [first | {"status": status}]}, settings)
    assert known.place(second) == [after]


@seeds(60)
def test_a_group_that_may_be_anywhere_waits_only_if_hosts_take_too_few_of_its_pods(
    seed: int,
) -> None:
    draw = random.Random(seed)
    here, one = Asked(cluster(draw), using(draw)), spec(draw)
    count = draw.randint(1, 6)
    asked = group({"name": "main", "count": count, "template": {"spec": one}})
    (placed,) = here.place(asked)
    engine, zones = here.service()
    by_totals = Engine(here.using, engine.state.view)
    for pod in here.snapshot.pods:
        by_totals.state.set_pod(pod)
    room = UnitCapacity(by_totals.state, units_of(read_group(asked))[0])
    request = zones.fits.request(read_pod({"metadata": {"name": "p"}, "spec": one}, ""))
    total = 0
    for name in engine.state.nodes:
        fitting = min(room.pods(name), count)
        kept = 0
        while kept < fitting and zones.keep(("", f"{name}-{kept}"), name, request):
            kept += 1
        total += kept
    assert (placed.status.state == "Placed") == (total >= count)
