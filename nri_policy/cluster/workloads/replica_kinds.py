"""Kinds of other projects whose pods come from several templates: Kubeflow's and Ray's.

| kind | pod sets |
|---|---|
| PyTorchJob, TFJob, MPIJob, XGBoostJob | one for each replica type |
| RayCluster, RayJob, RayService | the head, and one for each worker group |

On a live cluster, the owner of pods says how many there are, and their labels which pod set each is
of. A RayJob or RayService owns a RayCluster. The launcher of an MPIJob is the pod of a Job, and a
group of its own: with `launcherCreationPolicy: WaitForWorkersReady` it comes once the workers are
ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, convert, each_at, join
from nri_policy.cluster.objects.metadata import Identified
from nri_policy.cluster.objects.pod import Pod
from nri_policy.foundation.wording import quoted


def _number(value: Mapping[str, Any], field: str, path: str, default: int) -> int:
    number = value.get(field)
    if number is None:
        return default
    if not isinstance(number, int) or isinstance(number, bool):
        raise DocumentError(join(path, field), f"{quoted(number)} is not a number of pods")
    return number


def _one(_value: Mapping[str, Any], _path: str) -> int:
    return 1


def _count_replicas(value: Mapping[str, Any], path: str) -> int:
    return _number(value, "replicas", path, 1)


def _count_ray_workers(value: Mapping[str, Any], path: str) -> int:
    """Return how many pods KubeRay makes of a worker group."""
    least = _number(value, "minReplicas", path, 0)
    replicas = max(_number(value, "replicas", path, least), least)
    replicas = min(replicas, _number(value, "maxReplicas", path, replicas))
    hosts = _number(value, "numOfHosts", path, 1)
    return 0 if value.get("suspend") is True else replicas * hosts


class _Part(Struct, frozen=True):
    """Where an object has templates, each beside how many pods are made of it."""

    path: str  # of one template's parent, or of a map or list of them
    many: bool = True
    count: Callable[[Mapping[str, Any], str], int] = _count_replicas  # of one template's parent
    name: str = ""  # of the only one; else the field that names it, or its key in a map


def _by_type(field: str) -> tuple[_Part, ...]:
    return (_Part(path=f"spec.{field}"),)


def _ray(path: str) -> tuple[_Part, ...]:
    workers = f"{path}.workerGroupSpecs"
    return (
        _Part(path=f"{path}.headGroupSpec", many=False, count=_one, name="head"),
        _Part(path=workers, count=_count_ray_workers, name="groupName"),
    )


REPLICA_KINDS: dict[str, tuple[_Part, ...]] = {
    "PyTorchJob": _by_type("pytorchReplicaSpecs"),
    "TFJob": _by_type("tfReplicaSpecs"),
    "MPIJob": _by_type("mpiReplicaSpecs"),
    "XGBoostJob": _by_type("xgbReplicaSpecs"),
    "RayCluster": _ray("spec"),
    "RayJob": _ray("spec.rayClusterSpec"),
    "RayService": _ray("spec.rayClusterConfig"),
}


FOLLOWED = {  # by API version and kind: in which words the API names all of them
    ("kubeflow.org/v1", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org/v1", "TFJob"): "tfjobs",
    ("kubeflow.org/v1", "XGBoostJob"): "xgboostjobs",
    ("kubeflow.org/v2beta1", "MPIJob"): "mpijobs",
    ("ray.io/v1", "RayCluster"): "rayclusters",
}
_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
_RAY_NODE = "ray.io/node-type"
_RAY_GROUP = "ray.io/group"


class Replicas(Struct, frozen=True):
    """Pods of one template."""

    name: str
    count: int
    template: object
    path: str  # of the template


class ReplicaOwner(Struct, frozen=True):
    """A followed object that makes pods of several templates."""

    kind: str
    namespace: str
    name: str
    pods: dict[str, int]  # by pod set

    @property
    def group(self) -> str:
        """The name of its pods' group."""
        return f"{self.kind.lower()}-{self.name}"


def read_owner(value: Mapping[str, Any], kind: str, path: str) -> ReplicaOwner:
    """Return the owner in an object of a followed *kind*; raises DocumentError."""
    namespace, name = convert(value, Identified, path).metadata.key(path, f"a {kind}")
    every = replicas_of({**value, "kind": kind}, path)
    pods = {each.name: each.count for each in every if not is_launcher(kind, each.name)}
    spec = value["spec"]
    policy = spec if kind == "RayCluster" else spec.get("runPolicy")  # Kubeflow's
    if isinstance(policy, dict) and policy.get("suspend") is True:
        pods = dict.fromkeys(pods, 0)
    return ReplicaOwner(kind, namespace, name, pods)


def is_launcher(kind: str, pod_set: str) -> bool:
    """Whether a Job makes the pods of a pod set: they are a group of their own."""
    return (kind, pod_set) == ("MPIJob", "launcher")


def find_followed_owner(pod: Pod) -> tuple[str, str, str] | None:
    """Return kind, namespace and name of the followed object that owns a pod, if one does."""
    for each in pod.owners:
        if each.controller and (each.api_version, each.kind) in FOLLOWED:
            return each.kind, pod.namespace, each.name
    return None


def pod_set_of(labels: Mapping[str, str]) -> str | None:
    """Return the pod set that a pod's labels name, None if they name none."""
    if _RAY_NODE in labels:
        return "head" if labels[_RAY_NODE] == "head" else labels.get(_RAY_GROUP)
    return labels.get(_TYPE)


def replicas_of(value: Mapping[str, Any], path: str) -> Iterator[Replicas]:
    """Yield the pods that an object of one of these kinds makes; raises DocumentError."""
    for part in REPLICA_KINDS[value["kind"]]:
        place = join(path, part.path)
        found = _at(value, part.path, place)
        if not part.many:
            yield _read(found, part.name, part, place)
        elif isinstance(found, dict):
            for key, each in found.items():
                yield _read(each, str(key).lower(), part, join(place, str(key)))
        else:
            if found is not None and not isinstance(found, list):
                raise DocumentError(place, f"{quoted(found)} is neither a map nor a list")
            for each, own in each_at(found, place):
                name = each.get(part.name) if isinstance(each, dict) else None
                if not isinstance(name, str) or not name:
                    raise DocumentError(join(own, part.name), f"{quoted(name)} is no name")
                yield _read(each, name, part, own)


def _at(value: object, path: str, place: str) -> object:
    for field in path.split("."):
        value = value.get(field) if isinstance(value, dict) else None
    if value is None and not path.endswith("workerGroupSpecs"):
        raise DocumentError(place, "it is missing")
    return value


def _read(value: object, name: str, part: _Part, path: str) -> Replicas:
    if not isinstance(value, dict):
        raise DocumentError(path, f"{quoted(value)} is not an object")
    return Replicas(name, part.count(value, path), value.get("template"), join(path, "template"))
