"""Nodes as the cluster side sees them: labels, taints, what pods may use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from nri_policy.cluster.objects.document import (
    Amounts,
    DocumentError,
    Offered,
    Wire,
    convert,
    fields_of,
    join,
    parse_supply,
)
from nri_policy.cluster.objects.metadata import ObjectIdentity, StatusCondition
from nri_policy.native._json_fields import Fields
from nri_policy.native._node_documents import read_usual

HOSTNAME = "kubernetes.io/hostname"


class Taint(Struct, frozen=True, gc=False):
    """A taint; `TimeAdded` is of no concern here."""

    key: str
    effect: str
    value: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"
        )


# for kube-scheduler a cordoned node has it, even before Kubernetes has written it there
CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class ClusterNode(Struct, frozen=True, gc=False):
    """A node; equal nodes compare equal, so that a report of no change is seen as one."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    known: bool = True  # whether the node has a Ready condition at all

    @property
    def host(self) -> str:
        """The name of its host, by which assignments and failures name the node."""
        return self.labels.get(HOSTNAME, self.name)

    @property
    def all_taints(self) -> tuple[Taint, ...]:
        """The taints, with that of a cordoned node."""
        return (*self.taints, CORDONED) if self.unschedulable else self.taints


class _Meta(ObjectIdentity, rename="camel", gc=False):
    labels: dict[str, str] | None = None


class _Spec(Struct, gc=False):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class _Own(Struct, gc=False):
    """What differs from node to node, in documents."""

    metadata: _Meta
    spec: _Spec | None = None


class _Status(Struct, gc=False):
    allocatable: dict[str, Wire] | None = None
    conditions: list[StatusCondition] | None = None


class _Alike(Struct, gc=False):
    """The fields of a Node document that are equal for nodes of one kind."""

    status: _Status | None = None


def read_node(value: object, path: str) -> ClusterNode:
    """Return the node in a Kubernetes Node object; raises DocumentError."""
    usual = read_usual(value)  # of 100,000 nodes, mostly all are
    name, labels, offered, taints, unschedulable, ready = usual or _read(value, path)
    try:
        allocatable = parse_supply(offered)
    except DocumentError as error:
        raise error.below(join(path, "status.allocatable")) from None
    return ClusterNode(
        name, labels, allocatable, taints, ready is True, unschedulable, ready is not None
    )


_FIELDS = Fields(fields_of(_Own), fields_of(_Alike))
_OWN = msgspec.json.Decoder(_Own)


def _read(
    value: object, path: str
) -> tuple[str, dict[str, str], Offered, tuple[Taint, ...], bool, bool | None]:
    """Return the fields of a node; `ready` is None without a Ready condition."""
    own, (offered, ready) = _read_parts(value, path)
    _, name = own.metadata.key(path, "a node")
    spec = own.spec or _Spec()
    labels = own.metadata.labels or {}
    return name, labels, offered, tuple(spec.taints or ()), bool(spec.unschedulable), ready


def _read_parts(value: object, path: str) -> tuple[_Own, tuple[Offered, bool | None]]:
    """Return what a node has of its own, what it offers, and `ready`; raises DocumentError."""
    texts = _FIELDS.texts_of(value) if isinstance(value, Raw) else None
    if texts is not None:
        try:
            return _OWN.decode(texts[0]), _status_in(texts[1])
        except msgspec.ValidationError:
            pass  # the whole text is read again for the message
    return convert(value, _Own, path), _read_status(convert(value, _Alike, path))


@lru_cache(maxsize=4096)
def _status_in(text: bytes) -> tuple[Offered, bool | None]:
    return _read_status(msgspec.json.decode(text, type=_Alike))


def _read_status(document: _Alike) -> tuple[Offered, bool | None]:
    status = document.status or _Status()
    ready = [each.holds for each in status.conditions or () if each.type == "Ready"]
    return tuple((status.allocatable or {}).items()), any(ready) if ready else None
