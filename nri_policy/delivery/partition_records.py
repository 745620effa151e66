"""Partition records: which container is a kernel partition; a part of the delivery state, pure.

A partition that the kernel does not make is tried again after `PAUSE`, and twice as long each time;
one that was lost is made again at once, and then rests as long. After `MAX_TRIES` of both, without
`CALM` seconds between them, nothing is done until the container is decided anew, or listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from nri_policy.delivery.inputs import (
    Action,
    Event,
    PartitionsSettled,
    Report,
)
from nri_policy.delivery.occupancy import Occupancy
from nri_policy.delivery.record import NO_PARTITION, PartitionState
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.settings import ExclusivePartitions

SETTLE = 0.1  # seconds from a decision or a write to the look
PAUSE = 0.25  # seconds until the second try
MAX_TRIES = 6
CALM = 30.0  # seconds that a partition was not lost, until earlier losses no longer count


class PartitionRecords:
    """The partitions among the records of *table*."""

    def __init__(self, table: Occupancy) -> None:
        self._table = table

    def due(self, container_id: str) -> Partition | None:
        """Return the partition due for a container; None: no partition."""
        return None if self._table.leaves else self._table.desired.partition(container_id)

    def state(self, container_id: str) -> PartitionState:
        """Return what is known of a container's partition."""
        return self._table.known(container_id).partition

    def is_in_force(self, container_id: str) -> bool:
        """Whether a container is the partition that it is to be: the kernel keeps others off."""
        held = self.state(container_id).held
        return held is not None and held == self.due(container_id)

    def keeps(self, container_id: str, own: CPUSet) -> bool:
        """Whether the kernel keeps all others off the *own* CPUs of a container.

        A partition leaves out own CPUs on which the container must not run: hidden hyperthreads.
        """
        held = self.state(container_id).held
        return held is not None and own <= held.cpus and self.is_in_force(container_id)

    def has_failed(self, container_id: str) -> bool:
        """Whether a container is not the partition due, in spite of all tries."""
        known = self.state(container_id)
        return known.held != known.due and known.tries >= MAX_TRIES

    def error(self, container_id: str) -> str:
        """Return why a container is not the partition due; empty if it is, or was not tried."""
        known = self.state(container_id)
        return "" if known.held == known.due else known.error

    def count(self) -> dict[str, int]:
        """Return how many containers are partitions, by kind, and how many are to be, but are not.

        The latter are `missing`.
        """
        states = [*map(self.state, self._table.partitions)]
        kinds = (ExclusivePartitions.ROOT, ExclusivePartitions.ISOLATED)
        held = [each.held.kind for each in states if each.held is not None]
        missing = sum(each.due is not None and each.held != each.due for each in states)
        return {**{kind.value: held.count(kind) for kind in kinds}, "missing": missing}

    def rest(self, container_id: str) -> float:
        """Return for how many seconds a partition is not looked at that was made again just now."""
        if not self.is_in_force(container_id):
            return 0.0
        return max(self.state(container_id).retry_at - self._table.now, 0.0)

    def wanted(
        self, container_ids: Iterable[str], *, is_blocked: Callable[[str, CPUSet], bool]
    ) -> dict[str, Partition | None]:
        """Return what to make of these.

        One that *is_blocked* from its CPUs, or was tried in vain just now or too often, only gives
        CPUs up.
        """
        wanted = {}
        for each in container_ids:
            known, due = self.state(each), self.due(each)
            if due is not None and due != known.held:
                waits = self._table.now < known.retry_at or known.tries >= MAX_TRIES
                if (due == known.due and waits) or is_blocked(each, due.cpus):
                    kept = EMPTY if known.held is None else known.held.cpus & due.cpus
                    due = replace(due, cpus=kept) if kept else None
            wanted[each] = due
        return wanted

    def cpusets_touched(self) -> None:
        """Look soon after a decision, or a write: it may have made a partition invalid."""
        self._table.hasten(Action.PARTITIONS, self._table.now + SETTLE)

    def settled(self, event: PartitionsSettled) -> Sequence[Report]:
        """Store the results of writing partitions; report those that failed for good."""
        reports = []
        for each in event.wanted:
            if self._table.desired.placement(each) is None:  # it has ended meanwhile
                continue
            before, new = self.state(each), self._after(each, event)
            self._table.change(each, partition=new)
            self._schedule_next(before, new)
            if new.tries == MAX_TRIES > before.tries and new.due is not None:
                reports.append(
                    Report(
                        event=Event.NO_PARTITION,
                        container_id=each,
                        cpus=new.due.cpus,
                        error=new.error,
                    )
                )
        return reports

    def _after(self, container_id: str, event: PartitionsSettled) -> PartitionState:
        """Return a container's partition after a pass."""
        outcome = event.outcomes.get(container_id)
        if outcome is None:  # it has no cgroup, before its start or after its end
            return NO_PARTITION
        due, before = self.due(container_id), self.state(container_id)
        new = before if before.due == due else PartitionState(due=due)
        lost = outcome.lost if due is not None and before.held == due else ""
        if outcome.held == due and not lost:
            calm = due is None or self._table.now - new.retry_at >= CALM
            return PartitionState(due=due, held=due) if calm else replace(new, held=due)
        new = replace(new, held=outcome.held)
        if event.wanted[container_id] != due:
            return new  # it was not tried
        error, retry_at = outcome.error or lost, self._table.now + PAUSE * 2.0**new.tries
        new = replace(new, error=error, tries=new.tries + 1, retry_at=retry_at)
        return replace(new, held=None) if lost and new.tries >= MAX_TRIES else new

    def _schedule_next(self, before: PartitionState, new: PartitionState) -> None:
        now = self._table.now
        if (new.held != new.due or new.tries) and new.tries < MAX_TRIES:
            calm = new.held == new.due and new.retry_at <= now
            again = new.retry_at + CALM if calm else new.retry_at
            self._table.hasten(Action.PARTITIONS, max(again, now + SETTLE))
        elif before.tries < new.tries:  # what is left of the tries is taken out
            self._table.hasten(Action.PARTITIONS, now)
        if before.held is not None and (new.held is None or before.held.cpus - new.held.cpus):
            self._table.hasten(Action.WRITE, now)  # others can get these CPUs now
