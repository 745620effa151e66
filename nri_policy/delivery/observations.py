"""Observations: what cgroups have when they are read or written, and what follows for the records.

A part of the delivery state, and as pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from nri_policy.delivery import inputs
from nri_policy.delivery.cpuset_checks import CpusetCheck
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.inputs import Action, Event, Report
from nri_policy.delivery.next_actions import FIRST_LOOK, NextActions
from nri_policy.delivery.record import SETTLED, Cpuset, Delivery, Phase, cpuset_of
from nri_policy.delivery.record_table import RETRY_WRITE
from nri_policy.engine.grant import Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet

GRACE = 2.0  # seconds until a change in flight counts as overdue
BLIND_GRACE = 10.0  # the same, where no cgroup shows whether it has


class Observations(NextActions):
    """What is done about what cgroups have."""

    def __init__(self, desired: Desired, *, has_files: bool) -> None:
        """*has_files* is whether there are cgroups that can be read and written."""
        super().__init__(desired, has_files=has_files)
        self.proven = False  # whether a cgroup was written since the runtime's list
        self._probed: float | None = None  # when the probe failed

    # ---- writes

    def _observed(self, event: inputs.Observed) -> None:
        new = self.known(event.container_id).seen(event.cpuset)
        self.put(event.container_id, self._perhaps_started(new, seen=new.visible))

    def _perhaps_started(self, known: Delivery, *, seen: bool) -> Delivery:
        """Return a container with the phase STARTING if it was listed as created and is *seen*.

        A visible cgroup means that its start may have been requested.
        """
        if self.hears_starts or known.phase is not Phase.CREATED or not seen:
            return known
        return replace(known, phase=Phase.STARTING, started_at=self.now)

    def _note_run(self, container_id: str, started_at: float | None = None) -> None:
        known = self.known(container_id)
        self.put(container_id, replace(known, phase=Phase.RUNNING, started_at=started_at))
        if not known.persistent:
            self.hasten(Action.PERSIST, self.now)
        if self.kernel_partitions.due(container_id) is not None:  # it has a cgroup from now on
            self.kernel_partitions.cpusets_touched()

    def _written(self, event: inputs.Written) -> Sequence[Report]:
        each, cpus = event.container_id, event.cpus
        if self.desired.placement(each) is None:  # it has ended meanwhile
            return ()
        known = self.known(each)
        if cpus is None:
            self.put(each, known.seen(None))
            return ()
        new = self._with_written(known, event.placement, cpus)
        if event.error:
            self.put(each, replace(new, failed_at=self.now))
            return _failure(each, known, event.error)
        self.proven = True
        new = replace(new, failed_at=None)
        done = known.pending is event.placement and cpus == event.placement.cpus
        self.put(each, new.without_pending() if done else new)
        return ()

    def _with_written(self, known: Delivery, placement: Placement, cpus: CPUSet) -> Delivery:
        """Return a record after *cpus* were written for a *placement* (§3.7a 8)."""
        if known.in_flight is not None and known.in_flight.lost:
            known = replace(known, recorded=None)  # the runtime may have recorded it or not
        before = known.observed or Cpuset()
        recorded = known.recorded
        agrees = recorded is not None and recorded.cpus == cpus and recorded.has(placement)
        since = self.now if known.unrecorded is None else known.unrecorded
        self.hasten(Action.PERSIST, self.now)
        return replace(
            known,
            observed=Cpuset(cpus=cpus, mems=before.mems),
            persistent=False,
            unrecorded=None if agrees else since,
        )

    def _writes_missed(self, _: inputs.WritesMissed) -> None:
        for each in self.shrink():
            self.change(each, late=True)

    def _rechecked(self, _: inputs.Rechecked) -> None:
        for each in [*self.late]:
            self.change(each, late=False)
        for each in [*self.unwritable]:
            self.put(each, self.records[each])  # its time may be over

    def _note_probe(self, event: inputs.Probed) -> None:
        self.trouble, self.proven = event.error, event.proven
        self._probed = self.now if event.error else None
        if event.error:
            self.hasten(Action.WRITE, self.now + RETRY_WRITE)
            self._read_if_starts_are_missed()
        self.reindex()

    @property
    def misses_starts(self) -> bool:
        """Whether the runtime should tell the end of each start, and does not (§3.6)."""
        return not self.hears_starts and (self.blind or bool(self.trouble))

    def _read_if_starts_are_missed(self) -> None:
        if self.misses_starts:
            self.hasten(Action.READ, self.now)

    def probe_is_due(self, now: float) -> bool:
        """Whether it is time to see again if cgroups can be written (§3.7a 13)."""
        return self._probed is not None and now - self._probed >= RETRY_WRITE

    def _overlaps_seen(self, event: inputs.OverlapsSeen) -> None:
        for each in [*self.overlapping]:
            if each not in event.container_ids:
                self.change(each, overlap=EMPTY)

    # ---- looks at what is in flight

    def needs_look(self, container_id: str, *, takes: bool) -> bool:
        """Whether a request about a container has to wait for a look; *takes*: it gets own CPUs."""
        doubtful = container_id in self.waiting or self.may_be_lost(container_id)
        return doubtful or (takes and len(self.in_flight) > (container_id in self.in_flight))

    def may_be_lost(self, container_id: str) -> bool:
        """Return whether a container may never get what it was sent."""
        flight = self.known(container_id).in_flight
        return flight is not None and flight.lost

    def begin_check(self, *also: str) -> Sequence[CpusetCheck]:
        """Return the checks of *also*, and of all that a look may change.

        Those are changes in flight, changes that wait for a message, and starts.
        """
        if self.leaves:
            return ()
        checks = []
        for each in dict.fromkeys([*also, *self.in_flight, *self.waiting, *self.starting]):
            placement = self.desired.placement(each)
            if placement is None:
                continue
            known = self.known(each)
            unsent = each in self.waiting
            checks.append(
                CpusetCheck(
                    container_id=each,
                    placement=placement,
                    own=self.desired.own(each),
                    lost=(known.in_flight is not None and known.in_flight.lost)
                    or (unsent and known.phase is Phase.STARTING),
                    settled=known.in_flight is None and known.pending is None,
                )
            )
        return checks

    def _checked(self, event: inputs.Checked) -> Sequence[Report]:
        starting = [*self.starting]
        for each in [*self.in_flight]:
            if self.desired.placement(each) is None:  # it has ended during a call
                self.drop(each)
        for check in event.checks:
            self._look_at_start(check)
        reports = [report for each in event.checks for report in self._conclude(each)]
        if any(self.phase(each) is Phase.RUNNING for each in starting):
            self._look_soon()  # at what is still in flight
        return reports

    def _conclude(self, check: CpusetCheck) -> Iterator[Report]:
        """Store a finding; send a change again if it is not in force in time."""
        each = check.container_id
        due = self.desired.placement(each)
        if due is None:  # it has ended meanwhile
            return
        yield from self._note_enforced(check, due)
        if (due.cpus, due.mems) != (check.placement.cpus, check.placement.mems):
            return  # decided anew: it is sent, and looked at again
        yield from self._note_overlap(check)
        known = self.known(each)
        flight = known.in_flight
        if flight is None:
            return
        late = self.now - flight.since > GRACE
        running = known.phase is Phase.RUNNING
        if check.found is None:
            if running and flight.lost:
                yield from self._again(each, check.placement, hurry=True)
            elif running and (late or flight.request < self.requests):
                self.put(each, replace(known, in_flight=None, resent=0))
        elif check.is_in_force:
            arrived = late or not flight.written or flight.request < self.requests
            if arrived and known.phase in SETTLED:
                has = replace(cpuset_of(check.found), cpus=check.cpus)
                self.put(each, replace(known.seen(has), in_flight=None, resent=0))
        elif running and (late or flight.lost):
            yield from self._again(each, check.placement, hurry=bool(check.error))

    def _look_at_start(self, check: CpusetCheck) -> None:
        """Take a container for running some time after its START, be it still starting (§3.6)."""
        if check.container_id not in self.records:  # it has ended meanwhile
            return
        seen = check.found is not None
        known = self._perhaps_started(self.records[check.container_id], seen=seen)
        self.put(check.container_id, known)
        flight = known.in_flight
        if known.phase is Phase.CREATED and flight is not None and not seen:
            # the container may run in an invisible cgroup, without the change in flight
            self.blind = self.blind or self.now - flight.since >= BLIND_GRACE
        if known.phase is not Phase.STARTING or known.started_at is None:
            return
        if self.now - known.started_at >= (FIRST_LOOK if seen else BLIND_GRACE):
            self.blind = self.blind or not seen
            self._note_run(check.container_id, known.started_at)

    def _note_enforced(self, check: CpusetCheck, due: Placement) -> Iterator[Report]:
        """Store the result of a check's write; the runtime is informed later."""
        each = check.container_id
        known = self.known(each)
        if check.written:
            yield Report(event=Event.ENFORCED, container_id=each, cpus=check.cpus)
            if check.lost:
                known = replace(known, recorded=None)  # the runtime may have recorded it or not
            flight = known.in_flight and replace(known.in_flight, written=True)
            new = self._with_written(known, check.placement, check.cpus)
            self.put(each, replace(new, in_flight=flight, failed_at=None))
            if check.settled and check.cpus != due.cpus:
                # it has left what is another's, and lacks some of its own: nothing else is due
                self._note({each: due})
        elif check.error:
            self.put(each, replace(known, failed_at=self.now))
            yield from _failure(each, known, check.error)

    def _note_overlap(self, check: CpusetCheck) -> Iterator[Report]:
        """Report an overlap that no change in flight explains; a lasting one only once."""
        each = check.container_id
        if not check.overlap or not (check.settled or check.error):
            return
        if check.error:
            if self.known(each).overlap == check.overlap:
                return
            self.change(each, overlap=check.overlap)
        yield Report(event=Event.OVERLAP, container_id=each, cpus=check.overlap, error=check.error)

    def overdue_resizes(self, checks: Sequence[CpusetCheck]) -> Sequence[CpusetCheck]:
        """Return the checks of containers with an overdue resize."""
        return [each for each in checks if self._is_overdue(each)]

    def _is_overdue(self, check: CpusetCheck) -> bool:
        known = self.known(check.container_id)
        if known.in_flight is None or known.phase is not Phase.UPDATING:
            return False
        grace = BLIND_GRACE if check.found is None else GRACE
        return self.now - known.in_flight.since > grace

    def overdue(self, now: float) -> int:
        """Return how many changes in flight had more time than a runtime needs."""
        flights = (self.records[each].in_flight for each in self.in_flight)
        return sum(each is not None and now - each.since > GRACE for each in flights)


def _failure(container_id: str, known: Delivery, error: str) -> Sequence[Report]:
    """Return what to say of a cgroup that could not be written: the first time."""
    if known.failed_at is not None:
        return ()
    return (Report(event=Event.NOT_WRITABLE, container_id=container_id, error=error),)
