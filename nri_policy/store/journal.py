"""The journal: recorded events and decisions, in order, for replay and explanation.

Owns reading it, from the daemon's own store during writes, or from a copy. The oldest records may
have been dropped. A replay starts at a BASE, which is a Synchronized event of all containers of
that moment, and stops at a GAP until the next BASE.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from nri_policy.engine.event import Event
from nri_policy.engine.grant import Decision
from nri_policy.engine.state.layout import Layout, layout_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.capacity import CapacityError, Earlier
from nri_policy.store.database import RecordLink, open_for_reading, translate_errors, verify
from nri_policy.store.encoding import (
    ResizeRepeats,
    decode_decision,
    decode_event,
    decode_machine,
    decode_settings,
)
from nri_policy.store.errors import DamagedStoreError

_QUERY = "SELECT seq, sum, time, link, layout, kind, event, decision, scores FROM journal WHERE "
_Row = tuple[int, int, float, int, int, bytes, bytes, bytes, bytes | None]


class Record(Struct, frozen=True, kw_only=True):
    """One event and its decision."""

    seq: int
    time: float  # seconds since the epoch
    link: RecordLink
    layout: Layout  # after the event
    event: Event
    decision: Decision  # of a refused event it has at most the explanation
    refusal: str | None
    repeats: ResizeRepeats | None = None  # of a resize that changed nothing

    @property
    def count(self) -> int:
        """How often the event occurred with this decision."""
        return 1 + (self.repeats.count if self.repeats else 0)


class Journal:
    """The records of one store; open it by `open_journal`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._layouts: dict[int, Layout] = {}

    def __len__(self) -> int:
        """Return the number of records; raises StoreError, DamagedStoreError."""
        with translate_errors(self._path):
            (count,) = self._connection.execute("SELECT count(*) FROM journal").fetchone()
            return int(count)

    def records(self, after: int = 0, full_name: str = "") -> Iterator[Record]:
        """Yield the records with a higher number than *after*, oldest first.

        With *full_name*, only decisions about that container. Raises StoreError, DamagedStoreError.
        """
        query = _QUERY + "seq > ? AND ? IN ('', name) ORDER BY seq"
        with translate_errors(self._path):
            for row in self._connection.execute(query, (after, full_name)):
                yield self._record(row)

    def introducing(self, after: int) -> Iterator[Record]:
        """Yield the records up to *after* that introduce the subjects of later ones, oldest first.

        The first is the latest BASE. Raises StoreError, DamagedStoreError.
        """
        base = "(SELECT coalesce(max(seq), 0) FROM journal WHERE seq <= ?1 AND link = ?2)"
        query = f"{_QUERY}seq BETWEEN {base} AND ?1 ORDER BY seq"
        with translate_errors(self._path):
            for row in self._connection.execute(query, (after, RecordLink.BASE)):
                yield self._record(row)

    def names(self) -> frozenset[str]:
        """Return the containers with a recorded decision; raises StoreError."""
        query = "SELECT DISTINCT name FROM journal WHERE name IS NOT NULL"
        with translate_errors(self._path):
            return frozenset(name.decode() for (name,) in self._connection.execute(query))

    def about(self, container_id: str, pod_id: str) -> Iterator[Record]:
        """Yield the records that name a container, or its pod if given, latest first.

        Raises StoreError, DamagedStoreError.
        """
        query = (
            _QUERY + "link != ?3 AND (instr(event, ?1) OR instr(decision, ?1)"
            " OR kind = 'pod-stopped' AND ?2 != '' AND instr(event, ?2))"
            " ORDER BY seq DESC"
        )
        with translate_errors(self._path):
            for row in self._connection.execute(query, (container_id, pod_id, RecordLink.BASE)):
                yield self._record(row)

    def latest(self, full_name: str) -> Record | None:
        """Return the latest decision about the container `namespace/pod/name`, None without one.

        Raises StoreError, DamagedStoreError.
        """
        with translate_errors(self._path):
            query = _QUERY + "name = ? ORDER BY seq DESC LIMIT 1"
            row = self._connection.execute(query, (full_name,)).fetchone()
            return None if row is None else self._record(row)

    def _record(self, row: _Row) -> Record:
        seq, found, time, link, layout_id, kind, event, decision, scores = row
        try:
            verify(found, time, link, layout_id, kind, event, decision, scores)
            layout = self._layout(layout_id)
            decided, refusal, repeats = decode_decision(decision, scores, layout)
            return Record(
                seq=seq,
                time=time,
                link=RecordLink(link),
                layout=layout,
                event=decode_event(kind.decode(), event, str(self._path)),
                decision=decided,
                refusal=refusal,
                repeats=repeats,
            )
        except (AttributeError, TypeError, ValueError, CapacityError) as error:
            text = f"record {seq} of the journal cannot be read: {error}"
            raise DamagedStoreError(self._path, text) from error

    def _layout(self, layout_id: int) -> Layout:
        if layout_id not in self._layouts:
            row = self._connection.execute(
                "SELECT sum, settings, machine, reserved FROM layouts WHERE id = ?", (layout_id,)
            ).fetchone()
            if row is None:
                raise ValueError(f"layout {layout_id} is not there")
            verify(*row)
            _, settings, machine, reserved = row
            described = decode_machine(machine)
            kept = CPUSet.parse(reserved.decode())
            self._layouts[layout_id] = layout_of(
                described,
                decode_settings(settings, str(self._path)),
                Earlier(reserved=kept, exclusive=described.online - kept),  # reserve the same CPUs
                forced=True,  # also with few CPUs left by hotplug
            )
        return self._layouts[layout_id]


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open the journal in the store's file *path* for the duration of a `with`.

    Raises StoreError if the file cannot be read, DamagedStoreError if it is not a store.
    """
    connection = open_for_reading(path)
    try:
        yield Journal(path, connection)
    finally:
        connection.close()
