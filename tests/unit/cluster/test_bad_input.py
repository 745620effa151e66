"""What people get wrong: a clear error, or a node left out with its reason; no one else suffers."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.report.tree_report import make_tree_report
from nri_policy.cluster.snapshot import read_snapshot
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

RACK = "example.com/rack"
GOOD = [node("n1", RACK="a"), node("n2", RACK="a")]
USING = settings("rack", HOSTNAME)


def supplied(name: str, **allocatable: Any) -> Object:
    made = node(name, RACK="a")
    made["status"]["allocatable"] = allocatable
    return made


@pytest.mark.parametrize(
    ("others", "left_out"),
    [
        ([node("x")], {"no label example.com/rack": ["x"]}),
        ([node("x", RACK="a", labels={HOSTNAME: "n1"})], {"hostname n1 twice": ["x"]}),
        ([node("x", RACK="a", ready=False)], {"not ready": ["x"]}),
        ([node("x", RACK="b,c", cpu=0)], {}),
        ([supplied("x")], {}),
        ([{"metadata": {"name": "x"}}], {"not ready": ["x"]}),
    ],
)
def test_a_node_that_is_wrong_is_out_and_the_others_are_not_disturbed(
    others: list[Object], left_out: dict[str, list[str]]
) -> None:
    cluster = {"nodes": [*GOOD, *others]}
    asked = group(pod_set(8, {"required": RACK}))
    assert placed(offline.place(cluster, asked, USING)) == {"main": {"n1": 4, "n2": 4}}
    engine = offline.engine_of(read_snapshot(cluster), read_settings(USING))
    report = make_tree_report(engine.state, "default")
    assert {each.reason: each.nodes for each in report.left_out} == left_out


@pytest.mark.parametrize("cpu", ["4", 4, "4000m", 4.0, "4e0", "0.004k"])
def test_quantities_of_every_form_are_the_same(cpu: Any) -> None:
    cluster = {"nodes": [supplied("n1", cpu=cpu, memory="8Gi", pods="110")]}
    answer = offline.place(cluster, group(pod_set(4, {"required": RACK})), USING)
    assert placed(answer) == {"main": {"n1": 4}}


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (pod_set(2**31), "spec.podSets[0].count: 2147483648 is not from 0 to 2147483647"),
        (pod_set(-1), "spec.podSets[0].count: -1 is not from 0 to 2147483647"),
        (
            pod_set(2, {"required": RACK, "slices": [{"level": HOSTNAME, "size": 0}]}),
            "spec.podSets[0].request.slices[0].size: 0 is not from 1 to 2147483647",
        ),
        (
            pod_set(1, cpu="-1"),
            "spec.podSets[0].template.spec.containers[0].resources.requests.cpu",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_an_error_with_its_path(asked: Object, error: str) -> None:
    with pytest.raises(DocumentError) as caught:
        offline.place({"nodes": GOOD}, group(asked), USING)
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize("request_", [{"required": "rak"}, {"preferred": "zone/Node"}])
def test_a_level_that_is_none_is_refused_with_those_that_there_are(request_: Object) -> None:
    answer = offline.place({"nodes": GOOD}, group(pod_set(1, request_)), USING)
    assert answer["state"] == "Unplaceable"
    assert "has example.com/rack (2 nodes), kubernetes.io/hostname (2 nodes)" in answer["message"]


def test_the_largest_group_is_answered() -> None:
    answer = offline.place({"nodes": GOOD}, group(pod_set(2**31 - 1, {"required": RACK})), USING)
    assert answer["message"] == ('topology "default" allows to fit only 8 out of 2147483647 pod(s)')
