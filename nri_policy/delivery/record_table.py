"""The table of records, with an index for each kind of next action.

Rule 1: only `put` replaces a record, and only it changes an index. Rule 2: no request looks at
all records: it asks an index. Each index follows from the records alone, as a property test checks
(`tests/property/test_delivery.py`).
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from nri_policy.delivery.inputs import Action
from nri_policy.delivery.record import NO_PARTITION, Delivery, Phase

RETRY_WRITE = 60.0  # seconds until a cgroup that could not be written is tried again
NEW = Delivery()  # the record of a container that is not in the table


class RecordTable:
    """Records by container id; each index has its ids in order of arrival."""

    def __init__(self, *, has_files: bool) -> None:
        """*has_files* is whether there are cgroups that can be read and written."""
        self.records: dict[str, Delivery] = {}
        self.now = -math.inf  # the time of the latest input
        self.due = dict.fromkeys(Action, math.inf)  # when each action is due; infinite: never
        self.has_files = has_files
        self.leaves = False  # whether the policy leaves: messages say so of all
        self.trouble = ""  # why no cgroup can be written; empty if they can
        self.pending: dict[str, None] = {}
        self.by_file: dict[str, None] = {}  # of the pending, those that a file brings into force
        self.waiting: dict[str, None] = {}  # of the pending, the others: they need a message
        self.moving: dict[str, None] = {}  # their pending change replaces all their CPUs
        self.in_flight: dict[str, None] = {}
        self.unrecorded: dict[str, None] = {}
        self.volatile: dict[str, None] = {}  # written, and perhaps undone by systemd
        self.unwritable: dict[str, None] = {}
        self.late: dict[str, None] = {}
        self.refused: dict[str, None] = {}
        self.resizes: dict[str, None] = {}  # those that may come into force late
        self.busy: dict[str, None] = {}  # the runtime starts or resizes them
        self.starting: dict[str, None] = {}  # of these, those that a look will find running
        self.overlapping: dict[str, None] = {}  # those that cannot be made to leave
        self.partitions: dict[str, None] = {}  # containers with a kernel partition, or with one due
        self.carried: dict[str, dict[str, None]] = {}  # by whose creation's answer

    def known(self, container_id: str) -> Delivery:
        """Return the record of a container; one that is not in the table runs."""
        return self.records.get(container_id, NEW)

    def hasten(self, action: Action, at: float) -> None:
        """Have an action be due at a time, or earlier if it is due earlier."""
        self.due[action] = min(self.due[action], at)

    def phase(self, container_id: str) -> Phase:
        """Return what the runtime is doing with a container."""
        return self.known(container_id).phase

    def change(self, container_id: str, **fields: Any) -> None:
        """Replace fields of a record."""
        self.put(container_id, replace(self.known(container_id), **fields))

    def put(self, container_id: str, new: Delivery) -> None:
        """Replace a record, and bring the indexes up to date."""
        new.check()
        old = self.records.get(container_id, NEW)
        self.records[container_id] = new
        if new.pending is not None or old.pending is not None:
            ours = self.is_by_file(new)
            _index(self.pending, container_id, on=new.pending is not None)
            _index(self.by_file, container_id, on=ours)
            _index(self.waiting, container_id, on=new.pending is not None and not ours)
            _index(self.moving, container_id, on=new.moves)
        if new.in_flight is not old.in_flight:
            _index(self.in_flight, container_id, on=new.in_flight is not None)
        if new.unrecorded is not old.unrecorded:
            _index(self.unrecorded, container_id, on=new.unrecorded is not None)
        if new.persistent is not old.persistent:
            _index(self.volatile, container_id, on=not new.persistent)
        if new.phase is not old.phase or new.started_at is not old.started_at:
            busy = new.phase in {Phase.STARTING, Phase.UPDATING}
            _index(self.busy, container_id, on=busy)
            starts = new.phase is Phase.STARTING and new.started_at is not None
            _index(self.starting, container_id, on=starts)
        if new.partition is not old.partition:
            _index(self.partitions, container_id, on=new.partition != NO_PARTITION)
        self._index_troubles(container_id, old, new)

    def _index_troubles(self, container_id: str, old: Delivery, new: Delivery) -> None:
        """Bring the indexes of what is rare up to date."""
        if new.failed_at is not old.failed_at:
            _index(self.unwritable, container_id, on=new.failed_at is not None)
        if new.late is not old.late:
            _index(self.late, container_id, on=new.late)
        if new.refused is not old.refused:
            _index(self.refused, container_id, on=new.refused is not None)
        if new.resize_until is not old.resize_until:
            _index(self.resizes, container_id, on=new.resize_until is not None)
        if new.overlap is not old.overlap:
            _index(self.overlapping, container_id, on=bool(new.overlap))
        if new.carrier is not old.carrier:
            if old.carrier:
                _index(self.carried[old.carrier], container_id, on=False)
                if not self.carried[old.carrier]:
                    del self.carried[old.carrier]
            if new.carrier:
                _index(self.carried.setdefault(new.carrier, {}), container_id, on=True)

    def drop(self, container_id: str) -> None:
        """Forget a container."""
        if container_id in self.records:
            self.put(container_id, NEW)
            del self.records[container_id]

    def reindex(self) -> None:
        """Rebuild the indexes of pending changes after a global condition has changed."""
        for each in [*self.pending]:
            self.put(each, self.records[each])

    def is_by_file(self, known: Delivery) -> bool:
        """Whether a file brings the pending change into force (nri.md §3.7a 1)."""
        pending, has = known.pending, known.observed
        return (
            pending is not None
            and has is not None
            and known.visible
            and known.in_flight is None
            and known.phase is Phase.RUNNING
            and not known.late
            and bool(pending.cpus)
            and (not pending.mems or pending.mems == has.mems)
            and pending.shares is None
            and pending.quota is None
            and not pending.limits
            and (known.failed_at is None or self.now - known.failed_at >= RETRY_WRITE)
            and self.has_files
            and not self.trouble
            and not self.leaves
        )


def _index(index: dict[str, None], container_id: str, *, on: bool) -> None:
    if not on:
        index.pop(container_id, None)
    elif container_id not in index:
        index[container_id] = None
