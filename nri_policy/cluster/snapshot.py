"""A whole cluster as plain values, read into types: what the offline entries work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct, field

from nri_policy.cluster.objects.assignment import check_count
from nri_policy.cluster.objects.budget import Budget, read_budget
from nri_policy.cluster.objects.device_claims import PLURALS, DeviceClaims
from nri_policy.cluster.objects.document import DocumentError, convert, each_at, join, plain
from nri_policy.cluster.objects.node import ClusterNode, read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.priority import PriorityClasses
from nri_policy.cluster.objects.settings import Topology, read_topology
from nri_policy.cluster.requests.group import PlacementGroup, read_group
from nri_policy.cluster.workloads.job_sets import read_job_set_steps
from nri_policy.cluster.workloads.kueue import KueueWorkload, read_workload
from nri_policy.cluster.workloads.membership import JobSet
from nri_policy.cluster.zones.zone import NodeZones, read_zones
from nri_policy.foundation.wording import quoted

_Document = TypeVar("_Document")


class ClusterSnapshot(Struct, frozen=True):
    """Nodes, pods, zones, groups and topologies, each once."""

    nodes: tuple[ClusterNode, ...] = ()
    pods: tuple[Pod, ...] = ()
    zones: tuple[NodeZones, ...] = ()
    groups: tuple[PlacementGroup, ...] = ()
    job_sets: tuple[JobSet, ...] = ()
    topologies: tuple[Topology, ...] = ()  # Kueue's; those of the settings come first
    budgets: tuple[Budget, ...] = ()
    workloads: tuple[KueueWorkload, ...] = ()
    classes: PriorityClasses = field(default_factory=PriorityClasses)
    devices: DeviceClaims = field(default_factory=DeviceClaims)
    failures: dict[str, int] = {}  # node -> recent failures of the service asked about
    stale: frozenset[str] = frozenset()  # nodes with outdated zones


class _Cluster(Struct, forbid_unknown_fields=True):
    nodes: list[Any] | None = None
    pods: list[Any] | None = None
    zones: list[Any] | None = None
    groups: list[Any] | None = None
    jobsets: list[Any] | None = None
    topologies: list[Any] | None = None
    budgets: list[Any] | None = None
    workloads: list[Any] | None = None
    classes: list[Any] | None = None
    resourceclaims: list[Any] | None = None
    resourceclaimtemplates: list[Any] | None = None
    deviceclasses: list[Any] | None = None
    resourceslices: list[Any] | None = None
    failures: dict[str, int] | None = None
    stale: list[str] | None = None


def read_snapshot(value: object) -> ClusterSnapshot:
    """Return the cluster in *value*; raises DocumentError with the path of what is wrong."""
    given = convert(value, _Cluster, "")
    for node, number in (given.failures or {}).items():
        check_count(number, 0, join("failures", node))
    budgets = [read_budget(each, place) for each, place in each_at(given.budgets, "budgets")]
    classes = PriorityClasses()
    for each, place in each_at(given.classes, "classes"):
        classes.add(each, place)
    devices = DeviceClaims()
    for kind, plural in PLURALS.items():
        for each, place in each_at(getattr(given, plural), plural):
            devices.add(kind, each, place)
    name, full_name = attrgetter("name"), attrgetter("full_name")
    return ClusterSnapshot(
        nodes=_read(given.nodes, "nodes", read_node, name),
        pods=_read(given.pods, "pods", read_pod, full_name),
        zones=_read(given.zones, "zones", read_zones, attrgetter("node")),
        groups=_read(given.groups, "groups", read_group, full_name),
        job_sets=_read(given.jobsets, "jobsets", read_job_set_steps, full_name),
        topologies=_read(given.topologies, "topologies", read_topology, name),
        budgets=tuple(each for each in budgets if each is not None),
        workloads=_read(given.workloads, "workloads", read_workload, full_name),
        classes=classes,
        devices=devices,
        failures=given.failures or {},
        stale=frozenset(given.stale or ()),
    )


def _read(
    values: Iterable[Any] | None,
    path: str,
    read: Callable[[object, str], _Document],
    name: Callable[[_Document], str],
) -> tuple[_Document, ...]:
    documents = []
    for value in values or ():
        try:
            documents.append(read(value, ""))  # of 100,000 paths, none is needed but in an error
        except DocumentError as error:
            error.text += _named(value)
            raise error.below(join(path, len(documents))) from None
    names = [name(each) for each in documents]
    if len({*names}) < len(names):
        first = {each: number for number, each in reversed([*enumerate(names)])}
        number, twice = next(each for each in enumerate(names) if first[each[1]] < each[0])
        raise DocumentError(
            join(join(path, number), "metadata.name"), f"{quoted(twice)} is given twice"
        )
    return tuple(documents)


def _named(value: Any) -> str:
    """Return ` (in KIND NAME)` for an object with a name: people search for it, not a number."""
    value = plain(value)
    meta = value.get("metadata") if isinstance(value, dict) else None
    name = meta.get("name") if isinstance(meta, dict) else None
    if not isinstance(name, str) or not name:
        return ""
    kind = value.get("kind")
    known = f"{kind} " if isinstance(kind, str) and kind.isidentifier() else ""
    return f" (in {known}{quoted(name)})"
