"""Pods that may be moved: who says so, and what could keep them where they are.

kube-scheduler looks at more than we do. Of a pod with any of that it is not known where it could
go, so that no plan moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from nri_policy.cluster.objects.document import TRUE, convert

MOVABLE = "placement.nri/movable"


class _Volume(Struct, rename="camel"):
    persistent_volume_claim: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None


class _PodAffinity(Struct):
    required: list[Any] | None = field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _PodAffinities(Struct, rename="camel"):
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Constraint(Struct, rename="camel"):
    when_unsatisfiable: str = ""


class _Port(Struct, rename="camel"):
    host_port: int | None = None


class _Ports(Struct):
    ports: list[_Port] | None = None


class _PinningSpec(Struct, rename="camel"):
    volumes: list[_Volume] | None = None
    affinity: _PodAffinities | None = None
    topology_spread_constraints: list[_Constraint] | None = None
    containers: list[_Ports] | None = None
    resource_claims: list[Any] | None = None


class _Pinning(Struct):
    spec: _PinningSpec = field(default_factory=_PinningSpec)


def is_movable(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a pod's owner allows a plan to move it."""
    return {**labels, **annotations}.get(MOVABLE) in TRUE


def pinned(value: object, path: str) -> str:
    """Return what of a pod could keep it from a node that has room for it; empty for nothing."""
    spec = convert(value, _Pinning, path).spec
    affinity = spec.affinity or _PodAffinities()
    terms = [each for each in (affinity.pod_affinity, affinity.pod_anti_affinity) if each]
    ports = [port for each in spec.containers or () for port in each.ports or ()]
    found = {
        "a persistent volume": any(
            each.persistent_volume_claim or each.ephemeral for each in spec.volumes or ()
        ),
        "pod affinity": any(each.required for each in terms),
        "topology spread constraints": any(
            each.when_unsatisfiable != "ScheduleAnyway"
            for each in spec.topology_spread_constraints or ()
        ),
        "a host port": any(each.host_port for each in ports),
        "resource claims": bool(spec.resource_claims),
    }
    return next((name for name, holds in found.items() if holds), "")
