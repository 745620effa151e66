"""What would be if pods came, or settings changed (`what-if`)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.node import Fit, HeldResources, NewContainer, NewSettings, WhatIfResult
from nri_policy.report.container import ContainerReport, container_report, refusal_report
from nri_policy.report.explanation import explanation_report
from nri_policy.report.pool import PoolReport, pool_reports
from nri_policy.workload.request import Sort


class NewSettingsReport(Struct, frozen=True, kw_only=True):
    """Whether settings would be taken, and the pools that there would be."""

    accepted: bool
    reason: str  # why not
    pools: tuple[PoolReport, ...]


class TriedReport(ContainerReport, frozen=True, kw_only=True, omit_defaults=True):
    """A container that the trial added."""

    outcome: DecisionKind
    summary: str
    why: str | None  # reason for the pool; None if no pools were compared
    decided_by: str | None  # criterion
    misfit: str | None  # why it is not placed well
    because: str | None = None  # reason why it shares CPUs; None if all its CPUs are exclusive


class TwoHoldings(Struct, frozen=True, kw_only=True):
    """What a container held, and would hold."""

    before: HeldResources
    after: HeldResources


class TunableChange(Struct, frozen=True, kw_only=True):
    """The value of a kernel tunable before and after a change; None: its original value."""

    before: str | None
    after: str | None
    origin: tuple[str, ...] = ()  # what would ask for it: containers, settings


class WhatIfReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What would be."""

    fits: bool  # all pods do, and the settings would be accepted
    settings: NewSettingsReport | None
    pods: tuple[Fit, ...]
    containers: dict[str, TriedReport]  # by namespace/pod/name, like the following fields
    changes: dict[str, TwoHoldings]  # of the containers that are there
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    tunables: Mapping[str, TunableChange] = {}  # of CPUs and interrupts that would change, by item


def what_if_report(result: WhatIfResult, newcomers: dict[str, TriedReport]) -> WhatIfReport:
    """Describe the result of a trial; *newcomers* are reports of added containers, by name."""
    return WhatIfReport(
        fits=result.fits,
        settings=None if result.settings is None else _settings(result.settings),
        pods=result.fits_by_pod,
        containers=newcomers,
        changes={
            name: TwoHoldings(before=before, after=after)
            for name, (before, after) in result.changes.items()
        },
        warnings=result.warnings,
        notes=result.notes,
    )


def _settings(settings: NewSettings) -> NewSettingsReport:
    layout = settings.layout
    return NewSettingsReport(
        accepted=not settings.refusal,
        reason=settings.refusal,
        pools=pool_reports(layout.tree, layout.capacity),
    )


def newcomer_report(newcomer: NewContainer) -> TriedReport:
    """Describe a container that the trial added."""
    if newcomer.holding is None or newcomer.explanation is None:
        reason = newcomer.refusal or ""
        return TriedReport(
            **structs.asdict(refusal_report(reason)),
            outcome=DecisionKind.REFUSED,
            summary=reason,
            why=None,
            decided_by=None,
            misfit=None,
        )
    explained = explanation_report(newcomer.explanation, newcomer.holding.placed.grant)
    state = "removed" if newcomer.ended else "created"
    return TriedReport(
        **structs.asdict(container_report(newcomer.holding, state)),
        outcome=explained.outcome,
        summary=explained.summary,
        why=explained.why,
        because=_why_shared(newcomer.explanation),
        decided_by=explained.decided_by,
        misfit=newcomer.misfit,
    )


def _why_shared(explanation: Explanation) -> str | None:
    request = explanation.request
    if request is None or request.sort is not Sort.NORMAL or request.exclusive:
        return None
    return request.steering.because or None
