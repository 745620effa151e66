"""What became of new settings."""

from __future__ import annotations

from msgspec import Struct


class Reload(Struct, frozen=True, kw_only=True):
    """The outcome of reading the settings again."""

    accepted: bool  # as a whole; else the ones before stay in force, as a whole
    origin: str  # the file or object that they came from
    reason: str  # why they were refused; empty if they were not
    time: float  # seconds since the epoch
