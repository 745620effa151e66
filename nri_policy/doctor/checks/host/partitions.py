"""Whether the kernel can keep everything else off exclusive CPUs, and whether it is asked to."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.settings import ExclusivePartitions, Settings


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what the kernel can do, and what of the settings has no effect."""
    if facts.equipment is None:
        return
    settings, reason = facts.settings, facts.equipment.no_partition
    kind = ExclusivePartitions.OFF
    if isinstance(settings, Settings):
        kind = settings.exclusive_partitions
    asked = kind is not ExclusivePartitions.OFF
    if reason and asked:
        found = f"exclusivePartitions: {kind} has no effect: {reason}"
        remedy = "see docs/partitions.md for the kernels that can, or set it to off"
        yield Finding("partitions", Verdict.WARNING, found, remedy)
    elif reason:
        yield Finding("partitions", Verdict.NOTE, f"no kernel partitions: {reason}")
    else:
        found = "the kernel can keep everything else off exclusive CPUs (docs/partitions.md)"
        yield Finding("partitions", Verdict.OK, f"{found}: exclusivePartitions is {kind}")
