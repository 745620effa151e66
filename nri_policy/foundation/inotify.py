"""Inotify: the kernel tells that files were written to (inotify(7)), whoever did so.

Through any mount, from any namespace: the kernel has one inode for them all. It tells nothing where
a file changes without a write, as on a network file system whose server changes it. One user may
have so many instances and watches (`fs.inotify`); Python has no module for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Collection
from typing import Self

_MODIFY = 0x2
_OVERFLOW = 0x4000  # events were lost
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of a name: none for a file
_SIZE = 256 * _EVENT.size
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


class Inotify:
    """Watches of files, for a `with`; *changed* is called on the running loop after a write."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Make an instance; OSError where there can be no more."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._changed = changed
        self._watches: dict[str, int] = {}  # by path
        self._loop = asyncio.get_running_loop()
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.add_reader(self._fd, self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def watch(self, paths: Collection[str]) -> None:
        """Watch those of *paths* that are there, and no others; for one thread at a time.

        Raises OSError where one cannot be watched.
        """
        for path in self._watches.keys() - paths:
            self._libc.inotify_rm_watch(self._fd, self._watches.pop(path))
        for path in paths:
            if path in self._watches:
                continue
            added = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _MODIFY)
            try:
                self._watches[path] = self._checked(added)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise

    def _read(self) -> None:
        events = _EVENT.iter_unpack(os.read(self._fd, _SIZE))
        if any(mask & (_MODIFY | _OVERFLOW) for _, mask, _, _ in events):
            self._changed()

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
