"""Compaction keeps the store small and the next start fast; no answer waits for it.

Owns three steps. The grants in the records after the snapshot are merged into the table of grants,
and the snapshot moves to the last record. The oldest records are dropped if there are too many. The
content of SQLite's log moves into the database: only this step waits for the disk.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from nri_policy.store.database import (
    VERSION,
    Tail,
    checksum,
    connect,
    read_tail,
    transaction,
    translate_errors,
    write_snapshot,
)
from nri_policy.store.encoding import GONE

# The journal keeps this much: days of a busy node, and a small part of a disk.
MAX_RECORDS = 10_000
MAX_BYTES = 32 << 20

_GRANT = "INSERT OR REPLACE INTO grants VALUES (?, ?, CAST(? AS TEXT))"


def compact(path: Path) -> None:
    """Do all three steps with a separate connection, in any thread; one call at a time.

    Raises StoreError, DamagedStoreError if a record cannot be read. The steps done before an error
    remain, and the next call does the rest.
    """
    with translate_errors(path), closing(connect(path)) as connection:
        _merge_grants(connection, path)
        _checkpoint(connection)


def _merge_grants(connection: sqlite3.Connection, path: Path) -> None:
    """Move the snapshot to the last record, and drop the oldest ones."""
    tail = read_tail(connection, path)
    gone = [(each,) for each, form in tail.held.items() if form == GONE]
    kept = [
        (each, checksum(each.encode(), form), form)
        for each, form in tail.held.items()
        if form != GONE
    ]
    with transaction(connection):
        connection.executemany("DELETE FROM grants WHERE container = ?", gone)
        connection.executemany(_GRANT, kept)
        write_snapshot(connection, tail.seq, _drop_oldest(connection, tail))


def _drop_oldest(connection: sqlite3.Connection, tail: Tail) -> int:
    """Drop the oldest records above the limits, never the last; return the bytes that remain."""
    size, dropped = tail.bytes, 0
    for seq, of_record in connection.execute("SELECT seq, size FROM journal ORDER BY seq"):
        if seq == tail.seq or (seq > tail.seq - MAX_RECORDS and size <= MAX_BYTES):
            break
        size, dropped = size - of_record, seq
    if dropped:
        connection.execute("DELETE FROM journal WHERE seq <= ?", (dropped,))
        connection.execute(
            "DELETE FROM layouts WHERE id < (SELECT layout FROM journal ORDER BY seq LIMIT 1)"
        )
    return size


def _checkpoint(connection: sqlite3.Connection) -> None:
    """Move the log's content to the database and let the log start again from its beginning.

    Writers continue meanwhile. Their records are moved too, until none was added during a pass, or
    a reader of an older state blocks progress.
    """
    before = -1
    while True:
        _, frames, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if moved in {frames, before}:
            break
        before = moved
    # the first write after a complete move restarts the log and waits for the disk: do it here
    with transaction(connection):
        connection.execute(f"PRAGMA user_version = {VERSION}")
