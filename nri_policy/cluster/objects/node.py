"""Nodes as the cluster side sees them: labels, taints, what pods may use."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nri_policy.cluster.objects.document import (
    Amounts,
    DocumentError,
    Offered,
    Wire,
    convert,
    join,
    parse_supply,
)
from nri_policy.cluster.objects.metadata import ObjectMeta, StatusCondition
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


class _Spec(Struct, gc=False):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class _Status(Struct, gc=False):
    allocatable: dict[str, Wire] | None = None
    conditions: list[StatusCondition] | None = None


class _Node(Struct, gc=False):
    metadata: ObjectMeta
    spec: _Spec | None = None
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


def _read(
    value: object, path: str
) -> tuple[str, dict[str, str], Offered, tuple[Taint, ...], bool, bool | None]:
    """Return the fields of a node; `ready` is None without a Ready condition."""
    document = convert(value, _Node, path)
    _, name = document.metadata.key(path, "a node")
    spec, status = document.spec or _Spec(), document.status or _Status()
    ready = [each.holds for each in status.conditions or () if each.type == "Ready"]
    return (
        name,
        document.metadata.labels or {},
        tuple((status.allocatable or {}).items()),
        tuple(spec.taints or ()),
        bool(spec.unschedulable),
        any(ready) if ready else None,
    )
