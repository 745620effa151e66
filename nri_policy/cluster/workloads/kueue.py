"""What is read of Kueue's objects (kueue.x-k8s.io/v1beta2): Workloads, AdmissionChecks, flavors.

A Workload is *reserved* while Kueue holds quota for it, and *over* once it has finished or was
evicted. Its pods name it by an annotation, and their pod set by a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.cluster.objects.assignment import (
    Assignment,
    DomainAssignment,
    check_count,
    from_host,
)
from nri_policy.cluster.objects.document import DocumentError, Object, convert, each_at, join
from nri_policy.cluster.objects.matching import Toleration
from nri_policy.cluster.objects.metadata import Key, Namespaced, ObjectIdentity, StatusCondition
from nri_policy.cluster.objects.pod import Pod, Template, read_template
from nri_policy.cluster.requests.group import GROUP_LABEL, GroupStatus, PlacementGroup, PodSet

API = ("kueue.x-k8s.io", "v1beta2")
KIND = "Workload"
WORKLOAD = "kueue.x-k8s.io/workload"  # annotation of its pods
POD_SET = "kueue.x-k8s.io/podset"  # label of them
GROUP_PREFIX = "kueue/"  # of the names of Workloads among groups: objects' names have no slash
_MOST_DOMAINS = 1_000_000  # of a slice of an assignment: more than clusters have nodes
NOBODY_PREEMPTS = 2**31 - 1  # priority of what only Kueue may preempt


class AdmittedPodSet(Struct, frozen=True):
    """A pod set of a Workload, and what Kueue has assigned to it."""

    name: str
    count: int
    template: Template
    flavors: tuple[str, ...] = ()
    assignment: Assignment | None = None  # by its topology


class CheckState(Struct, frozen=True):
    """How an admission check of a Workload stands."""

    name: str
    state: str
    retries: int = 0
    waits: bool = False  # it says when Kueue is to try again


class KueueWorkload(Namespaced, frozen=True):
    """A Workload of Kueue."""

    revision: str
    pod_sets: tuple[AdmittedPodSet, ...]
    reserved: bool = False
    over: bool = False
    evicted: bool = False  # it has lost its quota, or is about to, and may get it again
    delayed: bool = False  # Kueue knows when to try again
    priority: int = 0
    created: str = ""
    checks: tuple[CheckState, ...] = ()
    stored_checks: tuple[Object, ...] = ()  # as the object has them


class AdmissionCheck(Struct, frozen=True):
    """An AdmissionCheck."""

    name: str
    controller: str
    revision: str
    generation: int
    has_parameters: bool
    conditions: tuple[Object, ...] = ()


class ResourceFlavor(Struct, frozen=True):
    """A ResourceFlavor: what it adds to pods."""

    name: str
    node_labels: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class _PodSet(Struct):
    count: int
    template: Object = {}
    name: str = "main"


class _Spec(Struct, rename="camel"):
    pod_sets: list[_PodSet] | None = None
    priority: int | None = None
    active: bool | None = None


class _Values(Struct):
    roots: list[str] = []
    prefix: str = ""
    suffix: str = ""


class _LevelValues(Struct):
    universal: str | None = None
    individual: _Values | None = None


class _Counts(Struct):
    universal: int | None = None
    individual: list[int] | None = None


class _Slice(Struct, rename="camel"):
    domain_count: int
    values_per_level: list[_LevelValues]
    pod_counts: _Counts


class _TopologyAssignment(Struct):
    levels: list[str]
    slices: list[_Slice] = []


class _PodSetAssignment(Struct, rename="camel"):
    name: str = "main"
    flavors: dict[str, str] | None = None
    count: int | None = None
    topology_assignment: _TopologyAssignment | None = None


class _Admission(Struct, rename="camel"):
    pod_set_assignments: list[_PodSetAssignment] | None = None


class _Check(Struct, rename="camel"):
    name: str
    state: str = "Pending"
    retry_count: int | None = None
    requeue_after_seconds: int | None = None


class _RequeueState(Struct, rename="camel"):
    requeue_at: str | None = None


class _Status(Struct, rename="camel"):
    conditions: list[StatusCondition] | None = None
    admission: _Admission | None = None
    admission_checks: list[Object] | None = None
    requeue_state: _RequeueState | None = None


class _Workload(Struct):
    metadata: ObjectIdentity
    spec: _Spec
    status: _Status | None = None


class _Reference(Struct):
    name: str = ""


class _CheckSpec(Struct, rename="camel"):
    controller_name: str
    parameters: _Reference | None = None


class _CheckStatus(Struct):
    conditions: list[Object] | None = None


class _AdmissionCheck(Struct):
    metadata: ObjectIdentity
    spec: _CheckSpec
    status: _CheckStatus | None = None


class _FlavorSpec(Struct, rename="camel"):
    node_labels: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class _ResourceFlavor(Struct):
    metadata: ObjectIdentity
    spec: _FlavorSpec = field(default_factory=_FlavorSpec)


def read_workload(value: object, path: str) -> KueueWorkload:
    """Return the Workload in an object; raises DocumentError."""
    document = convert(value, _Workload, path)
    meta, spec, status = document.metadata, document.spec, document.status or _Status()
    holds = {each.type for each in status.conditions or () if each.holds}
    admission = status.admission or _Admission()
    assigned = {each.name: each for each in admission.pod_set_assignments or ()}
    pod_sets = []
    for each, place in each_at(spec.pod_sets, join(path, "spec.podSets")):
        own = assigned.get(each.name, _PodSetAssignment())
        count = each.count if own.count is None else own.count
        check_count(count, 0, join(place, "count"))
        given = own.topology_assignment
        where = join(path, "status.admission.podSetAssignments")
        pod_sets.append(
            AdmittedPodSet(
                name=each.name,
                count=count,
                template=read_template(each.template, join(place, "template")),
                flavors=tuple(dict.fromkeys((own.flavors or {}).values())),
                assignment=None if given is None else _assignment(each.name, given, where),
            )
        )
    stored = status.admission_checks or []
    listed = each_at(stored, join(path, "status.admissionChecks"))
    checks = [convert(each, _Check, place) for each, place in listed]
    namespace, name = meta.key(path, "a Workload")
    return KueueWorkload(
        namespace=namespace,
        name=name,
        revision=meta.resource_version,
        pod_sets=tuple(pod_sets),
        reserved="QuotaReserved" in holds and status.admission is not None,
        over=bool(holds & {"Finished", "Evicted"}) or spec.active is False,
        evicted="Evicted" in holds and "Finished" not in holds and spec.active is not False,
        delayed=bool(status.requeue_state and status.requeue_state.requeue_at),
        priority=spec.priority or 0,
        created=meta.creation_timestamp or "",
        checks=tuple(
            CheckState(
                each.name, each.state, each.retry_count or 0, each.requeue_after_seconds is not None
            )
            for each in checks
        ),
        stored_checks=tuple(stored),
    )


def _assignment(name: str, given: _TopologyAssignment, path: str) -> Assignment:
    domains = [each for one in given.slices for each in _domains(one, len(given.levels), path)]
    return from_host(Assignment(pod_set=name, levels=given.levels, domains=domains))


def _domains(given: _Slice, levels: int, path: str) -> Iterator[DomainAssignment]:
    """Yield the domains of a slice, with values by level, equal domains once."""
    number, counts = given.domain_count, given.pod_counts
    if number > _MOST_DOMAINS:  # seen before so many are made
        raise DocumentError(path, f"a slice of {number} domains is larger than {_MOST_DOMAINS}")
    columns: list[list[str]] = [
        [each.universal] * number
        if each.universal is not None
        else [f"{own.prefix}{root}{own.suffix}" for root in own.roots]
        for each in given.values_per_level
        for own in [each.individual or _Values()]
    ]
    pods = [counts.universal] * number if counts.universal is not None else counts.individual or []
    lengths = {len(pods), *(len(each) for each in columns)}
    if len(columns) != levels or lengths != {number}:
        raise DocumentError(path, f"a slice of {number} domains has other numbers of values")
    for values, count in zip(zip(*columns, strict=True), pods, strict=True):
        check_count(count, 0, path)
        yield DomainAssignment(values=[*values], count=count)


def read_check(value: object, path: str) -> AdmissionCheck:
    """Return the AdmissionCheck in an object; raises DocumentError."""
    document = convert(value, _AdmissionCheck, path)
    status = document.status or _CheckStatus()
    _, name = document.metadata.key(path, "an AdmissionCheck")
    return AdmissionCheck(
        name=name,
        controller=document.spec.controller_name,
        revision=document.metadata.resource_version,
        generation=document.metadata.generation,
        has_parameters=document.spec.parameters is not None,
        conditions=tuple(status.conditions or ()),
    )


def read_flavor(value: object, path: str) -> ResourceFlavor:
    """Return the ResourceFlavor in an object; raises DocumentError."""
    document = convert(value, _ResourceFlavor, path)
    _, name = document.metadata.key(path, "a ResourceFlavor")
    return ResourceFlavor(
        name=name,
        node_labels=document.spec.node_labels or {},
        tolerations=tuple(document.spec.tolerations or ()),
    )


def group_of(workload: KueueWorkload) -> PlacementGroup:
    """Return the group that stands for a Workload's topology assignments: what it may use."""
    found = workload.reserved and not workload.over
    assigned = [each.assignment for each in workload.pod_sets if each.assignment and found]
    return PlacementGroup(
        namespace=workload.namespace,
        name=GROUP_PREFIX + workload.name,
        pod_sets=tuple(PodSet(each.name, each.count, each.template) for each in workload.pod_sets),
        priority=NOBODY_PREEMPTS,
        status=GroupStatus(state="Placed", assignments=assigned) if assigned else GroupStatus(),
    )


def workload_of(pod: Pod) -> Key | None:
    """Return the Workload that a pod is of, None where it names none."""
    name = pod.annotations.get(WORKLOAD)
    return None if not name else (pod.namespace, name)


def assigned_group(pod: Pod) -> str | None:
    """Return the group that stands for a pod's Workload: it counts where Kueue has assigned it.

    None for a pod without a Workload, and for a pod that this service let go to its own place.
    """
    workload = None if GROUP_LABEL in pod.annotations else workload_of(pod)
    return None if workload is None else GROUP_PREFIX + workload[1]


def with_flavors(pod_set: AdmittedPodSet, flavors: Mapping[str, ResourceFlavor]) -> Template:
    """Return the template of a pod set as its pods will be, with what its flavors add.

    Raises KeyError for a flavor that is not known.
    """
    spec = pod_set.template.spec
    for name in pod_set.flavors:
        own = flavors[name]
        spec = replace(
            spec,
            node_selector={**spec.node_selector, **own.node_labels},
            tolerations=(*spec.tolerations, *own.tolerations),
        )
    return replace(pod_set.template, spec=spec)
