"""Equal pods are counted at once as they are by promising zones to one after another."""

from __future__ import annotations

import random

from nri_policy.cluster.numa.equal_pods import count_equal
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Container, PodSpec
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.numa_request import make_numa_request
from nri_policy.cluster.zones.zone import NodeZones, Zone
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.units import BILLIONTHS
from nri_policy.native._numa_fit import FITS
from tests.property.seeds import seeds

SETS: tuple[list[set[int]], ...] = (
    [],
    [{0, 1}, {2, 3}],
    [{0, 1}, {2, 3}, {0, 1, 2, 3}],
    [{0, 1, 2, 3}],
    [{0, 1}, {1, 2}],
)


def report(draw: random.Random) -> NodeZones:
    """A node with up to four NUMA nodes, and wider zones that have less than their sum."""

    def amounts(most: int) -> dict[str, int]:
        names = ["cpu", "memory", "example.com/gpu"]
        listed = [name for name in names if draw.random() < 0.9]
        return {name: BILLIONTHS * draw.randint(-1, most) // 2 for name in listed}

    zones = [
        Zone(f"node-{at}", "Node", "", {}, free, free)
        for at in range(draw.randint(1, 4))
        for free in [amounts(12)]
    ]
    for ids in draw.choice(SETS):
        free = amounts(20)
        zones.append(Zone(f"{ids}", "socket", "", {}, free, free, frozenset(ids)))
    scope = draw.choice(["container", "pod"])
    attributes = (
        ("topologyManagerPolicy", "single-numa-node"),
        ("topologyManagerScope", scope),
    )
    return NodeZones("n", (*zones,), (), attributes)


def spec(draw: random.Random) -> PodSpec:
    def container() -> Container:
        amounts = {"cpu": draw.choice([500, 1000, 3000]), "memory": draw.randint(1, 3)}
        if draw.random() < 0.3:
            amounts["example.com/gpu"] = 1
        return Container(name="c", requests=amounts, limits=amounts)

    containers = tuple(container() for _ in range(draw.choice([1, 1, 2])))
    init = (container(),) if draw.random() < 0.2 else ()
    return PodSpec(containers=containers, init_containers=init)


@seeds(400)
def test_they_are_as_many_as_if_tried(seed: int) -> None:
    draw = random.Random(seed)
    found, request = report(draw), make_numa_request(spec(draw), strict=draw.random() < 0.5)
    allocatable = {"cpu": 1, "memory": 1, "pods": 110, "example.com/gpu": 1}
    cluster = Cluster([ClusterNode(name="n", labels={}, allocatable=allocatable)], [found])
    zones = LiveZones(Extender(), cluster.view, Clock(now=lambda: 0.0))
    if zones.verdict("n", request) != FITS:
        return
    number = count_equal(found, request)
    tried = 0
    while tried < 60 and zones.keep(("", str(tried)), "n", request):
        tried += 1
    assert number in (None, tried)


def test_most_are_counted() -> None:
    draw = random.Random(0)
    requests = [(report(draw), make_numa_request(spec(draw), strict=False)) for _ in range(200)]
    counted = sum(count_equal(*each) is not None for each in requests)
    assert counted > 80
