"""Inotify: the kernel's notifications of changed files and folders (inotify(7)).

Changes through any mount and from any namespace are notified, because the kernel has one inode for
all. Changes without a write are not, such as those by the server of a network file system. A user
has a limited number of instances and watches (`fs.inotify`). Python has no module for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections import deque
from collections.abc import Callable, Collection
from typing import Self

_LIBC = ctypes.CDLL(None, use_errno=True)

WRITES = 0x2  # IN_MODIFY: of a file, or of files in a folder
# and IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF
ENTRIES = WRITES | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_IGNORED = 0x8000  # IN_IGNORED: the watch has ended, because its file is gone or we ended it
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of a name in a folder
_SIZE = 256 * _EVENT.size
_ABSENT = {errno.ENOENT, errno.ENOTDIR}
# File systems that only this machine changes (statfs(2)): ext, XFS, Btrfs, tmpfs, ramfs, overlay,
# F2FS, ZFS
_LOCAL = {
    *(0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x858458F6, 0x794C7630, 0xF2F52010, 0x2FC12FC1),
}
_STATFS_SIZE = 256  # bytes: more than the kernel's struct has


class Inotify:
    """Watches for a `with`; *changed* is called on the running loop after one of the *events*."""

    def __init__(self, changed: Callable[[], None], events: int = WRITES) -> None:
        """Make an instance; OSError where there can be no more."""
        self._changed = changed
        self._events = events
        self._watches: dict[str, int] = {}  # by path
        self._ended: deque[int] = deque()  # watches that the kernel has no more
        self._loop = asyncio.get_running_loop()
        self._fd = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.add_reader(self._fd, self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def watch(self, paths: Collection[str]) -> None:
        """Watch the existing ones of *paths*, and nothing else; for one thread at a time.

        Raises OSError if one cannot be watched.
        """
        ended = {self._ended.popleft() for _ in range(len(self._ended))}
        self._watches = {path: at for path, at in self._watches.items() if at not in ended}
        for path in self._watches.keys() - paths:
            _LIBC.inotify_rm_watch(self._fd, self._watches.pop(path))
        for path in paths:
            if path in self._watches:
                continue
            added = _LIBC.inotify_add_watch(self._fd, os.fsencode(path), self._events)
            try:
                self._watches[path] = _checked(added)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise

    def _read(self) -> None:
        events, at, changed = os.read(self._fd, _SIZE), 0, False
        while at < len(events):
            watch, mask, _, named = _EVENT.unpack_from(events, at)
            at += _EVENT.size + named
            if mask & _IGNORED:
                self._ended.append(watch)
            else:
                changed = True
        if changed:
            self._changed()


def is_local(path: str) -> bool:
    """Return whether only this machine can change *path*, so that all changes are notified.

    Raises OSError.
    """
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    _checked(_LIBC.statfs(os.fsencode(path), buffer))
    (kind,) = struct.unpack_from("l", buffer)
    return kind in _LOCAL


def _checked(result: int) -> int:
    """Return the result of a call of the C library; raises OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
