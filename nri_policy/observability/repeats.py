"""Repeats: an equal warning is logged once in a while, and counted in between.

Owns what is equal (logger, level, event, fields), and how many warnings are remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock

INTERVAL = 60.0  # seconds in which a repeated warning is logged once
MOST = 500  # different warnings

_Key = tuple[str, int, str, str]
_STANDARD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName", "repeated"}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that were given as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


@dataclass(slots=True)
class _Seen:
    """A warning that was logged."""

    record: logging.LogRecord
    logged: float
    repeated: int = 0  # since then


class RepeatFilter:
    """The warnings of the last minute."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._seen: dict[_Key, _Seen] = {}  # the longest without a repetition logged first

    def first(self, record: logging.LogRecord) -> bool:
        """Return whether *record* is new, and remember it."""
        key = record.name, record.levelno, record.getMessage(), str(fields_of(record))
        seen = self._seen.get(key)
        if seen is not None:
            seen.repeated += 1
            return False
        if len(self._seen) == MOST:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = _Seen(record, self._clock.now())
        return True

    def due(self) -> Iterator[logging.LogRecord]:
        """Yield records for repeated warnings, with their number as `repeated`."""
        now = self._clock.now()
        for key, seen in [*self._seen.items()]:
            if now - seen.logged < INTERVAL:
                continue
            del self._seen[key]
            if seen.repeated:
                known = {"exc_info": None, "created": self._clock.date(), "repeated": seen.repeated}
                yield logging.makeLogRecord(vars(seen.record) | known)
                self._seen[key] = _Seen(seen.record, now)
