"""One instance of the plugin a node: two would conflict, and fail every container's creation."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock

SUCCESSION = 3.0  # seconds for a predecessor to end in; NRI gives a plugin 5 s to register
LOOK = 0.1  # seconds between looks whether it has


class AlreadyRunningError(Exception):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"{path}: held by process {holder}; stop that first, or give each a folder of its own"
        )
        self.path = path
        self.holder = holder


@contextmanager
def only_instance(path: Path) -> Iterator[None]:
    """Hold the lock file *path* for the time of a `with`; raises AlreadyRunningError, OSError.

    The kernel lets go of it when the process ends, however it ends. The file stays: removing it
    would let a third process lock a new one beside a second that waits for the old. On a disk that
    cannot be written an old lock file will do: only the holder's id is missing then.
    """
    file = _open(path)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
            raise AlreadyRunningError(path, holder or "of unknown id") from error
        with suppress(OSError):  # a full or read-only disk
            os.ftruncate(file, 0)
            os.pwrite(file, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(file)


async def succeed(
    paths: Iterable[Path],
    stack: AsyncExitStack,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Hold the lock files *paths* while *stack* is open, after a predecessor has released them.

    A restarted runtime starts its plugins while the old ones are still ending, and does not repeat
    a failed start. Raises as `only_instance` does, after SUCCESSION seconds.
    """
    looks = round(SUCCESSION / LOOK)
    for path in paths:
        while True:
            try:
                stack.enter_context(only_instance(path))
                break
            except AlreadyRunningError:
                if not looks:
                    raise
                looks -= 1
            await clock.sleep(LOOK)


def _open(path: Path) -> int:
    """Open the lock file, and never one elsewhere that a link leads to; OSError."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        try:
            return os.open(path, flags | os.O_RDONLY)
        except FileNotFoundError:
            raise error from None  # the disk is what is wrong
