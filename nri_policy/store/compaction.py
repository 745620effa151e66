"""Compaction: what keeps the store small and the next start quick, out of the answers' way.

Owns three steps. The changes in the records after the snapshot go into the table of grants, and the
snapshot moves on to the last of them. The oldest records go where there are too many. SQLite's log
goes into the database and starts anew: the only step that waits for the disk.
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
from nri_policy.store.forms import GONE

# The journal keeps this much: days of a busy node, and never a noticeable part of a disk.
MAX_RECORDS = 10_000
MAX_BYTES = 32 << 20

_GRANT = "INSERT OR REPLACE INTO grants VALUES (?, ?, CAST(? AS TEXT))"


def compact(path: Path) -> None:
    """Do all three steps, with a connection of its own, in any thread; one at a time.

    Raises StoreError, DamagedStoreError where a record cannot be read. Whatever was done until then
    stands, and the next time does the rest.
    """
    with translate_errors(path), closing(connect(path)) as connection:
        _fold(connection, path)
        _move_log(connection)


def _fold(connection: sqlite3.Connection, path: Path) -> None:
    """Move the snapshot on to the last record, and drop the oldest ones."""
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
    """Drop what is too much in the journal, never the last record; return how many bytes stay."""
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


def _move_log(connection: sqlite3.Connection) -> None:
    """Move the log's content to the database and start the log anew.

    Writers go on meanwhile. What they add is moved as well, until a pause between two of them is
    long enough, or a reader holds on to an older state.
    """
    before = -1
    while True:
        _, frames, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if moved in {frames, before}:
            break
        before = moved
    # whoever writes first after all was moved starts the log anew, and waits for the disk
    with transaction(connection):
        connection.execute(f"PRAGMA user_version = {VERSION}")
