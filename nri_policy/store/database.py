"""The database: its schema, how it is opened, and what makes a file one of ours.

Owns the schema. What containers hold is in the journal: each record has the grants that came,
changed or went with it. The table of grants is a snapshot: it spares a start the records before
`snapshot.seq`, and `compaction` moves it on.

WAL with `synchronous=NORMAL`: a commit is safe from the death of the process, and waits for the
disk only where the log starts anew, which `compaction` does out of the answers' way. A power cut
loses what came after that; with `journal.sync: commit` nothing, and each commit waits.
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
from nri_policy.store.errors import DamagedStoreError, StoreError
from nri_policy.store.forms import GONE, decode_grant, decode_held, decode_machine

VERSION = 2
APPLICATION = 0x6E72_6970
MAX_LOG = 16 << 20  # bytes of SQLite's log
BUSY_TIMEOUT = 0.5  # seconds that a commit waits for another connection: far from any deadline

# Every row has a checksum: SQLite has none, and a flipped digit in a CPU list still makes a grant.
_SCHEMA = {
    # what containers held after record `snapshot.seq`
    "grants": (
        "CREATE TABLE grants (container TEXT PRIMARY KEY, sum INTEGER NOT NULL,"
        " form TEXT NOT NULL) WITHOUT ROWID"
    ),
    # one row: the last record that is in `grants`, and the `size` of all up to there
    "snapshot": (
        "CREATE TABLE snapshot (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " bytes INTEGER NOT NULL)"
    ),
    # what decisions rest on; a new row where it changes
    "layouts": (
        "CREATE TABLE layouts (id INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " settings TEXT NOT NULL, machine TEXT NOT NULL, reserved TEXT NOT NULL)"
    ),
    # `layout` is the one after the event, `link` a Link, `held` the grants that are others after it
    "journal": (
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " time REAL NOT NULL, size INTEGER NOT NULL, link INTEGER NOT NULL,"
        " layout INTEGER NOT NULL, name TEXT, kind TEXT NOT NULL, event TEXT NOT NULL,"
        " decision TEXT NOT NULL, scores BLOB, held TEXT, held_sum INTEGER)"
    ),
}
# Version 1 had every grant in `grants` at all times.
_SCHEMA_1 = {name: sql for name, sql in _SCHEMA.items() if name != "snapshot"}
_SCHEMA_1["journal"] = _SCHEMA["journal"].replace(", held TEXT, held_sum INTEGER", "")
_SCHEMAS = {1: _SCHEMA_1, VERSION: _SCHEMA}
_PRAGMAS = (
    "trusted_schema = OFF",
    "synchronous = NORMAL",
    "wal_autocheckpoint = 0",
    f"journal_size_limit = {MAX_LOG}",  # what a log may keep after it started anew
    "secure_delete = OFF",
    "cache_size = -256",  # KiB: who adds at the end of a table looks at few pages
)
_MAGIC = b"SQLite format 3\0"
# What says nothing of the file itself: I/O, no space, no permission, somebody else at it.
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


class Link(IntEnum):
    """How a record goes with the one before it."""

    NEXT = 0  # nothing happened between the two
    GAP = 1  # another life of the daemon, or events that could not be written, lie between them
    BASE = 2  # not an event: everything that ran then, for a replay to start from


class StoreContents(Struct, frozen=True, kw_only=True):
    """What containers hold, and where."""

    grants: Mapping[str, StoredGrant]  # by container id
    machine: Machine | None  # None where nothing is stored
    reserved: CPUSet  # the CPUs kept for the system

    @property
    def earlier(self) -> Earlier:
        """What an engine that comes after has to know of the CPUs."""
        exclusive = CPUSet.union(each.grant.exclusive for each in self.grants.values())
        return Earlier(reserved=self.reserved, exclusive=exclusive)


NOTHING = StoreContents(grants={}, machine=None, reserved=EMPTY)


# what reading and writing a database raises: SQLite's errors, the system's, of a text that is none,
# a value without a form, and of what was written and is not what was meant
FAILURES = (sqlite3.Error, OSError, ValueError, AssertionError)


def failure_of(path: Path, error: Exception) -> StoreError:
    """Return what *error*, one of FAILURES, says of *path*."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        kind = StoreError if code in _TRANSIENT else DamagedStoreError
        text = "this is not an SQLite database" if code == sqlite3.SQLITE_NOTADB else str(error)
        return kind(path, text)
    if isinstance(error, OSError):
        return StoreError(path, error.strerror or str(error))
    # sqlite3 reads what SQLite says of a damaged schema as text
    if isinstance(error, UnicodeDecodeError):
        return DamagedStoreError(path, f"it has malformed text: {error}")
    if isinstance(error, ValueError):
        return StoreError(path, f"a value has no stored form: {error}")
    # it is opened and read again, and no decision fails for it
    return StoreError(path, f"what was written is not what was meant: {error}")


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say of *path* into StoreError."""
    try:
        yield
    except FAILURES as error:
        raise failure_of(path, error) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written in the `with`, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Have all that is read in the `with` be of one moment, while others write."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors end it
            connection.execute("ROLLBACK")


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database at *path*, an empty file or one of ours, for writing.

    Raises DamagedStoreError where it is anything else, StoreError where it cannot be opened now.
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
            elif _version(connection) == 1:
                _upgrade(connection)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the database at *path* without changing anything; raises as `open_database` does."""
    with translate_errors(path):
        log = path.with_name(f"{path.name}-wal")
        connection = connect(path, "ro" if log.exists() else "ro&immutable=1")
        with _close_on_failure(connection):
            _check(connection, path)
    return connection


