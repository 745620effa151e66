"""What zones lack for a pod, in numbers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster.numa.shortage import find_zone_shortage
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.zones.numa_request import make_numa_request
from nri_policy.cluster.zones.zone import NodeZones, read_zones
from tests.support.zone_reports import zone_report

NODE = ClusterNode("n", {}, {"cpu": 16000, "hugepages-2Mi": 1 << 30, "x/nic": 4, "x/gpu": 4})


def scope(by_pod: bool) -> tuple[tuple[str, str], ...]:
    return (("topologyManagerScope", "pod" if by_pod else "container"),)


def lacks(
    *containers: dict[str, Any], by_pod: bool = False, report: NodeZones | None = None
) -> str:
    """What zones of 8 CPUs and 8 GiB lack of which 3 and 6 CPUs are left."""
    report = report or read_zones(zone_report("n", 3, 6, memory="8Gi", cpus=8), "")
    report = replace(report, attributes=scope(by_pod))
    spec = {
        "containers": [
            {"name": f"c{at}", "resources": {"requests": each, "limits": each}}
            for at, each in enumerate(containers)
        ]
    }
    pod = read_pod({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}, "")
    return find_zone_shortage(NODE, report, make_numa_request(pod.spec, strict=False))


SMALL, LARGE = {"cpu": 2, "memory": "1Gi"}, {"cpu": 5, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "by_pod", "expected"),
    [
        ([{"cpu": 7, "memory": 1}], False, "cpu: 7 asked, 6 left in node-1, 8 in an empty zone"),
        ([{"cpu": 9, "memory": 1}], False, "cpu: 9 asked, 6 left in node-1, 8 in an empty zone"),
        ([{"cpu": 1, "memory": "9Gi"}], False, "memory: 9 GiB asked, 8 GiB in an empty zone"),
        ([SMALL, LARGE, SMALL], False, "cpu: 2 asked, 1 left in node-0, 8 in an empty zone"),
        ([SMALL, LARGE], True, "cpu: 7 asked, 6 left in node-1, 8 in an empty zone"),
        ([SMALL, LARGE], False, "what zones have left is promised to other pods"),
        ([SMALL | {"hugepages-2Mi": "2Mi"}], False, "hugepages-2Mi: no zone has any"),
        ([SMALL | {"x/nic": 1}], False, "what zones have left is promised to other pods"),
        ([SMALL | {"x/gpv": 1}], False, "x/gpv: the node has none"),
        ([SMALL | {"hugepages-1Gi": "1Gi"}], True, "hugepages-1Gi: the node has none"),
        (
            [{"cpu": 1, "memory": "1Gi"}, {"cpu": 3, "memory": "4Gi"}, {"cpu": 3, "memory": "5Gi"}],
            False,
            "node-0 comes closest: cpu: 3 asked, 2 left",
        ),
    ],
)
def test_what_zones_lack(containers: list[Any], by_pod: bool, expected: str) -> None:
    assert lacks(*containers, by_pod=by_pod) == expected


def test_a_report_without_zones_has_nothing() -> None:
    report = read_zones({"metadata": {"name": "n"}, "zones": []}, "")
    burstable = {"name": "c", "resources": {"requests": {"cpu": 1, "x/gpu": 1}}}
    pod = read_pod({"metadata": {"name": "p"}, "spec": {"containers": [burstable]}}, "")
    request = make_numa_request(pod.spec, strict=False)
    for by_pod in (False, True):
        report = replace(report, attributes=scope(by_pod))
        assert find_zone_shortage(NODE, report, request) == "cpu: no zone has any"


def test_what_is_left_is_said_of_a_zone_that_could_hold_the_pod() -> None:
    """The zone without GPUs has more CPUs left, but that is no help."""
    document = zone_report("n", 6, 1, memory="8Gi", cpus=8)
    gpus = {"name": "x/gpu", "capacity": 4, "allocatable": 4, "available": 2}
    document["zones"][1]["resources"].append(gpus)
    report = read_zones(document, "")
    asked = {"cpu": 7, "memory": "1Gi", "x/gpu": 1}
    expected = "cpu: 7 asked, 1 left in node-1, 8 in an empty zone"
    assert lacks(asked, report=report) == expected
    gpus["available"] = 0
    asked["cpu"] = 5
    expected = "cpu: 5 asked, 1 left in node-1, 8 in an empty zone"
    assert lacks(asked, report=read_zones(document, "")) == expected
