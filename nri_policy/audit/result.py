"""The result of an audit, kept until the next one, and the document that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from nri_policy.audit.deviations import Deviation
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Company
from nri_policy.report import AuditReport, CompanyReport, DriftReport


class Drift(Struct, frozen=True, kw_only=True):
    """A difference between a container and its decision, and the repairs."""

    container_id: str
    name: str  # namespace/pod/container
    deviation: Deviation
    since: float  # when it was found first, seconds since the epoch
    tries: int = 0  # repairs so far
    given_up: bool = False  # the repairs did not help

    @property
    def curable(self) -> bool:
        """Whether sending the update again may help."""
        return self.deviation.curable and not self.given_up


class AuditResult(Struct, frozen=True, kw_only=True):
    """The result of one audit."""

    time: float = 0.0  # seconds since the epoch; 0 before the first
    audited: int = 0  # containers
    unseen: tuple[str, ...] = ()  # names of containers without a cgroup here, or that ended
    changing: tuple[str, ...] = ()  # names of containers without a verdict, because they change
    hidden: tuple[str, ...] = ()  # names of containers with threads not visible from here
    drifts: tuple[Drift, ...] = ()

    @property
    def drifted(self) -> int:
        """How many containers are not as decided."""
        return len({drift.container_id for drift in self.drifts})


def document(
    report: AuditResult, mode: str, company: Sequence[Company], outside: Mapping[str, CPUSet]
) -> AuditReport:
    """Return the document of an audit; *mode* is the setting.

    It also lists what may run on exclusive CPUs: containers, and cgroups *outside* of pods.
    """
    exclusive = CPUSet.union(each.cpus for each in company)
    return AuditReport(
        mode=mode,
        time=report.time,
        audited=report.audited,
        unseen=report.unseen,
        changing=report.changing,
        threads_hidden=report.hidden,
        drifts=tuple(
            DriftReport(
                container=drift.name,
                what=drift.deviation.kind.value,
                decided=str(drift.deviation.decided),
                found=str(drift.deviation.found),
                threads=drift.deviation.threads,
                reason=drift.deviation.reason,
                since=drift.since,
                tries=drift.tries,
                repairable=drift.curable,
            )
            for drift in report.drifts
        ),
        company=tuple(
            CompanyReport(
                container=each.name, cpus=str(each.cpus), others=tuple(map(str, each.others))
            )
            for each in company
        ),
        outside=tuple(sorted(name for name, cpus in outside.items() if cpus & exclusive)),
    )
