"""Pods and pod templates: their requests, the nodes where they may run, their owners.

Requests default to limits, as the API server has it. A pod's effective request (cluster.md §4.3) is

    max(init containers, Σ app containers + sidecars) + overhead

where an init container runs beside the sidecars declared before it, and an amount that the pod
itself requests (`spec.resources`) stands for that of its containers.

Pods of one template differ in names and times alone: equal parts are held once and shared, so they
must never be changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from sys import intern

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from nri_policy.cluster.objects.document import (
    Amounts,
    Wire,
    convert,
    fields_of,
    join,
    parse_amounts,
)
from nri_policy.cluster.objects.matching import NodeAffinity, Toleration, check_affinity
from nri_policy.cluster.objects.metadata import Namespaced, ObjectMeta, OwnerReference
from nri_policy.cluster.objects.resize import (
    IN_PROGRESS,
    INFEASIBLE,
    PENDING,
    POD,
    count_held,
    larger,
    read_held,
)
from nri_policy.cluster.objects.scheduler_constraints import (
    NONE,
    ConstrainedSpec,
    OwnConstraints,
    PodAffinities,
    PodClaim,
    Port,
    constraints_of,
)
from nri_policy.kube.why import WHY
from nri_policy.native._json_fields import Fields

FINISHED = ("Succeeded", "Failed")
ALWAYS = "Always"  # the restart policy of pods that never end by themselves; the default
MAX_SHARED = 4096  # specs, and of each other part of pods


class Container(Struct, frozen=True, gc=False):
    """A container; its requests have its limits where it names no request."""

    name: str
    requests: Amounts
    limits: Amounts
    sidecar: bool = False  # an init container that is restarted always


class PodSpec(Struct, frozen=True, gc=False):
    """What a pod and a pod template have in common."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Amounts = {}
    requests: Amounts = {}  # of the pod itself
    limits: Amounts = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: NodeAffinity | None = None  # to nodes
    restart_policy: str = ALWAYS

    @property
    def ends(self) -> bool:
        """Whether pods end by themselves; pods of DaemonSets and mirror pods do not."""
        return self.restart_policy != ALWAYS

    def effective(self) -> Amounts:
        """Return the effective requests; the place among `pods` is not in them."""
        running, peak = effective_containers(self.containers, self.init_containers)
        total = larger(running, peak)
        # An amount that only the pod's limits name is requested where no container requests it.
        total |= {each: amount for each, amount in self.limits.items() if not total.get(each)}
        total |= self.requests
        return _add(total, self.overhead)


class Pod(Namespaced, frozen=True, gc=False):
    """A pod; *node* is empty until it is bound.

    While it is resized in place, *spec* has the amounts that count.
    """

    spec: PodSpec
    node: str = ""
    phase: str = "Pending"
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owners: tuple[OwnerReference, ...] = ()
    gates: tuple[str, ...] = ()
    deleted: bool = False  # has a deletion timestamp
    uid: str = ""
    priority: int = 0
    revision: str = ""
    created: str = ""  # as the API server writes times: in the order of their texts
    constraints: tuple[str, ...] = ()  # what only kube-scheduler can judge, in words
    own: OwnConstraints = NONE
    claims: tuple[PodClaim, ...] = ()
    pod_group: str = ""  # the PodGroup of Kubernetes that it names
    unschedulable: str = ""  # why kube-scheduler finds no node, nor one where it preempts others
    resized: PodSpec | None = None  # the spec as written, if other amounts count

    @property
    def written(self) -> PodSpec:
        """The spec as written: what pods like it request."""
        return self.resized or self.spec

    @property
    def finished(self) -> bool:
        """Whether it holds nothing any more."""
        return self.phase in FINISHED


class Template(Struct, frozen=True, gc=False):
    """A pod template."""

    spec: PodSpec
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    constraints: tuple[str, ...] = ()  # what only kube-scheduler can judge, in words
    own: OwnConstraints = NONE
    claims: tuple[PodClaim, ...] = ()
    pod_group: str = ""  # the PodGroup of Kubernetes that it names


class _Resources(Struct, gc=False):
    requests: dict[str, Wire] | None = None
    limits: dict[str, Wire] | None = None


class _Container(Struct, gc=False):
    name: str = ""
    resources: _Resources | None = None
    ports: list[Port] | None = None
    restartPolicy: str | None = None  # noqa: N815 - as documents have it


class _Affinities(PodAffinities, gc=False):
    nodeAffinity: NodeAffinity | None = None  # noqa: N815


class _Gate(Struct, gc=False):
    name: str


class _SchedulingGroup(Struct, rename="camel", gc=False):
    pod_group_name: str | None = None


class _Spec(ConstrainedSpec, rename="camel", gc=False):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, Wire] | None = None
    resources: _Resources | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    affinity: _Affinities | None = None
    scheduling_gates: list[_Gate] | None = None
    priority: int | None = None
    scheduling_group: _SchedulingGroup | None = None
    restart_policy: str | None = None


