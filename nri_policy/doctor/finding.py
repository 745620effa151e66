"""A finding: what a check saw, how bad that is, and what helps."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """How bad it is, from good to bad."""

    OK = "ok"
    NOTE = "note"  # worth to know; nothing has to be done
    WARNING = "warning"  # the daemon works, but not as well as it could, or not for long
    ERROR = "error"  # the daemon does not work, or works against somebody


class Finding(Struct, frozen=True):
    """One thing that a check found; the remedy is empty where none is needed, or a later has it."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""

    @property
    def passes(self) -> bool:
        """Whether nothing has to be done."""
        return self.verdict in {Verdict.OK, Verdict.NOTE}
