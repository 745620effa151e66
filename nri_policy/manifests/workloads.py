"""Workloads: the objects with one pod template, and how many pods of it there are at once.

| object | pods |
|---|---|
| Deployment, ReplicaSet, StatefulSet | `replicas` |
| DaemonSet | one on each node |
| Job | the smaller of `parallelism` and `completions` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class TemplatedSpec(Struct, frozen=True):
    """The `spec` of an object with a pod template; unknown fields are skipped."""

    template: dict[str, Any]
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None


class Workload(Struct, frozen=True):
    """A kind of object with one pod template."""

    version: str  # of its API
    count: Callable[[TemplatedSpec], int] | None  # pods at once; None: one on each node


def count_replicas(spec: TemplatedSpec) -> int:
    """Return how many pods run for `replicas`, 1 by default."""
    return 1 if spec.replicas is None else spec.replicas


def count_parallel(spec: TemplatedSpec) -> int:
    """Return how many pods of a Job run at once; 1 by default, and never more than complete it."""
    at_once = 1 if spec.parallelism is None else spec.parallelism
    return at_once if spec.completions is None else min(at_once, spec.completions)


WORKLOADS = {
    "Deployment": Workload("apps/v1", count_replicas),
    "ReplicaSet": Workload("apps/v1", count_replicas),
    "StatefulSet": Workload("apps/v1", count_replicas),
    "DaemonSet": Workload("apps/v1", None),
    "Job": Workload("batch/v1", count_parallel),
}
