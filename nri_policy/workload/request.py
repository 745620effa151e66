"""Request: what a container is entitled to, and what steers its placement; spec placement.md §3.

Owns the table that turns QoS, amounts, annotations and settings into exclusive CPUs and shared
milli-CPU. Knows nothing of what the node has left.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from msgspec import Struct

from nri_policy.hardware.machine import MEMORY_USES, MemoryKind
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import (
    ExclusivePartitions,
    ExclusiveQuota,
    FullCores,
    Level,
    PodRooms,
    Priority,
    Settings,
)
from nri_policy.workload.affinity import Affinity
from nri_policy.workload.amounts import AmountSource, amounts_of
from nri_policy.workload.annotation_table import Preferences
from nri_policy.workload.annotation_values import Asked, InterruptChoice
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.hints import Hint, device_folders, hints_of
from nri_policy.workload.pod import Container

# A thousand million CPUs: more is as much as this to every machine, and sums of it stay in 64 bits
_MOST = 10**12


_USUAL_KINDS = tuple(sorted(kind for kind, use in MEMORY_USES.items() if use.usual))
_SHARES = {
    qos: f"only Guaranteed containers get exclusive CPUs, and it is {qos.value}" for qos in QoS
}
_FRACTION = (
    'it asks for two CPUs or more and a fraction; with prefer-shared-cpus: "false" the whole CPUs'
    " would be exclusive"
)
_BY_SETTING = "the setting preferSharedCPUs asks for that"
_POD_LEVEL = "its pod has its resources as a whole, and it has no limit of CPU that it requests"
_MANY = "two CPUs or more are isolated only with the annotation prefer-isolated-cpus"


class Sort(StrEnum):
    """Which CPUs a request is about."""

    NORMAL = "normal"
    RESERVED = "reserved"  # shared use of the reserved CPUs
    PRESERVE = "preserve"  # whatever it has: the engine touches nothing


class Isolation(IntEnum):
    """Whether exclusive CPUs should be kernel-isolated ones."""

    NO = 0
    PREFERRED = 1
    REQUIRED = 2


class Entitlement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a container is entitled to: with the same entitlement it needs no other place.

    It is stored with a grant. Values that only steer a choice are not in it: a change of these does
    not move a running container.
    """

    sort: Sort
    qos: QoS
    exclusive: int  # CPUs
    shared: int  # milli-CPU
    cpu_limit: int | None  # milli-CPU, for Burstable; None for none
    hide_hyperthreads: bool
    movable: bool  # may be re-booked to make room
    memory: int  # bytes
    memory_limit: int | None  # bytes; None for none
    memory_kinds: tuple[MemoryKind, ...]  # sorted: stored forms are the same in each process
    memory_preserve: bool
    cold_start: float | None  # seconds on pmem alone, from the start on
    hugepages: tuple[tuple[int, int], ...] = ()  # (bytes of a page, bytes)
    pod_memory: int = 0  # bytes of the pod-level limit: `memory` is the share booked with it

    @property
    def shares(self) -> bool:
        """Whether it has a shared part, be it one without an amount."""
        return self.sort is Sort.NORMAL and (self.exclusive == 0 or self.shared > 0)

    @property
    def preemptible(self) -> bool:
        """Whether it shares without a request and may be moved: no reason to refuse another."""
        return self.shares and self.shared == 0 and self.movable

    @property
    def milli(self) -> int:
        """All milli-CPU asked for, exclusive and shared."""
        return 1000 * self.exclusive + self.shared


