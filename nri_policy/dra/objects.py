"""ResourceSlices, ResourceClaims and pods of an API server, as far as hints need them.

Owns which fields of slices are read (resource.k8s.io/v1), and which attributes say where a device
is. Fields that are not named here are skipped, so later versions of the API can be read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from nri_policy.foundation.mismatch import JSON_ERRORS, json_problem
from nri_policy.manifests.api_object import APIObject, Part
from nri_policy.manifests.pod_object import PodObject
from nri_policy.manifests.resource_claim import Allocation, AllocationResult, ResourceClaim

# Attributes with a device's location. Most drivers use a domain of their own: dranet and its like
# `dra.net/numaNode`, AMD `numaNode` and `pciAddr`, NVIDIA `numa` and `pcieBusID`. Those under the
# standard domain come first.
_STANDARD = "resource.kubernetes.io/"
_NODE = ("numaNode", "numaNodeID", "numa")
_ADDRESS = ("pciBusID", "pcieBusID", "pciAddr", "pciAddress")
_ROOT = ("pcieRoot",)

_Read = TypeVar("_Read")


class ObjectError(Exception):
    """An object does not have the form of the API; the text names the field."""


class DeviceLocation(Struct, frozen=True, kw_only=True):
    """The location of a device by its driver."""

    node: int | None = None  # NUMA node
    address: str = ""  # PCI function, as in 0000:c1:00.0
    root: str = ""  # PCIe root complex, as in pci0000:c0


class ResourceSlice(Struct, frozen=True, kw_only=True):
    """A ResourceSlice: some devices of a pool."""

    name: str
    driver: str
    pool: str
    generation: int
    of: int  # number of slices of this generation of the pool
    node: str  # name of the node with all its devices; empty: no single one
    devices: Mapping[str, DeviceLocation]


class AllocatedClaim(Struct, frozen=True, kw_only=True):
    """A ResourceClaim, as it is allocated."""

    name: str
    results: Sequence[AllocationResult]


class Use(Struct, frozen=True):
    """A claim that a container uses."""

    claim: str  # the object's name
    request: str  # empty: all requests


class PodClaims(Struct, frozen=True, kw_only=True):
    """Which claims the containers of a pod use."""

    uses: Mapping[str, Sequence[Use]]  # by container

    @property
    def names(self) -> tuple[str, ...]:
        """The claims that any container uses, each once."""
        return tuple(dict.fromkeys(use.claim for uses in self.uses.values() for use in uses))


# ---- as the API has them


class _Attribute(Part, frozen=True):
    int_: int | None = field(name="int", default=None)
    string: str | None = None
    ints: list[int] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)


class _Device(Part, frozen=True):
    name: str
    attributes: dict[str, _Attribute] = field(default_factory=dict)


class _Pool(Part, frozen=True):
    name: str
    generation: int
    resource_slice_count: int


class _SliceSpec(Part, frozen=True):
    driver: str
    pool: _Pool
    node_name: str = ""
    devices: list[_Device] = field(default_factory=list)


class _Slice(APIObject, frozen=True):
    spec: _SliceSpec


def read_name(text: Raw) -> str:
    """Return an object's name; raises ObjectError."""
    return _decode(text, APIObject).metadata.name


def read_slice(text: Raw) -> ResourceSlice:
    """Return a ResourceSlice; raises ObjectError."""
    read = _decode(text, _Slice)
    return ResourceSlice(
        name=read.metadata.name,
        driver=read.spec.driver,
        pool=read.spec.pool.name,
        generation=read.spec.pool.generation,
        of=read.spec.pool.resource_slice_count,
        node=read.spec.node_name,
        devices={device.name: _where(device.attributes) for device in read.spec.devices},
    )


def read_claim(found: Mapping[str, Any]) -> AllocatedClaim:
    """Return a ResourceClaim; raises ObjectError."""
    read = _convert(found, ResourceClaim)
    allocation = read.status.allocation or Allocation()
    return AllocatedClaim(name=read.metadata.name, results=allocation.devices.results)


def read_pod(found: Mapping[str, Any]) -> PodClaims:
    """Return which claims a pod's containers use; raises ObjectError.

    A claim that is made from a template has the name that the pod's status says. Extended
    resources that a driver serves are one claim more, which only the status knows (KEP-5004).
    """
    read = _convert(found, PodObject)
    names = {
        claim.name: claim.resource_claim_name
        for claim in (*read.spec.resource_claims, *read.status.resource_claim_statuses)
        if claim.resource_claim_name
    }
    uses = {
        container.name: [
            Use(names[claim.name], claim.request)
            for claim in container.resources.claims
            if claim.name in names
        ]
        for container in read.spec.every_container
    }
    if extended := read.status.extended:
        for mapping in extended.request_mappings:
            use = Use(extended.resource_claim_name, mapping.request_name)
            uses.setdefault(mapping.container_name, []).append(use)
    return PodClaims(uses=uses)


def _where(attributes: Mapping[str, _Attribute]) -> DeviceLocation:
    return DeviceLocation(
        node=next(_numbers(attributes, _NODE), None),
        address=next(_texts(attributes, _ADDRESS), ""),
        root=next(_texts(attributes, _ROOT), ""),
    )


def _numbers(attributes: Mapping[str, _Attribute], names: Sequence[str]) -> Iterator[int]:
    """Yield what integers of those names say; of a list the first, the device's own (KEP-6072)."""
    for each in _named(attributes, names):
        yield from each.ints[:1] if each.int_ is None else [each.int_]


def _texts(attributes: Mapping[str, _Attribute], names: Sequence[str]) -> Iterator[str]:
    for each in _named(attributes, names):
        yield from each.strings[:1] if each.string is None else [each.string]


def _named(attributes: Mapping[str, _Attribute], names: Sequence[str]) -> Iterator[_Attribute]:
    """Yield the attributes of these names: the standard ones, then those of other domains."""
    for name in names:
        if (standard := attributes.get(_STANDARD + name)) is not None:
            yield standard
    for name in names:
        for key, each in attributes.items():
            if key.rpartition("/")[2] == name:
                yield each


def _decode(text: Raw, kind: type[_Read]) -> _Read:
    try:
        return msgspec.json.decode(text, type=kind)
    except JSON_ERRORS as error:
        raise ObjectError(json_problem(error)) from error


def _convert(found: Mapping[str, Any], kind: type[_Read]) -> _Read:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ObjectError(json_problem(error, found)) from error
