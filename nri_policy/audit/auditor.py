"""Auditor: checks regularly that containers run where they should.

Owns when to check, what counts as drift, and how often a repair is tried. Files are read in a
thread, one container at a time, so no request of the runtime waits for them. A container has
drifted only if the same was decided for it before and after the check, and a second check still
finds it wrong. Containers that change meanwhile are left for the next round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from nri_policy.audit.cgroup import ContainerCgroups
from nri_policy.audit.deviations import (
    CpusetState,
    Deviation,
    DeviationKind,
    KernelState,
    Target,
    compare,
)
from nri_policy.audit.first_process import FirstProcess
from nri_policy.audit.orphans import OrphanFinder, OrphanSource
from nri_policy.audit.result import AuditResult, Drift, document
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Company
from nri_policy.report import AuditReport
from nri_policy.settings import Audit
from nri_policy.workload.annotation_values import ROOT_GROUP

log = logging.getLogger(__name__)

PERIOD = 60.0  # seconds between rounds
GRACE = 2.0  # seconds between two checks of a container that seems to have drifted
MAX_CHECKS = 10  # checks in one round, while the runtime is still moving containers
MAX_REPAIRS = 3  # repairs of one container
FIRST_PROCESS_DELAY = 1.0  # seconds from a container's start to the check of its first process


class AuditSource(OrphanSource, Protocol):
    """The daemon, which decides about containers."""

    @property
    def audit(self) -> Audit:
        """The setting: what to do about drift."""
        ...

    async def targets(self) -> Sequence[Target]:
        """Return where every running container should be."""
        ...

    async def company(self) -> Sequence[Company]:
        """Return the exclusive CPUs of running containers, and the others that may run there."""
        ...

    async def resend(self, container_ids: Collection[str]) -> None:
        """Send the runtime the updates of these containers again."""


@dataclass(slots=True)
class _Check:
    """The findings of a check so far."""

    judged: dict[Target, tuple[Deviation, ...]] = field(default_factory=dict)
    unseen: dict[Target, None] = field(default_factory=dict)
    hidden: dict[Target, None] = field(default_factory=dict)

    def suspects(self) -> list[Target]:
        """Return the containers that seem to have drifted."""
        return [each for each, deviations in self.judged.items() if deviations]


class Auditor:
    """Audits the containers of one node; `report` is the latest result."""

    def __init__(
        self,
        source: AuditSource,
        reader: ContainerCgroups,
        *,
        drifted: Callable[[Drift], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """*drifted* is called with each new drift."""
        self._source = source
        self._reader = reader
        self._drifted = drifted
        self._clock = clock
        self._due = asyncio.Event()
        self._lock = asyncio.Lock()
        self._turn = 0
        self.orphans = OrphanFinder(source, reader, clock=clock)
        self.report = AuditResult()
        self.found = 0  # drifts, since the start
        self.repairs = 0  # containers that were sent their update again, since the start
        # by container id: of containers in a scheduling or RDT class, soon after their start
        self.first_processes: dict[str, FirstProcess] = {}
        self.limits_found: dict[str, Mapping[str, str]] = {}  # of I/O, by container id
        self._started: dict[str, None] = {}  # containers with a first process to check
        self._some_started = asyncio.Event()

    def record_start(self, container_id: str) -> None:
        """Have the first process of a container that has just started checked soon."""
        self._started[container_id] = None
        self._some_started.set()

    def in_kernel(self, container_id: str) -> Mapping[str, str]:
        """Return the kernel's values of a container's classes, by item."""
        process = self.first_processes.get(container_id)
        found = dict(self.limits_found.get(container_id, {}))
        if process is not None:
            found["scheduler"] = process.scheduler
            if process.io_class is not None:
                found["io_priority"] = process.io_priority
            if process.rdt_group is not None:
                found["group"] = process.rdt_group or ROOT_GROUP
        return found

    async def watch_starts(self) -> None:
        """Check the first processes of containers that start, until cancelled.

        If no process is visible yet, try again after the next round of the audit.
        """
        while await self._some_started.wait():
            self._some_started.clear()
            await self._clock.sleep(FIRST_PROCESS_DELAY)
            due, self._started = self._started, {}
            if self._source.audit is Audit.OFF:
                continue
            for each in await self._source.targets():
                if each.container_id in due and each.has_class_of_process:
                    process = await asyncio.to_thread(self._reader.first_process, each.cgroup)
                    if process is None:
                        self._started[each.container_id] = None
                        continue
                    self.first_processes[each.container_id] = process
                    self._check_first_process(each, process)

    def _check_first_process(self, decided: Target, process: FirstProcess) -> None:
        """Report deviations of a first process at once; the next round reports them again."""
        nothing = CpusetState(written=EMPTY, effective=EMPTY)
        observed = KernelState(cpus=nothing, mems=nothing, threads={}, process=process)
        drifts = [
            self._record_drift(decided, deviation, None, self._clock.date())
            for deviation in compare(replace(decided, cpus=EMPTY, mems=EMPTY, limits=()), observed)
        ]
        self.report = replace(self.report, drifts=(*self.report.drifts, *drifts))

    def start_now(self) -> None:
        """Start the next round now."""
        self._due.set()

    async def run(self) -> None:
        """Audit regularly, as the settings say, until cancelled."""
        while True:
            await self._clock.set_within(PERIOD, self._due)
            self._due.clear()
            try:
                await self.round()
            except Exception:
                log.exception("audit-failed")
            if self._started:
                self._some_started.set()

    async def round(self) -> None:
        """Check all containers, and repair them if the settings say so."""
        async with self._lock:
            await self.orphans.round()
            if self._source.audit is Audit.OFF:
                self.report = AuditResult()
                return
            judged = await self._check_all()
            if self._source.audit is Audit.REPAIR:
                await self._repair(judged)

    async def check(self) -> AuditResult:
        """Check all containers; a round of its own repairs new drifts."""
        async with self._lock:
            before = self.found
            await self._check_all()
            if self.found > before:
                self.start_now()
            return self.report

    async def document(self) -> AuditReport:
        """Check all containers and return the document that `audit` shows."""
        report, company = await self.check(), await self._source.company()
        outside: Mapping[str, CPUSet] = {}
        if company:
            folders = (await self._source.known_containers()).folders
            outside = await asyncio.to_thread(self._reader.outside, folders)
        return document(report, self._source.audit, company, outside)

    async def observe(self, some: Iterable[Target]) -> dict[str, KernelState]:
        """Return what the kernel says about containers, by id; only of those that run here."""
        seen = {}
        async with self._lock:
            for each in some:
                observed = await asyncio.to_thread(
                    self._reader.observe, each.container_id, each.cgroup, turn=self._turn
                )
                if observed is not None:
                    seen[each.container_id] = observed
        return seen

    async def _repair(self, judged: Collection[str]) -> None:
        """Resend the updates of drifted containers, of the ones *judged* in this round."""
        drifts = self.report.drifts
        curable = {each.container_id for each in drifts if each.curable} & {*judged}
        if not curable:
            return
        drifts = tuple(
            replace(each, tries=each.tries + 1)
            if each.curable and each.container_id in curable
            else each
            for each in drifts
        )
        self.report = replace(self.report, drifts=drifts)
        self.repairs += len(curable)
        log.info("sending-again", extra={"containers": len(curable)})
        await self._source.resend(sorted(curable))

    async def _check_all(self) -> Collection[str]:
        """Make a new report; return the ids of the containers with a verdict."""
        targets = await self._source.targets()
        self._reader.keep_only([each.container_id for each in targets])
        there = {each.container_id for each in targets}
        for table in (self.first_processes, self.limits_found):
            for gone in table.keys() - there:
                del table[gone]
        self._turn += 1
        check = _Check()
        await self._read([each for each in targets if each.sent], check)
        known = {(each.container_id, each.deviation.kind) for each in self.report.drifts}
        checks = 1
        while (suspects := check.suspects()) and not _all_known(check, known):
            # give a runtime that still moves containers more time, while it makes progress
            if checks == MAX_CHECKS:
                check.judged = {
                    each: check.judged[each] for each in check.judged if each not in suspects
                }
                break
            await self._clock.sleep(GRACE)
            await self._read(suspects, check)
            checks += 1
            if check.suspects() == suspects:
                break
        same = {*await self._source.targets()}
        check.judged = {each: found for each, found in check.judged.items() if each in same}
        self._make_report(targets, check)
        return {each.container_id for each in check.judged}

    async def _read(self, some: Iterable[Target], check: _Check) -> None:
        """Check some containers, and record the findings in *check*."""
        watched = {
            each.container_id: each.deviation.threads
            for each in self.report.drifts
            if each.deviation.kind is DeviationKind.THREADS
        }
        for each in some:
            observed = await asyncio.to_thread(
                self._reader.observe,
                each.container_id,
                each.cgroup,
                turn=self._turn,
                watched=watched.get(each.container_id, ()),
            )
            check.judged.pop(each, None)
            if observed is None:
                check.unseen[each] = None
                continue
            if each.limits:
                names = [name for name, _ in each.limits]
                found = await asyncio.to_thread(self._reader.limits, each.cgroup, names)
                observed = replace(observed, limits=found)
                self.limits_found[each.container_id] = found
            first = self.first_processes.get(each.container_id)
            check.judged[each] = compare(each, replace(observed, process=first))
            if observed.hidden:
                check.hidden[each] = None

    def _make_report(self, targets: Iterable[Target], check: _Check) -> None:
        """Make the report of *check*; log new drifts and those that are gone."""
        now = self._clock.date()
        known = {(each.container_id, each.deviation.kind): each for each in self.report.drifts}
        drifts = []
        for each, deviations in check.judged.items():
            for deviation in deviations:
                before = known.pop((each.container_id, deviation.kind), None)
                drifts.append(self._record_drift(each, deviation, before, now))
        judged = {each.container_id for each in check.judged}
        there = {each.container_id for each in targets} - {e.container_id for e in check.unseen}
        for drift in known.values():
            if drift.container_id in judged:
                log.info(
                    "drift-gone", extra={"container": drift.name, "what": drift.deviation.kind}
                )
            elif drift.container_id in there:  # no verdict now
                drifts.append(drift)
        self.report = AuditResult(
            time=now,
            audited=len(judged),
            unseen=tuple(each.name for each in check.unseen),
            changing=tuple(
                each.name
                for each in targets
                if each not in check.judged and each not in check.unseen
            ),
            hidden=tuple(each.name for each in check.hidden),
            drifts=tuple(drifts),
        )

    def _record_drift(
        self, decided: Target, deviation: Deviation, before: Drift | None, now: float
    ) -> Drift:
        if before is None:
            self.found += 1
            log.warning(
                "drift",
                extra={
                    "container": decided.name,
                    "what": deviation.kind,
                    "decided": deviation.decided,
                    "found": deviation.found,
                    "reason": deviation.reason,
                },
            )
            drift = Drift(
                container_id=decided.container_id,
                name=decided.name,
                deviation=deviation,
                since=now,
            )
            self._drifted(drift)
            return drift
        if before.tries == MAX_REPAIRS and not before.given_up:
            log.warning(
                "drift-not-repaired",
                extra={
                    "container": decided.name,
                    "what": deviation.kind,
                    "tries": before.tries,
                    "text": "it is not tried again",
                },
            )
        return replace(
            before, deviation=deviation, given_up=before.given_up or before.tries == MAX_REPAIRS
        )


def _all_known(check: _Check, known: Collection[tuple[str, DeviationKind]]) -> bool:
    """Return whether *check* has only deviations that are *known*."""
    return all(
        (each.container_id, deviation.kind) in known
        for each, deviations in check.judged.items()
        for deviation in deviations
    )
