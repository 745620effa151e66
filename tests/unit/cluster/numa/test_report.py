"""The rows of `cluster fit`: whether a node takes a pod, in which zone, and what it lacks."""

from __future__ import annotations

from typing import Any

from nri_policy.cluster.numa.report import NodeFit, list_node_fits
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.snapshot import read_snapshot
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import node


def document(name: str, cpu: int, at: str = "", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    spec = {"containers": [container], **({"nodeName": at} if at else {}), **spec}
    return {"metadata": {"name": name}, "spec": spec}


def rows(asked: dict[str, Any], *pods: dict[str, Any]) -> dict[str, NodeFit]:
    """Two nodes with zones of 4 CPUs each, and one without a report."""
    large: dict[str, Any] = {"cpu": 8, "memory": "16Gi"}
    cluster = {
        "nodes": [node(name, **large) for name in ("a", "b", "plain")],
        "zones": [zone_report("a", 4, 1, memory="4Gi"), zone_report("b", 2, 2, memory="4Gi")],
        "pods": pods,
    }
    snapshot = read_snapshot(cluster)
    found = list_node_fits(snapshot, read_pod(asked, ""), read_settings(None))
    return {each.node: each for each in found}


def test_a_row_names_the_zone_or_what_all_zones_lack() -> None:
    found = rows(document("p", 3))
    assert (found["a"].fits, found["a"].zones) == (True, ["node-0"])
    assert (found["b"].reason, found["b"].lacks) == (
        "cannot align container",
        "cpu: 3 asked, 2 in an empty zone",
    )
    assert (found["plain"].fits, found["plain"].aligned, found["plain"].score) == (
        True,
        False,
        None,
    )


def test_a_row_says_what_the_node_as_a_whole_lacks() -> None:
    found = rows(document("p", 3), document("other", 6, "plain"))
    assert found["plain"].reason == 'resource "cpu"'
    assert found["plain"].lacks == "3 asked, 2 of 8 left"
    chosen = rows(document("p", 3, nodeSelector={"disk": "ssd"}))["a"]
    assert (chosen.reason, chosen.lacks) == ("nodeSelector", "no label disk=ssd")


def test_a_row_counts_the_pods_that_the_report_does_not_have_yet() -> None:
    waiting = document("other", 4, "a") | {"status": {"phase": "Pending"}}
    row = rows(document("p", 3), waiting)["a"]
    assert (row.fits, row.promised) == (False, 1)
    assert row.lacks == "what zones have left is promised to other pods"
