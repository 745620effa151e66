"""NodeResourceTopology objects: the zones of a node, what each has, the kubelet's policy there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.document import (
    CPU,
    Amounts,
    DocumentError,
    Wire,
    convert,
    each_at,
    join,
)
from nri_policy.cluster.objects.metadata import ObjectIdentity
from nri_policy.foundation.units import BILLIONTHS, parse_exact
from nri_policy.nrt.numaplacement import VECTOR

POLICY = "topologyManager"  # what the attributes of the kubelet's policy begin with
MEMORY_SET = "memory set"  # attribute of the zones of pools: ids of NUMA nodes
NUMA_NAME = re.compile(r"node-([0-9]{1,9})")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


class Zone(Struct, frozen=True):
    """One zone; *parent* is the name of another one, or empty.

    *free* and *total* are what is available and allocatable, exact: in billionths, and negative
    where the object has it so. `available` is in milli-CPU, bytes and counts, as other amounts.
    """

    name: str
    type: str
    parent: str = ""
    costs: dict[str, int] = {}  # distance to zones by name; the last of duplicates counts
    total: Amounts = {}
    free: Amounts = {}
    nodes: frozenset[int] = frozenset()  # NUMA nodes of its memory, if reported
    containers: str = ""  # the vector of `numaplacement`: its containers

    @property
    def available(self) -> Amounts:
        """What is available, rounded down; less than nothing is nothing."""
        return _round_down(self.free)

    @property
    def lacking(self) -> Amounts:
        """By how much less than nothing is available, rounded down."""
        return _round_down({name: -amount for name, amount in self.free.items() if amount < 0})

    @property
    def allocatable(self) -> Amounts:
        """What there is, in the same way."""
        return _round_down(self.total)


def _round_down(exact: Amounts) -> Amounts:
    return {
        name: max(amount, 0) // (BILLIONTHS // 1000 if name == CPU else BILLIONTHS)
        for name, amount in exact.items()
    }


class NodeZones(Struct, frozen=True):
    """The zones of one node, in the order of the object."""

    node: str
    zones: tuple[Zone, ...] = ()
    policies: tuple[str, ...] = ()  # `topologyPolicies`
    attributes: tuple[tuple[str, str], ...] = ()  # name and value, duplicates kept

    @property
    def too_free(self) -> str:
        """The first resource of which a zone has more available than there is, and that zone."""
        for zone in self.zones:
            for name, amount in zone.free.items():
                if amount > zone.total[name]:
                    return f"{name} of zone {zone.name}"
        return ""

    def without_usage(self) -> NodeZones:
        """Return them with nothing in use; what attributes say of pods is not there, either."""
        zones = tuple(replace(each, free=each.total, containers="") for each in self.zones)
        attributes = tuple(
            (name, value if name.startswith(POLICY) else "") for name, value in self.attributes
        )
        return replace(self, zones=zones, attributes=attributes)


class _Attribute(Struct):
    name: str
    value: str


class _Cost(Struct):
    name: str
    value: int


class _Resource(Struct):
    name: str
    allocatable: Wire
    available: Wire


class _Zone(Struct):
    name: str
    type: str
    parent: str | None = None
    costs: list[_Cost] | None = None
    attributes: list[_Attribute] | None = None
    resources: list[_Resource] | None = None


class _Object(Struct):
    metadata: ObjectIdentity
    zones: list[_Zone] | None = None
    topologyPolicies: list[str] | None = None  # noqa: N815 - as documents have it
    attributes: list[_Attribute] | None = None


def read_zones(value: object, path: str) -> NodeZones:
    """Return the zones in a NodeResourceTopology object; raises DocumentError."""
    document = convert(value, _Object, path)
    _, node = document.metadata.key(path, "a NodeResourceTopology")
    zones = []
    for each, place in each_at(document.zones, join(path, "zones")):
        resources = each.resources or []
        zones.append(
            Zone(
                name=each.name,
                type=each.type,
                parent=each.parent or "",
                costs={cost.name: cost.value for cost in each.costs or ()},
                total=_exact({one.name: one.allocatable for one in resources}, place),
                free=_exact({one.name: one.available for one in resources}, place),
                nodes=_nodes(each.attributes or ()),
                containers=_first(each.attributes or (), VECTOR),
            )
        )
    return NodeZones(
        node=node,
        zones=tuple(zones),
        policies=tuple(document.topologyPolicies or ()),
        attributes=tuple((each.name, each.value) for each in document.attributes or ()),
    )


def _exact(values: Mapping[str, Wire], zone: str) -> Amounts:
    amounts = {}
    for resource, value in values.items():
        try:
            amounts[resource] = parse_exact(value)
        except ValueError as error:
            raise DocumentError(join(join(zone, "resources"), resource), str(error)) from None
    return amounts


def _first(attributes: Iterable[_Attribute], name: str) -> str:
    return next((each.value for each in attributes if each.name == name), "")


def _nodes(attributes: Iterable[_Attribute]) -> frozenset[int]:
    """Return the ids that an attribute `memory set` lists, none where it is no list of ids."""
    ids = set[int]()
    for part in filter(None, _first(attributes, MEMORY_SET).split(",")):
        found = _RANGE.fullmatch(part)
        if found is None:
            return frozenset()
        ids.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(ids)


def zones_of(
    found: NodeZones | None, below: Sequence[str]
) -> tuple[dict[tuple[str, ...], Zone], str]:
    """Return a host's zones of the last type *below*, by the names down to them.

    With a reason instead where there are none, or one of them is in no zone of the types above. A
    zone without anything stands for an id that the machine does not have, and is passed over.
    """
    if found is None:
        return {}, "no NodeResourceTopology"
    by_name = {zone.name: zone for zone in found.zones}
    leaves = {}
    for zone in found.zones:
        if zone.type != below[-1] or not any(zone.total.values()):
            continue
        chain = [zone]
        for kind in reversed(below[:-1]):
            parent = find_zone_above(chain[0], kind, by_name)
            if parent is None:
                return {}, f"no zones of type {below[-1]} under {kind}"
            chain.insert(0, parent)
        leaves[tuple(each.name for each in chain)] = zone
    return leaves, "" if leaves else f"no zones of type {below[-1]}"


def find_zone_above(zone: Zone, kind: str, by_name: Mapping[str, Zone]) -> Zone | None:
    """Return the zone of type *kind* that contains *zone*.

    The zones of NUMA nodes have no parents in our reports, as their readers expect it. Each
    belongs to the zone with its memory (spec cluster.md §7).
    """
    number = NUMA_NAME.fullmatch(zone.name)
    if not zone.parent and number is not None:
        own = (each for each in by_name.values() if int(number[1]) in each.nodes)
        return next((each for each in own if each.type == kind), None)
    steps = 0
    above = by_name.get(zone.parent)
    while above is not None and above.type != kind and steps < len(by_name):
        above, steps = by_name.get(above.parent), steps + 1
    return above if above is not None and above.type == kind else None
