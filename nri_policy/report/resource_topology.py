"""The node's NodeResourceTopology object (`nrt`): topology.node.k8s.io/v1alpha2."""

from __future__ import annotations

from msgspec import Struct


class NamedValue(Struct, frozen=True, kw_only=True):
    """An attribute."""

    name: str
    value: str


class Cost(Struct, frozen=True, kw_only=True):
    """The distance to a zone."""

    name: str
    value: int


class ZoneResource(Struct, frozen=True, kw_only=True):
    """An amount of a resource: Kubernetes quantities."""

    name: str
    capacity: str
    allocatable: str
    available: str


class Zone(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A NUMA node or a pool."""

    name: str
    type: str
    parent: str | None = None
    costs: tuple[Cost, ...] | None = None
    attributes: tuple[NamedValue, ...] | None = None
    resources: tuple[ZoneResource, ...]


class ObjectName(Struct, frozen=True, kw_only=True):
    """The metadata that we write."""

    name: str


class ResourceTopology(Struct, frozen=True, kw_only=True, rename="camel"):
    """The object as it would be published."""

    api_version: str
    kind: str
    metadata: ObjectName
    attributes: tuple[NamedValue, ...]
    zones: tuple[Zone, ...]