class _Condition(Struct, gc=False):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class _Status(Struct, rename="camel", gc=False):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    nominated_node_name: str | None = None
    observed_generation: int | None = None


class _Template(Struct, gc=False):
    metadata: ObjectMeta | None = None
    spec: _Spec | None = None


class _Bound(Struct, rename="camel", gc=False):
    node_name: str | None = None


class _Own(Struct, gc=False):
    """What differs from pod to pod, in documents."""

    metadata: ObjectMeta | None = None
    spec: _Bound | None = None


class _Alike(Struct, gc=False):
    """The fields of a Pod document that are equal for pods of one template in one state."""

    spec: _Spec | None = None
    status: _Status | None = None


class _PodsAlike(Struct, gc=False):
    """The same, read."""

    document: _Spec
    written: PodSpec
    phase: str
    gates: tuple[str, ...]
    claims: tuple[PodClaim, ...]
    unschedulable: str
    resizing: tuple[_Condition, ...]
    observed_generation: int | None


def effective_containers(
    app: Iterable[Container], init: Iterable[Container]
) -> tuple[Amounts, Amounts]:
    """Return what runs at last (app containers and sidecars), and the peak while it starts."""
    sidecars: Amounts = {}
    peak: Amounts = {}
    for each in init:
        beside = _add(sidecars, each.requests)
        if each.sidecar:
            sidecars = beside
        peak = larger(peak, beside)
    running = sidecars
    for each in app:
        running = _add(running, each.requests)
    return running, peak


def read_pod(value: object, path: str) -> Pod:
    """Return the pod in a Kubernetes Pod object; raises DocumentError."""
    own, alike = _read_parts(value, path)
    meta = own.metadata or ObjectMeta()
    namespace, name = meta.key(path, "a pod")
    constraints, demands = _constraints(alike.document, meta)
    resized = _resized(alike, meta, value, path)
    return Pod(
        namespace=intern(namespace),
        name=name,
        spec=resized or alike.written,
        node=intern((own.spec.node_name if own.spec else None) or ""),
        phase=alike.phase,
        labels=_texts(meta.labels),
        # of every pod another, and long
        annotations=_texts(meta.annotations, without=WHY),
        owners=_owners(tuple(meta.owner_references or ())),
        gates=alike.gates,
        deleted=bool(meta.deletion_timestamp),
        uid=meta.uid,
        priority=alike.document.priority or 0,
        revision=meta.resource_version,
        created=intern(meta.creation_timestamp or ""),
        constraints=constraints,
        own=demands,
        claims=alike.claims,
        pod_group=_pod_group(alike.document),
        unschedulable=alike.unschedulable,
        resized=alike.written if resized else None,
    )


_FIELDS = Fields(fields_of(_Own), fields_of(_Alike))
_OWN = msgspec.json.Decoder(_Own)


def _read_parts(value: object, path: str) -> tuple[_Own, _PodsAlike]:
    """Return what a pod has of its own and what others have alike; raises DocumentError."""
    texts = _FIELDS.texts_of(value) if isinstance(value, Raw) else None
    if texts is not None:
        try:
            return _OWN.decode(texts[0]), _alike_in(texts[1], path)
        except msgspec.ValidationError:
            pass  # the whole text is read again for the message
    return convert(value, _Own, path), _read_alike(convert(value, _Alike, path), path)


@lru_cache(maxsize=MAX_SHARED)
def _alike_in(text: bytes, path: str) -> _PodsAlike:
    return _read_alike(msgspec.json.decode(text, type=_Alike), path)


def _read_alike(document: _Alike, path: str) -> _PodsAlike:
    spec, status = document.spec or _Spec(), document.status or _Status()
    conditions = status.conditions or ()
    return _PodsAlike(
        document=spec,
        written=_spec(spec, join(path, "spec")),
        phase=intern(status.phase or "Pending"),
        gates=tuple([each.name for each in spec.scheduling_gates or ()]),
        claims=_claims(spec),
        unschedulable=_unschedulable(status),
        resizing=tuple([each for each in conditions if each.type in (PENDING, IN_PROGRESS)]),
        observed_generation=status.observed_generation,
    )


def _unschedulable(status: _Status) -> str:
    if status.nominated_node_name:
        return ""
    for each in status.conditions or ():
        if each.type == "PodScheduled":
            waits = each.status == "False" and each.reason == "Unschedulable"
            return each.message or "Unschedulable" if waits else ""
    return ""


