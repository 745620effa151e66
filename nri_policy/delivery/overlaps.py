"""Overlaps: finds containers on exclusive CPUs of others.

A cpuset can change after its check: a runtime writes an older one, or another program writes. So
while any container has exclusive CPUs, all cpusets are checked after each decision, after each
write (inotify), and at intervals: RARELY, or every PERIOD without inotify. The same watch has the
kernel say when a partition becomes invalid.

A look needs no lock, and no writing waits for it: what is found beside a batch that is being
written, or a decision, is only a suspicion. The executor looks again, alone and by the decisions
of that moment, and puts an end to it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.inputs import Action, CpusetsTouched
from nri_policy.engine.event import Equipped, Event
from nri_policy.engine.state.partition_rules import asks_for_partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.inotify import Inotify
from nri_policy.foundation.wording import problem_of
from nri_policy.node import Node, NodeView, Outcome

log = logging.getLogger(__name__)

PERIOD = 1.5  # seconds between two looks, or a little more: an overlap ends within two
RARELY = 30.0  # the same while the kernel tells of writes
_REMEDIES = {
    errno.EMFILE: "; raise fs.inotify.max_user_instances",
    errno.ENOSPC: "; raise fs.inotify.max_user_watches",
}


class _ContainerCPUs(Struct, frozen=True, kw_only=True):
    """The CPUs that a container must be on."""

    container_id: str
    cgroup: str
    allowed: CPUSet
    is_partition: bool  # or may be one


class Overlaps:
    """Looks at the cpusets of one engine's containers."""

    def __init__(self, node: Node, executor: Executor, cpusets: HostCgroups) -> None:
        self._node = node
        self._executor = executor
        self._cpusets = cpusets
        self._inotify: Inotify | None = None
        self._trouble = ""  # why the kernel does not tell of writes
        self._errno = 0  # of that
        executor.find_undone = self.undone
        executor.looks[Action.OVERLAPS] = self.look
        node.add_observers(self._observe)

    def problems(self) -> Iterator[str]:
        """Yield why the kernel does not tell of writes to cpusets, and what helps."""
        if self._trouble:
            yield (
                f"cpusets are checked every {PERIOD:g} s, because the kernel cannot tell of writes:"
                f" {self._trouble}{_REMEDIES.get(self._errno, '')}"
            )

    def touch(self) -> None:
        """Check all cpusets soon."""
        self._executor.apply(CpusetsTouched())

    def _observe(self, event: Event, _outcome: Outcome, view: NodeView) -> None:
        """Check all cpusets soon, and partitions if the decision may have made one due."""
        decided = (view.placed.get(each) for each in view.touched.ids)
        self._executor.apply(
            CpusetsTouched(
                partitions=isinstance(event, Equipped)
                or bool(view.claims)  # who else uses a claim matters, too
                or any(
                    each is not None and asks_for_partition(each.request, each.grant)
                    for each in decided
                )
            )
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch cpuset files with inotify, if the kernel can."""
        with ExitStack() as stack:
            try:
                self._inotify = stack.enter_context(Inotify(self.touch))
            except OSError as error:
                self._note_trouble(error)
            self.touch()
            yield

    async def look(self) -> float:
        """Move containers off CPUs that are another's own; return after how many seconds again.

        RARELY if there was none, and inotify works.
        """
        view = self._node.view
        taken = view.taken
        if not taken:
            await self._executor.look_at_overlaps(())
            return RARELY
        places = _places(view, view.placed)
        watched, found = await asyncio.to_thread(self._read, places, taken)
        await self._executor.look_at_overlaps(found)
        return RARELY if watched and not found else PERIOD

    async def undone(self) -> Collection[str]:
        """Return the containers on exclusive CPUs of others whose write systemd may have undone.

        A start waits for it, so it reads the cpusets alone: 9 µs each.
        """
        view = self._node.view
        places = _places(view, self._executor.state.volatile)
        return await asyncio.to_thread(self._astray, places, view.taken)

    def _read(self, places: Sequence[_ContainerCPUs], taken: CPUSet) -> tuple[bool, list[str]]:
        """Return whether the kernel notifies of changes from now on, and the strays by id."""
        watched = self._watch(places)  # before: nothing is missed
        return watched, self._astray(places, taken)

    def _astray(self, places: Sequence[_ContainerCPUs], taken: CPUSet) -> list[str]:
        cpus = self._cpusets.cpusets([each.cgroup for each in places])
        return [
            each.container_id
            for each in places
            if (cpus.get(each.cgroup, EMPTY) - each.allowed) & taken
        ]

    def _watch(self, places: Sequence[_ContainerCPUs]) -> bool:
        files = self._cpusets.cpuset_files(
            (each.cgroup for each in places),
            (each.cgroup for each in places if each.is_partition),
        )
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


def _places(view: NodeView, container_ids: Iterable[str]) -> list[_ContainerCPUs]:
    """Return the CPUs that containers must be on, without unpinned containers."""
    return [
        _ContainerCPUs(
            container_id=each,
            cgroup=placed.container.cgroup,
            allowed=view.sent[each][0],
            is_partition=asks_for_partition(placed.request, placed.grant),
        )
        for each in container_ids
        if (placed := view.placed.get(each)) is not None and view.sent[each][0]
    ]
