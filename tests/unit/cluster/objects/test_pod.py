"""Pods of one template: what they have in common is held once."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects import pod as pods
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.zones.reported_pods import find_own_resources
from nri_policy.kube.why import WHY
from tests.unit.cluster.written import pod_spec


def made(name: str, cpu: int = 1, **metadata: Any) -> Pod:
    meta = {"labels": {"app": "web"}, "annotations": {"a": "b"}, **metadata}
    meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "controller": True}]
    return read_pod({"metadata": {"name": name, **meta}, "spec": pod_spec({"cpu": cpu})}, "")


def test_pods_that_are_alike_share_all_but_their_names() -> None:
    one, other = made("a"), made("b")
    for part in ("spec", "labels", "annotations", "owners", "namespace", "phase"):
        assert getattr(one, part) is getattr(other, part)
    assert find_own_resources(one.spec) is find_own_resources(other.spec)
    assert (one.name, other.name) == ("a", "b")


def test_what_a_daemon_explains_of_each_pod_is_not_held() -> None:
    """It is another text of every pod, and long."""
    one, other = (
        read_pod({"metadata": {"name": name, "annotations": {"own": "1", WHY: name}}}, "")
        for name in ("a", "b")
    )
    assert one.annotations == {"own": "1"}
    assert one.annotations is other.annotations


def test_pods_share_only_what_is_equal() -> None:
    one, other = made("a", 1), made("b", 2, labels={"app": "db"})
    assert one.spec.effective() == {"cpu": 1000}
    assert other.spec.effective() == {"cpu": 2000}
    assert (one.labels, other.labels) == ({"app": "web"}, {"app": "db"})
    assert one.annotations is other.annotations


def test_no_more_specs_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "MAX_SHARED", 3)
    monkeypatch.setattr(pods, "_specs", {})
    for cpu in range(1, 9):
        assert made("p", cpu).spec.effective() == {"cpu": 1000 * cpu}
        assert 1 <= len(pods._specs) <= 3
