"""Kueue's objects as plain values (v1beta2), for tests."""

from __future__ import annotations

from typing import Any

from tests.unit.cluster.written import Object, pod_spec

CHECK = "numa"
CONTROLLER = "placement.nri/numa-fit"


def admission_check(name: str = CHECK, controller: str = CONTROLLER, **spec: Any) -> Object:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": name, "resourceVersion": "1", "generation": 1},
        "spec": {"controllerName": controller, **spec},
    }


def flavor(name: str, labels: Any = (), tolerations: Any = ()) -> Object:
    spec = {"nodeLabels": dict(labels), "tolerations": [*tolerations]}
    return {"metadata": {"name": name}, "spec": spec}


def guaranteed(cpu: int, **spec: Any) -> Object:
    amounts = {"cpu": cpu, "memory": 1}
    made = pod_spec(amounts, **spec)
    made["containers"][0]["resources"]["limits"] = made["containers"][0]["resources"]["requests"]
    return made


def pod_set(count: int, cpu: int, name: str = "main", **spec: Any) -> Object:
    return {"name": name, "count": count, "template": {"spec": guaranteed(cpu, **spec)}}


def check_state(state: str, name: str = CHECK, **own: Any) -> Object:
    time = "2026-01-01T00:00:00Z"
    return {"name": name, "state": state, "lastTransitionTime": time, "message": "", **own}


def workload(
    name: str,
    *pod_sets: Object,
    reserved: bool = True,
    conditions: Any = (),
    checks: Any = None,
    flavors: Any = (),
    topology: Any = None,
    revision: str = "1",
    delayed: bool = False,
    **spec: Any,
) -> Object:
    """A Workload that has its quota and a check that nobody has answered."""
    assignments = [
        {
            "name": each["name"],
            "count": each["count"],
            "flavors": {f"r{at}": one for at, one in enumerate(flavors)},
            **({} if topology is None else {"topologyAssignment": topology}),
        }
        for each in pod_sets
    ]
    held = [{"type": each, "status": "True"} for each in (*(["QuotaReserved"] * reserved),)]
    status: Object = {
        "conditions": [*held, *({"type": each, "status": "True"} for each in conditions)],
        "admissionChecks": [check_state("Pending")] if checks is None else [*checks],
    }
    if delayed:
        status["requeueState"] = {"requeueAt": "2026-01-01T00:00:15Z"}
    if reserved:
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": assignments}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "default", "resourceVersion": revision},
        "spec": {"podSets": [*pod_sets], **spec},
        "status": status,
    }
