"""A journal that was run again (`replay`)."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import ContainerOutcome, Score


class DifferenceReport(Struct, frozen=True, kw_only=True):
    """A part of a recorded decision that came out differently."""

    seq: int
    time: str
    what: str
    recorded: str
    replayed: str


class FateReport(Struct, frozen=True, kw_only=True):
    """Where a container ended up."""

    pool: str | None  # None: it was refused
    cpus: CPUSet
    exclusive: CPUSet
    mems: CPUSet
    aligned: bool | None  # inside one NUMA node; None without a CPU request
    spilled: int  # requested bytes, if some memory is not beside its CPUs
    error: str | None


class TwoFates(Struct, frozen=True, kw_only=True):
    """Where a container ended up, None where it never was."""

    recorded: FateReport | None
    replayed: FateReport | None


class ReplayReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Results of a replay; `replayed` and `changes` are set for other settings or machines."""

    journal: str
    records: int
    skipped: int
    since: str
    until: str
    reproduced: bool
    differences: tuple[DifferenceReport, ...]
    recorded: Score
    repeats: int = 0  # resizes without records: an equal one counts them
    replayed: Score | None = None
    changes: dict[str, TwoFates] | None = None  # by namespace/pod/name


def fate_report(fate: ContainerOutcome | None) -> FateReport | None:
    """Return what is shown of a fate."""
    if fate is None:
        return None
    return FateReport(
        pool=fate.pool,
        cpus=fate.cpus,
        exclusive=fate.exclusive,
        mems=fate.mems,
        aligned=fate.aligned,
        spilled=fate.spilled,
        error=fate.refusal,
    )
