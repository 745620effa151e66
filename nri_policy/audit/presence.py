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
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

log = logging.getLogger(__name__)

GRACE = 2.0  # seconds between the two checks
MAX_CREATION = 300.0  # seconds that a container under creation may be without a process


class Present(Struct, frozen=True, kw_only=True):
    """A container that runs or was created, as far as the daemon knows."""

    container_id: str
    name: str  # namespace/pod/container
    cgroup: str  # the runtime's name for it
    pid: int  # of its first process; 0 if the runtime does not say


class Population(Struct, frozen=True, kw_only=True):
    """The containers, pods and rooms that the daemon knows."""

    running: Sequence[Present]
    created: Sequence[Present]  # not started; the runtime may not report that they never will
    known: Collection[str]  # ids of all containers and pods
    folders: Collection[str]  # the pods' cgroups
    rooms: Mapping[str, str]  # cgroups of pods that have a room and no tenants, by the pod's id


class PopulationSource(Protocol):
    """The daemon, which knows containers and releases them."""

    async def books(self) -> Population:
        """Return the containers that the daemon knows now."""
        ...

    async def release(self, container_ids: Collection[str]) -> None:
        """Release containers that have ended."""

    async def give_up(self, container_ids: Collection[str]) -> None:
        """Release containers that never started, if they still have not."""

    async def clear(self, pod_ids: Collection[str]) -> None:
        """Release the rooms of pods that have ended, if they still have no tenants."""

    async def admit(self, cgroups: Collection[str]) -> None:
        """Register again, because unknown containers run in *cgroups*."""


class ProcessReader(Protocol):
    """How processes are found: `cgroup.Cgroups`."""

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the threads in a cgroup; 0 stands for threads that are not visible from here."""
        ...

    def has_process(self, pid: int) -> bool:
        """Return whether a process exists."""
        ...

    def inhabited(self, folder: str) -> Mapping[str, Collection[int]]:
        """Return the cgroups below a pod's that have threads, with these, by name."""
        ...


class _Seen(Struct, frozen=True, kw_only=True):
    ended: Collection[str]  # container ids
    given_up: Collection[str]  # container ids
    strangers: Collection[str]  # cgroups
    cleared: Collection[str] = ()  # pod ids


class Presence:
    """Compares the containers that the daemon knows with the processes."""

    def __init__(
        self,
        source: PopulationSource,
        reader: ProcessReader,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*clock* is in seconds, and monotonic."""
        self._source = source
        self._reader = reader
        self._sleep = sleep
        self._clock = clock
        # since when created containers have been without a process, by container id
        self._without: dict[str, float] = {}
        self.strangers: frozenset[str] = frozenset()  # cgroups of unknown containers

    async def round(self) -> None:
        """Check twice; release containers without a process, register again for unknown ones."""
        first = await self._look()
        if not (first.ended or first.given_up or first.strangers or first.cleared):
            self.strangers = frozenset()
            return
        await self._sleep(GRACE)
        second = await self._look()
        if ended := {*first.ended} & {*second.ended}:
            await self._source.release(sorted(ended))
        if given_up := {*first.given_up} & {*second.given_up}:
            await self._source.give_up(sorted(given_up))
        if cleared := {*first.cleared} & {*second.cleared}:
            await self._source.clear(sorted(cleared))
        before, self.strangers = self.strangers, frozenset(first.strangers) & {*second.strangers}
        if new := self.strangers - before:
            log.warning("unknown-container", extra={"cgroups": ",".join(sorted(new))})
            await self._source.admit(sorted(new))

    async def _look(self) -> _Seen:
        books = await self._source.books()
        now = self._clock()
        return await asyncio.to_thread(self._compare, books, now)

    def _compare(self, books: Population, now: float) -> _Seen:
        there = {folder: self._reader.inhabited(folder) for folder in books.folders}
        if not any(any(threads) for names in there.values() for threads in names.values()):
            self._without.clear()
            return _Seen(ended=(), given_up=(), strangers=())
        ended = [each.container_id for each in books.running if each.pid and self._is_gone(each)]
        without = [each.container_id for each in books.created if self._is_gone(each)]
        self._without = {each: self._without.get(each, now) for each in without}
        given_up = [each for each in without if now - self._without[each] >= MAX_CREATION]
        strangers = [
            f"{folder}/{name}"
            for folder, names in there.items()
            for name in names
            if "conmon" not in name and not any(each in name for each in books.known)
        ]
        cleared = [each for each, folder in books.rooms.items() if not there.get(folder)]
        return _Seen(ended=ended, given_up=given_up, strangers=strangers, cleared=cleared)

    def _is_gone(self, each: Present) -> bool:
        """Return whether a container has no visible process."""
        return not self._reader.processes(each.cgroup) and not (
            each.pid and self._reader.has_process(each.pid)
        )
