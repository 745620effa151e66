"""Documents from outside: read into types, or refused with the path of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError, parse_amounts, parse_supply
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.simulation.steps import read_steps
from nri_policy.cluster.snapshot import read_snapshot


def node(name: str = "a", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def group(**pod_set: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "g"},
        "spec": {"podSets": [{"name": "main", "count": 1, **pod_set}]},
    }


def settings(**topology: Any) -> dict[str, Any]:
    return {"spec": {"topologies": [topology]}}


BAD: list[tuple[Callable[[Any], object], Any, str]] = [
    (read_snapshot, [], "expected a map, got a list"),
    (read_snapshot, {"node": []}, "node: unknown field; did you mean 'nodes'?"),
    (
        read_snapshot,
        {"failures": {"n1": 2, "n2": "x"}},
        "failures['n2']: expected a whole number, got a string",
    ),
    (
        read_snapshot,
        {"nodes": [{"metadata": {"name": "a", "labels": 3}}]},
        "nodes[0].metadata.labels: expected a map or null, got a whole number (in 'a')",
    ),
    (
        lambda value: read_steps([value]),
        {"expect": {"a": {"state": "Placed"}, "b": {"stat": "Placed"}}},
        "step 1.expect['b'].stat: unknown field; did you mean 'state'?",
    ),
    (read_snapshot, {"nodes": [3]}, "nodes[0]: expected a map, got a whole number"),
    (read_snapshot, {"nodes": [node(), node()]}, "nodes[1].metadata.name: 'a' is given twice"),
    (
        read_snapshot,
        {"nodes": [{"metadata": {"name": "a", "labels": {"rack": 3}}}]},
        "nodes[0].metadata.labels['rack']: expected a string, got a whole number (in 'a')",
    ),
    (
        read_snapshot,
        {"nodes": [node(allocatable={"cpu": "many"})]},
        (
            "nodes[0].status.allocatable.cpu: 'many' is not a CPU quantity,"
            " such as 2, 1.5 or 750m (in 'a')"
        ),
    ),
    (
        read_snapshot,
        {"nodes": [node(allocatable={"cpu": "-4"})]},
        (
            "nodes[0].status.allocatable.cpu: '-4' is negative;"
            " expected: a CPU quantity, such as 2, 1.5 or 750m (in 'a')"
        ),
    ),
    (
        read_snapshot,
        {"nodes": [node(allocatable={"x/gpu": -1})]},
        (
            "nodes[0].status.allocatable.x/gpu: -1 is negative;"
            " expected: a memory quantity, such as 512Mi, 2G or 1073741824 (in 'a')"
        ),
    ),
    (
        read_snapshot,
        {"pods": [pod(containers=[{"resources": {"requests": {"cpu": "-1"}}}])]},
        (
            "pods[0].spec.containers[0].resources.requests.cpu: '-1' is negative;"
            " expected: a CPU quantity, such as 2, 1.5 or 750m (in 'p')"
        ),
    ),
    (
        read_group,
        group(count=2**31),
        "spec.podSets[0].count: 2147483648 is not from 0 to 2147483647",
    ),
    (
        read_group,
        group(request={"requird": "rack"}),
        "spec.podSets[0].request.requird: unknown field; did you mean 'required'?",
    ),
    (
        read_settings,
        settings(levels=["a", "a"]),
        "spec.topologies[0].levels: 'a' is given twice",
    ),
    (
        read_settings,
        settings(levels=["kubernetes.io/hostname", "a"]),
        "spec.topologies[0].levels: kubernetes.io/hostname can only be the last level",
    ),
    (read_settings, settings(levels=[]), "spec.topologies[0].levels: 0 levels are not 1 to 16"),
    (
        read_settings,
        {"spec": {"groups": {"timeout": "soon"}}},
        "spec.groups.timeout: 'soon' is not a duration, such as 60s, 1h30m or 250ms",
    ),
]


@pytest.mark.parametrize(("read", "value", "message"), BAD, ids=[text for *_, text in BAD])
def test_what_is_wrong_is_refused_with_its_path(
    read: Callable[[Any], object], value: Any, message: str
) -> None:
    with pytest.raises(DocumentError) as caught:
        read(value)
    assert str(caught.value) == message


def test_a_node_may_report_quantities_of_every_form() -> None:
    given: dict[str, str | int | float] = {
        "cpu": "1500m",
        "memory": "1Gi",
        "pods": 110,
        "big": 2**70,
        "e": "1e3",
    }
    assert parse_supply(tuple(given.items())) == {
        "cpu": 1500,
        "memory": 2**30,
        "pods": 110,
        "big": 2**63 - 1,
        "e": 1000,
    }


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


def test_sidecars_run_beside_what_comes_after_them() -> None:
    given = pod(
        initContainers=[
            container("3"),
            container("1", restartPolicy="Always"),
            container("4"),
        ],
        containers=[container("1"), container("2")],
        overhead={"cpu": "500m"},
    )
    assert read_pod(given, "").spec.effective() == {"cpu": 5500}


def test_what_the_pod_requests_stands_for_its_containers() -> None:
    given = pod(
        resources={"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
        containers=[
            {"name": "c", "resources": {"limits": {"cpu": "8", "x/gpu": 1}}},
        ],
    )
    assert read_pod(given, "").spec.effective() == {"cpu": 2000, "x/gpu": 1, "memory": 2**30}


@pytest.mark.parametrize("value", ["0.5", 0.5, "1500m"])
def test_a_fraction_of_an_extended_resource_is_refused(value: Any) -> None:
    with pytest.raises(DocumentError, match=r"x/gpu: .* is not a whole number"):
        parse_amounts({"cpu": "0.5", "memory": "0.5", "x/gpu": value}, "")
    whole = {"x/gpu": "2k", "x/none": "2000m", "hugepages-2Mi": "4Mi"}
    assert parse_amounts(whole, "") == {"x/gpu": 2000, "x/none": 2, "hugepages-2Mi": 4 << 20}
