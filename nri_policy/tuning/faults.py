"""Faults: fields of the settings that a machine cannot fulfil."""

from __future__ import annotations

from msgspec import Struct


class Fault(Struct, frozen=True, kw_only=True):
    """A field of the settings that a machine cannot fulfil."""

    path: str  # of the field in the settings
    text: str
    fatal: bool  # whether the settings are refused
