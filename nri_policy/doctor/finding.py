"""A finding: what a check saw, how bad that is, and what helps."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """Severity of a finding, ascending."""

    OK = "ok"
    NOTE = "note"  # information without need to act
    WARNING = "warning"  # the daemon works, but badly or not for long
    ERROR = "error"  # the daemon fails, or conflicts with another program


class Finding(Struct, frozen=True):
    """One result of a check; the remedy is empty if none is needed, or a later finding has it."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""

    @property
    def passes(self) -> bool:
        """Whether nothing has to be done."""
        return self.verdict in {Verdict.OK, Verdict.NOTE}
