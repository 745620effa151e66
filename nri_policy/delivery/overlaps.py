"""Overlaps: finds containers on CPUs that are somebody else's own, however they came there.

What was seen in force can be undone: by a runtime that writes an older cpuset, by anybody who may
write cgroups. So as long as anybody has CPUs of its own, all cpusets are looked at after each
decision, and after each write to one of them, of which the kernel tells. It is asked anew every
PERIOD where it does not tell, and RARELY where it does.

A look needs no lock, and no writing waits for it: what is found beside a batch that is being
written, or a decision, is only a suspicion. The executor looks again, alone and by the decisions
of that moment, and puts an end to it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from msgspec import Struct

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import CpusetsTouched
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.inotify import Inotify
from nri_policy.foundation.wording import problem_of
from nri_policy.node import Node

log = logging.getLogger(__name__)

PERIOD = 1.5  # seconds between two looks, at most: an overlap ends within two
RARELY = 30.0  # the same while the kernel tells of writes
_REMEDIES = {
    errno.EMFILE: "; raise fs.inotify.max_user_instances",
    errno.ENOSPC: "; raise fs.inotify.max_user_watches",
}


class Cpusets(Protocol):
    """The containers' cpusets: `audit.cgroup.Cgroups`."""

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of those cgroups that are here, by the runtime's names."""
        ...

    def cpuset_files(self, cgroups: Iterable[str]) -> Collection[str] | None:
        """Return the files that hold them, be they there or not; None where they are no files."""
        ...


class _ContainerCPUs(Struct, frozen=True, kw_only=True):
    """Where a container is to be."""

    container_id: str
    cgroup: str
    allowed: CPUSet


class Overlaps:
    """Looks at the cpusets of one engine's containers."""

    def __init__(self, node: Node, executor: Executor, cpusets: Cpusets) -> None:
        self._node = node
        self._executor = executor
        self._cpusets = cpusets
        self._inotify: Inotify | None = None
        self._trouble = ""  # why the kernel does not tell of writes
        self._errno = 0  # of that
        executor.overlaps = self
        node.add_observers(lambda *_: self.touch())

    def problems(self) -> Iterator[str]:
        """Yield why the kernel does not tell of writes to cpusets, and what helps."""
        if self._trouble:
            yield (
                f"cpusets are checked every {PERIOD:g} s, because the kernel cannot tell of writes:"
                f" {self._trouble}{_REMEDIES.get(self._errno, '')}"
            )

    def touch(self) -> None:
        """Have all looked at soon: there may be another cpuset."""
        self._executor.apply(CpusetsTouched(now=self._executor.clock.now()))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have the kernel tell of writes, as far as it does."""
        with ExitStack() as stack:
            try:
                self._inotify = stack.enter_context(Inotify(self.touch))
            except OSError as error:
                self._note_trouble(error)
            self.touch()
            yield

    async def look(self) -> float:
        """Move containers off CPUs that are another's own; return after how many seconds again.

        Rarely where there was none, and the kernel tells of those to come.
        """
        view = self._node.view
        taken = view.taken
        if not taken:
            await self._executor.look_at_overlaps(())
            return RARELY
        places = [
            _ContainerCPUs(
                container_id=each, cgroup=placed.container.cgroup, allowed=view.sent[each][0]
            )
            for each, placed in view.placed.items()
            if view.sent[each][0]
        ]
        watched, found = await asyncio.to_thread(self._read, places, taken)
        await self._executor.look_at_overlaps(found)
        return RARELY if watched and not found else PERIOD

    def _read(self, places: Sequence[_ContainerCPUs], taken: CPUSet) -> tuple[bool, list[str]]:
        """Return whether the kernel tells of changes from now on, and who is astray, by id."""
        cgroups = [each.cgroup for each in places]
        watched = self._watch(cgroups)  # before they are read: nothing is missed
        cpus = self._cpusets.cpusets(cgroups)
        astray = [
            each.container_id
            for each in places
            if (cpus.get(each.cgroup, EMPTY) - each.allowed) & taken
        ]
        return watched, astray

    def _watch(self, cgroups: Collection[str]) -> bool:
        files = self._cpusets.cpuset_files(cgroups)
        if self._inotify is None or files is None:
            return False
        try:
            self._inotify.watch(files)
        except OSError as error:
            self._note_trouble(error)
            return False
        self._trouble = ""
        return True

    def _note_trouble(self, error: OSError) -> None:
        reason, self._errno = problem_of(error), error.errno or 0
        if reason != self._trouble:
            self._trouble = reason
            text = f"checking every {PERIOD:g} s instead"
            log.info("cpusets-not-watched", extra={"reason": reason, "text": text})
