"""Partitions: keeps everything else of the machine off exclusive CPUs, by the kernel.

They come on top of the cpusets (delivery.md §5): a partition that the kernel calls invalid
leaves what the cpusets say. When they are tried again is in `partition_records`, the order of
writes in `partition_files`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping

from nri_policy.delivery.executor import MAX_BATCH, Executor
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.inputs import Action, CpusetsTouched, PartitionsSettled
from nri_policy.engine.state.partition_rules import asks_for_partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node
from nri_policy.workload.pod import ContainerState

log = logging.getLogger(__name__)

PERIOD = 30.0  # seconds between looks while nothing changes
STUCK = 1.0  # the same while a container that has ended is still a partition


class Partitions:
    """The partitions of one runtime's containers."""

    def __init__(self, node: Node, executor: Executor, files: HostCgroups | None) -> None:
        """Write *files*, if there are any."""
        self._node = node
        self._executor = executor
        self._files = files
        self._lock = asyncio.Lock()
        # cgroups that keep CPUs for those below them, and why they keep wrong ones; None: an
        # earlier daemon may have left some
        self._above: Mapping[str, str] | None = None
        self._ended: set[str] = set()  # containers that have ended, and are still placed
        self.stuck: set[str] = set()  # ended containers that may still be partitions
        self.release: Callable[[set[str]], None] | None = None  # releases these once they are none
        executor.looks[Action.PARTITIONS] = self.look
        executor.leave_partitions = self.leave

    async def restart(self) -> None:
        """Make the partitions of an earlier daemon those due, and take out what it has left.

        Before the answer to the runtime's list, by which others may get CPUs; `MAX_BATCH` at most.
        """
        self._above, placed = None, self._node.view.placed
        self._ended = {  # one that is listed all the same runs
            each
            for each in self._ended & placed.keys()
            if placed[each].container.state is ContainerState.STOPPED
        }
        self.stuck &= self._ended
        if self._usable_files() is not None:
            await self._settle_until(self._executor.clock.now() + MAX_BATCH)
        self._executor.apply(CpusetsTouched(partitions=True))

    async def start(self, container_id: str, own: CPUSet, *, until: float) -> bool:
        """Make a starting container its partition, and take its *own* CPUs out of other partitions.

        Return whether the kernel keeps all others off them from now on. Containers of the same pod
        have to leave first: the kernel calls a partition invalid that overlaps a sibling. So have
        those with no other CPUs. The method waits for all of this *until* a time of the clock.
        """
        state = self._executor.state
        due = state.kernel_partitions.due(container_id)
        keeping = state.kept_by_partitions(own)
        if due is None and not keeping:
            return False
        if due is not None and self._is_blocked(container_id, due.cpus):
            await self._executor.wait_until_clear(due.cpus, until=until)
        await self._settle_until(until, container_id, *keeping)
        return state.kernel_partitions.keeps(container_id, own)

    async def make_room(self, cpus: CPUSet, *, until: float) -> None:
        """Take CPUs that a container gets by an answer out of the partitions that lost them.

        A cpuset that overlaps the partition of a sibling makes it invalid.
        """
        if keeping := self._executor.state.kept_by_partitions(cpus):
            await self._settle_until(until, *keeping)

    async def end(self, *container_ids: str, until: float | None = None) -> Collection[str]:
        """Make containers that have ended no partitions any more, before others get their CPUs.

        The runtime may remove the cgroup later than it says so. If a sibling's cpuset overlaps
        until then, the kernel calls the partition invalid, and keeps its CPUs for good. Return
        those that may still be partitions: they must keep their CPUs, until `release` is called.
        It waits *until* a time of the clock, or for `MAX_BATCH`.
        """
        records = self._executor.state.kernel_partitions
        ended = [e for e in container_ids if records.due(e) or records.state(e).held]
        if not ended:
            return ()
        self._ended.update(ended)
        if until is None:
            until = self._executor.clock.now() + MAX_BATCH
        done = await self._settle_until(until, *ended)
        left = {each for each in ended if not done or records.state(each).held is not None}
        for each in left - self.stuck:
            log.warning("partition-not-ended", extra={"container": each})
        self.stuck = (self.stuck - {*ended}) | left
        self._executor.apply(CpusetsTouched(partitions=bool(left)))
        return left

    async def _settle_until(self, until: float, *container_ids: str) -> bool:
        """Bring the partitions of these up to date; return whether that is done by *until*."""
        left = self._executor.left(until)
        done = await self._executor.in_time(self._settle(container_ids), left)
        if not done:
            log.warning("cgroups-slow", extra={"containers": len(container_ids)})
        return done

    async def look(self) -> float:
        """Make containers the partitions due; return the seconds until the next look."""
        state = self._executor.state
        also = (
            each
            for each, placed in self._node.view.placed.items()
            if asks_for_partition(placed.request, placed.grant)
        )
        every = dict.fromkeys([*also, *state.partitions])
        rest = {e: pause for e in every if (pause := state.kernel_partitions.rest(e))}
        await self._settle([each for each in every if each not in rest])
        failed = any((self._above or {}).values())
        again = [STUCK] if self.stuck else []
        return min([PERIOD, *again, *rest.values()]) if state.partitions or failed else math.inf

    async def leave(self) -> None:
        """Make no container a partition any more: the policy has left."""
        await self._settle(self._executor.state.partitions)

    async def _settle(self, container_ids: Iterable[str]) -> None:
        """Bring the partitions of these up to date; of all, after a restart."""
        async with self._lock:
            view, state, files = self._node.view, self._executor.state, self._usable_files()
            if files is None:
                return
            if self._above is None:
                container_ids = view.placed
            wanted = state.kernel_partitions.wanted(container_ids, is_blocked=self._is_blocked)
            self._ended &= view.placed.keys()
            wanted |= dict.fromkeys(self._ended & wanted.keys())
            names = {e: view.placed[e].container.cgroup for e in wanted if e in view.placed}
            if not names and self._above is not None and not self._above:
                return
            by_name = {name: wanted[each] for each, name in names.items()}
            kept = {
                view.placed[each].container.cgroup: held.cpus
                for each in state.partitions
                if each not in wanted and each in view.placed
                if (held := state.kernel_partitions.state(each).held) is not None
            }
            is_empty = not view.placed
            done = await asyncio.to_thread(files.partition, by_name, self._above, kept)
            self._note_above(done.above)
            if is_empty and not self._above:
                self._above = None  # the first container shows where else to search
            self._executor.apply(
                PartitionsSettled(
                    wanted={each: wanted[each] for each in names},
                    outcomes={
                        each: done.outcomes[name]
                        for each, name in names.items()
                        if name in done.outcomes
                    },
                )
            )
            self._release({each for each, new in wanted.items() if new is None})

    def _release(self, ended: set[str]) -> None:
        """Release containers that were still partitions when they *ended*, and are none now."""
        self.stuck &= self._node.view.placed.keys()
        records = self._executor.state.kernel_partitions
        free = {each for each in self.stuck & ended if records.state(each).held is None}
        self.stuck -= free
        if free and self.release is not None:
            self.release(free)

    def _usable_files(self) -> HostCgroups | None:
        """Return the files, if the kernel can make partitions, or has made some."""
        unable = self._node.view.equipment.no_partition and not self._executor.state.partitions
        return None if unable else self._files

    def _note_above(self, above: Mapping[str, str]) -> None:
        """Store which cgroups keep CPUs for others; log once why one keeps wrong CPUs."""
        before, self._above = self._above or {}, above
        for cgroup, error in above.items():
            if error and error != before.get(cgroup):
                log.warning("partition-not-written", extra={"cgroup": cgroup, "reason": error})

    def _is_blocked(self, container_id: str, cpus: CPUSet) -> bool:
        """Whether containers of the pod, or some without other CPUs, have to leave these first."""
        if self._executor.state.strands(cpus):
            return True
        pod_id = self._node.view.placed[container_id].container.pod.id
        siblings = (each for each in self._node.of_pod(pod_id) if each != container_id)
        return any(self._executor.state.occupies(each, cpus) for each in siblings)
