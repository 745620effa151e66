"""The JobSet that a TrainJob of Kubeflow stands for, made from the runtime that it names.

Read of the TrainJob are its number of nodes, the resources of each, and the annotations for the
JobSet.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from msgspec import Struct, field

from nri_policy.cluster.objects.document import DocumentError, convert, join
from nri_policy.cluster.objects.metadata import ObjectIdentity, ObjectMeta
from nri_policy.foundation.wording import quoted

TRAIN_JOB = "TrainJob"
RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
Runtimes = dict[tuple[str, str, str], "RuntimeSpec"]  # by kind, namespace and name

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER = "trainer"  # the step of Jobs that train
_NODE = "node"  # their container; with MPI also the Job beside the one that launches


class _Reference(Struct):
    name: str
    kind: str = RUNTIMES[1]


class _Trainer(Struct, rename="camel"):
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None


class _Spec(Struct, rename="camel"):
    runtime_ref: _Reference
    trainer: _Trainer = field(default_factory=_Trainer)
    annotations: dict[str, str] = {}


class _TrainJob(Struct):
    metadata: ObjectIdentity
    spec: _Spec


class _MPI(Struct, rename="camel"):
    run_launcher_as_node: bool = False


class _Policy(Struct, rename="camel"):
    num_nodes: int | None = None
    mpi: _MPI | None = None


class _Job(Struct):
    name: str
    template: dict[str, Any]

    @property
    def trains(self) -> bool:
        labels = (self.template.get("metadata") or {}).get("labels") or {}
        return bool(labels.get(_STEP) == _TRAINER)


class _JobSetSpec(Struct, rename="camel"):
    replicated_jobs: list[dict[str, Any]] = []


class _JobSet(Struct):
    spec: _JobSetSpec
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class RuntimeSpec(Struct, rename="camel"):
    """What a runtime makes of a TrainJob."""

    template: _JobSet
    ml_policy: _Policy = field(default_factory=_Policy)


class _Runtime(Struct):
    metadata: ObjectIdentity
    spec: RuntimeSpec


def add_runtime(runtimes: Runtimes, value: Mapping[str, Any], path: str) -> None:
    """Let *runtimes* know one more; raises DocumentError."""
    given = convert(value, _Runtime, path)
    runtimes[_key(value["kind"], *given.metadata.key(path, "a runtime"))] = given.spec


def job_set_of(value: object, runtimes: Runtimes, path: str) -> dict[str, Any]:
    """Return the JobSet of a TrainJob; raises DocumentError."""
    given = convert(value, _TrainJob, path)
    namespace, name = given.metadata.key(path, "a TrainJob")
    named, trainer = given.spec.runtime_ref, given.spec.trainer
    runtime = runtimes.get(_key(named.kind, namespace, named.name))
    if runtime is None:
        text = f"the {named.kind} {quoted(named.name)} is not among the files"
        raise DocumentError(join(path, "spec.runtimeRef"), text)
    nodes = runtime.ml_policy.num_nodes if trainer.num_nodes is None else trainer.num_nodes
    launched = runtime.ml_policy.mpi is not None and runtime.ml_policy.mpi.run_launcher_as_node
    jobs = deepcopy(runtime.template.spec.replicated_jobs)
    read = [convert(each, _Job, join(path, "spec.runtimeRef")) for each in jobs]
    is_mpi = runtime.ml_policy.mpi is not None
    for job, each in zip(jobs, read, strict=True):
        counts = each.name == _NODE if is_mpi else each.trains
        if counts and nodes is not None:
            pods = nodes - launched
            job["template"]["spec"] |= {"parallelism": pods, "completions": pods}
        if trainer.resources_per_node and (counts or (launched and each.trains)):
            _set_resources(job["template"]["spec"], trainer.resources_per_node)
    annotations = {**(runtime.template.metadata.annotations or {}), **given.spec.annotations}
    return {
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"replicatedJobs": jobs},
    }


def _set_resources(job: dict[str, Any], resources: dict[str, Any]) -> None:
    for container in job["template"]["spec"].get("containers") or ():
        if container.get("name") == _NODE:
            container["resources"] = resources


def _key(kind: str, namespace: str, name: str) -> tuple[str, str, str]:
    return kind, namespace if kind == RUNTIMES[0] else "", name
