"""The CPU time of a container in the last minute, and that of its neighbours (`explain`)."""

from __future__ import annotations

from msgspec import Struct


class NeighbourReport(Struct, frozen=True, kw_only=True):
    """A container that may run on the same CPUs."""

    container: str  # namespace/pod/name
    cpus: float  # CPU seconds a second


class RecentUseReport(Struct, frozen=True, kw_only=True):
    """What the kernel counted for a container in the last *seconds*."""

    seconds: float
    cpus: float  # CPU seconds a second
    periods: int  # of its CFS quota; 0: it has none
    throttled: int  # of these periods
    throttled_seconds: float
    waited_seconds: float | None  # waiting time of its threads; None if no thread is visible
    neighbours: tuple[NeighbourReport, ...] = ()  # those that used most
