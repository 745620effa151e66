"""The result of a reload of the settings."""

from __future__ import annotations

from msgspec import Struct


class ReloadResult(Struct, frozen=True, kw_only=True):
    """The result of reading the settings again."""

    accepted: bool  # as a whole; otherwise the old settings stay in force
    origin: str  # the file or object of the new settings
    reason: str  # why they were refused; empty if accepted
    time: float  # seconds since the epoch
