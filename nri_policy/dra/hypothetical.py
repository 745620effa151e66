"""Hypothetical claims: what a scheduler would allocate of our devices to claims in manifests.

Owns which fields of ResourceClaims and of their templates count (resource.k8s.io/v1). As by the
scheduler's allocator the first device with room is taken, in the order of the slice; the allocator
also tries others where a later request finds none. Selectors and constraints are not evaluated,
which is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field

from nri_policy.dra.allocation import AllocationError
from nri_policy.dra.devices import pools_by_device, published
from nri_policy.dra.objects import Part
from nri_policy.dra.resource_slice import CPU
from nri_policy.foundation.units import count_cpus, format_cpu, parse_cpu
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.resources import ManifestError
from nri_policy.node import Claimed, NodeView
from nri_policy.workload.claim import DRIVER, ClaimPart

DEVICE_CLASS = f"cpu.{DRIVER}"
MAX_PARTS = 32  # of a claim, by the API

_UNKNOWN = (
    "the devices of resource claims were ignored: {}: which ones a pod gets is known once it is"
    " scheduled"
)
_OFF = "the claim {} was ignored: dra.enabled is false"
_UNREAD = (
    "selectors and constraints of the claim {} were ignored: it got the first device with room"
)


class _Metadata(Part, frozen=True):
    name: str
    namespace: str = "default"


class _Capacity(Part, frozen=True):
    requests: dict[str, str | int] = field(default_factory=dict)


class _Wanted(Part, frozen=True):
    device_class_name: str
    name: str = ""  # of a subrequest
    allocation_mode: str = "ExactCount"
    count: int = 1
    capacity: _Capacity = _Capacity()
    selectors: list[Any] = field(default_factory=list)


class _Request(Part, frozen=True):
    name: str
    exactly: _Wanted | None = None
    first_available: list[_Wanted] = field(default_factory=list)

    @property
    def alternatives(self) -> dict[str, _Wanted]:
        """What may be allocated, by the names that results have."""
        if self.exactly is not None:
            return {self.name: self.exactly}
        return {f"{self.name}/{each.name}": each for each in self.first_available}

    @property
    def ours(self) -> bool:
        """Whether it asks for our devices alone."""
        return all(each.device_class_name == DEVICE_CLASS for each in self.alternatives.values())


class _Devices(Part, frozen=True):
    requests: list[_Request]
    constraints: list[Any] = field(default_factory=list)


class _Spec(Part, frozen=True):
    devices: _Devices


class _Claim(Part, frozen=True):
    metadata: _Metadata
    spec: _Spec


class _TemplateSpec(Part, frozen=True):
    spec: _Spec


class _Template(Part, frozen=True):
    metadata: _Metadata
    spec: _TemplateSpec


_Key = tuple[str, str, str]  # kind, namespace, name


def allocator(
    objects: Iterable[Mapping[str, Any]],
) -> Callable[[PodManifest, str, NodeView], Claimed]:
    """Return what allocates the claims of a pod of some name on a node; ManifestError.

    The *objects* are ResourceClaims and ResourceClaimTemplates. What it returns raises Refused
    where no device has room.
    """
    return partial(_allocate, dict(map(_read, objects)))


def _read(found: Mapping[str, Any]) -> tuple[_Key, _Devices]:
    kind = found["kind"]
    try:
        claim = (
            msgspec.convert(found, _Claim)
            if kind == "ResourceClaim"
            else msgspec.convert(found, _Template)
        )
    except msgspec.ValidationError as error:
        raise ManifestError(f"{kind}: {error}") from error
    spec = claim.spec.spec if isinstance(claim.spec, _TemplateSpec) else claim.spec
    where = f"{kind} {claim.metadata.name}"
    for request in spec.devices.requests:
        for name, each in request.alternatives.items():
            if each.allocation_mode != "ExactCount" or not 0 < each.count <= MAX_PARTS:
                raise ManifestError(f"{where}: {name}: only a count from 1 to {MAX_PARTS} is tried")
            if CPU in each.capacity.requests:
                _amount(each, 1, f"{where}: {name}")
    return (kind, claim.metadata.namespace, claim.metadata.name), spec.devices


def _amount(wanted: _Wanted, granule: int, where: str = "") -> int:
    """Return the milli-CPU that are allocated, which the slice's policy rounds; ManifestError."""
    try:
        milli = parse_cpu(wanted.capacity.requests.get(CPU, granule))
    except ValueError as error:
        raise ManifestError(f"{where}: {CPU}: {error}") from error
    step = 1000 * granule if granule > 1 else 1
    return max(step, -(-milli // step) * step)


class _Left(Struct, frozen=True):
    """What is left of our devices."""

    milli: dict[str, int]  # by device, in the order of the slice
    granule: int

    def take(self, wanted: _Wanted) -> list[tuple[str, int]]:
        """Take as many devices as are wanted, with their milli-CPU; none if there are fewer."""
        amount = _amount(wanted, self.granule)
        found = [name for name, left in self.milli.items() if left >= amount]
        if len(found) < wanted.count:
            return []
        for name in found[: wanted.count]:
            self.milli[name] -= amount
        return [(name, amount) for name in found[: wanted.count]]


def _allocate(
    claims: Mapping[_Key, _Devices], pod: PodManifest, name: str, view: NodeView
) -> Claimed:
    """Return what a pod called *name* is allocated; AllocationError where there is no room."""
    namespace, left, warnings = pod.metadata.namespace, _left(view), list[str]()
    prepared: dict[str, tuple[ClaimPart, ...]] = {}  # by the claim's name in the pod
    unknown: list[str] = []
    for each in pod.spec.resource_claims:
        if each.resource_claim_name is not None:
            kind, known = "ResourceClaim", each.resource_claim_name
            own = known
        else:
            kind, known = "ResourceClaimTemplate", str(each.resource_claim_template_name)
            own = f"{name}-{each.name}"
        devices = claims.get((kind, namespace, known))
        if devices is None or not all(request.ours for request in devices.requests):
            unknown.append(each.name)
        if devices is None or not any(request.ours for request in devices.requests):
            continue
        if not view.layout.settings.dra.enabled:
            warnings.append(_OFF.format(each.name))
            continue
        if devices.constraints or any(
            wanted.selectors
            for request in devices.requests
            for wanted in request.alternatives.values()
        ):
            warnings.append(_UNREAD.format(each.name))
        prepared[each.name] = tuple(_parts(devices, left, view, namespace, own))
    if unknown:
        warnings.append(_UNKNOWN.format(", ".join(unknown)))
    return Claimed(
        prepared=tuple(prepared.values()),
        uses={
            container.name: tuple(
                part.id
                for use in container.resources.claims
                for part in prepared.get(use.name, ())
                if use.request in {"", part.request, part.request.partition("/")[0]}
            )
            for container in pod.spec.every_container
        },
        warnings=tuple(warnings),
    )


def _left(view: NodeView) -> _Left:
    values = published(view, {})
    milli = {each.device.name: 1000 * each.cpus for each in values}
    for held in view.claims.values():
        part = held.container.claim_part
        if part.device in milli:
            milli[part.device] -= part.milli
    return _Left(milli, values[0].granule if values else 1)


def _parts(
    devices: _Devices, left: _Left, view: NodeView, namespace: str, name: str
) -> Iterator[ClaimPart]:
    held = (each.container.claim_part for each in view.claims.values())
    if any((each.namespace, each.name) == (namespace, name) for each in held):
        raise AllocationError(f"claim {namespace}/{name} is shared by several pods")
    pools = pools_by_device(view.layout)
    for request in devices.requests:
        if request.ours:
            asked, taken = _choose(request, left, f"{namespace}/{name}")
            for device, milli in taken:
                yield ClaimPart(
                    claim=f"what-if.{namespace}.{name}",
                    namespace=namespace,
                    name=name,
                    request=asked,
                    device=device,
                    pool=pools[device],
                    milli=milli,
                )


def _choose(request: _Request, left: _Left, claim: str) -> tuple[str, list[tuple[str, int]]]:
    """Return the first alternative for which there is room, by name, and its devices."""
    for asked, wanted in request.alternatives.items():
        if found := left.take(wanted):
            return asked, found
    least = min((_amount(each, left.granule) for each in request.alternatives.values()), default=0)
    there = ", ".join(f"{name} has {format_cpu(milli)}" for name, milli in left.milli.items())
    text = f"no device has {count_cpus(least)} left: {there}"
    raise AllocationError(f"claim {claim} ({request.name}): {text}")
