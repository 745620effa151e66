"""Finds containers of ours that no longer have a process, and containers that we do not know.

A runtime can miss the end of a container during our registration, and we can miss its creation.
Both are checked twice, `GRACE` apart, and only where processes outside our PID namespace are
visible: an invisible process has not ended.

CRI-O does not report a creation that fails or that the kubelet gave up: it keeps the container for
one to two minutes, in case it is requested again. From early in its creation, even during a slow
hook, a container there has a process. So a container that never started is released when it has had
no process for `MAX_CREATION`, which is longer than CRI-O's own limit of a creation (240 s). So is a
container whose creation an older containerd may have given up while we registered.

containerd does not report the end of a pod that existed before its own last start. So a pod with a
room and no containers has ended if its cgroup has no process, because with containerd a sandbox has
a process as long as it lives. A sandbox of CRI-O may have none, but CRI-O reports the end of each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from nri_policy.audit.cgroup import ContainerCgroups
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

GRACE = 2.0  # seconds between the two checks
MAX_CREATION = 300.0  # seconds that a container under creation may be without a process


class KnownContainer(Struct, frozen=True, kw_only=True):
    """A container that runs or was created, as far as the daemon knows."""

    container_id: str
    name: str  # namespace/pod/container
    cgroup: str  # the runtime's name for it
    pid: int  # of its first process; 0 if the runtime does not say


class KnownContainers(Struct, frozen=True, kw_only=True):
    """The containers, pods and rooms that the daemon knows."""

    running: Sequence[KnownContainer]
    created: Sequence[
        KnownContainer
    ]  # not started; the runtime may not report that they never will
    known: Collection[str]  # ids of all containers and pods
    folders: Collection[str]  # the pods' cgroups
    rooms: Mapping[str, str]  # cgroups of pods that have a room and no tenants, by the pod's id


class OrphanSource(Protocol):
    """The daemon, which knows containers and releases them."""

    async def known_containers(self) -> KnownContainers:
        """Return the containers that the daemon knows now."""
        ...

    async def release(self, container_ids: Collection[str]) -> None:
        """Release containers that have ended."""

    async def release_unstarted(self, container_ids: Collection[str]) -> None:
        """Release containers that never started, if they still have not."""

    async def release_rooms(self, pod_ids: Collection[str]) -> None:
        """Release the rooms of pods that have ended, if they still have no tenants."""

    async def register_again(self, cgroups: Collection[str]) -> None:
        """Register again, because unknown containers run in *cgroups*."""


class _Orphans(Struct, frozen=True, kw_only=True):
    ended: Collection[str]  # container ids
    given_up: Collection[str]  # container ids
    unknown: Collection[str]  # cgroups
    empty_rooms: Collection[str] = ()  # pod ids


class OrphanFinder:
    """Compares the containers that the daemon knows with the processes."""

    def __init__(
        self,
        source: OrphanSource,
        reader: ContainerCgroups,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._source = source
        self._reader = reader
        self._clock = clock
        # since when created containers have been without a process, by container id
        self._without: dict[str, float] = {}
        self.unknown: frozenset[str] = frozenset()  # cgroups of unknown containers

    async def round(self) -> None:
        """Check twice; release containers without a process, register again for unknown ones."""
        first = await self._find()
        if not (first.ended or first.given_up or first.unknown or first.empty_rooms):
            self.unknown = frozenset()
            return
        await self._clock.sleep(GRACE)
        second = await self._find()
        if ended := {*first.ended} & {*second.ended}:
            await self._source.release(sorted(ended))
        if given_up := {*first.given_up} & {*second.given_up}:
            await self._source.release_unstarted(sorted(given_up))
        if empty_rooms := {*first.empty_rooms} & {*second.empty_rooms}:
            await self._source.release_rooms(sorted(empty_rooms))
        before, self.unknown = self.unknown, frozenset(first.unknown) & {*second.unknown}
        if new := self.unknown - before:
            log.warning("unknown-container", extra={"cgroups": ",".join(sorted(new))})
            await self._source.register_again(sorted(new))

    async def _find(self) -> _Orphans:
        known = await self._source.known_containers()
        now = self._clock.now()
        return await asyncio.to_thread(self._compare, known, now)

    def _compare(self, known: KnownContainers, now: float) -> _Orphans:
        there = {folder: self._reader.find_populated(folder) for folder in known.folders}
        if not any(any(threads) for names in there.values() for threads in names.values()):
            self._without.clear()
            return _Orphans(ended=(), given_up=(), unknown=())
        ended = [each.container_id for each in known.running if each.pid and self._is_gone(each)]
        without = [each.container_id for each in known.created if self._is_gone(each)]
        self._without = {each: self._without.get(each, now) for each in without}
        given_up = [each for each in without if now - self._without[each] >= MAX_CREATION]
        unknown = [
            f"{folder}/{name}"
            for folder, names in there.items()
            for name in names
            if "conmon" not in name and not any(each in name for each in known.known)
        ]
        empty_rooms = [each for each, folder in known.rooms.items() if not there.get(folder)]
        return _Orphans(ended=ended, given_up=given_up, unknown=unknown, empty_rooms=empty_rooms)

    def _is_gone(self, each: KnownContainer) -> bool:
        """Return whether a container has no visible process."""
        return not self._reader.processes(each.cgroup) and not (
            each.pid and self._reader.has_process(each.pid)
        )
