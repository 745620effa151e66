"""Kinds of other projects whose pods come from several templates: Kubeflow's and Ray's.

| kind | pod sets |
|---|---|
| PyTorchJob, TFJob, MPIJob, XGBoostJob | one for each replica type |
| RayCluster, RayJob | the head, and one for each worker group |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.foundation.wording import quoted


class _Part(Struct, frozen=True):
    """Where an object has templates, each beside how many pods are made of it."""

    path: str  # of one template's parent, or of a map or list of them
    many: bool = True
    counts: tuple[str, ...] = ("replicas",)  # whose product it is; 1 where one is missing
    name: str = ""  # of the only one; else the field that names it, or its key in a map


def _by_type(field: str) -> tuple[_Part, ...]:
    return (_Part(path=f"spec.{field}"),)


def _ray(path: str) -> tuple[_Part, ...]:
    workers = f"{path}.workerGroupSpecs"
    return (
        _Part(path=f"{path}.headGroupSpec", many=False, counts=(), name="head"),
        _Part(path=workers, counts=("replicas", "numOfHosts"), name="groupName"),
    )


REPLICA_KINDS: dict[str, tuple[_Part, ...]] = {
    "PyTorchJob": _by_type("pytorchReplicaSpecs"),
    "TFJob": _by_type("tfReplicaSpecs"),
    "MPIJob": _by_type("mpiReplicaSpecs"),
    "XGBoostJob": _by_type("xgbReplicaSpecs"),
    "RayCluster": _ray("spec"),
    "RayJob": _ray("spec.rayClusterSpec"),
}


class Replicas(Struct, frozen=True):
    """Pods of one template."""

    name: str
    count: int
    template: object
    path: str  # of the template


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
            for number, each in enumerate(found if isinstance(found, list) else ()):
                own = join(place, number)
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
    count = 1
    for field in part.counts:
        number = value.get(field)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise DocumentError(join(path, field), f"{quoted(number)} is not a number of pods")
        count *= 1 if number is None else number
    return Replicas(name, count, value.get("template"), join(path, "template"))
