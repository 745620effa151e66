"""Devices that pods ask for by resource claims: of which class, and which nodes have them free.

kube-scheduler allocates devices, and groups are placed without them: this only finds out what to
say. Owns the fields of classes and slices (resource.k8s.io/v1) that count for it. The devices of a
class are those of the drivers that its selectors name; other selectors are not evaluated, nor what
devices share, so a node may have fewer than is said. Devices without a single node are not counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from nri_policy.cluster.objects.document import convert
from nri_policy.cluster.objects.metadata import Key, ObjectIdentity
from nri_policy.cluster.objects.scheduler_constraints import PodClaim
from nri_policy.foundation.wording import counted, did_you_mean
from nri_policy.manifests.api_object import APIObject
from nri_policy.manifests.resource_claim import (
    AllocationResult,
    ClaimSpec,
    DeviceSelector,
    ResourceClaim,
    ResourceClaimTemplate,
    WantedDevices,
)

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"  # kinds
CLASS, SLICE = "DeviceClass", "ResourceSlice"
PLURALS = {
    CLAIM: "resourceclaims",
    TEMPLATE: "resourceclaimtemplates",
    CLASS: "deviceclasses",
    SLICE: "resourceslices",
}

_DRIVER = re.compile(r"""device\.driver\s*==\s*(?:"([^"\\]+)"|'([^'\\]+)')""")


class _ClassSpec(Struct):
    selectors: list[DeviceSelector] | None = None


class _Class(Struct):
    metadata: ObjectIdentity
    spec: _ClassSpec = field(default_factory=_ClassSpec)


class _Device(Struct):
    name: str


class _Pool(Struct):
    name: str
    generation: int = 0


class _SliceSpec(Struct, rename="camel"):
    driver: str
    pool: _Pool
    node_name: str | None = None
    devices: list[_Device] | None = None


class _Slice(Struct):
    metadata: ObjectIdentity
    spec: _SliceSpec


class DeviceClaims:
    """The claims, classes and devices that are known."""

    def __init__(self) -> None:
        self._asked: dict[tuple[bool, str, str], ClaimSpec] = {}  # template?, namespace, name
        self._allocated: dict[tuple[str, str], list[AllocationResult]] = {}  # by claim
        self._drivers: dict[str, frozenset[str]] = {}  # by class
        self._slices: list[_SliceSpec] = []

    def add(self, kind: str, value: object, path: str) -> None:
        """Take in an object of one of the kinds; raises DocumentError."""
        if kind == CLAIM:
            claim = convert(value, ResourceClaim, path)
            key = _key_of(claim)
            self._asked[False, *key] = claim.spec
            if claim.status.allocation is not None:
                self._allocated[key] = claim.status.allocation.devices.results
        elif kind == TEMPLATE:
            template = convert(value, ResourceClaimTemplate, path)
            key = _key_of(template)
            self._asked[True, *key] = template.spec.spec
        elif kind == CLASS:
            found = convert(value, _Class, path)
            named = (
                one or other
                for each in found.spec.selectors or ()
                for one, other in _DRIVER.findall(each.cel.expression)
            )
            self._drivers[found.metadata.name] = frozenset(named)
        else:
            self._slices.append(convert(value, _Slice, path).spec)

    def describe(
        self, namespace: str, claims: Iterable[PodClaim], nodes: Collection[str]
    ) -> Iterator[str]:
        """Yield for each claim of a pod what devices it asks for, and which *nodes* have them."""
        for claim in claims:
            key = namespace, claim.object_name
            allocated = self._allocated.get(key) if not claim.is_template else None
            asked = self._asked.get((claim.is_template, *key))
            if asked is None:
                kind = TEMPLATE if claim.is_template else CLAIM
                yield f"claim {claim.name}: no {kind} {claim.object_name} is known"
            elif allocated:
                has = ", ".join(f"{each.device} of {each.driver}" for each in allocated)
                yield f"claim {claim.name} has its devices: {has} (pool {allocated[0].pool})"
            else:
                for request in asked.devices.requests:
                    wanted = [each for each in (request.exactly,) if each is not None]
                    wanted = wanted or request.first_available
                    yield f"claim {claim.name} asks for {self._found(wanted, nodes)}"

    def _found(self, wanted: Sequence[WantedDevices], nodes: Collection[str]) -> str:
        """Return the wanted devices of alternatives, and the nodes with one of them."""
        text = " or ".join(f"{each.count} {each.device_class_name}" for each in wanted)
        if not self._slices:
            return f"{text}; no ResourceSlice tells which nodes have that"
        for name in (each.device_class_name for each in wanted):
            if name not in self._drivers:
                hint = did_you_mean(name, self._drivers)
                return f"{text}: there is no DeviceClass {name}{hint}"
            if not self._drivers[name]:
                return f"{text}; the DeviceClass {name} names no driver"
        fitting: set[str] = set()
        most = (0, 0, "")
        for each in wanted:
            totals, free = self._count(self._drivers[each.device_class_name])
            for node in sorted(totals.keys() & nodes):
                most = max(most, (free[node], totals[node], node), key=lambda one: one[:2])
                if free[node] >= each.count:
                    fitting.add(node)
        left, total, node = most
        if not node:
            return f"{text}: no node has such a device"
        where = f"{len(fitting)} of {counted(len(nodes), 'node')}" if fitting else "no node"
        return f"{text}: free on {where}; most on {node}, {left} of {total}"

    def _count(self, drivers: Collection[str]) -> tuple[Mapping[str, int], Counter[str]]:
        """Return how many devices of *drivers* each node has, and how many of them are free."""
        newest: dict[tuple[str, str], int] = {}
        for each in self._slices:
            pool = each.driver, each.pool.name
            newest[pool] = max(newest.get(pool, 0), each.pool.generation)
        taken = {
            (each.driver, each.pool, each.device)
            for results in self._allocated.values()
            for each in results
            if not (each.share or each.admin_access)
        }
        totals: Counter[str] = Counter()
        free: Counter[str] = Counter()
        for each in self._slices:
            pool = each.driver, each.pool.name
            if each.driver in drivers and each.node_name and each.pool.generation == newest[pool]:
                for device in each.devices or ():
                    totals[each.node_name] += 1
                    free[each.node_name] += (*pool, device.name) not in taken
        return totals, free


def _key_of(found: APIObject) -> Key:
    return found.metadata.namespace or "default", found.metadata.name
