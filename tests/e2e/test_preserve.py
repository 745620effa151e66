"""A container with `cpu.preserve` beside an owner of a CPU: who says so, and what keeps it off."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import grpc
import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures

PRESERVE = {"cpu.preserve.resource-policy.nri.io/pod": "true"}
ALL = CPUSet(os.sched_getaffinity(0))


def test_a_container_that_preserves_its_cpus_is_named_and_then_kept_off_those_of_others(
    kubelet: Kubelet, daemon: Daemon, settings: Mapping[str, Any]
) -> None:
    evil = kubelet.run("evil", BEST_EFFORT, annotations=PRESERVE)
    own = kubelet.run("own", guaranteed(1000))
    exclusive = own.cpus()
    assert exclusive <= evil.cpus()
    audit = daemon.ask("audit", "-o", "json")
    assert audit.returncode == 1
    (drift,) = json.loads(audit.stdout)["drifts"]
    said = "not alone: default/evil/main is not pinned"
    assert (drift["what"], drift["reason"]) == ("company", said)
    assert said in " ".join(daemon.ask("explain", "own").stdout.split())

    daemon.reload({**settings, "preserve": "unowned"})
    assert eventually(evil.cpus, lambda now: now == ALL - exclusive) == ALL - exclusive
    late = kubelet.run("late", BEST_EFFORT, annotations=PRESERVE)
    assert late.cpus() == ALL - exclusive
    assert daemon.ask("audit").returncode == 0
    assert "not alone" not in daemon.ask("explain", "own").stdout

    own.pod.delete()
    for each in (evil, late):
        assert eventually(each.cpus, lambda now: now == ALL) == ALL


def test_a_pod_of_a_namespace_that_is_not_named_hears_why_it_may_not(
    kubelet: Kubelet, daemon: Daemon, settings: Mapping[str, Any]
) -> None:
    daemon.reload({**settings, "preserveNamespaces": ["monitoring"]})
    pod = kubelet.run_pod("evil", {"main": BEST_EFFORT}, annotations=PRESERVE)
    with pytest.raises(grpc.RpcError, match="preserveNamespaces does not name it"):
        pod.create("main")
    kubelet.run("agent", BEST_EFFORT, namespace="monitoring", annotations=PRESERVE)
