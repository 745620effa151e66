"""What of a pod only kube-scheduler can judge, and which pods cannot share a host."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.pod import read_template
from nri_policy.cluster.objects.scheduler_constraints import (
    OwnConstraints,
    describe,
    exclude_each_other,
)
from tests.unit.cluster.written import HOSTNAME

OTHERS = ", and pods of other groups are not counted"
OWN_KIND = "pod anti-affinity to its own kind"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOSTNAME}


def affinity(kind: str, *terms: Any) -> Any:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [*terms]}}}


def apart(*terms: Any) -> Any:
    return affinity("podAntiAffinity", *terms)


def constraints(spec: Any) -> tuple[str, ...]:
    return read_template({"metadata": {"labels": {"app": "web"}}, "spec": spec}, "").constraints


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ()),
        (
            {"volumes": [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}]},
            ("a persistent volume",),
        ),
        ({"volumes": [{"ephemeral": {"volumeClaimTemplate": {}}}]}, ("a persistent volume",)),
        ({"volumes": [{"configMap": {}}]}, ()),
        ({"resourceClaims": [{"name": "c"}]}, ("resource claims",)),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            ("topology spread constraints",),
        ),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, ()),
        (affinity("podAffinity", WEB), ("pod affinity",)),
        (apart(), ()),
    ],
)
def test_what_only_kube_scheduler_can_judge_is_named(spec: Any, expected: Any) -> None:
    found = constraints(spec)
    assert found == expected
    assert not exclude_each_other(found)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (apart(WEB), (OWN_KIND,)),
        (apart({"labelSelector": {}, "topologyKey": HOSTNAME}), (OWN_KIND,)),
        (apart(WEB, WEB | {"namespaces": ["other"]}), ("pod affinity", OWN_KIND)),
        (apart(WEB, WEB | {"topologyKey": "example.com/rack"}), (OWN_KIND,)),
        ({"containers": [{"ports": [{"hostPort": 80}]}]}, ("a host port",)),
        (
            {"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}]}]},
            ("a host port",),
        ),
    ],
)
def test_some_pods_exclude_each_other_on_a_host(spec: Any, expected: Any) -> None:
    assert constraints(spec) == expected
    assert exclude_each_other(expected)
    assert describe(expected).endswith(f"; here that means at most one pod on each host{OTHERS}")


@pytest.mark.parametrize(
    "term",
    [
        WEB | {"topologyKey": ""},
        WEB | {"labelSelector": {"matchLabels": {"app": "db"}}},
        WEB | {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}},
        WEB | {"labelSelector": None},
        WEB | {"namespaces": ["other"]},
        WEB | {"namespaceSelector": {}},
        WEB | {"mismatchLabelKeys": ["app"]},
    ],
)
def test_pods_that_others_are_kept_from_may_share_a_host(term: Any) -> None:
    assert constraints(apart(term)) == ("pod affinity",)


def test_a_port_of_the_pod_alone_binds_nobody() -> None:
    assert constraints({"containers": [{"ports": [{"containerPort": 80}]}]}) == ()


EVEN = {
    "topologyKey": "example.com/rack",
    "maxSkew": 2,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}


def own(spec: Any) -> OwnConstraints:
    return read_template({"metadata": {"labels": {"app": "web"}}, "spec": spec}, "").own


def test_what_pods_demand_of_each_other_is_read_apart() -> None:
    rack = WEB | {"topologyKey": "example.com/rack"}
    spec = apart(WEB, rack) | {"topologySpreadConstraints": [EVEN]}
    assert own(spec) == OwnConstraints(("example.com/rack",), (("example.com/rack", 2),))
    assert constraints(spec) == (OWN_KIND,)
    assert own(spec).names() == [
        f"{OWN_KIND} over example.com/rack",
        "topology spread over example.com/rack",
    ]
    assert own(spec).names(placed=True) == [f"{OWN_KIND} over example.com/rack"]


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        (apart(WEB | {"topologyKey": "example.com/row"}), ""),  # no level
        (apart(WEB | {"topologyKey": "example.com/rack"}), "in each example.com/rack"),
        (
            apart(WEB, WEB | {"topologyKey": "example.com/rack"}),
            "on each host and in each example.com/rack",
        ),
    ],
)
def test_what_keeps_pods_apart_says_where_one_is_put_at_most(spec: Any, kept: str) -> None:
    judged = [*constraints(spec), *own(spec).names(placed=True)]
    text = describe(judged, ["example.com/rack", HOSTNAME])
    assert text.startswith(f"only kube-scheduler can judge {OWN_KIND}")
    assert text.partition("; here that means at most one pod ")[2] == kept + OTHERS * bool(kept)


@pytest.mark.parametrize(
    "more",
    [
        {"labelSelector": {"matchLabels": {"app": "db"}}},
        {"labelSelector": None},
        {"topologyKey": ""},
        {"maxSkew": 0},
        {"minDomains": 3},
    ],
)
def test_what_is_about_other_pods_is_left_to_kube_scheduler(more: Any) -> None:
    spec = {"topologySpreadConstraints": [EVEN, EVEN | more]}
    assert constraints(spec) == ("topology spread constraints",)
    assert own(spec).max_skew == (("example.com/rack", 2),)
