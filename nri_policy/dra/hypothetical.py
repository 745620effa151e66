"""Hypothetical claims: what a scheduler would allocate of our devices to claims in manifests.

Owns which fields of ResourceClaims and of their templates count (resource.k8s.io/v1). As by the
scheduler's allocator the first devices with room are taken, in the order of the slice, and others
where a later request finds none. Not evaluated, with a warning: constraints between our devices and
those of other drivers, and selectors that do more than compare attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import msgspec
from msgspec import Struct

from nri_policy.dra.allocation import AllocationError
from nri_policy.dra.cpu_devices import pools_by_device, published
from nri_policy.dra.resource_slice import CPU, attributes_of
from nri_policy.dra.selectors import Attributes, selects
from nri_policy.foundation.mismatch import json_problem
from nri_policy.foundation.units import count_cpus, format_cpu, parse_cpu
from nri_policy.foundation.wording import did_you_mean, quoted, some
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.resource_claim import (
    DeviceConstraint,
    DeviceRequest,
    RequestedDevices,
    ResourceClaim,
    ResourceClaimTemplate,
    WantedDevices,
)
from nri_policy.manifests.resources import ManifestError
from nri_policy.node import ClaimedParts, NodeView
from nri_policy.workload.claim import DRIVER, ClaimPart

DEVICE_CLASS = f"cpu.{DRIVER}"
MAX_PARTS = 32  # of a claim, by the API
MAX_TRIES = 10_000  # combinations tried for one claim

_UNKNOWN = (
    "the devices of resource claims were ignored: {}: which ones a pod gets is known once it is"
    " scheduled"
)
_ABSENT = "the claim {} was ignored: the manifests have no {} {}{}"
_FOREIGN = "the request {} of the claim {} is not for our devices: its class is {}{}"
_OFF = "the claim {} was ignored: dra.enabled is false"
_UNREAD = (
    "not all selectors and constraints of the claim {} were evaluated: kube-scheduler may choose"
    " another NUMA node for it, or find none"
)


_Key = tuple[str, str, str]  # kind, namespace, name


def allocator(
    objects: Iterable[Mapping[str, Any]],
) -> Callable[[PodManifest, str, NodeView], ClaimedParts]:
    """Return a function that allocates the claims of a named pod on a node; ManifestError.

    The *objects* are ResourceClaims and ResourceClaimTemplates. The function raises Refused if no
    device has room.
    """
    return partial(_allocate, dict(map(_read, objects)))


def _read(found: Mapping[str, Any]) -> tuple[_Key, RequestedDevices]:
    kind = found["kind"]
    try:
        if kind == "ResourceClaim":
            claim = msgspec.convert(found, ResourceClaim)
            identity, spec = claim.metadata, claim.spec
        else:
            template = msgspec.convert(found, ResourceClaimTemplate)
            identity, spec = template.metadata, template.spec.spec
    except msgspec.ValidationError as error:
        raise ManifestError(f"{kind}: {json_problem(error, found)}") from error
    where = f"{kind} {identity.name}"
    if not spec.devices.requests:
        raise ManifestError(f"{where}: devices.requests is missing")
    for request in spec.devices.requests:
        for name, each in request.alternatives.items():
            if each.allocation_mode != "ExactCount" or not 0 < each.count <= MAX_PARTS:
                raise ManifestError(f"{where}: {name}: only a count from 1 to {MAX_PARTS} is tried")
            if each.device_class_name == DEVICE_CLASS:
                _check_capacities(each, f"{where}: {name}")
    _check_constraints(spec.devices, where)
    return (kind, identity.namespace or "default", identity.name), spec.devices


def _check_capacities(wanted: WantedDevices, where: str) -> None:
    """Raise ManifestError for a capacity that our devices lack: none would match."""
    for capacity in wanted.capacity.requests:
        if capacity != CPU:
            hint = did_you_mean(capacity, [CPU])
            raise ManifestError(f"{where}: no device has a capacity {quoted(capacity)}{hint}")
    _amount(wanted, 1, where)


def _check_constraints(devices: RequestedDevices, where: str) -> None:
    """Raise ManifestError for a constraint on a request that the claim has not, as the API does."""
    names = {name for each in devices.requests for name in (each.name, *each.alternatives)}
    for number, constraint in enumerate(devices.constraints):
        for name in constraint.requests:
            if name not in names:
                raise ManifestError(
                    f"{where}: constraints[{number}]: there is no request"
                    f" {quoted(name)}; there are: {some(names)}"
                )


def _amount(wanted: WantedDevices, granule: int, where: str = "") -> int:
    """Return the milli-CPU that are allocated, which the slice's policy rounds; ManifestError."""
    try:
        milli = parse_cpu(wanted.capacity.requests.get(CPU, granule))
    except ValueError as error:
        raise ManifestError(f"{where}: {CPU}: {error}") from error
    step = 1000 * granule if granule > 1 else 1
    return max(step, -(-milli // step) * step)


def _selects(wanted: WantedDevices, device: Attributes) -> bool | None:
    """Return whether all selectors accept a device of ours; None: one is not evaluated."""
    found = [selects(each.cel.expression, device) for each in wanted.selectors]
    return False if False in found else None if None in found else True


def _is_ours(request: DeviceRequest) -> bool:
    """Return whether a request asks for our devices alone."""
    return all(each.device_class_name == DEVICE_CLASS for each in request.alternatives.values())


def _foreign(devices: RequestedDevices) -> set[str]:
    """Return the names of the requests for devices of others."""
    return {each.name for each in devices.requests if not _is_ours(each)}


def _holds(constraint: DeviceConstraint, values: Sequence[int | str | None]) -> bool:
    """Return whether devices with these values of the attribute meet a constraint."""
    different = len({*values})
    return None not in values and different == (len(values) if constraint.distinct_attribute else 1)


class _Left(Struct, frozen=True):
    """What is left of our devices."""

    milli: dict[str, int]  # by device, in the order of the slice
    granule: int
    attributes: Mapping[str, Attributes]  # by device

    def fitting(self, wanted: WantedDevices, amount: int) -> list[str]:
        """Return the devices that a request may have, and that have room."""
        return [
            name
            for name, left in self.milli.items()
            if left >= amount and _selects(wanted, self.attributes[name]) is not False
        ]


class _Taken(Struct, frozen=True):
    request: str  # with a subrequest: `request/subrequest`
    device: str
    milli: int


def _allocate(
    claims: Mapping[_Key, RequestedDevices], pod: PodManifest, name: str, view: NodeView
) -> ClaimedParts:
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
        if devices is None:
            near = did_you_mean(known, (key[2] for key in claims if key[:2] == (kind, namespace)))
            warnings.append(_ABSENT.format(each.name, kind, quoted(known), near))
            continue
        if not all(_is_ours(request) for request in devices.requests):
            unknown.append(each.name)
            warnings += _mistyped_classes(devices, each.name)
        if not any(_is_ours(request) for request in devices.requests):
            continue
        if not view.layout.settings.dra.enabled:
            warnings.append(_OFF.format(each.name))
            continue
        if not _evaluated(devices, left):
            warnings.append(_UNREAD.format(each.name))
        prepared[each.name] = tuple(_parts(devices, left, view, namespace, own))
    if unknown:
        warnings.append(_UNKNOWN.format(", ".join(unknown)))
    return ClaimedParts(
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


def _mistyped_classes(devices: RequestedDevices, claim: str) -> Iterator[str]:
    """Yield a text for each request of a class with nearly our name."""
    for request in devices.requests:
        for name, wanted in request.alternatives.items():
            class_ = wanted.device_class_name
            if class_ != DEVICE_CLASS and (near := did_you_mean(class_, [DEVICE_CLASS])):
                yield _FOREIGN.format(name, claim, quoted(class_), near)


def _left(view: NodeView) -> _Left:
    values = published(view, {})
    milli = {each.device.name: 1000 * each.cpus for each in values}
    for held in view.claims.values():
        part = held.container.claim_part
        if part.device in milli:
            milli[part.device] -= part.milli
    attributes = {each.device.name: attributes_of(view.layout, each) for each in values}
    return _Left(milli, values[0].granule if values else 1, attributes)


def _evaluated(devices: RequestedDevices, left: _Left) -> bool:
    """Return whether all selectors and constraints on our devices can be evaluated."""
    foreign = _foreign(devices)
    return not any(
        foreign and any(map(each.concerns, foreign)) for each in devices.constraints
    ) and not any(
        _selects(wanted, device) is None
        for request in devices.requests
        if _is_ours(request)
        for wanted in request.alternatives.values()
        for device in left.attributes.values()
    )


def _parts(
    devices: RequestedDevices, left: _Left, view: NodeView, namespace: str, name: str
) -> Iterator[ClaimPart]:
    held = (each.container.claim_part for each in view.claims.values())
    if any((each.namespace, each.name) == (namespace, name) for each in held):
        raise AllocationError(f"claim {namespace}/{name} is shared by several pods")
    pools = pools_by_device(view.layout)
    for taken in _Search(devices, left, f"claim {namespace}/{name}").run():
        yield ClaimPart(
            claim=f"what-if.{namespace}.{name}",
            namespace=namespace,
            name=name,
            request=taken.request,
            device=taken.device,
            pool=pools[taken.device],
            milli=taken.milli,
        )


class _Search:
    """The search for devices for the requests of one claim, with a bound on what is tried."""

    def __init__(self, devices: RequestedDevices, left: _Left, claim: str) -> None:
        self._requests = [each for each in devices.requests if _is_ours(each)]
        foreign = _foreign(devices)
        self._constraints = [
            each for each in devices.constraints if not any(map(each.concerns, foreign))
        ]
        self._left = left
        self._claim = claim
        self._tries = 0
        self._deepest = 0  # index of the last request that was reached

    def run(self) -> tuple[_Taken, ...]:
        """Take the first devices with which all is well; AllocationError if there are none."""
        found = self._from(0, ())
        if found is None:
            raise self._failure(self._requests[self._deepest])
        return found

    def _from(self, at: int, before: tuple[_Taken, ...]) -> tuple[_Taken, ...] | None:
        """Take devices for the requests from *at* on; None: there are none."""
        if at == len(self._requests):
            return before
        self._deepest = max(self._deepest, at)
        milli = self._left.milli
        for asked, wanted in self._requests[at].alternatives.items():
            amount = _amount(wanted, self._left.granule)
            for devices in combinations(self._left.fitting(wanted, amount), wanted.count):
                self._tries += 1
                if self._tries > MAX_TRIES:
                    raise AllocationError(f"{self._claim} has too many ways to be allocated")
                taken = (*before, *(_Taken(asked, each, amount) for each in devices))
                if not all(self._holds(each, taken) for each in self._constraints):
                    continue
                for each in devices:
                    milli[each] -= amount
                if (found := self._from(at + 1, taken)) is not None:
                    return found
                for each in devices:
                    milli[each] += amount
        return None

    def _holds(self, constraint: DeviceConstraint, taken: Iterable[_Taken]) -> bool:
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        concerned = [each for each in taken if constraint.concerns(each.request)]
        values = [self._left.attributes[each.device].get(name) for each in concerned]
        return not values or _holds(constraint, values)

    def _failure(self, request: DeviceRequest) -> AllocationError:
        wanted = request.alternatives.values()
        least = min((_amount(each, self._left.granule) for each in wanted), default=0)
        milli = self._left.milli.items()
        there = ", ".join(f"{name} has {format_cpu(left)}" for name, left in milli)
        limited = self._constraints or any(each.selectors for each in wanted)
        allowed = " that its selectors and constraints allow" * bool(limited)
        text = f"no device{allowed} has {count_cpus(least)} left: {there}"
        return AllocationError(f"{self._claim} ({request.name}): {text}")
