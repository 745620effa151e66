"""Checks of cpusets: what the cgroups of containers have, and writing what cannot wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from nri_policy.delivery.cpuset_files import Change
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.record import cpuset_of
from nri_policy.engine.grant import Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources


class CpusetCheck(Struct, kw_only=True):
    """The check of one cgroup: the placement, then the findings and the result."""

    container_id: str
    placement: Placement
    own: CPUSet  # exclusive CPUs
    lost: bool
    settled: bool  # nothing about it is under way
    found: Resources | None = None
    cpus: CPUSet = EMPTY  # of the cgroup, at the end
    overlap: CPUSet = EMPTY  # exclusive CPUs of others in the cgroup
    written: bool = False
    error: str = ""

    @property
    def is_in_force(self) -> bool:
        """Whether the cgroup has what is due."""
        cpus, mems = self.placement.cpus, self.placement.mems
        found = EMPTY if self.found is None else cpuset_of(self.found).mems
        quota, has = self.placement.quota, self.found.cpu_quota if self.found else 0
        return (
            (not cpus or self.cpus == cpus)
            and (not mems or found == mems)
            and (quota is None or not has or (has > 0) == (quota > 0))
        )

    def see(self, found: Resources | None) -> None:
        """Store the state of the cgroup; None if it is not visible."""
        self.found = found
        self.cpus = EMPTY if found is None else cpuset_of(found).cpus


def enforce(
    cgroups: HostCgroups,
    paths: Mapping[str, str],
    checks: Sequence[CpusetCheck],
    taken: CPUSet,
    kept: CPUSet,
) -> None:
    """Read the cgroups of *checks*, and write what cannot wait; *taken* are all own CPUs.

    All shrinks come before all grows. Nothing grows onto CPUs that partitions still *kept*.
    """
    for each in checks:
        each.see(cgroups.resources(paths[each.container_id]))
    _confine(cgroups, paths, leaving(checks, taken), Change.LEAVE)
    _confine(cgroups, paths, gaining(checks, kept), Change.WHOLE)


def leaving(checks: Sequence[CpusetCheck], taken: CPUSet) -> Sequence[CpusetCheck]:
    """Return the checks of containers that must shrink at once."""
    found = []
    for each in checks:
        if each.found is None or not each.placement.cpus:
            continue
        surplus = each.cpus - each.placement.cpus
        each.overlap = surplus & (taken - each.own)
        if surplus and (each.lost or each.overlap):
            found.append(each)
    return found


def gaining(checks: Sequence[CpusetCheck], kept: CPUSet) -> Sequence[CpusetCheck]:
    """Return the checks of containers whose update was lost, and that may grow.

    Not onto CPUs that are *kept*, or that a container of the checks still occupies.
    """
    pinned = [each for each in checks if each.found is not None and each.placement.cpus]
    occupied = CPUSet.union([kept, *(each.cpus - each.placement.cpus for each in pinned)])
    return [
        each
        for each in pinned
        if each.lost and each.cpus != each.placement.cpus and not each.error
        if not (each.placement.cpus - each.cpus) & occupied
    ]


def _confine(
    cgroups: HostCgroups,
    paths: Mapping[str, str],
    checks: Sequence[CpusetCheck],
    change: Change,
) -> None:
    if not checks:
        return
    wanted = {paths[each.container_id]: each.placement.cpus for each in checks}
    done = cgroups.confine(wanted, change)
    for each in checks:
        outcome = done[paths[each.container_id]]
        each.error = outcome.error
        if outcome.cpus is not None:
            each.cpus, each.written = outcome.cpus, outcome.written
