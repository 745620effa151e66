"""Partition records: which container is a kernel partition; a part of the machine, and as pure.

A partition that the kernel does not make is tried again after `PAUSE`, and twice as long each time.
After `MAX_TRIES` nothing is done until the container is decided anew, or listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from nri_policy.delivery.inputs import (
    Action,
    CpusetsTouched,
    Event,
    PartitionsSettled,
    Report,
)
from nri_policy.delivery.occupancy import Occupancy
from nri_policy.delivery.partition_files import PartitionOutcome
from nri_policy.delivery.record import PartitionState
from nri_policy.delivery.schedule import Schedule
from nri_policy.delivery.table import NEW
from nri_policy.engine.state.partitions import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.settings import ExclusivePartitions

SETTLE = 0.1  # seconds from a decision or a write to the look
PAUSE = 0.25  # seconds until the second try
MAX_TRIES = 6


class PartitionRecords:
    """The partitions among the records of *table*."""

    def __init__(self, table: Occupancy, schedule: Schedule) -> None:
        self._table = table
        self._schedule = schedule

    def due(self, container_id: str) -> Partition | None:
        """Return the partition that a container is to be; None for none."""
        return None if self._table.leaves else self._table.desired.partition(container_id)

    def state(self, container_id: str) -> PartitionState:
        """Return what is known of a container's partition."""
        return self._table.records.get(container_id, NEW).partition

    def is_in_force(self, container_id: str) -> bool:
        """Whether a container is the partition that it is to be: the kernel keeps others off."""
        held = self.state(container_id).held
        return held is not None and held == self.due(container_id)

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

    def wanted(
        self, also: Iterable[str], *, is_blocked: Callable[[str, CPUSet], bool]
    ) -> dict[str, Partition | None]:
        """Return what to make of all that are partitions, and of *also*.

        One that *is_blocked* from its CPUs, or was tried in vain just now or too often, only gives
        CPUs up.
        """
        wanted = {}
        for each in dict.fromkeys([*also, *self._table.partitions]):
            known, due = self.state(each), self.due(each)
            if due is not None and due != known.held:
                waits = self._table.now < known.retry_at or known.tries >= MAX_TRIES
                if (due == known.due and waits) or is_blocked(each, due.cpus):
                    kept = EMPTY if known.held is None else known.held.cpus & due.cpus
                    due = replace(due, cpus=kept) if kept else None
            wanted[each] = due
        return wanted

    def cpusets_touched(self, event: CpusetsTouched) -> None:
        """Look soon after a decision, or a write: it may have made a partition invalid."""
        self._schedule.hasten(Action.PARTITIONS, event.now + SETTLE)

    def settled(self, event: PartitionsSettled) -> Sequence[Report]:
        """Store what became of the partitions; return those that are not tried again."""
        self._table.now = event.now
        reports = []
        for each in event.wanted:
            if self._table.desired.placement(each) is None:  # it has ended meanwhile
                continue
            before, new = self.state(each), self._after(each, event)
            known = self._table.records.get(each, NEW)
            self._table.put(each, replace(known, partition=new))
            self._schedule_next(before, new, event.now)
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
        due, before = self.due(container_id), self.state(container_id)
        outcome = event.outcomes.get(container_id, PartitionOutcome())
        if outcome.held == due:
            return PartitionState(due=due, held=due)
        new = replace(before if before.due == due else PartitionState(due=due), held=outcome.held)
        if event.wanted[container_id] != due or container_id not in event.outcomes:
            return new  # it was not tried
        retry_at = event.now + PAUSE * 2.0**new.tries
        return replace(new, error=outcome.error, tries=new.tries + 1, retry_at=retry_at)

    def _schedule_next(self, before: PartitionState, new: PartitionState, now: float) -> None:
        if new.held != new.due and new.tries < MAX_TRIES:
            self._schedule.hasten(Action.PARTITIONS, max(new.retry_at, now + SETTLE))
        elif before.tries < new.tries:  # what is left of the tries is taken out
            self._schedule.hasten(Action.PARTITIONS, now)
        if before.held is not None and (new.held is None or before.held.cpus - new.held.cpus):
            self._schedule.hasten(Action.WRITE, now)  # others can get these CPUs now