class Steering(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What steers the choice among places, or explains it: a change of it moves no one."""

    isolated: Isolation
    burst_level: Level  # where a Burstable container without limit likes to be
    priority: Priority
    hints: tuple[Hint, ...]
    strict_hints: bool  # refuse a container if it cannot be near each hint
    pick_by_hints: bool
    affinities: tuple[Affinity, ...]
    distribute: bool = False  # over several NUMA nodes evenly, if it has to be on several
    full_cores: FullCores = FullCores.OFF
    exclusive_quota: ExclusiveQuota = ExclusiveQuota.NONE
    exclusive_partition: ExclusivePartitions = ExclusivePartitions.OFF
    zone: Hint | None = None  # the scheduler's; never strict
    scheduling_class: Asked | None = None
    blockio_class: Asked | None = None
    rdt_class: Asked | None = None
    cpu_class: Asked | None = None
    interrupts: InterruptChoice | None = None
    device_folders: tuple[str, ...] = ()  # of sysfs: the devices whose interrupts it may claim
    source: AmountSource = AmountSource.ESTIMATE  # of the amounts
    room: bool = False  # whether its pod should have its CPUs as a whole
    other_quota: str = ""  # what another plugin made of its CPU quota: a note
    because: str = ""  # why it gets no exclusive or no isolated CPUs: the end of a sentence


class Request(Entitlement, frozen=True, kw_only=True, omit_defaults=True):
    """A container's entitlement, with the values that steer the choice."""

    steering: Steering

    @property
    def entitlement(self) -> Entitlement:
        """Its entitlement without its share of the pod-level memory."""
        return Entitlement(
            sort=self.sort,
            qos=self.qos,
            exclusive=self.exclusive,
            shared=self.shared,
            cpu_limit=self.cpu_limit,
            hide_hyperthreads=self.hide_hyperthreads,
            movable=self.movable,
            memory=0 if self.pod_memory else self.memory,
            memory_limit=self.memory_limit,
            memory_kinds=self.memory_kinds,
            memory_preserve=self.memory_preserve,
            cold_start=self.cold_start,
            hugepages=self.hugepages,
            pod_memory=self.pod_memory,
        )


def request_of(  # noqa: PLR0913 - all that a request is made of
    container: Container,
    preferences: Preferences,
    settings: Settings,
    capacity: int,
    *,
    affinities: tuple[Affinity, ...] = (),
    zone: Hint | None = None,
) -> Request:
    """Return the request of *container* with its annotations under the *settings*.

    *capacity* is the node's memory in bytes, with which the kubelet computes OOM scores.
    """
    amounts = amounts_of(container, preferences.requirements, capacity)
    milli = min(amounts.milli, _MOST)
    sort, because = _sort(container, preferences, settings)
    exclusive, isolated = 0, Isolation.NO
    if sort is Sort.NORMAL and container.pod.qos is QoS.GUARANTEED:
        exclusive, isolated, because = 0, Isolation.NO, _POD_LEVEL
        if amounts.whole:
            exclusive, isolated, because = _exclusive(milli, preferences, settings)
    room = sort is Sort.NORMAL and _has_room(container.pod.qos, preferences, settings)
    return Request(
        sort=sort,
        qos=container.pod.qos,
        exclusive=exclusive,
        shared=0 if sort is Sort.PRESERVE else milli - 1000 * exclusive,
        cpu_limit=None if amounts.limit is None else min(amounts.limit, _MOST),
        hide_hyperthreads=preferences.hide_hyperthreads,
        movable=not preferences.static_cpus,
        memory=amounts.memory,
        memory_limit=amounts.memory_limit,
        pod_memory=amounts.pod_memory,
        memory_kinds=_USUAL_KINDS
        if preferences.memory_kinds is None
        else tuple(sorted(preferences.memory_kinds)),
        memory_preserve=preferences.memory_preserve,
        cold_start=preferences.cold_start,
        hugepages=container.resources.hugepages,
        steering=Steering(
            isolated=isolated,
            burst_level=preferences.unlimited_burstable or settings.unlimited_burstable,
            priority=settings.default_cpu_priority
            if preferences.cpu_priority is None
            else preferences.cpu_priority,
            hints=hints_of(container.hints, preferences) if container.hints else (),
            strict_hints=preferences.strict_hints,
            pick_by_hints=preferences.pick_by_hints,
            affinities=affinities,
            distribute=settings.distribute_cpus
            if preferences.distribute_cpus is None
            else preferences.distribute_cpus,
            full_cores=settings.full_cores
            if preferences.full_cores is None
            else preferences.full_cores,
            exclusive_quota=preferences.exclusive_quota or settings.exclusive_quota,
            exclusive_partition=preferences.exclusive_partition or settings.exclusive_partitions,
            zone=zone,
            other_quota=amounts.other_quota,
            scheduling_class=preferences.scheduling_class,
            blockio_class=preferences.blockio_class,
            rdt_class=preferences.rdt_class,
            cpu_class=preferences.cpu_class,
            interrupts=preferences.interrupts,
            device_folders=device_folders(container.devices, preferences)
            if container.devices
            else (),
            source=amounts.source,
            room=room,
            because=because,
        ),
    )


def _has_room(qos: QoS, preferences: Preferences, settings: Settings) -> bool:
    """Return whether a pod should have its CPUs as a whole."""
    if preferences.pod_room is None:
        return settings.pod_rooms is PodRooms.GUARANTEED and qos is QoS.GUARANTEED
    return preferences.pod_room


def _sort(container: Container, preferences: Preferences, settings: Settings) -> tuple[Sort, str]:
    """Return which CPUs a container is about, and why."""
    ordinary = Sort.NORMAL, _SHARES[container.pod.qos]
    if preferences.cpu_preserve:
        namespace = container.pod.namespace
        if not any(glob.matches(namespace) for glob in settings.preserve_namespaces):
            allowed = f"allowed in namespace {namespace}: preserveNamespaces does not name it"
            raise AnnotationError("cpu.preserve", "true", allowed)
        return Sort.PRESERVE, _because_annotated("cpu.preserve")
    if preferences.prefer_reserved is not None:
        asked = Sort.RESERVED, _because_annotated("prefer-reserved-cpus")
        return asked if preferences.prefer_reserved else ordinary
    namespace = container.pod.namespace
    if namespace == "kube-system":
        return Sort.RESERVED, "its namespace is kube-system"
    for glob in settings.reserved_pool_namespaces:
        if glob.matches(namespace):
            return Sort.RESERVED, f"its namespace {namespace} is among reservedPoolNamespaces"
    return ordinary


def _because_annotated(key: str) -> str:
    return f"its annotation {key} asks for that"


def _exclusive(
    milli: int, preferences: Preferences, settings: Settings
) -> tuple[int, Isolation, str]:
    """Return the exclusive CPUs of a Guaranteed container, and whether they should be isolated.

    And why not, where that is so.
    """
    prefer_shared = (
        settings.prefer_shared_cpus
        if preferences.prefer_shared is None
        else preferences.prefer_shared
    )
    whole, fraction = divmod(milli, 1000)
    if whole == 0:
        return 0, Isolation.NO, "it asks for less than one CPU"
    if whole >= 2 and fraction:
        if preferences.prefer_shared is False:
            return whole, *_isolation(preferences, settings)
        return 0, Isolation.NO, _FRACTION
    if prefer_shared:
        by_setting = preferences.prefer_shared is None
        return (
            0,
            Isolation.NO,
            _BY_SETTING if by_setting else _because_annotated("prefer-shared-cpus"),
        )
    if whole >= 2 and preferences.prefer_isolated is None:
        return whole, Isolation.NO, _MANY
    return whole, *_isolation(preferences, settings)


def _isolation(preferences: Preferences, settings: Settings) -> tuple[Isolation, str]:
    if preferences.require_isolated:
        return Isolation.REQUIRED, ""
    if preferences.prefer_isolated is None:
        if settings.prefer_isolated_cpus:
            return Isolation.PREFERRED, ""
        return Isolation.NO, "the setting preferIsolatedCPUs is false"
    if preferences.prefer_isolated:
        return Isolation.PREFERRED, ""
    return Isolation.NO, "its annotation prefer-isolated-cpus is false"
