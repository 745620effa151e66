"""Groups in zones of hosts: no zone and no host gets more than it takes, and as many fit as can."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from nri_policy.cluster import offline
from tests.property.seeds import seeds
from tests.unit.cluster.engine.test_below_host import topology
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set, settings

USING = settings("rack", HOSTNAME, topology={"belowHost": ["socket", "Node"]})


@seeds(60)
def test_zones_and_hosts_get_what_they_take_and_together_all_that_they_can(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"h{at}" for at in range(draw.randint(1, 4))]
    cpus = {name: [str(draw.randint(0, 5)) for _ in range(4)] for name in names}
    places = {name: draw.randint(1, 12) for name in names}
    most, cpu = draw.choice([None, 1, 2, 5]), draw.randint(1, 2)
    level = draw.choice(["zone/socket", "zone/Node"])
    request: dict[str, Any] = {
        draw.choice(["required", "preferred"]): "example.com/rack",
        "slices": [{"level": level, "size": 1}],
    }
    if draw.random() < 0.5:
        request = {"unconstrained": True, "slices": request["slices"]}
    request |= {} if most is None else {"maxPerHost": most}
    nodes = [node(name, RACK="a", cpu=32, pods=places[name]) for name in names]
    zones = [topology(name, *cpus[name]) for name in names]
    wide = [[int(each) for each in cpus[name]] for name in names]
    if level == "zone/socket":  # which holds pods that no NUMA node holds alone
        wide = [[one + other, more + rest] for one, other, more, rest in wide]
    room = {
        name: min(sum(each // cpu for each in own), places[name], most or places[name])
        for name, own in zip(names, wide, strict=True)
    }
    cluster = {"nodes": nodes, "zones": zones}

    def place(count: int) -> Any:
        return offline.place(cluster, group(pod_set(count, request, cpu=cpu)), USING)

    total = sum(room.values())
    assert place(total + 1)["state"] == "Unplaceable"
    for count in {total, draw.randint(0, total)} - {0}:
        status = place(count)
        assert status["state"] == "Placed", status["message"]
        pods: Counter[str] = Counter()
        for each in status["assignments"][0]["domains"]:
            pods[each["values"][0]] += each["count"]
        assert pods.total() == count
        assert pods <= Counter(room)
