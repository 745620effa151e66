"""Store: what must outlive the daemon, committed before the answer leaves.

Rule 1: one transaction a commit, of grants and journal alike, so that they never disagree. Rule 2:
the engine's state is the truth: after a failure the next commit that succeeds writes all that is
missing. Rule 3: no commit waits for the disk; what has to is done in a thread (`database.settle`).

A store that is damaged, or of another version or machine, is set aside with one message, and
everything starts from the runtime's word.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

from nri_policy.engine.event import Event, Synchronized
from nri_policy.hardware.machine import Machine
from nri_policy.node import NodeView, Outcome
from nri_policy.store.database import (
    NOTHING,
    StoreContents,
    check_machine,
    open_database,
    open_for_reading,
    read_held,
    settle,
    translate_errors,
)
from nri_policy.store.errors import DamagedStoreError, StoreError, UnsafeStoreError
from nri_policy.store.folder import FILE, secure, set_aside
from nri_policy.store.writer import Writer

log = logging.getLogger(__name__)

SETTLE_EVERY = 4 << 20  # bytes written until the log is moved to the database
RETRY_AFTER = 5.0  # seconds until a store that failed is opened again


class Store:
    """The store below one state folder; for one thread. `held` is what was found at the start."""

    def __init__(self, state_dir: Path, machine: Machine) -> None:
        """Open what is stored, or start anew; where that fails commits will try again.

        UnsafeStoreError where others could have written it.
        """
        self.path = state_dir / "store" / FILE
        self.held = NOTHING
        self._connection: sqlite3.Connection | None = None
        self._writer: Writer | None = None
        self._failure: tuple[str, float] | None = None  # the latest, and when it was
        self._unsettled = 0  # bytes
        self._settling: threading.Thread | None = None
        try:
            self._writer, self.held = self._open(machine)
        except UnsafeStoreError:
            raise
        except StoreError as error:
            log.warning("store-unavailable", extra={"error": str(error)})
            self.held = _readable(self.path, machine)
        # what an earlier life knew of the containers stands until this one knows them
        self._synchronized = not self.held.grants

    def commit(
        self,
        event: Event,
        outcome: Outcome,
        view: NodeView,
        now: float,
    ) -> None:
        """Write what came of *event*: the node as in *view*, and a record of both.

        *now* is in seconds since the epoch. StoreError where it cannot be written: a later commit
        makes up for it.
        """
        if isinstance(event, Synchronized):
            self._synchronized = True
            self.held = NOTHING
        if not self._synchronized:
            return
        if self._writer is None and self._failure is not None:
            reason, at = self._failure
            if abs(now - at) < RETRY_AFTER:
                raise StoreError(self.path, reason)
        try:
            with translate_errors(self.path):
                writer = self._writer or self._reopen(view.layout.machine)
                self._unsettled += writer.write(event, outcome, view, now)
        except StoreError as error:
            self._give_up(error, now)
            raise
        if self._unsettled > SETTLE_EVERY:
            self._settle()

    def close(self) -> None:
        """Let go of the files; what was committed is in them."""
        if self._settling is not None:
            self._settling.join()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._writer = None

    def _open(self, machine: Machine) -> tuple[Writer, StoreContents]:
        """Open the database, setting aside one that is no use; StoreError, UnsafeStoreError."""
        folder = self.path.parent
        with translate_errors(self.path):
            try:
                secure(folder)
                return self._read(machine)
            except DamagedStoreError as error:
                log.warning("store-set-aside", extra={"error": str(error), "as": set_aside(folder)})
            secure(folder)
            return self._read(machine)

    def _read(self, machine: Machine) -> tuple[Writer, StoreContents]:
        """Open the database and take in what is stored; StoreError, DamagedStoreError."""
        connection = open_database(self.path)
        try:
            with translate_errors(self.path):
                held = read_held(connection, self.path)
                check_machine(held, self.path, machine)
                writer = Writer(connection, held)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return writer, held

    def _reopen(self, machine: Machine) -> Writer:
        self._writer, _ = self._open(machine)
        log.warning("store-available", extra={"path": self.path})
        return self._writer

    def _give_up(self, error: StoreError, now: float) -> None:
        """Let go of a database that failed: what is in it is no longer known."""
        self._failure = error.reason, now
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = self._writer = None

    def _settle(self) -> None:
        if self._settling is None or not self._settling.is_alive():
            self._unsettled = 0
            self._settling = threading.Thread(
                target=_move_log, args=(self.path,), name="store", daemon=True
            )
            self._settling.start()


def _readable(path: Path, machine: Machine) -> StoreContents:
    """Return what a store that cannot be written holds, nothing if it cannot be read either."""
    try:
        with closing(open_for_reading(path)) as connection:
            held = read_held(connection, path)
        check_machine(held, path, machine)
    except StoreError:
        return NOTHING
    return held


def _move_log(path: Path) -> None:
    try:
        settle(path)
    except StoreError as error:  # the log keeps everything: the next time will do
        log.warning("store-not-checkpointed", extra={"error": str(error)})
