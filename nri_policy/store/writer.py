"""Writer: writes the record of a decision, with the grants that it changed, in one transaction.

Owns a copy of the stored grants, so that a commit writes only differences: a view names the grants
that changed since the view before it. Nearly all commits write one row. After an exception the
database is unchanged, and the writer must not be used again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import (
    Created,
    Event,
    PodStopped,
    Resized,
    ResizeEnded,
    StoredGrant,
    Synchronized,
    kind,
)
from nri_policy.engine.grant import Decision
from nri_policy.engine.state.layout import Layout
from nri_policy.node import NodeView, Outcome
from nri_policy.settings import JournalSync
from nri_policy.store.database import RecordLink, StoreContents, checksum, transaction, verify
from nri_policy.store.encoding import (
    encode,
    encode_decision,
    encode_event,
    encode_held,
    encode_settings,
    repeat_decision,
)

BASE_EVERY = 1000  # records; up to so many cannot be replayed after the oldest were dropped
MAX_BASE = 8 << 20  # bytes; a larger base is left out
_ROW = 100  # bytes of a record besides its texts, about

_SYNCHRONOUS = {JournalSync.BACKGROUND: "NORMAL", JournalSync.COMMIT: "FULL"}
_LAYOUT = (
    "INSERT INTO layouts (sum, settings, machine, reserved)"
    " VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT))"
)
_RECORD = (
    "INSERT INTO journal"
    " (sum, time, size, link, layout, name, kind, event, decision, scores, held, held_sum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT), ?, CAST(? AS TEXT), ?)"
)
_DECISION = (
    "SELECT sum, time, link, layout, kind, event, decision, scores FROM journal WHERE seq = ?"
)
_REPEAT = "UPDATE journal SET sum = ?, decision = CAST(? AS TEXT) WHERE seq = ?"


class _Resize(Struct, frozen=True, kw_only=True):
    """A recorded resize that changed nothing."""

    seq: int
    event: bytes  # its form
    refusal: str | None


class StoreWriter:
    """Writes to one open database."""

    def __init__(self, connection: sqlite3.Connection, found: StoreContents) -> None:
        """Take the database and the grants in it."""
        self._connection = connection
        self._stored = {**found.grants}  # by container id, as in the database
        self._mark: object = None  # of the grants in the database; None: compare all
        self._cold: Mapping[str, float | None] = {}  # of the view that was written last
        self._layout: Layout | None = None
        self._layout_id = 0
        self._base_in = 0  # records until the next base
        self._link = RecordLink.GAP  # of the next record
        # the latest resize of each container or pod that changed nothing; by id, of this layout
        self._resizes: dict[str, _Resize] = {}
        self._changed = 0  # the latest record that may have changed the engine's state

    def write(self, event: Event, outcome: Outcome, view: NodeView, now: float) -> int:
        """Write the outcome of *event*; return about how many bytes were written.

        Raises sqlite3.Error.
        """
        based = self._base_in <= 0 and not view.resizing  # a base cannot show a pending resize
        if view.layout is not self._layout:
            sync = _SYNCHRONOUS[view.layout.settings.journal.sync]
            self._connection.execute(f"PRAGMA synchronous = {sync}")
        if not based and view.layout is self._layout:
            written = self._write_record(event, outcome, view, now)
        else:
            with transaction(self._connection):
                introduced = self._write_layout(view.layout)
                written = self._write_record(event, outcome, view, now, introduced)
                self._link = RecordLink.NEXT
                if based:
                    self._base_in = BASE_EVERY
                    written += self._write_base(view, now)
        self._base_in -= 1
        return written

    def _changed_grants(self, view: NodeView) -> dict[str, StoredGrant | None]:
        """Return the grants that differ from the database; None for one that was released."""
        changed = view.changed_since(self._mark)
        if changed is None:
            changed = {*self._stored, *view.holders}
        if view.cold != self._cold:
            changed = {*changed, *dict(view.cold.items() ^ self._cold.items())}
            self._cold = view.cold
        held: dict[str, StoredGrant | None] = {}
        for each in changed:
            if each in view.placed or each in view.rooms or each in view.claims:
                grant = view.to_store(each)
                if self._stored.get(each) != grant:
                    held[each] = self._stored[each] = grant
            elif each in self._stored:
                held[each] = None
                del self._stored[each]
        self._mark = view.touched.mark
        holders = len(view.placed) + len(view.rooms) + len(view.claims)
        assert len(self._stored) == holders, "the database holds the containers of the node"
        return held

    def _write_layout(self, layout: Layout) -> int:
        """Make the row of *layout* the latest one."""
        if layout is self._layout:
            return 0
        reserved = str(layout.capacity.reserved).encode()
        row = encode_settings(layout.settings), encode(layout.machine), reserved
        latest = self._connection.execute(
            "SELECT id, settings, machine, reserved FROM layouts ORDER BY id DESC LIMIT 1"
        ).fetchone()
        self._layout = layout
        self._resizes.clear()
        if latest is not None and latest[1:] == row:
            self._layout_id = latest[0]
            return 0
        cursor = self._connection.execute(_LAYOUT, (checksum(*row), *row))
        self._layout_id = cursor.lastrowid or 0
        return sum(map(len, row))

    def _write_record(
        self, event: Event, outcome: Outcome, view: NodeView, now: float, introduced: int = 0
    ) -> int:
        """Add a record of *event*; *introduced* is the size of a layout written before it.

        The end of a pod gets no record if its containers and its room had ended before.
        """
        held = self._changed_grants(view)
        if isinstance(event, PodStopped) and not held and outcome == Decision():
            self._resizes.pop(event.pod_id, None)
            return introduced
        form = encode_event(event)
        if isinstance(event, Resized) and not held:
            size = self._repeat(event, form, outcome, now)
            if size:
                return size
        explanation = (
            outcome.explanation if isinstance(outcome, Decision | PlacementError) else None
        )
        name = scores = None
        if explanation is not None:
            name, scores = explanation.container, explanation.scores
        elif isinstance(event, Created):
            name = event.container.full_name
        if isinstance(outcome, Decision):
            decision = encode_decision(outcome, None, explanation)
        else:
            decision = encode_decision(Decision(), str(outcome), explanation)
        seq, size = self._add(
            now,
            name=name,
            kind=kind(event),
            event=form,
            decision=decision,
            scores=scores,
            held=encode_held(held) if held else None,
            introduced=introduced,
            link=self._link,
        )
        self._remember_resize(event, form, outcome, seq, held)
        return size

    def _repeat(self, event: Resized, form: bytes, outcome: Outcome, now: float) -> int:
        """Count a resize that is identical to the latest one: the kubelet asks again and again.

        Return about how many bytes were written, 0 if it needs a record. A refusal changes nothing.
        A pod's resize may change something if anything has happened since.
        """
        before = self._resizes.get(event.container_id)
        refusal = None if isinstance(outcome, Decision) else str(outcome)
        if before is None or (before.event, before.refusal) != (form, refusal):
            return 0
        if refusal is None and before.seq < self._changed:
            return 0
        row = self._connection.execute(_DECISION, (before.seq,)).fetchone()
        if row is None:  # its record was dropped
            return 0
        found, *cells, decision, scores = row
        verify(found, *cells, decision, scores)
        decision = repeat_decision(decision, now)
        total = checksum(*cells, decision, scores)
        done = self._connection.execute(_REPEAT, (total, decision, before.seq))
        return done.rowcount * (_ROW + len(decision) + len(scores or b""))

    def _remember_resize(
        self,
        event: Event,
        form: bytes,
        outcome: Outcome,
        seq: int,
        held: Mapping[str, StoredGrant | None],
    ) -> None:
        """Remember record *seq* if it is a resize that changed nothing; forget what it changed."""
        for each in held:
            self._resizes.pop(each, None)
        if isinstance(outcome, Decision):
            refusal = None
            changed = bool(held or outcome.changes) or outcome.placement is not None
        else:
            refusal, changed = str(outcome), False
        match event:
            case Resized(container_id=each) if not changed:
                self._resizes[each] = _Resize(seq=seq, event=form, refusal=refusal)
                return
            case (
                Resized(container_id=each)
                | ResizeEnded(container_id=each)
                | PodStopped(pod_id=each)
            ):
                self._resizes.pop(each, None)
            case Synchronized():
                self._resizes.clear()
            case _:
                pass
        if refusal is None:
            self._changed = seq

    def _write_base(self, view: NodeView, now: float) -> int:
        """Add a BASE, unless it is too large."""
        others = *view.rooms.values(), *view.claims.values()
        containers = [each.container for each in others]
        for container_id, placed in view.placed.items():
            cpus, mems = view.sent[container_id]
            resources = replace(placed.container.resources, cpus=str(cpus), mems=str(mems))
            containers.append(replace(placed.container, resources=resources))
        held = {each: view.to_store(each) for each in view.holders}
        picture = Synchronized(
            containers=tuple(containers),
            held=held,
            now=now,
            latest=view.latest,
            equipment=view.equipment,
        )
        event = encode_event(picture)
        if len(event) > MAX_BASE:
            return 0
        decision = encode_decision(Decision(), None, None)
        _, size = self._add(
            now, kind=kind(picture), event=event, decision=decision, link=RecordLink.BASE
        )
        return size

    def _add(  # noqa: PLR0913 - the columns
        self,
        now: float,
        *,
        kind: str,
        event: bytes,
        decision: bytes,
        link: RecordLink,
        name: str | None = None,
        scores: bytes | None = None,
        held: bytes | None = None,
        introduced: int = 0,
    ) -> tuple[int, int]:
        """Add a record; return its number and its size."""
        texts = sum(map(len, (event, decision, scores or b"", held or b"")))
        size = _ROW + texts + introduced
        layout, place = self._layout_id, int(link)
        total = checksum(now, place, layout, kind.encode(), event, decision, scores)
        held_sum = None if held is None else checksum(held)
        row = total, now, size, place, layout, name, kind, event, decision, scores, held, held_sum
        return self._connection.execute(_RECORD, row).lastrowid or 0, size
