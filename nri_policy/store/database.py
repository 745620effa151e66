"""The database: its schema, how it is opened, and what makes a file one of ours.

Owns the SQL. WAL with `synchronous=NORMAL`: a commit is safe from the death of the process, and
waits for the disk only where the log starts anew, which `settle` does out of the answers' way.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from enum import IntEnum
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from nri_policy.engine.event import StoredGrant
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import Earlier
from nri_policy.store.errors import DamagedStoreError, StoreError
from nri_policy.store.forms import decode_grant, decode_machine

VERSION = 1
APPLICATION = 0x6E72_6970
MAX_LOG = 8192  # pages of 4 KiB
BUSY_TIMEOUT = 0.5  # seconds that a commit waits for another connection: far from any deadline

# Every row has a checksum: SQLite has none, and a flipped digit in a CPU list still makes a grant.
_SCHEMA = {
    # what containers hold
    "grants": (
        "CREATE TABLE grants (container TEXT PRIMARY KEY, sum INTEGER NOT NULL,"
        " form TEXT NOT NULL) WITHOUT ROWID"
    ),
    # what decisions rest on; a new row where it changes
    "layouts": (
        "CREATE TABLE layouts (id INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " settings TEXT NOT NULL, machine TEXT NOT NULL, reserved TEXT NOT NULL)"
    ),
    # `layout` is the one after the event, `link` a Link
    "journal": (
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
        " time REAL NOT NULL, size INTEGER NOT NULL, link INTEGER NOT NULL,"
        " layout INTEGER NOT NULL, name TEXT, kind TEXT NOT NULL, event TEXT NOT NULL,"
        " decision TEXT NOT NULL, scores BLOB)"
    ),
}
_PRAGMAS = (
    "trusted_schema = OFF",
    "synchronous = NORMAL",
    "wal_autocheckpoint = 0",
    "journal_size_limit = 16777216",  # bytes that a log may keep after it started anew
    "secure_delete = OFF",
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


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say of *path* into StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        kind = StoreError if code in _TRANSIENT else DamagedStoreError
        raise kind(path, str(error)) from error
    except OSError as error:
        raise StoreError(path, error.strerror or str(error)) from error
    except (
        UnicodeDecodeError
    ) as error:  # sqlite3 reads what SQLite says of a damaged schema as text
        raise DamagedStoreError(path, f"it has malformed text: {error}") from error
    except ValueError as error:
        raise StoreError(path, f"a value has no stored form: {error}") from error


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


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database at *path*, an empty file or one of ours, for writing.

    Raises DamagedStoreError where it is anything else, StoreError where it cannot be opened now.
    """
    with translate_errors(path):
        _check_header(path)
        connection = _connect(path, "rw")
        with _close_on_failure(connection):
            empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
            if not empty:
                _check(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            if empty:
                _create(connection)
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the database at *path* without changing anything; raises as `open_database` does."""
    with translate_errors(path):
        log = path.with_name(f"{path.name}-wal")
        connection = _connect(path, "ro" if log.exists() else "ro&immutable=1")
        with _close_on_failure(connection):
            _check(connection, path)
    return connection


def settle(path: Path) -> None:
    """Move the log's content to the database and start the log anew: all that waits for the disk.

    For a thread of its own; writers go on meanwhile. Only where they leave no moment to start the
    log anew until it is MAX_LOG long they have to wait. Raises StoreError.
    """
    with translate_errors(path), closing(_connect(path, "rw")) as connection:
        _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if frames > MAX_LOG:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        # whoever writes first after all was moved starts the log anew, and waits for the disk
        with transaction(connection):
            connection.execute(f"PRAGMA user_version = {VERSION}")


def read_held(connection: sqlite3.Connection, path: Path) -> StoreContents:
    """Return what is stored; DamagedStoreError where it cannot be read, StoreError."""
    with translate_errors(path):
        rows = connection.execute("SELECT container, sum, form FROM grants").fetchall()
        query = "SELECT sum, settings, machine, reserved FROM layouts ORDER BY id DESC LIMIT 1"
        layout = connection.execute(query).fetchone()
    grants, machine, reserved = {}, None, EMPTY
    try:
        if layout is not None:
            verify(*layout)
            machine, reserved = decode_machine(layout[2]), CPUSet.parse(layout[3].decode())
        for container, found, form in rows:
            verify(found, container, form)
            grants[container.decode()] = decode_grant(form)
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedStoreError(path, f"its content cannot be read: {error}") from error
    return StoreContents(grants=grants, machine=machine, reserved=reserved)


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
    total = 0
    for cell in cells:
        total = zlib.crc32(cell if isinstance(cell, bytes) else str(cell).encode(), total)
    return total


def verify(found: object, *cells: bytes | float | None) -> None:
    """Raise ValueError where *found* is not the checksum of *cells*."""
    if found != checksum(*cells):
        raise ValueError("the checksum is wrong")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
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
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise DamagedStoreError where a database is not whole and ours; sqlite3.Error."""
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
    """Raise DamagedStoreError for what SQLite would take for a read-only file of its future.

    Closing a file drops this process's locks on it (fcntl(2)): not while a database is open.
    """
    with path.open("rb") as file:
        header = file.read(20)
    if header and not (header[:16] == _MAGIC and {*header[18:20]} <= {1, 2}):
        raise DamagedStoreError(path, "this is not an SQLite database")


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
