"""Levers: what the campaign and the daemon under test share, in one small mapped file.

The campaign sets the daemon's clock, and arms one point of its code where a signal is to hit it.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
from enum import IntEnum
from pathlib import Path

_CLOCK = struct.Struct("d")  # seconds that the daemon's clock is ahead
_TRAP = struct.Struct("iii")  # point, how many more times it is passed, signal


class Point(IntEnum):
    """A point in the way of a request."""

    ASKED = 1  # it has come, nothing is decided
    DECIDED = 2  # by the engine, nothing is stored
    WRITING = 3  # the store is about to write it, perhaps in a transaction with more
    COMMITTED = 4  # stored, nothing is answered
    ANSWERING = 5  # half of the answer's bytes are sent
    ANSWERED = 6  # all of them are
    RENAMING = 7  # a new resources.sh, or a store set aside, is about to come to its place
    COMPACTING = 8  # the store's log is about to be moved, on another thread
    FOLDING = 9  # the snapshot of grants is about to move on, in a transaction there


class Levers:
    """The file at *path*, made if it is not there."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 4096)
            self._map = mmap.mmap(descriptor, 4096)
        finally:
            os.close(descriptor)

    @property
    def clock(self) -> float:
        """Seconds that the daemon's clock is ahead of ours."""
        ahead: float = _CLOCK.unpack_from(self._map)[0]
        return ahead

    @clock.setter
    def clock(self, ahead: float) -> None:
        _CLOCK.pack_into(self._map, 0, ahead)

    def arm(self, point: Point, passes: int, number: signal.Signals) -> None:
        """Let the signal hit whoever comes to *point* after passing it so many times."""
        _TRAP.pack_into(self._map, _CLOCK.size, point, passes, number)

    def disarm(self) -> bool:
        """Let nothing happen any more; return whether it did."""
        happened: bool = not _TRAP.unpack_from(self._map, _CLOCK.size)[0]
        _TRAP.pack_into(self._map, _CLOCK.size, 0, 0, 0)
        return happened

    def passing(self, point: Point) -> None:
        """Be at *point*."""
        armed, passes, number = _TRAP.unpack_from(self._map, _CLOCK.size)
        if armed != point:
            return
        if passes:
            _TRAP.pack_into(self._map, _CLOCK.size, armed, passes - 1, number)
            return
        self.disarm()
        os.kill(os.getpid(), number)
