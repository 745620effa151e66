"""Writing: changes that a file can make, made by the daemon before the runtime hears of them.

An update by the runtime takes a hundred times as long as the file that it writes, and all requests
of the node wait for it. So nri.md §3.7a: write first, tell later.

Rule 1: a container is written here if it runs, nothing about it is under way, nothing but its CPUs
changes, its cgroup was seen and took the last write. Everybody else is told in the next answer.
Rule 2: who gives up CPUs has left them before another runs there: before the answer to a resize,
and before a container that was created starts. The files are written beside the runtime's own work
on the creation, which its answer does not wait for, as long as all cgroups could be written so far.
Else it does: what could not be written, or takes longer than `MAX_BATCH`, is in that answer, and
written all the same: the later hand has the same value.
Rule 3: who gets more is written `SETTLE` after the event, with the decisions of that moment, never
before an answer; and no CPU that somebody may still have to leave.
Rule 4: one batch at a time, `enforcement`'s included. What a batch is about to give a container
counts as the container's until the batch has ended: it may be in force at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NoReturn, Protocol

from nri_policy.engine.grant import Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.cpuset_files import Change, Confined
from nri_policy.plugin.update_queue import UpdateQueue

log = logging.getLogger(__name__)

MAX_BATCH = 0.3  # seconds that an answer waits for files
MAX_START = 1.0  # seconds that a container's start waits for those that leave its CPUs
SETTLE = 0.1  # seconds between an event and the writing of those that get more by it
LAST_SETTLE = 2.0  # seconds between tries, at most, while somebody has to leave first
SLICE = 128  # cgroups that are written before another batch may come in between: 5 to 10 ms
RETRY = 60.0  # seconds until a cgroup that could not be written is tried again


class CgroupFiles(Protocol):
    """The containers' cgroups, to be written: `audit.cgroup.Cgroups`."""

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        """Change the CPUs of cgroups, by the runtime's names; return what became of each."""
        ...


