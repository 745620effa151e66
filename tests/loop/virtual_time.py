"""Time that stands still unless a loop moves it; to be imported before anything that keeps a clock.

`time.monotonic` and `time.time` are replaced for the whole process: the daemon's modules hold them
as defaults. While no loop has set `Virtual.now`, they are the machine's own.
"""

from __future__ import annotations

import time

EPOCH = 1.7e9  # the date when virtual time is 0, in seconds since the epoch

_monotonic, _time = time.monotonic, time.time


class Virtual:
    """The one virtual time of this process, in seconds; None: the machine's own time counts."""

    now: float | None = None
    clock_error = 0.0  # seconds that the date differs from the time that has passed


def _virtual_monotonic() -> float:
    return _monotonic() if Virtual.now is None else Virtual.now


def _virtual_time() -> float:
    return _time() if Virtual.now is None else EPOCH + Virtual.now + Virtual.clock_error


time.monotonic = _virtual_monotonic
time.time = _virtual_time
