"""Reads what a container asks for: all of it in one request; spec placement.md §3.

Amounts, annotations, affinities, hints and the scheduler's zone, under the settings of one node.
It must not know what the node has left.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.foundation.units import format_cpu
from nri_policy.foundation.wording import quoted
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import Settings
from nri_policy.workload.affinity import affinities_of
from nri_policy.workload.annotations import ZONE, AnnotationError, any_ours
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import Isolation, Request, Sort, Steering, request_of
from nri_policy.workload.requirements import Requirements

MAX_SHAPES = 256  # cached requests

_Reading = tuple[Request, tuple[str, ...]]  # with warnings


class RequestReader:
    """Reads requests on one node under some settings."""

    def __init__(self, settings: Settings, memory_bytes: int, zones: Mapping[str, Hint]) -> None:
        """*memory_bytes* are the node's; *zones* are the places of its NUMA zones, by name."""
        self._settings = settings
        self._memory_bytes = memory_bytes
        self._zones = zones
        self._always_own = settings.colocate_pods or settings.colocate_namespaces
        self._known: dict[tuple[object, ...], _Reading] = {}  # by all that they depend on

    def read(self, container: Container) -> _Reading:
        """Return the request of *container*, with warnings; raises AnnotationError.

        For a container that stands for a pod: the request of its room, or why it has no room.

        Most containers are alike. So requests without annotations of ours, hints and implicit
        affinities are cached.
        """
        pod = container.pod
        if (
            container.hints
            or container.stands_for_pod
            or container.part is not None
            or container.joins_pod
            or self._always_own
            or any_ours(pod.annotations)
        ):
            return self._read(container)
        shape = (
            pod.namespace,
            pod.qos,
            pod.amounts,
            container.resources,
            container.requirements,
            container.pod_level,
            container.resized,
        )
        known = self._known.get(shape)
        if known is None:
            if len(self._known) == MAX_SHAPES:
                self._known.clear()
            known = self._known[shape] = self._read(_plain_container(*shape))
        return known

    def read_admitted(self, container: Container) -> tuple[Container, Request, tuple[str, ...]]:
        """Do as `read` for a container that already runs.

        Malformed annotations count as missing.
        """
        try:
            return container, *self.read(container)
        except AnnotationError as error:
            plain = replace(container, pod=replace(container.pod, annotations={}))
            request, warnings = self.read(plain)
            text = f"{error}; it is placed as if it had no annotations"
            return plain, request, (text, *warnings)

    def read_claim(self, part: ClaimPart) -> Request:
        """Return the request of a part of a claim: whole exclusive CPUs, and a shared fraction.

        Spec dra.md §2.3.
        """
        exclusive, shared = divmod(part.milli, 1000)
        settings = self._settings
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

    def _read(self, container: Container) -> _Reading:
        """Do the same as `read`, without the cache."""
        if container.stands_for_pod:
            return self._read_room(container), why_no_room(container)
        if container.part is not None:
            return self.read_claim(container.part), ()
        settings, annotations = self._settings, container.pod.annotations
        wishes = preferences(annotations, container.name)
        if container.resized:
            wishes = replace(wishes, requirements=None)
        affinities = affinities_of(container, settings)
        name = annotations.get(ZONE)
        zone = None if name is None else self._zones.get(name)
        odd: tuple[str, ...] = ()
        if name is not None and zone is None:
            odd = (f"annotation {ZONE}: {quoted(name)} is not a zone of this node; it is ignored",)
        request = request_of(
            container, wishes, settings, self._memory_bytes, affinities=affinities.each, zone=zone
        )
        return request, wishes.notices + affinities.notices + odd

    def _read_room(self, container: Container) -> Request:
        """Return the request of the room of the pod that *container* stands for; placement.md §3.3.

        All CPUs of the pod, like exclusive CPUs of a Guaranteed container, and memory up to its
        limit. A fraction after a resize takes a whole CPU.
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
        zone = self._zones.get(pod.annotations.get(ZONE, ""))
        return request_of(alike, wishes, self._settings, self._memory_bytes, zone=zone)


def _plain_container(  # noqa: PLR0913, PLR0917 - a shape
    namespace: str,
    qos: QoS,
    amounts: Resources | None,
    resources: Resources,
    requirements: Requirements | None,
    pod_level: bool | None,
    resized: bool,
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
        resized=resized,
    )


def why_no_room(pod: Container) -> tuple[str, ...]:
    """Return why the pod that *pod* stands for cannot have a room, empty if it can."""
    milli = room_milli(pod)
    if milli >= 1000 and not milli % 1000:
        return ()
    asked = f"asks for {format_cpu(milli)} CPU" if milli else "says no amount of CPUs"
    return (f"its pod gets no room: the pod {asked}, and a room is whole CPUs",)


def room_milli(container: Container) -> int:
    """Return the milli-CPU of the room of the pod that *container* stands for, 0 if not known."""
    resources = container.resources
    if container.pod.qos is QoS.GUARANTEED:
        return resources.cpu_limit or 0
    return resources.cpu_request
