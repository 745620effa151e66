"""What the cluster grants, asked of an API server that enforces our manifests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nri_policy.doctor.access import (
    DEVICE_CLASS,
    NEEDED,
    NEEDED_FOR_DRA,
    NEEDED_FOR_EXPLANATIONS,
    NEEDED_FOR_READINESS,
    Access,
    access_to,
)
from nri_policy.nrt.publisher import Trouble
from tests.support.apiserver import APIServer
from tests.support.manifests import MANIFESTS
from tests.support.patience import HANGS


def asked(folder: Path, change: Any = lambda _server: None, node: str = "node-a") -> Access:
    """Return what is found out about a server after a *change*."""

    async def ask() -> Access:
        async with APIServer(folder) as server:
            change(server)
            found = await asyncio.to_thread(access_to, server.kubeconfig, node)
            assert found is not None
            assert {each.method for each in server.requests} <= {"GET", "POST"}
            reviewed = [each for each in server.requests if each.method == "POST"]
            assert all("selfsubjectaccessreviews" in each.path for each in reviewed)
            return found

    return asyncio.run(asyncio.wait_for(ask(), HANGS))


READINESS, DRA, EXPLANATIONS = (
    MANIFESTS.parent / "kustomize" / each for each in ("readiness", "dra", "explanations")
)
WITHOUT_COMPONENTS = Access(  # what only the settings `readiness` and `dra` need
    denied_readiness=(
        "patch nodes",
        "patch nodes/status",
        "create leases",
        "patch leases",
        "delete leases",
    ),
    denied_dra=(
        "create resourceslices",
        "patch resourceslices",
        "delete resourceslices",
        "get deviceclasses",
    ),
    denied_explanations=("patch pods",),
)


@pytest.mark.parametrize(
    ("folder", "asked"),
    [
        (MANIFESTS, NEEDED),
        (READINESS, NEEDED_FOR_READINESS),
        (DRA, NEEDED_FOR_DRA),
        (EXPLANATIONS, NEEDED_FOR_EXPLANATIONS),
    ],
)
def test_what_is_asked_for_is_what_the_manifest_grants(
    folder: Path, asked: tuple[tuple[str, str, str, tuple[str, ...]], ...]
) -> None:
    roles = [
        each
        for each in yaml.safe_load_all((folder / "rbac.yaml").read_text())
        if each["kind"] in {"ClusterRole", "Role"}
    ]
    granted = {
        (role["metadata"].get("namespace", ""), group, resource): set(rule["verbs"])
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    needed = {(where, group, resource): {*verbs} for where, group, resource, verbs in asked}
    assert needed == granted


def test_a_cluster_with_our_manifests_lacks_nothing(tmp_path: Path) -> None:
    expected = replace(WITHOUT_COMPONENTS, allocatable_milli=15250, allocatable_memory=60 << 30)
    assert asked(tmp_path) == expected


def test_what_the_node_says_of_the_daemon_is_read_whatever_kinds_the_cluster_has(
    tmp_path: Path,
) -> None:
    def change(server: APIServer) -> None:
        server.versions = set()
        server.taints = [{"key": "nri-policy.io/not-ready", "effect": "NoSchedule"}]
        server.conditions = [{"type": "NRIPolicyReady", "status": "Unknown"}]

    found = asked(tmp_path, change)
    assert (found.trouble, found.tainted, found.condition) == (Trouble.NO_CRD, True, "Unknown")


def test_a_node_that_promises_nothing_is_no_trouble(tmp_path: Path) -> None:
    for status in ({}, {"cpu": "many", "memory": []}, None):
        found = asked(tmp_path, lambda s, new=status: setattr(s, "allocatable", new))
        assert found == WITHOUT_COMPONENTS


def test_whether_claims_can_name_our_devices(tmp_path: Path) -> None:
    class_ = {"metadata": {"name": DEVICE_CLASS}, "spec": {}}

    def lacks(server: APIServer) -> None:
        server.components = ("dra",)

    def older(server: APIServer) -> None:
        lacks(server)
        server.resources.versions = set()

    def has(server: APIServer) -> None:
        lacks(server)
        asyncio.get_running_loop().create_task(server.resources.put("deviceclasses", class_))

    assert asked(tmp_path, lacks).no_class == f"the cluster has no DeviceClass {DEVICE_CLASS}"
    assert "does not serve resource.k8s.io/v1" in asked(tmp_path, older).no_class
    found = asked(tmp_path, has)
    assert (found.no_class, found.denied_dra) == ("", ())


def test_a_missing_kind_and_a_missing_node_are_told_apart(tmp_path: Path) -> None:
    def without_kind(server: APIServer) -> None:
        server.versions = set()

    assert asked(tmp_path, without_kind).trouble is Trouble.NO_CRD
    assert asked(tmp_path, node="node-b").trouble is Trouble.NO_NODE


def test_verbs_that_are_denied_are_named(tmp_path: Path) -> None:
    found = asked(tmp_path, lambda server: server.forbidden.update({"patch", "delete"}))
    assert found.trouble is None
    assert found.denied == (
        "patch noderesourcetopologies",
        "delete noderesourcetopologies",
        "patch topologyawarepolicies/status",
    )


def test_a_cluster_that_does_not_know_us_is_asked_no_more(tmp_path: Path) -> None:
    found = asked(tmp_path, lambda server: server.tokens.clear())
    assert (found.trouble, found.denied) == (Trouble.UNAUTHORIZED, ())


def test_no_cluster_and_a_bad_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert access_to(None, "node-a") is None
    (tmp_path / "bad").write_text("{")
    found = access_to(tmp_path / "bad", "node-a")
    assert found is not None
    assert "--kubeconfig" in found.error