class Writing:
    """Writes the cpusets of the containers of one runtime."""

    def __init__(
        self,
        node: Node,
        update_queue: UpdateQueue,
        cgroups: CgroupFiles | None,
        *,
        wrote: Callable[[int, float], None] = lambda _number, _seconds: None,
    ) -> None:
        """Take the files, if there are any; *wrote* is called with the figures of each batch."""
        self._node = node
        self._queue = update_queue
        self._ledger = update_queue.ledger
        self._confirmations = update_queue.confirmations
        self._clock = update_queue.clock
        self._cgroups = cgroups
        self._wrote = wrote
        self.lock = asyncio.Lock()
        # CPUs that the batch under way may give to containers, by id; to be set with the lock
        self.giving: Mapping[str, CPUSet] = {}
        self._batches: set[asyncio.Task[None]] = set()  # that no answer waits for any longer
        self._proven = False  # whether a cgroup was written since the runtime's list
        self._failed: dict[str, float] = {}  # when a container's cgroup could not be written
        self._probed: float | None = None  # when the probe below last failed
        self.trouble = ""  # why no cgroup can be written, empty if they can

    @property
    def unwritable(self) -> int:
        """How many containers' cgroups could not be written."""
        return len(self._failed)

    def failed(self, container_id: str, reason: str) -> None:
        """Take note that a container's cgroup could not be written: it is left alone for now."""
        if container_id not in self._failed:
            name = self._node.view.placed[container_id].container.full_name
            log.warning("not-writable", extra={"container": name, "reason": reason})
        self._failed[container_id] = self._clock.now()

    def forget(self, container_id: str) -> None:
        """Forget a container that is gone."""
        self._failed.pop(container_id, None)

    def claim(self) -> None:
        """Take over whom rule 1 allows of those who are not where they are to be."""
        queue = self._queue
        if not queue.unsent:
            return
        possible = self._cgroups is not None and not self.trouble and not queue.leaving
        now = self._clock.now()  # once, for hundreds of containers
        queue.claim(each for each in queue.unsent if possible and self._is_ours(each, now))

    async def narrow(self, *, moved: bool = True) -> None:
        """Have everybody leave what another is about to get, as far as a file can do that.

        For whoever answers a request: what was not done in time is left for the answer. One that
        *moved* nobody waits for no batch that is under way, unless somebody is still to leave.
        """
        if self._is_still(moved=moved):
            return
        if not await self._clock.done_within(MAX_BATCH, self._begin()):
            left = self._losers()
            self._queue.leave_to_runtime(left)
            log.warning("cgroups-slow", extra={"containers": len(left)})

    async def make_room(self, *, moved: bool) -> None:
        """Do as `narrow` for one under creation, which runs only after `wait_until_clear`."""
        if not self._proven or self._failed:
            await self.narrow(moved=moved)
        elif not self._is_still(moved=moved):
            self._begin()

    async def wait_until_clear(self, own: CPUSet) -> None:
        """Return once everybody has left *own*, what a container that starts has for itself.

        As far as a file can do that in time: the runtime is told of others soon.
        """
        if not self._on(own):
            return
        if not await self._clock.done_within(MAX_START, self._begin()):
            log.warning("cgroups-slow", extra={"containers": len(self._on(own))})
        failed = {each: self._queue.unsent[each] for each in self._on(own) - self._queue.claimed}
        self._queue.note(failed, hurry=bool(failed))

    def _is_still(self, *, moved: bool) -> bool:
        return not self._queue.claimed or not (moved or self._losers())

    def _begin(self) -> asyncio.Task[None]:
        batch = asyncio.create_task(self._narrow(), name="narrowing")
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)
        return batch

    async def release(self) -> None:
        """Do as `narrow` for an answer that gives no CPUs away, unless somebody else hears in it.

        Who may move then is written with those that get more.
        """
        if len(self._queue.unsent) > len(self._queue.claimed):
            await self.narrow()

    async def run(self) -> NoReturn:
        """Write those that get more, and whoever changes by no request."""
        delay = SETTLE
        while True:
            patience = delay if self._queue.claimed else math.inf
            if await self._clock.set_within(patience, self._queue.noted):
                delay = SETTLE
                await self._clock.sleep(delay)
            else:  # somebody still had to leave
                delay = min(2 * delay, LAST_SETTLE)
            self._queue.noted.clear()
            try:
                await self.settle()
            except Exception:
                log.exception("writing-failed")

    async def settle(self) -> None:
        """Put in force what can be put in force by files now."""
        if self._probed is not None and self._clock.now() - self._probed >= RETRY:
            await self._probe(self._node.view.placed)
        self.claim()
        if not self._queue.claimed:
            return
        await self._narrow()
        gainers = iter(sorted(self._queue.claimed))
        while part := [*islice(gainers, SLICE)]:
            async with self.lock:
                self.claim()
                blocked = self._blocked()
                if blocked is None:
                    return
                await self._write([each for each in part if self._may_grow(each, blocked)])

    async def widen(self) -> None:
        """Write all that is to be told, whatever it is: nobody keeps anything for itself.

        The runtime is told all the same: nobody puts right later what it writes of its own.
        """
        if self._cgroups is None:
            return
        changes = {**self._queue.unsent}
        async with self.lock:
            await self._write(changes)
        self._queue.note(changes)

    async def probe(self, container_ids: Iterable[str]) -> None:
        """Find out whether cgroups can be written, on the first of these that is here."""
        self._failed.clear()
        self._proven = False
        await self._probe(container_ids)

    async def _probe(self, container_ids: Iterable[str]) -> None:
        self.trouble, self._probed = "", None
        placed = self._node.view.placed
        for each in container_ids:
            if self._cgroups is None or each not in placed or self._ledger.in_force(each) is None:
                continue
            cgroup = placed[each].container.cgroup
            async with self.lock:
                done = await asyncio.to_thread(
                    self._cgroups.confine, {cgroup: EMPTY}, Change.REWRITE
                )
            if done[cgroup].cpus is None:  # it has ended: that shows nothing
                continue
            if done[cgroup].error:
                self.trouble, self._probed = done[cgroup].error, self._clock.now()
                log.warning("not-writable", extra={"cgroup": cgroup, "reason": self.trouble})
            self._proven = not self.trouble
            return

    def _is_ours(self, container_id: str, now: float) -> bool:
        """Rule 1."""
        change, has = self._queue.unsent[container_id], self._ledger.in_force(container_id)
        return (
            has is not None
            and self._ledger.is_visible(container_id)
            and bool(change.cpus)
            and (not change.mems or change.mems == has.mems)
            and change.shares is None
            and change.quota is None
            and not change.limits
            and self._confirmations.phase(container_id) is Phase.RUNNING
            and container_id not in self._confirmations.sent
            and now - self._failed.get(container_id, -RETRY) >= RETRY
        )

    def _on(self, own: CPUSet) -> set[str]:
        """Return who is still to leave one of these CPUs."""
        unsent, ledger = self._queue.unsent, self._ledger
        return {
            each
            for each, change in unsent.items()
            if (has := ledger.in_force(each)) and (has.cpus - change.cpus) & own
        } | {each for each in self._given() if (self.giving[each] - unsent[each].cpus) & own}

    def _losers(self) -> set[str]:
        queue, ledger = self._queue, self._ledger
        return {
            each
            for each in queue.claimed
            if (has := ledger.in_force(each)) and has.cpus - queue.unsent[each].cpus
        } | {each for each in self._given() if self.giving[each] - queue.unsent[each].cpus}

    def _given(self) -> Iterator[str]:
        """Yield those whom the batch under way may give CPUs, and who were decided on since."""
        unsent = self._queue.unsent
        return (each for each in self.giving if each in unsent and unsent[each].cpus)

    async def _narrow(self) -> None:
        waits = self.lock.locked()
        async with self.lock:
            if waits:  # much may have become of them meanwhile
                self.claim()
            # who keeps nothing gets all of the new at once: others have left that by then
            await self._write(sorted(self._losers(), key=self._keeps_nothing), Change.LEAVE)

    def _keeps_nothing(self, container_id: str) -> bool:
        has, change = self._ledger.in_force(container_id), self._queue.unsent[container_id]
        return has is not None and not has.cpus & change.cpus

    def _blocked(self) -> CPUSet | None:
        """Return the CPUs that somebody may still have to leave; None if that could be any."""
        queue, view = self._queue, self._node.view
        doubtful = {*self._confirmations.sent, *queue.unsent} - queue.claimed
        left = self._losers()
        leaving = []
        for each in doubtful | left:
            if self._confirmations.phase(each) in (Phase.CREATING, Phase.CREATED):
                continue  # it runs nowhere yet, however long that lasts, and is looked at then
            has, due = self._ledger.in_force(each), view.placement(each)
            if has is None and each not in self._confirmations.sent:
                has = self._ledger.known(each)
            if has is None:
                return None
            if due is not None and due.cpus:
                leaving.append(has.cpus - due.cpus)
        return CPUSet.union(leaving)

    def _may_grow(self, container_id: str, blocked: CPUSet) -> bool:
        has = self._ledger.in_force(container_id)
        change = self._queue.unsent.get(container_id)
        return (
            container_id in self._queue.claimed
            and change is not None
            and has is not None
            and not (change.cpus - has.cpus) & blocked
        )

    async def _write(self, container_ids: Iterable[str], change: Change = Change.WHOLE) -> None:
        """Write the latest decisions about these containers; the caller has the lock.

        In slices: what is written counts, however long the rest takes.
        """
        began, written, left = self._clock.now(), 0, iter(container_ids)
        while part := [*islice(left, SLICE)]:
            wanted = dict(self._latest(part))
            if not wanted or self._cgroups is None:
                continue
            placed = self._node.view.placed
            paths = {each: placed[each].container.cgroup for each in wanted}
            cpus = {paths[each]: placement.cpus for each, placement in wanted.items()}
            if change is Change.WHOLE:
                self.giving = {each: placement.cpus for each, placement in wanted.items()}
            try:
                done = await asyncio.to_thread(self._cgroups.confine, cpus, change)
            finally:
                self.giving = {}
            self._conclude((each, new, done[paths[each]]) for each, new in wanted.items())
            written += sum(each.written for each in done.values())
        if written:
            self._wrote(written, self._clock.now() - began)

    def _latest(self, container_ids: Iterable[str]) -> Iterator[tuple[str, Placement]]:
        """Yield where containers are to be now; one may have been told of it meanwhile."""
        view, unsent = self._node.view, self._queue.unsent
        for each in container_ids:
            placement = unsent.get(each) or view.placement(each)
            if each in view.placed and placement is not None and placement.cpus:
                yield each, placement

    def _conclude(self, outcomes: Iterable[tuple[str, Placement, Confined]]) -> None:
        """Enter what became of containers; what is not done is left for the runtime."""
        placed, now = self._node.view.placed, self._clock.now()
        done, left = {}, []
        for each, placement, outcome in outcomes:
            if each not in placed:  # it has ended meanwhile
                continue
            if outcome.cpus is None:
                self._ledger.seen(each, None)
                left.append(each)
                continue
            self._ledger.written(each, placement, outcome.cpus, now)
            if outcome.error:
                self.failed(each, outcome.error)
                left.append(each)
                continue
            self._failed.pop(each, None)
            self._proven = True
            if outcome.cpus == placement.cpus:
                done[each] = placement
        self._queue.leave_to_runtime(left)
        self._queue.done(done)
