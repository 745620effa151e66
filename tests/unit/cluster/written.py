"""Kubernetes objects as plain values, for tests of the cluster side."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
HOSTNAME = "kubernetes.io/hostname"


def amounts(values: dict[str, Any]) -> Object:
    return {name.replace("gpu", "x/gpu"): str(value) for name, value in values.items()}


def node(
    name: str, *, ready: bool = True, taints: Any = (), labels: Any = (), **own: Any
) -> Object:
    """A node with the labels `example.com/LEVEL` and its hostname; upper-case words are levels."""
    levels = {f"example.com/{key.lower()}": own.pop(key) for key in [*own] if key.isupper()}
    allocatable = amounts({"cpu": 4, "memory": "8Gi", "pods": 110} | own)
    return {
        "metadata": {"name": name, "labels": {HOSTNAME: name, **levels, **dict(labels)}},
        "spec": {"taints": list(taints)},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def pod_spec(requests: Object, **spec: Any) -> Object:
    """Of a pod that ends by itself, as those of Jobs do."""
    container = {"name": "c", "resources": {"requests": amounts(requests)}}
    return {"containers": [container], "restartPolicy": "Never", **spec}


def pod(name: str, at: str, *, group: str = "", phase: str = "Running", **requests: Any) -> Object:
    labels = {"placement.nri/group": group} if group else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": at, **pod_spec(requests)},
        "status": {"phase": phase},
    }


def pod_set(
    count: int, request: Object | None = None, *, name: str = "main", spec: Any = (), **own: Any
) -> Object:
    made: Object = {
        "name": name,
        "count": count,
        "template": {"spec": pod_spec(own or {"cpu": 1}, **dict(spec))},
    }
    return made if request is None else made | {"request": request}


def group(*pod_sets: Object, name: str = "g", status: Any = None, priority: int = 0) -> Object:
    made: Object = {
        "metadata": {"name": name},
        "spec": {"podSets": list(pod_sets), "priority": priority},
    }
    return made | ({"status": status} if status else {})


def settings(*levels: str, topology: Any = (), **spec: Any) -> Object:
    """Settings with one topology of these levels; those without a slash are `example.com/…`."""
    full = [each if "/" in each else f"example.com/{each}" for each in levels]
    return {"spec": {"topologies": [{"name": "default", "levels": full, **dict(topology)}], **spec}}


def placed(status: Object) -> dict[str, dict[str, int]]:
    """The pods by last value, by pod set."""
    assert status["state"] == "Placed", status["message"]
    return {
        each["podSet"]: {one["values"][-1]: one["count"] for one in each["domains"]}
        for each in status["assignments"]
    }
