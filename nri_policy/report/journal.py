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
    container: str | None = None  # namespace/pod/name; None: no record that is left names it


class JournalRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event and what was decided."""

    seq: int
    time: str
    follows: str  # next: the record before; gap: records are missing; base: a list of all there is
    event: str
    # namespace/pod/name of the one that it is about, namespace/name of a pod or a claim;
    # None: there is none, or no record that is left names it
    container: str | None
    summary: str | None
    refused: bool
    pool: str | None
    cpus: CPUSet | None
    mems: CPUSet | None
    changes: tuple[JournalChange, ...]
    warnings: tuple[str, ...]
    count: int = 1  # how often: a resize that comes to the same again has no other record
    last: str | None = None  # when last, of more than once


class JournalPage(Struct, frozen=True, kw_only=True):
    """Records, oldest first."""

    records: tuple[JournalRecord, ...]
    more: bool  # whether younger ones follow
