"""Presence: who is in the books and has no process any more, and who runs and is in no book.

A runtime can miss the end of a container that falls into our registration, and we its creation.
Both are looked for twice, `GRACE` apart, and only where the processes of others can be seen: what
cannot be seen has not ended.

CRI-O says nothing of a creation that fails, or that nobody waits for any more: it keeps the
container for one to two minutes, in case it is asked for again. From early in its creation on, a
slow hook included, a container there has a process. So one that never started is given up once it
has had none for `MAX_CREATION`, and CRI-O's own limit of a creation (240 s) is over. So is one
whose creation an older containerd may have given up while we registered.

containerd says nothing of the end of a pod that it had before its own last start. So a pod that has
a room and no containers is over once nothing runs in its cgroup: there its sandbox has a process
for as long as it lives. CRI-O's may have none, but it tells of the end of each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

log = logging.getLogger(__name__)

GRACE = 2.0  # seconds between the two looks
MAX_CREATION = 300.0  # seconds that a container under creation may have no process


class Present(Struct, frozen=True, kw_only=True):
    """A container that runs, or was created, by the books."""

    container_id: str
    name: str  # namespace/pod/container
    cgroup: str  # the runtime's name for it
    pid: int  # of its first process; 0 where the runtime does not say


class Population(Struct, frozen=True, kw_only=True):
    """What a look is held against."""

    running: Sequence[Present]
    created: Sequence[Present]  # not started yet; the runtime might not say that they never will
    known: Collection[str]  # ids of all containers and pods
    folders: Collection[str]  # the pods' cgroups
    rooms: Mapping[str, str]  # cgroups of pods that have a room and no tenants, by the pod's id


class PopulationSource(Protocol):
    """Whose books they are: the daemon."""

    async def books(self) -> Population:
        """Return what is in the books now."""
        ...

    async def release(self, container_ids: Collection[str]) -> None:
        """Release containers that have ended."""

    async def give_up(self, container_ids: Collection[str]) -> None:
        """Release containers that were never started, if they still are not."""

    async def clear(self, pod_ids: Collection[str]) -> None:
        """Release the rooms of pods that have ended, if they still have no tenants."""

    async def admit(self, cgroups: Collection[str]) -> None:
        """Take in who runs in *cgroups* that are in no book."""


class ProcessReader(Protocol):
    """What is asked about the kernel's view: `cgroup.Cgroups`."""

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the threads in a cgroup; 0 stands for those that cannot be seen from here."""
        ...

    def has_process(self, pid: int) -> bool:
        """Return whether there is a process."""
        ...

    def inhabited(self, folder: str) -> Mapping[str, Collection[int]]:
        """Return the cgroups below a pod's that have threads, by name, and these."""
        ...


class _Seen(Struct, frozen=True, kw_only=True):
    ended: Collection[str]  # container ids
    given_up: Collection[str]  # container ids
    strangers: Collection[str]  # cgroups
    cleared: Collection[str] = ()  # pod ids


class Presence:
    """Holds the books against the processes."""

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
        # since when those that were created have had no process, at every look, by container id
        self._without: dict[str, float] = {}
        self.strangers: frozenset[str] = frozenset()  # cgroups of containers that are in no book

    async def round(self) -> None:
        """Look twice; release who has ended or never begun, and have strangers taken in."""
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
        """Return whether a container has no process, as far as can be seen."""
        return not self._reader.processes(each.cgroup) and not (
            each.pid and self._reader.has_process(each.pid)
        )
