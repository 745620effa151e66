"""What an audit found: values that are kept until the next one, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from nri_policy.audit.comparison import Deviation
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Company
from nri_policy.report import AuditReport, CompanyReport, DriftReport


class Drift(Struct, frozen=True, kw_only=True):
    """A container that is not as decided, and what was done about it."""

    container_id: str
    name: str  # namespace/pod/container
    deviation: Deviation
    since: float  # when it was found first, seconds since the epoch
    tries: int = 0  # to put it right
    given_up: bool = False  # these did not help

    @property
    def curable(self) -> bool:
        """Whether to tell the runtime again is worth a try."""
        return self.deviation.curable and not self.given_up


class Report(Struct, frozen=True, kw_only=True):
    """The outcome of one audit."""

    time: float = 0.0  # seconds since the epoch; 0 before the first
    audited: int = 0  # containers
    unseen: tuple[str, ...] = ()  # names of those that have no cgroup here, or ended meanwhile
    changing: tuple[str, ...] = ()  # names of those about which nothing can be said meanwhile
    hidden: tuple[str, ...] = ()  # names of those whose threads cannot be seen from here
    drifts: tuple[Drift, ...] = ()

    @property
    def drifted(self) -> int:
        """How many containers are not as decided."""
        return len({drift.container_id for drift in self.drifts})


def document(
    report: Report, mode: str, company: Sequence[Company], outside: Mapping[str, CPUSet]
) -> AuditReport:
    """Return what is shown of an audit; *mode* is the setting.

    And who may run on exclusive CPUs: containers, and cgroups *outside* of pods with their CPUs.
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
