"""Store: commits each decision before its answer leaves, and reads the grants at the start.

Rule 1: each commit is one record with the grants that it changed, so they never disagree. Rule 2:
the engine's state is the truth: after a failure, the next successful commit writes everything that
is missing. Rule 3: no commit waits for the disk; `compaction` does that in a thread. There are two
exceptions: if frequent commits let SQLite's log grow to its limit, one commit waits for the
compaction; and with the setting `journal.sync: commit` all do.

A store that is damaged, or of another version or machine, is set aside with one message, and the
daemon starts from the runtime's list of containers.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

from nri_policy.engine.event import Event, Synchronized
from nri_policy.foundation.threads import start
from nri_policy.hardware.machine import Machine
from nri_policy.node import NodeView, Outcome
from nri_policy.store.compaction import compact
from nri_policy.store.database import (
    EMPTY_CONTENTS,
    FAILURES,
    MAX_LOG,
    StoreContents,
    check_machine,
    open_database,
    open_for_reading,
    read_contents,
    to_store_error,
    translate_errors,
)
from nri_policy.store.errors import NOT_STORED, DamagedStoreError, StoreError, UnsafeStoreError
from nri_policy.store.folder import FILE, secure, set_aside
from nri_policy.store.writer import StoreWriter

log = logging.getLogger(__name__)

COMPACT_EVERY = 8 << 20  # bytes written to the log until the store is compacted
ROW_OVERHEAD = 3 << 12  # bytes that a row takes in the log besides its own: whole pages of 4 KiB
PATIENCE = 0.5  # seconds that a commit waits when the log is at its limit
RETRY_AFTER = 5.0  # seconds before a store that failed is opened again
_REMOVED = (
    "its files were removed or replaced while the daemon ran; within a minute it makes new ones"
    " with everything"
)
_CONSEQUENCE = "a restart may place containers again"


class Store:
    """The store in one state folder; for one thread. `held` is what was stored at the start."""

    def __init__(self, state_dir: Path, machine: Machine) -> None:
        """Open the store, or create it; if that fails, commits will try again.

        Raises UnsafeStoreError if other users could have written it.
        """
        self.path = state_dir / "store" / FILE
        self._paths = str(self.path), f"{self.path}-wal"  # of the database and its log
        self.held = EMPTY_CONTENTS
        self._connection: sqlite3.Connection | None = None
        self._writer: StoreWriter | None = None
        self._files: tuple[int, int] | None = None  # their inodes when they were opened
        self._failure: tuple[str, float] | None = None  # of the last try, and its time
        self._log_bytes = 0  # bytes in the log since the last compaction, about
        self._compacting: threading.Thread | None = None
        self._damaged = False  # compaction found an unreadable record
        try:
            self._writer, self.held = self._open(machine)
        except UnsafeStoreError:
            raise
        except StoreError as error:
            log.warning("store-unavailable", extra={"error": str(error)})
            self._failure = error.reason, -math.inf  # the first commit tries again
            self.held = _read_only(self.path, machine)
        # until then the grants of an earlier run stay, and no replay could begin
        self._synchronized = False

    @property
    def trouble(self) -> str:
        """Why the latest decisions are not stored, empty if they are."""
        if self._failure is not None:
            return f"{NOT_STORED}{self.path}: {self._failure[0]}; {_CONSEQUENCE}"
        if self._writer is not None and self._lost_files():
            return f"{NOT_STORED}{self.path}: {_REMOVED}; {_CONSEQUENCE}"
        return ""

    def commit(
        self,
        event: Event,
        outcome: Outcome,
        view: NodeView,
        now: float,
    ) -> None:
        """Write the outcome of *event*: a record, and the grants that changed in *view*.

        *now* is in seconds since the epoch. Raises StoreError if it cannot be written; a later
        commit then writes what is missing.
        """
        if isinstance(event, Synchronized):
            self._synchronized = True
            self.held = EMPTY_CONTENTS
        if not self._synchronized:
            return
        if self._writer is None and self._failure is not None:
            reason, at = self._failure
            if abs(now - at) < RETRY_AFTER:
                raise StoreError(self.path, reason)
        if self._writer is not None and self._lost_files():
            log.warning("store-removed", extra={"path": self.path})
            self._disconnect()
        if self._damaged:
            self._disconnect()
        try:
            writer = self._writer or self._reopen(view.layout.machine)
            self._log_bytes += ROW_OVERHEAD + writer.write(event, outcome, view, now)
        except StoreError as error:
            self._record_failure(error, now)
            raise
        except FAILURES as error:
            failure = to_store_error(self.path, error)
            self._record_failure(failure, now)
            raise failure from error
        if self._log_bytes > COMPACT_EVERY:
            self._compact()

    def close(self) -> None:
        """Close the files, which contain all commits."""
        if self._compacting is not None:
            self._compacting.join()
        self._disconnect()

    def _open(self, machine: Machine) -> tuple[StoreWriter, StoreContents]:
        """Open the database, set a damaged one aside; raises StoreError, UnsafeStoreError."""
        folder = self.path.parent
        with translate_errors(self.path):
            try:
                secure(folder)
                return self._read(machine)
            except DamagedStoreError as error:
                log.warning("store-set-aside", extra={"error": str(error), "as": set_aside(folder)})
            secure(folder)
            return self._read(machine)

    def _read(self, machine: Machine) -> tuple[StoreWriter, StoreContents]:
        """Open the database and read its content; raises StoreError, DamagedStoreError."""
        connection = open_database(self.path)
        try:
            with translate_errors(self.path):
                held = read_contents(connection, self.path)
                check_machine(held, self.path, machine)
                writer = StoreWriter(connection, held)
        except BaseException:
            connection.close()
            raise
        self._connection, self._files = connection, _inodes(*self._paths)
        return writer, held

    def _reopen(self, machine: Machine) -> StoreWriter:
        self._writer, _ = self._open(machine)
        self._failure = None
        log.warning("store-available", extra={"path": self.path})
        return self._writer

    def _lost_files(self) -> bool:
        """Whether the open files are no longer those at `path`: SQLite would write on to them."""
        return self._files is None or self._files != _inodes(*self._paths)

    def _record_failure(self, error: StoreError, now: float) -> None:
        """Close a database that failed, because its content is no longer known."""
        self._failure = error.reason, now
        self._disconnect()

    def _disconnect(self) -> None:
        self._damaged = False
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._writer = None

    def _compact(self) -> None:
        """Start to compact; if the log is at its limit, wait a moment for the compaction.

        Where no thread can be started, the next time compacts.
        """
        if self._compacting is None or not self._compacting.is_alive():
            self._log_bytes = 0
            thread = threading.Thread(target=self._compact_now, name="store", daemon=True)
            try:
                start(thread)
            except OSError as error:
                log.warning("store-not-compacted", extra={"error": str(error)})
                return
            self._compacting = thread
        if self.path.with_name(f"{FILE}-wal").stat().st_size > MAX_LOG:
            self._compacting.join(PATIENCE)

    def _compact_now(self) -> None:
        """Compact, in a thread."""
        try:
            compact(self.path)
        except StoreError as error:  # nothing is lost: the next time compacts
            log.warning("store-not-compacted", extra={"error": str(error)})
            self._damaged = isinstance(error, DamagedStoreError)


def _inodes(database: str, wal: str) -> tuple[int, int] | None:
    """Return the inodes of a database and its log; None if one is missing, or the database empty.

    SQLite removes the log of an empty database.
    """
    try:
        of_database, of_wal = os.stat(database), os.stat(wal)  # noqa: PTH116 - for each commit
    except OSError:
        return None
    return (of_database.st_ino, of_wal.st_ino) if of_database.st_size else None


def _read_only(path: Path, machine: Machine) -> StoreContents:
    """Return the grants in a store that cannot be written, none if it cannot be read either."""
    try:
        with closing(open_for_reading(path)) as connection:
            held = read_contents(connection, path)
        check_machine(held, path, machine)
    except StoreError:
        return EMPTY_CONTENTS
    return held
