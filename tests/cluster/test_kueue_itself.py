"""Kueue itself beside our service: it admits by our check, and what it assigns counts as a group.

Kueue runs without its webhooks, so that Jobs are written as those would leave them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nri_policy.cluster.service.service import Service
from tests.cluster.control_plane import ADMIN, ControlPlane, require
from tests.cluster.test_kueue import (
    HOSTNAME,
    ROOT,
    WORKLOADS,
    Object,
    prepare,
    service_of,
    template,
    token_of_service,
)
from tests.support.exchanges import MERGE, NRT
from tests.support.ports import free_port
from tests.support.zone_reports import zone_report
from tools import kueue

JOBS = "/apis/batch/v1/namespaces/default/jobs"
BACKGROUND = "propagationPolicy=Background"
CONTROLLERS = ("job-controller", "garbage-collector-controller")


@contextmanager
def running(plane: ControlPlane) -> Iterator[None]:
    """Run Kueue, which is the admin here; below its /etc are the certificates it looks for there.

    Nobody asks its webhooks.
    """
    etc = plane.folder / "etc-of-kueue"
    certificates = etc / "kueue" / "metrics" / "certs"
    certificates.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        (certificates / name).write_bytes((plane.folder / "server.pem").read_bytes())
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    path = plane.folder / "kueue.yaml"
    path.write_text(json.dumps(configuration))
    environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig(ADMIN))}
    inside = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(etc)]
    arguments = [f"--config={path}", "--feature-gates=VisibilityOnDemand=false"]
    command = [*inside, str(kueue.program()), *arguments]
    with (
        (plane.folder / "kueue.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def make_queue(plane: ControlPlane, cpus: int) -> None:
    """A queue whose pods Kueue assigns to hosts, with our check."""
    quota = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "16Gi"}]
    group = {
        "coveredResources": ["cpu", "memory"],
        "flavors": [{"name": "all", "resources": quota}],
    }
    flavor = {"topologyName": "all", "nodeLabels": {"kubernetes.io/os": "linux"}}
    objects: tuple[tuple[str, str, Object], ...] = (
        ("topologies", "Topology", {"levels": [{"nodeLabel": HOSTNAME}]}),
        ("resourceflavors", "ResourceFlavor", flavor),
        (
            "clusterqueues",
            "ClusterQueue",
            {
                "namespaceSelector": {},
                "resourceGroups": [group],
                "admissionChecksStrategy": {"admissionChecks": [{"name": "numa-fit"}]},
            },
        ),
        ("namespaces/default/localqueues", "LocalQueue", {"clusterQueue": "all"}),
    )
    for name, kind, spec in objects:
        path = f"{ROOT}/{name}"
        plane.until(lambda path=path: plane.ask("GET", path).status == 200, f"{path} is served")
        of = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind}
        plane.asked("POST", path, {**of, "metadata": {"name": "all"}, "spec": spec})


def submit(plane: ControlPlane, name: str, pods: int, cpus: int) -> None:
    """A Job of pods on one host."""
    metadata = {"annotations": {"kueue.x-k8s.io/podset-required-topology": HOSTNAME}}
    spec = {
        "suspend": True,
        "parallelism": pods,
        "completions": pods,
        "template": {"metadata": metadata, **template(cpus)},
    }
    labels = {"kueue.x-k8s.io/queue-name": "all"}
    plane.asked("POST", JOBS, {"metadata": {"name": name, "labels": labels}, "spec": spec})


def is_admitted(plane: ControlPlane, name: str) -> bool:
    """Whether Kueue lets a Job run."""
    return not plane.asked("GET", f"{JOBS}/{name}")["spec"]["suspend"]


def workload(plane: ControlPlane, job: str) -> Object:
    (found,) = [
        each
        for each in plane.asked("GET", WORKLOADS)["items"]
        if any(owner["name"] == job for owner in each["metadata"]["ownerReferences"])
    ]
    assert isinstance(found, dict)
    return found


def hosts(service: Service) -> dict[str, Counter[str]]:
    """Where our engine has Workloads, by name."""
    assert service.controller is not None
    return {
        name: Counter(
            {
                domain.values[-1]: domain.count
                for assignment in group.status.assignments
                for domain in assignment.domains
            }
        )
        for (_, name), group in service.controller.engine.state.groups.items()
    }


async def admit(plane: ControlPlane) -> None:
    async def until(condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(plane.until, condition, what)

    async with service_of(plane, token_of_service(plane)) as service:
        writer = service.admission_writer
        assert writer is not None
        await asyncio.to_thread(submit, plane, "pair", 2, 2)
        await until(lambda: is_admitted(plane, "pair"), "Kueue admits what fits")
        name = "kueue/" + workload(plane, "pair")["metadata"]["name"]
        await until(
            lambda: hosts(service).get(name, Counter()).total() == 2, "it counts as a group"
        )
        ((own, _),) = hosts(service)[name].items()
        (other,) = {"a", "b"} - {own}
        zones = zone_report(other, 1, 1, cpus=2, memory="8Gi")
        await asyncio.to_thread(plane.asked, "PATCH", f"{NRT}/{other}", zones, content=MERGE)
        await asyncio.to_thread(submit, plane, "wide", 1, 2)
        await until(lambda: writer.answers["Retry"] > 0, "a host has room for it, but no zone")
        assert not is_admitted(plane, "wide")
        zones = zone_report(other, 2, 2, memory="8Gi")
        await asyncio.to_thread(plane.asked, "PATCH", f"{NRT}/{other}", zones, content=MERGE)
        await until(lambda: is_admitted(plane, "wide"), "Kueue asks again, and a zone has room")
        name = "kueue/" + workload(plane, "wide")["metadata"]["name"]
        await until(lambda: hosts(service).get(name) == Counter([other]), "it is on the other host")


def test_kueue_admits_what_fits_the_zones_and_its_assignments_count(tmp_path: Path) -> None:
    with plane_with_kueue(tmp_path, 8) as plane:
        asyncio.run(admit(plane))


@contextmanager
def plane_with_kueue(folder: Path, cpus: int) -> Iterator[ControlPlane]:
    """Two nodes with two zones of 2 CPUs each, and Kueue with a quota of so many."""
    require("kube-apiserver", "kube-controller-manager", "kubectl")
    if not kueue.is_at_hand():
        pytest.skip("Kueue is not built: python -m tools.kueue")
    if os.geteuid() != 0:
        pytest.skip("Kueue looks for certificates below /etc: another one takes root")
    with ControlPlane(folder, nodes="ab") as plane:
        prepare(plane, folder, 2, 2)
        plane.start_controllers(*CONTROLLERS)
        with running(plane):
            make_queue(plane, cpus)
            yield plane


def test_a_workload_that_fits_no_zone_lets_those_behind_it_go_first(tmp_path: Path) -> None:
    """While it has its quota, no quota is left for the workloads behind it."""
    with plane_with_kueue(tmp_path, 4) as plane:
        asyncio.run(pass_by(plane))


async def pass_by(plane: ControlPlane) -> None:
    async def until(condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(plane.until, condition, what)

    def state_of(job: str) -> str:
        checks = workload(plane, job)["status"].get("admissionChecks", [])
        return str(checks[0]["state"]) if checks else ""

    async with service_of(plane, token_of_service(plane)) as service:
        writer = service.admission_writer
        assert writer is not None
        await asyncio.to_thread(submit, plane, "wide", 1, 3)
        await until(
            lambda: writer.answers["Rejected"] > 0, "no zone would hold it if it were empty"
        )
        await asyncio.to_thread(submit, plane, "pair", 2, 2)
        await until(lambda: is_admitted(plane, "pair"), "Kueue admits what fits")
        assert workload(plane, "wide")["spec"]["active"] is False
        await asyncio.to_thread(plane.asked, "DELETE", f"{JOBS}/pair?{BACKGROUND}")
        for name in "ab":  # other pods use 1 CPU of each zone
            busy = zone_report(name, 1, 1, cpus=2, memory="8Gi")
            await asyncio.to_thread(plane.asked, "PATCH", f"{NRT}/{name}", busy, content=MERGE)
        await asyncio.to_thread(submit, plane, "later", 2, 2)
        await until(lambda: writer.answers["Retry"] > 0, "no zone has room for it now")
        await asyncio.to_thread(submit, plane, "small", 2, 1)
        await until(lambda: is_admitted(plane, "small"), "Kueue admits what fits now")
        assert not is_admitted(plane, "later")
        await asyncio.to_thread(plane.asked, "DELETE", f"{JOBS}/small?{BACKGROUND}")
        for name in "ab":
            free = zone_report(name, 2, 2, memory="8Gi")
            await asyncio.to_thread(plane.asked, "PATCH", f"{NRT}/{name}", free, content=MERGE)
        await until(lambda: is_admitted(plane, "later"), "Kueue asks again, and a zone has room")
