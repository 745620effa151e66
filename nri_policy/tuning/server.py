"""Server: the tuner's process, which answers one caller at a time at its socket.

Blocking, with one thread: a caller that stays silent is dropped after a moment, and nothing that
the tuner does takes long.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from nri_policy.foundation.singleton import only_instance
from nri_policy.foundation.wording import printable
from nri_policy.tuning.decision import Attempts, ItemAction, ReadFailure, decide
from nri_policy.tuning.files import Files, KernelFiles, boot_id
from nri_policy.tuning.items import Desired, Item
from nri_policy.tuning.protocol import Reply, desired_of, parse_request, receive_line
from nri_policy.tuning.tuner import Tuner
from nri_policy.tuning.tuner_journal import TunerJournal, read_entries

LOCK = "lock"
_PATIENCE = 2.0  # seconds for a caller to send its line, and to take the answer
_THEN = {
    ItemAction.RESTORE: "restored",
    ItemAction.FORGET: "left as it is: it has its original value",
    ItemAction.LEAVE: "left as it is: something else has set it",
}
log = logging.getLogger(__name__)


@contextmanager
def open_tuner(
    root: Path, folder: Path, make_files: Callable[[Path], Files] = KernelFiles
) -> Iterator[Tuner]:
    """Yield the only tuner of the journal in *folder*; AlreadyRunningError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_instance(folder / LOCK):
        journal = TunerJournal(folder, boot_id(root))
        yield Tuner(make_files(root), journal)


class Restoration(Struct, frozen=True, kw_only=True):
    """What a restore would do with an item of the journal."""

    item: Item
    found: str | None  # None: it cannot be read
    original: str
    then: str


def preview_restore(root: Path, folder: Path) -> tuple[Restoration, ...]:
    """Return what a restore would do with the journal in *folder*.

    Writes nothing. Raises OSError, and ValueError for a damaged journal.
    """
    files, shown = KernelFiles(root), []
    for item, entry in read_entries(folder, boot_id(root)).items():
        found = files.read(item)
        step = decide(None, found, entry, Attempts(), 0.0, repair=False)
        shown.append(
            Restoration(
                item=item,
                found=None if isinstance(found, ReadFailure) else found,
                original=entry.original,
                then=step.why or _THEN[step.action],
            )
        )
    return tuple(shown)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Yield a socket at *path* that only its owner can connect to; OSError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is not a socket")
        path.unlink()  # a predecessor's: the journal's lock is ours
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(8)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def serve(tuner: Tuner, listener: socket.socket) -> None:
    """Answer callers, and look at all items when that is due, until the process is ended."""
    while True:
        if (due := tuner.next_look) <= 0:
            tuner.look()
            continue
        listener.settimeout(None if due == math.inf else due)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with closing(connection):
            connection.settimeout(_PATIENCE)
            try:
                connection.sendall(msgspec.json.encode(answer(tuner, connection)) + b"\n")
            except OSError as error:
                log.info("caller-left", extra={"error": str(error)})


def answer(tuner: Tuner, connection: socket.socket) -> Reply:
    """Return the answer to the request that arrives; OSError."""
    try:
        request = parse_request(receive_line(connection))
    except ValueError as error:
        log.warning("request-refused", extra={"error": str(error)})
        return Reply(refused=printable(str(error)))
    return reply_to(tuner, desired_of(request), repair=request.repair, whole=request.whole)


def reply_to(tuner: Tuner, desired: Desired | None, *, repair: bool, whole: bool) -> Reply:
    """Return the answer to what a caller asks."""
    not_taken = ""
    if desired is not None and whole:
        not_taken = tuner.try_settings(desired, repair=repair)
    elif desired is not None:
        tuner.set(desired, repair=repair)
    return Reply(not_taken=not_taken, tunables=tuner.list_tunables(), writes=tuner.list_writes())
