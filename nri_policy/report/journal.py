"""The journal, a page at a time."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet


class JournalChange(Struct, frozen=True, kw_only=True):
    """What an event changed for another container."""

    container_id: str
    cpus: CPUSet
    mems: CPUSet
    cause: str
    container: str | None = (
        None  # namespace/pod/name; None if every record with its name is deleted
    )


class JournalRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event and what was decided."""

    seq: int
    time: str
    follows: str  # next: the record before; gap: records are missing; base: a list of all there is
    event: str
    # namespace/pod/name of its subject, namespace/name for pods and claims; None for events
    # without a subject, or if every record with the name is deleted
    container: str | None
    summary: str | None
    refused: bool
    pool: str | None
    cpus: CPUSet | None
    mems: CPUSet | None
    changes: tuple[JournalChange, ...]
    warnings: tuple[str, ...]
    count: int = 1  # a resize with the same result again is counted, not recorded
    last: str | None = None  # when last, of more than once


class JournalPage(Struct, frozen=True, kw_only=True):
    """Records, oldest first."""

    records: tuple[JournalRecord, ...]
    more: bool  # whether younger ones follow