def read_held(connection: sqlite3.Connection, path: Path) -> StoreContents:
    """Return what is stored; DamagedStoreError where it cannot be read, StoreError."""
    with translate_errors(path), moment(connection):
        rows = connection.execute("SELECT container, sum, form FROM grants").fetchall()
        query = "SELECT sum, settings, machine, reserved FROM layouts ORDER BY id DESC LIMIT 1"
        layout = connection.execute(query).fetchone()
        tail = None if _version(connection) == 1 else read_tail(connection, path)
    grants, machine, reserved = {}, None, EMPTY
    try:
        if layout is not None:
            verify(*layout)
            machine, reserved = decode_machine(layout[2]), CPUSet.parse(layout[3].decode())
        for container, found, form in rows:
            verify(found, container, form)
            grants[container.decode()] = decode_grant(form)
        for container_id, grant in () if tail is None else tail.held.items():
            grants.pop(container_id, None)
            if grant != GONE:
                grants[container_id] = decode_grant(grant)
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedStoreError(path, f"its content cannot be read: {error}") from error
    return StoreContents(grants=grants, machine=machine, reserved=reserved)


class Tail(Struct, frozen=True, kw_only=True):
    """What the records after the snapshot say."""

    seq: int  # of the last record
    held: Mapping[str, bytes]  # forms of the grants that are others, by container id, or GONE
    bytes: int  # of the whole journal


def read_tail(connection: sqlite3.Connection, path: Path) -> Tail:
    """Return what is in the journal and not in the snapshot.

    Raises DamagedStoreError where it cannot be read, sqlite3.Error.
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
    """Raise ValueError where record *seq* is not the next one after *before*."""
    if seq != before + 1:
        raise ValueError(f"record {before + 1} is missing")


def write_snapshot(connection: sqlite3.Connection, seq: int, size: int) -> None:
    """Note that the table of grants is as after record *seq*, where the journal has *size* bytes.

    Raises sqlite3.Error.
    """
    connection.execute("DELETE FROM snapshot")
    row = seq, checksum(seq, size), size
    connection.execute("INSERT INTO snapshot VALUES (?, ?, ?)", row)


def check_machine(held: StoreContents, path: Path, machine: Machine) -> None:
    """Raise DamagedStoreError where *held* is of another machine, whatever has gone offline."""
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
    """Raise ValueError where *found* is not the checksum of *cells*."""
    if found != checksum(*cells):
        raise ValueError("the checksum is wrong")


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Connect to a database that was opened before; sqlite3.Error."""
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


def _upgrade(connection: sqlite3.Connection) -> None:
    """Make a store of version 1 one of this version: its grants are those after its last record."""
    with transaction(connection):
        connection.execute("ALTER TABLE journal ADD COLUMN held TEXT")
        connection.execute("ALTER TABLE journal ADD COLUMN held_sum INTEGER")
        connection.execute(_SCHEMA["snapshot"])
        query = "SELECT coalesce(max(seq), 0), coalesce(sum(size), 0) FROM journal"
        write_snapshot(connection, *connection.execute(query).fetchone())
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise DamagedStoreError where a database is not whole and ours; sqlite3.Error."""
    if _pragma(connection, "application_id") != APPLICATION:
        raise DamagedStoreError(path, "this is not a store of nri-policy")
    version = _version(connection)
    if version not in _SCHEMAS:
        raise DamagedStoreError(path, f"it is of version {version}, this program's is {VERSION}")
    rows = connection.execute("SELECT name, sql FROM sqlite_master")
    if {name.decode(errors="replace"): sql for name, sql in rows} != {
        name: sql.encode() for name, sql in _SCHEMAS[version].items()
    }:
        raise DamagedStoreError(path, "its tables are not those of this version")
    (outcome,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if outcome != b"ok":
        raise DamagedStoreError(path, f"it is damaged: {outcome.decode(errors='replace')}")


def _check_header(path: Path) -> None:
    """Raise DamagedStoreError for what SQLite would take for a read-only file of its future.

    Closing a file drops this process's locks on it (fcntl(2)): not while a database is open.
    """
    with path.open("rb") as file:
        header = file.read(20)
    if header and not (header[:16] == _MAGIC and {*header[18:20]} <= {1, 2}):
        raise DamagedStoreError(path, "this is not an SQLite database")


def _version(connection: sqlite3.Connection) -> int:
    version = _pragma(connection, "user_version")
    assert isinstance(version, int), "SQLite's own field"
    return version


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
