"""Reads the request of a container from its amounts and annotations, under the settings."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from nri_policy.engine.requests.scheduler_hint import zone_hint
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.refusal import Refused
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.affinity import affinities_of
from nri_policy.workload.annotations import ZONE, AnnotationError, any_ours
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import (
    PERIODS,
    QUOTAS,
    SHARES,
    Container,
    ContainerState,
    Pod,
    Resources,
)
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import Isolation, Request, Sort, Steering, request_of
from nri_policy.workload.requirements import Requirements

MAX_SHAPES = 256  # cached requests


class AmountsError(Refused):
    """CPU amounts of a container that the kernel would not take."""


def read_request(container: Container, layout: Layout) -> tuple[Request, tuple[str, ...]]:
    """Return the request of *container*, with warnings; raises AnnotationError.

    Most containers are alike. So requests without annotations of ours, hints and implicit
    affinities are cached in the layout.
    """
    pod, settings = container.pod, layout.settings
    if (
        any_ours(pod.annotations)
        or container.hints
        or container.stands_for_pod
        or container.part is not None
        or container.joins_pod
        or settings.colocate_pods
        or settings.colocate_namespaces
    ):
        return _read_request(container, layout)
    shape = (
        pod.namespace,
        pod.qos,
        pod.amounts,
        container.resources,
        container.requirements,
        container.pod_level,
    )
    known = layout.requests.get(shape)
    if known is None:
        if len(layout.requests) == MAX_SHAPES:
            layout.requests.clear()
        known = layout.requests[shape] = _read_request(_plain_container(*shape), layout)
    return known


def _plain_container(  # noqa: PLR0913, PLR0917 - a shape
    namespace: str,
    qos: QoS,
    amounts: Resources | None,
    resources: Resources,
    requirements: Requirements | None,
    pod_level: bool | None,
) -> Container:
    """Return a container that has nothing but this: so nothing else can count for its request."""
    pod = Pod(
        id="",
        uid="",
        name="",
        namespace=namespace,
        qos=qos,
        labels={},
        annotations={},
        amounts=amounts,
    )
    return Container(
        id="",
        pod=pod,
        name="",
        state=ContainerState.CREATED,
        created=0,
        labels={},
        resources=resources,
        requirements=requirements,
        pod_level=pod_level,
    )


def _read_request(container: Container, layout: Layout) -> tuple[Request, tuple[str, ...]]:
    """Do the same as `read_request`, without the cache."""
    if container.stands_for_pod:
        return _read_room(container, layout), ()
    if container.part is not None:
        return claim_request(container.part, layout), ()
    settings = layout.settings
    wishes = preferences(container.pod.annotations, container.name)
    if container.resized:
        wishes = replace(wishes, requirements=None)
    affinities = affinities_of(container, settings)
    zone, odd = zone_hint(container.pod.annotations.get(ZONE), layout)
    request = request_of(container, wishes, settings, layout.memory_bytes, affinities.each)
    if zone is not None:
        request = replace(request, steering=replace(request.steering, zone=zone))
    return request, wishes.notices + affinities.notices + odd


def room_milli(container: Container) -> int:
    """Return the milli-CPU of the room of the pod that *container* stands for, 0 if not known."""
    resources = container.resources
    if container.pod.qos is QoS.GUARANTEED:
        return resources.cpu_limit or 0
    return resources.cpu_request


def _read_room(container: Container, layout: Layout) -> Request:
    """Return the request of the room of the pod that *container* stands for (§3.3).

    All CPUs of the pod, like exclusive CPUs of a Guaranteed container, and memory up to its limit.
    A fraction after a resize takes a whole CPU.
    """
    pod, limit = container.pod, container.resources.memory_limit
    cpus = -(-room_milli(container) // 1000)
    alike = replace(
        container,
        pod=replace(pod, qos=QoS.GUARANTEED),
        resources=Resources(cpu_quota=100_000 * cpus, cpu_period=100_000, memory_limit=limit),
    )
    wishes = replace(
        preferences(pod.annotations, container.name),
        requirements=None,
        prefer_shared=False,
        prefer_reserved=False,
        cpu_preserve=False,
        hide_hyperthreads=False,
        cold_start=None,
    )
    request = request_of(alike, wishes, layout.settings, layout.memory_bytes)
    zone, _ = zone_hint(pod.annotations.get(ZONE), layout)
    return replace(request, steering=replace(request.steering, zone=zone))


def claim_request(part: ClaimPart, layout: Layout) -> Request:
    """Return the request of a part of a claim: whole exclusive CPUs, and a shared fraction.

    Spec dra.md §2.3.
    """
    exclusive, shared = divmod(part.milli, 1000)
    settings = layout.settings
    return Request(
        sort=Sort.NORMAL,
        qos=QoS.GUARANTEED,
        exclusive=exclusive,
        shared=shared,
        cpu_limit=None,
        hide_hyperthreads=False,
        movable=False,
        memory=0,
        memory_limit=None,
        memory_kinds=(),
        memory_preserve=True,
        cold_start=None,
        steering=Steering(
            isolated=Isolation.NO,
            burst_level=settings.unlimited_burstable,
            priority=settings.default_cpu_priority,
            hints=(),
            strict_hints=False,
            pick_by_hints=False,
            affinities=(),
            distribute=settings.distribute_cpus,
            full_cores=settings.full_cores,
        ),
    )


def read_admitted(
    container: Container, layout: Layout
) -> tuple[Container, Request, tuple[str, ...]]:
    """Do as `read_request` for a container that already runs.

    Malformed annotations count as missing.
    """
    try:
        return container, *read_request(container, layout)
    except AnnotationError as error:
        plain = replace(container, pod=replace(container.pod, annotations={}))
        request, warnings = read_request(plain, layout)
        return plain, request, (f"{error}; it is placed as if it had no annotations", *warnings)


def check_amounts(resources: Resources) -> None:
    """Raise AmountsError for those that the kernel would not take.

    The runtime would fail, or make others of them: a negative amount is passed on as one just below
    2^64.
    """
    for name, value, accepted in (
        ("shares", resources.cpu_shares, SHARES),
        ("period", resources.cpu_period, PERIODS),
        ("quota", max(0, resources.cpu_quota), QUOTAS),  # less than 0 is no limit, as 0
    ):
        if value and value not in accepted:
            text = f"CPU {name} of {value}: the kernel takes {accepted[0]} to {accepted[-1]}"
            raise AmountsError(text)


def overlay(old: Resources, new: Resources) -> Resources:
    """Return *old* with the amounts that *new* names; the cpuset stays ours (nri.md §3.9)."""
    named = {
        name: value for name, value in asdict(new).items() if value and name not in ("cpus", "mems")
    }
    return replace(old, **named)
