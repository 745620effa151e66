"""Faults: what settings ask for that a machine does not have."""

from __future__ import annotations

from msgspec import Struct


class Fault(Struct, frozen=True, kw_only=True):
    """Something that a machine does not have."""

    path: str  # of the field in the settings
    text: str
    fatal: bool  # whether the settings are refused
