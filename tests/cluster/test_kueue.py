"""Kueue's admission check on a real API server with Kueue's own kinds; Kueue itself is played."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.service.service import Service
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import CONFIGS, KINDS, register
from tests.support.exchanges import MERGE, NRT
from tests.support.zone_reports import zone_report
from tools.kueue import kinds

Object = dict[str, Any]

ROOT = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{ROOT}/namespaces/default/workloads"
CHECKS = f"{ROOT}/admissionchecks"
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/nri-policy-cluster/token"
HOSTNAME = "kubernetes.io/hostname"
NOW = "2026-01-01T00:00:00Z"


def prepare(plane: ControlPlane, folder: Path, *zones: int) -> None:
    """Two nodes of 4 CPUs that align pods, with *zones* of so many; Kueue's kinds, our rights."""
    try:
        files = kinds()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Kueue's module cannot be had: {error}")
    for each in (*map(str, files), KINDS[0]):
        plane.kubectl("apply", "--server-side", "-f", each)
    for path in (WORKLOADS, CHECKS, f"{ROOT}/resourceflavors", NRT):
        plane.until(lambda path=path: plane.ask("GET", path).status == 200, f"{path} is served")
    component = folder / "kueue"
    component.mkdir()
    (component / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [_below(component, "kustomize/cluster-groups")],
                "components": [_below(component, "kustomize/cluster-kueue")],
            }
        )
    )
    for kind in ("placement-groups-crd.yaml", "settings-crd.yaml"):
        plane.kubectl("apply", "-f", str(CONFIGS / "cluster" / kind))
    plane.kubectl("apply", "-k", str(component))
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    for name in ("a", "b"):
        register(plane, name, capacity=amounts, allocatable=amounts)
        plane.asked("POST", NRT, zone_report(name, *zones, memory="8Gi"))


def _below(folder: Path, name: str) -> str:
    return os.path.relpath(CONFIGS / name, folder.resolve())


def template(cpus: int) -> Object:
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    container = {
        "name": "c",
        "image": "x",
        "resources": {"requests": amounts, "limits": amounts},
    }
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def submit(plane: ControlPlane, name: str, pods: int, cpus: int) -> None:
    """A Workload for which Kueue has reserved quota, as Kueue writes it."""
    pod_set = {"name": "main", "count": pods, "template": template(cpus)}
    new = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"podSets": [pod_set]},
    }
    plane.asked("POST", WORKLOADS, new)
    reserve(plane, name, pods)


def reserve(plane: ControlPlane, name: str, pods: int, **check: Any) -> None:
    condition = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "QuotaReserved",
        "message": "",
        "lastTransitionTime": NOW,
    }
    pending = {"name": "numa-fit", "state": "Pending", "message": "", "lastTransitionTime": NOW}
    status = {
        "conditions": [condition],
        "admission": {
            "clusterQueue": "q",
            "podSetAssignments": [{"name": "main", "count": pods}],
        },
        "admissionChecks": [pending | check],
    }
    plane.asked("PATCH", f"{WORKLOADS}/{name}/status", {"status": status}, content=MERGE)


def state(plane: ControlPlane, name: str) -> Object:
    (check,) = plane.asked("GET", f"{WORKLOADS}/{name}")["status"]["admissionChecks"]
    assert isinstance(check, dict)
    return check


@asynccontextmanager
async def service_of(plane: ControlPlane, token: str) -> AsyncIterator[Service]:
    """Run the service in this process, with this token's rights."""
    connect = access(plane.kubeconfig(token))
    assert connect is not None
    client = Client(connect)
    settings = ClusterSettings(topologies=[Topology(levels=[HOSTNAME])])
    service = Service(settings, client, None, groups=True, kueue=True)
    running = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        running.cancel()
        await asyncio.wait({running})
        await client.close()


def token_of_service(plane: ControlPlane) -> str:
    body = {"spec": {"audiences": ["https://test"]}}
    return str(plane.asked("POST", ACCOUNT, body)["status"]["token"])


async def answer(plane: ControlPlane) -> None:
    """Run the service with its own account's token while Workloads come."""
    token = token_of_service(plane)

    async def until(name: str, wanted: str) -> None:
        await asyncio.to_thread(
            plane.until, lambda: state(plane, name)["state"] == wanted, f"{name} is {wanted}"
        )

    async with service_of(plane, token):
        await asyncio.to_thread(submit, plane, "first", 2, 3)
        await until("first", "Ready")
        await asyncio.to_thread(submit, plane, "second", 1, 3)
        await until("second", "Retry")
        assert "requeueAfterSeconds" not in state(plane, "second")
        over = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": ""}
        conditions = plane.asked("GET", f"{WORKLOADS}/first")["status"]["conditions"]
        status = {"conditions": [*conditions, over | {"lastTransitionTime": NOW}]}
        await asyncio.to_thread(
            plane.asked,
            "PATCH",
            f"{WORKLOADS}/first/status",
            {"status": status},
            content=MERGE,
        )
        await asyncio.to_thread(reserve, plane, "second", 1, retryCount=1)
        await until("second", "Ready")
        condition = plane.asked("GET", f"{CHECKS}/numa-fit")["status"]["conditions"][0]
        assert (condition["type"], condition["status"]) == ("Active", "True")
        refused = await asyncio.to_thread(write_more, plane, token)
        assert {*refused} <= {403, 422}, refused


def write_more(plane: ControlPlane, token: str) -> list[int]:
    """Try to write with the service's token what it has no business with; return the answers."""
    patches: tuple[Object, ...] = (
        {"status": {"conditions": []}},
        {"status": {"admissionChecks": []}},
        {"status": {"admission": None}},
    )
    return [
        plane.ask("PATCH", f"{WORKLOADS}/second/status", patch, content=MERGE, token=token).status
        for patch in patches
    ]


def test_workloads_are_admitted_by_the_zones_of_the_nodes(tmp_path: Path) -> None:
    require("kube-apiserver", "kubectl")
    with ControlPlane(tmp_path, nodes="ab") as plane:
        prepare(plane, tmp_path, 4)
        asyncio.run(answer(plane))
