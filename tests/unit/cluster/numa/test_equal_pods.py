"""How many equal pods the zones of a node take, counted at once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster.numa.equal_pods import count_equal
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.zones.numa_request import NumaRequest, make_numa_request
from nri_policy.cluster.zones.zone import NodeZones, Zone, read_zones
from tests.support.zone_reports import zone_report

REPORT = read_zones(zone_report("n", 7, 5, memory="8Gi"), "")


def request(*cpus: int) -> NumaRequest:
    containers: list[Any] = [
        {"name": f"c{at}", "resources": {"limits": {"cpu": str(cpu), "memory": "1Gi"}}}
        for at, cpu in enumerate(cpus)
    ]
    pod = read_pod({"metadata": {"name": "p"}, "spec": {"containers": containers}}, "")
    return make_numa_request(pod.spec, strict=False)


def around(*ids: int, cpu: int) -> NodeZones:
    """The report with a zone around some NUMA nodes, which have so many CPUs left together."""
    socket = Zone("s", "socket", "", {}, {}, {"cpu": cpu * 10**9}, frozenset(ids))
    return replace(REPORT, zones=(*REPORT.zones, socket))


@pytest.mark.parametrize(
    ("report", "asked", "expected"),
    [
        (REPORT, request(2), 3 + 2),
        (REPORT, request(8), 0),
        (around(0, 1, cpu=6), request(2), 3),  # as much as the wider zone has left
        (around(0, 1, cpu=1), request(2), 1),  # the first is not kept out
        (REPORT, request(2, 1), None),  # containers may be in several zones
        (replace(REPORT, attributes=(("topologyManagerScope", "pod"),)), request(2, 1), 2 + 1),
    ],
)
def test_pods_fill_one_zone_after_the_other(
    report: NodeZones, asked: NumaRequest, expected: int | None
) -> None:
    assert count_equal(report, asked) == expected


def test_zones_that_overlap_are_to_be_tried() -> None:
    both = around(0, 1, cpu=9)
    third = Zone("t", "socket", "", {}, {}, {"cpu": 9 * 10**9}, frozenset({1, 2}))
    assert count_equal(replace(both, zones=(*both.zones, third)), request(2)) is None
