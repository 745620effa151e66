"""Several pod sets on empty nodes that align pods: whatever fits by zones is placed.

What fits is found out by trying everything, on a few hosts of two zones.
"""

from __future__ import annotations

import random

import pytest

from nri_policy.cluster import offline
from tests.unit.cluster.numa import test_extender as aligned
from tests.unit.cluster.written import HOSTNAME, group, pod_set, settings

RACK = "example.com/rack"
ZONES = (8, 8)  # CPUs of a host


def fit_on_empty_hosts(counts: list[int], cpus: list[int], hosts: int) -> bool:
    """Whether zones hold all pods of the sets, on some hosts; the largest of each host first."""
    if not any(counts):
        return True
    if not hosts:
        return False
    return any(
        fit_on_empty_hosts(
            [count - own for count, own in zip(counts, here, strict=True)], cpus, hosts - 1
        )
        for here in _held(counts, cpus)
    )


def _held(counts: list[int], cpus: list[int]) -> list[list[int]]:
    """Return what a host may hold of the sets, but for nothing at all."""
    most = sum(ZONES)
    held: list[list[int]] = [[]]
    for count, cpu in zip(counts, cpus, strict=True):
        held = [[*each, own] for each in held for own in range(min(count, most // cpu) + 1)]
    return [each for each in held if any(each) and _zones_hold(each, cpus)]


def _zones_hold(here: list[int], cpus: list[int]) -> bool:
    left = [*ZONES]
    for cpu, count in sorted(zip(cpus, here, strict=True), reverse=True):
        for _ in range(count):
            zone = next((zone for zone, free in enumerate(left) if free >= cpu), None)
            if zone is None:
                return False
            left[zone] -= cpu
    return True


@pytest.mark.parametrize("seed", [1, 2])
def test_what_fits_by_zones_in_an_empty_cluster_is_placed(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        names = [f"h{number}" for number in range(rng.randint(1, 4))]
        nodes = [aligned.node(name) for name in names]
        for each in nodes:
            name = each["metadata"]["name"]
            each["metadata"]["labels"] = {HOSTNAME: name, RACK: "r"}
            each["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        cpus = [rng.randint(2, 6) for _ in range(rng.choice([2, 2, 3]))]
        counts = [rng.randint(1, 5) for _ in cpus]
        request = rng.choice([None, {"unconstrained": True}, {"required": RACK}])
        sets = [
            pod_set(count, request, name=f"s{number}")
            | {"template": {"spec": aligned.pod("p", cpu)["spec"]}}
            for number, (count, cpu) in enumerate(zip(counts, cpus, strict=True))
        ]
        cluster = {"nodes": nodes, "zones": [aligned.zones(name, *ZONES) for name in names]}
        status = offline.place(cluster, group(*sets), settings("rack", HOSTNAME))
        fits = fit_on_empty_hosts(counts, cpus, len(names))
        assert (status["state"] == "Placed") == fits, (cpus, counts, names)
