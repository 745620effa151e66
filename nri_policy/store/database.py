"""The database: its schema, opening it, and checking that a file is ours.

Owns the schema. The grants of containers are in the journal: each record has the grants that it
added, changed or removed. The table of grants is a snapshot, so that a start need not read the
records up to `snapshot.seq`; `compaction` moves it forward.

WAL with `synchronous=NORMAL`: a commit survives the death of the process, and waits for the disk
only when the log restarts, which `compaction` does outside of requests. A power cut loses the
records after that. With `journal.sync: commit` it loses none, and each commit waits.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from nri_policy.engine.event import StoredGrant
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import Earlier
from nri_policy.store.encoding import GONE, decode_grant, decode_held, decode_machine
from nri_policy.store.errors import DamagedStoreError, StoreError

VERSION = 1
APPLICATION = 0x6E72_6970
MAX_LOG = 16 << 20  # bytes of SQLite's log
BUSY_TIMEOUT = 0.5  # seconds that a commit waits for another connection: far from any deadline

# Every row has a checksum: SQLite has none, and a CPU list with a flipped digit is still valid.
_SCHEMA = {
    # the grants of containers after record `snapshot.seq`
    "grants": (
        "CREATE TABLE grants (container TEXT PRIMARY KEY, sum INTEGER NOT NULL,"
        " form TEXT NOT NULL) WITHOUT ROWID"
    ),
    # one row: the last record merged into `grants`, and the total `size` of the journal up to it
    "snapshot": (
        "CREATE TABLE snapshot (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " bytes INTEGER NOT NULL)"
    ),
    # settings and machine of decisions; a new row for each change
    "layouts": (
        "CREATE TABLE layouts (id INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " settings TEXT NOT NULL, machine TEXT NOT NULL, reserved TEXT NOT NULL)"
    ),
    # `layout` is the one after the event, `link` a Link, `held` the grants that the record changed
    "journal": (
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " time REAL NOT NULL, size INTEGER NOT NULL, link INTEGER NOT NULL,"
        " layout INTEGER NOT NULL, name TEXT, kind TEXT NOT NULL, event TEXT NOT NULL,"
        " decision TEXT NOT NULL, scores BLOB, held TEXT, held_sum INTEGER)"
    ),
}
_PRAGMAS = (
    "trusted_schema = OFF",
    "synchronous = NORMAL",
    "wal_autocheckpoint = 0",
    f"journal_size_limit = {MAX_LOG}",  # size of a log file after its restart
    "secure_delete = OFF",
    "cache_size = -256",  # KiB: appending to a table touches few pages
)
_MAGIC = b"SQLite format 3\0"
# Errors that do not mean a damaged file: I/O, no space, no permission, a lock.
_TRANSIENT = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


class RecordLink(IntEnum):
    """How a record relates to the one before it."""

    NEXT = 0  # nothing happened between the two
    GAP = 1  # events between the two are missing: a restart, or failed writes
    BASE = 2  # not an event: all containers of that moment, where a replay can start


class StoreContents(Struct, frozen=True, kw_only=True):
    """The stored grants, with the machine and the reserved CPUs that they were made for."""

    grants: Mapping[str, StoredGrant]  # by container id
    machine: Machine | None  # None if nothing is stored
    reserved: CPUSet  # the CPUs kept for the system

    @property
    def earlier(self) -> Earlier:
        """The CPUs of the earlier run that a new engine must know."""
        exclusive = CPUSet.union(each.grant.exclusive for each in self.grants.values())
        return Earlier(reserved=self.reserved, exclusive=exclusive)


EMPTY_CONTENTS = StoreContents(grants={}, machine=None, reserved=EMPTY)


# exceptions when reading and writing a database: of SQLite, of the system, malformed text, a value
# without a stored form, and a failed assertion about what was written
FAILURES = (sqlite3.Error, OSError, ValueError, AssertionError)


def to_store_error(path: Path, error: Exception) -> StoreError:
    """Return the StoreError for *error*, one of FAILURES, at *path*."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        kind = StoreError if code in _TRANSIENT else DamagedStoreError
        text = "this is not an SQLite database" if code == sqlite3.SQLITE_NOTADB else str(error)
        return kind(path, text)
    if isinstance(error, OSError):
        return StoreError(path, error.strerror or str(error))
    # sqlite3 decodes SQLite's message about a damaged schema as text
    if isinstance(error, UnicodeDecodeError):
        return DamagedStoreError(path, f"it has malformed text: {error}")
    if isinstance(error, ValueError):
        return StoreError(path, f"a value has no stored form: {error}")
    # the store is opened and read again, and no decision fails because of it
    return StoreError(path, f"what was written is not what was meant: {error}")


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into StoreError."""
    try:
        yield
    except FAILURES as error:
        raise to_store_error(path, error) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the writes in the `with` together, or roll them back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def read_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Let all reads in the `with` see the same state, while others write."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors end it
            connection.execute("ROLLBACK")


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database at *path* for writing; the file is empty or a store of ours.

    Raises DamagedStoreError for any other file, StoreError if it cannot be opened now.
    """
    with translate_errors(path):
        _check_header(path)
        connection = connect(path, "rw")
        with _close_on_failure(connection):
            empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
            if not empty:
                _check(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            if empty:
                _create(connection)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the database at *path* without changing anything; errors as of `open_database`."""
    with translate_errors(path):
        log = path.with_name(f"{path.name}-wal")
        connection = connect(path, "ro" if log.exists() else "ro&immutable=1")
        with _close_on_failure(connection):
            _check(connection, path)
    return connection


def read_contents(connection: sqlite3.Connection, path: Path) -> StoreContents:
    """Return the stored grants; raises DamagedStoreError for malformed content, StoreError."""
    with translate_errors(path), read_transaction(connection):
        rows = connection.execute("SELECT container, sum, form FROM grants").fetchall()
        query = "SELECT sum, settings, machine, reserved FROM layouts ORDER BY id DESC LIMIT 1"
        layout = connection.execute(query).fetchone()
        tail = read_tail(connection, path)
    grants, machine, reserved = {}, None, EMPTY
    try:
        if layout is not None:
            verify(*layout)
            machine, reserved = decode_machine(layout[2]), CPUSet.parse(layout[3].decode())
        for container, found, form in rows:
            verify(found, container, form)
            grants[container.decode()] = decode_grant(form)
        for container_id, grant in tail.held.items():
            grants.pop(container_id, None)
            if grant != GONE:
                grants[container_id] = decode_grant(grant)
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedStoreError(path, f"its content cannot be read: {error}") from error
    return StoreContents(grants=grants, machine=machine, reserved=reserved)


class Tail(Struct, frozen=True, kw_only=True):
    """The content of the records after the snapshot."""

    seq: int  # of the last record
    held: Mapping[str, bytes]  # forms of changed grants by container id, or GONE
    bytes: int  # of the whole journal


def read_tail(connection: sqlite3.Connection, path: Path) -> Tail:
    """Return what the journal has beyond the snapshot.

    Raises DamagedStoreError for malformed records, sqlite3.Error.
    """
    held: dict[str, bytes] = {}
    query = "SELECT seq, size, held, held_sum FROM journal WHERE seq > ? ORDER BY seq"
    try:
        seq, found, size = connection.execute("SELECT seq, sum, bytes FROM snapshot").fetchone()
        verify(found, seq, size)
        for last, record_size, form, found in connection.execute(query, (seq,)):
            _check_successor(last, seq)
            seq, size = last, size + record_size
            if form is not None or found is not None:
                verify(found, form)
                held.update(decode_held(form))
    except (TypeError, ValueError) as error:
        raise DamagedStoreError(path, f"its journal cannot be read: {error}") from error
    return Tail(seq=seq, held=held, bytes=size)


def _check_successor(seq: int, before: int) -> None:
    """Raise ValueError unless record *seq* is the next one after *before*."""
    if seq != before + 1:
        raise ValueError(f"record {before + 1} is missing")


def write_snapshot(connection: sqlite3.Connection, seq: int, size: int) -> None:
    """Record that the table of grants is as of record *seq*, with a journal of *size* bytes.

    Raises sqlite3.Error.
    """
    connection.execute("DELETE FROM snapshot")
    row = seq, checksum(seq, size), size
    connection.execute("INSERT INTO snapshot VALUES (?, ?, ?)", row)


def check_machine(held: StoreContents, path: Path, machine: Machine) -> None:
    """Raise DamagedStoreError if *held* is of another machine; CPUs may have gone offline."""
    if held.machine is None:
        return
    common = held.machine.online & machine.online
    if not common or _structure(held.machine, common) != _structure(machine, common):
        raise DamagedStoreError(path, "it is of another machine")


def _structure(machine: Machine, cpus: CPUSet) -> tuple[object, ...]:
    part = machine.restricted(cpus)
    return (
        part.possible,
        {(package.id, package.cpus) for package in part.packages},
        {(core.package, core.cpus) for core in part.cores},
        {(node.id, node.cpus) for node in part.nodes if node.cpus},
    )


def checksum(*cells: bytes | float | None) -> int:
    """Return the checksum of a row's cells."""
    return zlib.crc32(
        b"".join([cell if isinstance(cell, bytes) else str(cell).encode() for cell in cells])
    )


def verify(found: object, *cells: bytes | float | None) -> None:
    """Raise ValueError unless *found* is the checksum of *cells*."""
    if found != checksum(*cells):
        raise ValueError("the checksum is wrong")


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Connect to a database that was opened before; raises sqlite3.Error."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT,
    )
    connection.text_factory = bytes
    with _close_on_failure(connection):
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def _close_on_failure(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _create(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        for statement in _SCHEMA.values():
            connection.execute(statement)
        write_snapshot(connection, 0, 0)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise DamagedStoreError if a database is damaged or not ours; sqlite3.Error."""
    if _pragma(connection, "application_id") != APPLICATION:
        raise DamagedStoreError(path, "this is not a store of nri-policy")
    version = _pragma(connection, "user_version")
    if version != VERSION:
        raise DamagedStoreError(path, f"it is of version {version}, this program's is {VERSION}")
    rows = connection.execute("SELECT name, sql FROM sqlite_master")
    if {name.decode(errors="replace"): sql for name, sql in rows} != {
        name: sql.encode() for name, sql in _SCHEMA.items()
    }:
        raise DamagedStoreError(path, "its tables are not those of this version")
    (outcome,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if outcome != b"ok":
        raise DamagedStoreError(path, f"it is damaged: {outcome.decode(errors='replace')}")


def _check_header(path: Path) -> None:
    """Raise DamagedStoreError for a file that SQLite would open read-only, as of a later version.

    Closing a file drops this process's locks on it (fcntl(2)), so never while a database is open.
    """
    with path.open("rb") as file:
        header = file.read(20)
    if header and not (header[:16] == _MAGIC and {*header[18:20]} <= {1, 2}):
        raise DamagedStoreError(path, "this is not an SQLite database")


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
