"""Request: what a container is entitled to; spec placement.md §3.

Owns the table that turns QoS, amounts, annotations and settings into exclusive CPUs and shared
milli-CPU. Knows nothing of what the node has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from nri_policy.glob import Glob
from nri_policy.hardware.machine import MemoryKind
from nri_policy.settings import Level, Priority, Settings
from nri_policy.workload.affinity import Affinity
from nri_policy.workload.hints import Hint, hints_of
from nri_policy.workload.oom_score import memory_request
from nri_policy.workload.pod import Container, QoS
from nri_policy.workload.preferences import Preferences

# A thousand million CPUs: more is as much as this to every machine, and sums of it stay in 64 bits
_MOST = 10**12


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one container asks for."""

    sort: Sort
    qos: QoS
    exclusive: int  # CPUs
    shared: int  # milli-CPU
    isolated: Isolation
    cpu_limit: int | None  # milli-CPU, for Burstable; None for none
    burst_level: Level  # where a Burstable container without limit likes to be
    priority: Priority
    hide_hyperthreads: bool
    movable: bool  # may be re-booked to make room
    memory: int  # bytes
    memory_limit: int | None  # bytes; None for none
    memory_kinds: frozenset[MemoryKind]
    memory_preserve: bool
    cold_start: float | None  # seconds on pmem alone, from the start on
    hints: tuple[Hint, ...]
    strict_hints: bool  # to be near to all of them, or not to run
    pick_by_hints: bool
    affinities: tuple[Affinity, ...]

    @property
    def shares(self) -> bool:
        """Whether it has a shared part, be it one without an amount."""
        return self.sort is Sort.NORMAL and (self.exclusive == 0 or self.shared > 0)

    @property
    def guest(self) -> bool:
        """Whether it shares without a request and may be moved: no reason to refuse another."""
        return self.shares and self.shared == 0 and self.movable

    @property
    def milli(self) -> int:
        """All milli-CPU asked for, exclusive and shared."""
        return 1000 * self.exclusive + self.shared


def request_of(
    container: Container,
    preferences: Preferences,
    settings: Settings,
    capacity: int,
    affinities: tuple[Affinity, ...] = (),
) -> Request:
    """Return what *container* asks for under its annotations and the *settings*.

    *capacity* is the node's memory in bytes, by which the kubelet reckons OOM scores.
    """
    milli, limit = _amounts(container, preferences)
    memory, memory_limit = _memory(container, preferences, capacity)
    sort = _sort(container, preferences, settings)
    exclusive, isolated = 0, Isolation.NO
    if sort is Sort.NORMAL and container.pod.qos is QoS.GUARANTEED:
        exclusive, isolated = _exclusive(milli, preferences, settings)
    return Request(
        sort=sort,
        qos=container.pod.qos,
        exclusive=exclusive,
        shared=0 if sort is Sort.PRESERVE else milli - 1000 * exclusive,
        isolated=isolated,
        cpu_limit=limit,
        burst_level=preferences.unlimited_burstable or settings.unlimited_burstable,
        priority=settings.default_cpu_priority
        if preferences.cpu_priority is None
        else preferences.cpu_priority,
        hide_hyperthreads=preferences.hide_hyperthreads,
        movable=not preferences.static_cpus,
        memory=memory,
        memory_limit=memory_limit,
        memory_kinds=preferences.memory_kinds or frozenset({MemoryKind.DRAM, MemoryKind.PMEM}),
        memory_preserve=preferences.memory_preserve,
        cold_start=preferences.cold_start,
        hints=hints_of(container.hints, preferences),
        strict_hints=preferences.strict_hints,
        pick_by_hints=preferences.pick_by_hints,
        affinities=affinities,
    )


def _amounts(container: Container, preferences: Preferences) -> tuple[int, int | None]:
    """Return requested and limiting milli-CPU, neither beyond what any machine has."""
    request, limit = _given(container, preferences)
    return min(request, _MOST), None if limit is None else min(limit, _MOST)


def _given(container: Container, preferences: Preferences) -> tuple[int, int | None]:
    """Return requested and limiting milli-CPU: exact where annotated, else as the cgroup has it."""
    exact = preferences.requirements
    if exact is not None:
        request = exact.cpu_limit if exact.cpu_request is None else exact.cpu_request
        return request or 0, exact.cpu_limit
    limit = container.resources.cpu_limit
    if container.pod.qos is QoS.GUARANTEED and limit is not None:
        return (
            limit,
            limit,
        )  # request and limit are equal, and the quota is exact where shares are rounded
    return container.resources.cpu_request, limit


def _memory(
    container: Container, preferences: Preferences, capacity: int
) -> tuple[int, int | None]:
    """Return the bytes requested and the limit: exact where annotated, else as the cgroup has it.

    A Burstable container's request is in its OOM score only (nri.md §7).
    """
    limit = container.resources.memory_limit or None
    exact = preferences.requirements
    if exact is not None:
        request = exact.memory_limit if exact.memory_request is None else exact.memory_request
        return request or 0, exact.memory_limit
    if container.pod.qos is not QoS.BURSTABLE:
        return limit or 0, limit
    estimate = memory_request(container.resources.oom_score_adj, capacity) or 0
    return estimate if limit is None else min(estimate, limit), limit


def _sort(container: Container, preferences: Preferences, settings: Settings) -> Sort:
    if preferences.cpu_preserve:
        return Sort.PRESERVE
    if preferences.prefer_reserved is not None:
        return Sort.RESERVED if preferences.prefer_reserved else Sort.NORMAL
    namespace = container.pod.namespace
    if namespace == "kube-system" or _any(settings.reserved_pool_namespaces, namespace):
        return Sort.RESERVED
    return Sort.NORMAL


def _any(globs: tuple[Glob, ...], text: str) -> bool:
    return any(glob.matches(text) for glob in globs)


def _exclusive(milli: int, preferences: Preferences, settings: Settings) -> tuple[int, Isolation]:
    """Return the exclusive CPUs of a Guaranteed container, and whether they should be isolated."""
    prefer_shared = (
        settings.prefer_shared_cpus
        if preferences.prefer_shared is None
        else preferences.prefer_shared
    )
    whole, fraction = divmod(milli, 1000)
    if whole == 0:
        return 0, Isolation.NO
    if whole >= 2 and fraction:
        return (
            (whole, _isolation(preferences, settings))
            if preferences.prefer_shared is False
            else (0, Isolation.NO)
        )
    if prefer_shared:
        return 0, Isolation.NO
    if whole >= 2:
        annotated = preferences.prefer_isolated is not None
        return whole, _isolation(preferences, settings) if annotated else Isolation.NO
    return 1, _isolation(preferences, settings)


def _isolation(preferences: Preferences, settings: Settings) -> Isolation:
    if preferences.require_isolated:
        return Isolation.REQUIRED
    preferred = (
        settings.prefer_isolated_cpus
        if preferences.prefer_isolated is None
        else preferences.prefer_isolated
    )
    return Isolation.PREFERRED if preferred else Isolation.NO