def _resized(alike: _PodsAlike, meta: ObjectMeta, value: object, path: str) -> PodSpec | None:
    """Return the spec with the amounts that count while the pod is resized; None if it is not."""
    # The kubelet may not have seen yet that the spec changed.
    unseen = alike.observed_generation and alike.observed_generation != meta.generation
    if not alike.resizing and not unseen:
        return None
    written = alike.written
    infeasible = any(each.type == PENDING and each.reason == INFEASIBLE for each in alike.resizing)
    held = read_held(value, path)

    def count(one: Container) -> Container:
        amounts = count_held(one.requests, one.limits, held.get(one.name), infeasible=infeasible)
        return replace(one, **amounts)

    own = held.get(POD) if written.requests else None
    resized = replace(
        written,
        containers=tuple(map(count, written.containers)),
        init_containers=tuple(map(count, written.init_containers)),
        **count_held(written.requests, written.limits, own, infeasible=infeasible),
    )
    return None if resized == written else resized


def template_of(pod: Pod) -> Template:
    """Return the template of pods that are like *pod*."""
    return Template(
        spec=pod.written,
        labels=pod.labels,
        annotations=pod.annotations,
        constraints=pod.constraints,
        own=pod.own,
        claims=pod.claims,
        pod_group=pod.pod_group,
    )


def read_template(value: object, path: str) -> Template:
    """Return a pod template; raises DocumentError."""
    document = convert(value, _Template, path)
    meta, spec = document.metadata or ObjectMeta(), document.spec or _Spec()
    constraints, own = _constraints(spec, meta)
    return Template(
        spec=_spec(spec, join(path, "spec")),
        labels=_texts(meta.labels),
        annotations=_texts(meta.annotations),
        constraints=constraints,
        own=own,
        claims=_claims(spec),
        pod_group=_pod_group(spec),
    )


def _pod_group(spec: _Spec) -> str:
    return (spec.scheduling_group.pod_group_name if spec.scheduling_group else None) or ""


def _claims(spec: _Spec) -> tuple[PodClaim, ...]:
    return _shared_claims(tuple(spec.resource_claims or ()))


@lru_cache(maxsize=MAX_SHARED)
def _shared_claims(claims: tuple[PodClaim, ...]) -> tuple[PodClaim, ...]:
    return claims


def _constraints(spec: _Spec, meta: ObjectMeta) -> tuple[tuple[str, ...], OwnConstraints]:
    ports = [
        port
        for each in spec.containers or ()
        for port in each.ports or ()
        if port.host_port or spec.host_network
    ]
    return constraints_of(spec, spec.affinity, ports, meta.labels or {})


_NO_TEXTS: dict[str, str] = {}


def _texts(given: dict[str, str] | None, *, without: str = "") -> dict[str, str]:
    if not given:
        return _NO_TEXTS  # mostly, of annotations
    return _shared_texts(tuple([each for each in given.items() if each[0] != without]))


@lru_cache(maxsize=MAX_SHARED)
def _shared_texts(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(items)


@lru_cache(maxsize=MAX_SHARED)
def _owners(owners: tuple[OwnerReference, ...]) -> tuple[OwnerReference, ...]:
    return owners


_specs: dict[bytes, PodSpec] = {}  # by what their documents say


def _spec(spec: _Spec, path: str) -> PodSpec:
    """Return what a pod and its template have in common; raises DocumentError."""
    affinity = spec.affinity.nodeAffinity if spec.affinity else None
    key = msgspec.json.encode(
        (
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.resources,
            spec.node_selector,
            spec.tolerations,
            affinity,
            spec.restart_policy,
        )
    )
    found = _specs.get(key)
    if found is None:
        found = _read_spec(spec, affinity, path)
        if len(_specs) >= MAX_SHARED:
            _specs.clear()
        _specs[key] = found
    return found


def _read_spec(spec: _Spec, affinity: NodeAffinity | None, path: str) -> PodSpec:
    pod_level = spec.resources or _Resources()
    if affinity is not None:
        check_affinity(affinity, join(path, "affinity.nodeAffinity"))
    return PodSpec(
        containers=_containers(spec.containers, join(path, "containers")),
        init_containers=_containers(spec.init_containers, join(path, "initContainers")),
        overhead=parse_amounts(spec.overhead, join(path, "overhead")),
        requests=parse_amounts(pod_level.requests, join(path, "resources.requests")),
        limits=parse_amounts(pod_level.limits, join(path, "resources.limits")),
        node_selector=spec.node_selector or {},
        tolerations=tuple(spec.tolerations or ()),
        affinity=affinity,
        restart_policy=intern(spec.restart_policy or ALWAYS),
    )


def _containers(given: list[_Container] | None, path: str) -> tuple[Container, ...]:
    containers = []
    for number, each in enumerate(given or ()):
        place = f"{path}[{number}].resources"
        resources = each.resources or _Resources()
        limits = parse_amounts(resources.limits, f"{place}.limits")
        requests = parse_amounts(resources.requests, f"{place}.requests")
        containers.append(
            Container(
                name=each.name,
                requests=limits | requests,
                limits=limits,
                sidecar=each.restartPolicy == "Always",
            )
        )
    return tuple(containers)


def _add(one: Amounts, other: Amounts) -> Amounts:
    if not one or not other:
        return {**one, **other}
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
