"""Delivery state: the records of all deliveries, and the next action of each.

It is pure: no clock, file, socket, task or log. The executor and the NRI plugin pass events as
inputs, and carry out the plan. The next action of a container follows from its record:

| pending | cgroup | runtime | what is next | §3 |
|---|---|---|---|---|
| CPUs only | visible, writable | RUNNING, idle | shrink before an answer or a start | 7a 2 |
| | | | grow `SETTLE` after the event | 7a 4 |
| else | | any | INFORM: the next answer; else a call, or registering | 7 |
| any | a write failed | any | INFORM; a file again after `RETRY_WRITE` | 7a 13 |
| none | in flight | RUNNING | READ till it is in force; sent again after `GRACE` | 10 |
| none | in flight and lost | any | READ, then written at once | 6 |
| none | in flight, not visible | RUNNING | in force with the next request, or `GRACE` | 6 |
| none | in flight | UPDATING | after `GRACE` its resize was refused: taken back | 9 |
| none | written | RUNNING | PERSIST; again after `RETRY_SCOPE` | 7a 7 |
| none | in force | records another | INFORM: few in each answer, or a call | 7a 9 |
| any | not the partition due | any | PARTITIONS; again with pauses | |
| none | another's own CPUs | any | OVERLAPS, READ, then written at once | 7a 5 |
| none, refused | any | any | nothing till it is decided anew or listed | 7 |
| none | in force, persistent | records it | nothing | |

A *change* has only the settings to change; `Desired.placement` has all. Times are of a monotonic
clock, read by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from msgspec.structs import replace

from nri_policy.delivery.cpuset_checks import CpusetCheck
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.inputs import (
    Action,
    ActionBegan,
    ActionEnded,
    Answered,
    BatchBegan,
    BatchEnded,
    CallEnded,
    CallLost,
    CallSent,
    Checked,
    CpusetsTouched,
    Decided,
    Event,
    Gone,
    Input,
    Leaving,
    Listed,
    Observed,
    OverlapsSeen,
    PartitionsSettled,
    PhaseChanged,
    PodGone,
    PodsChanged,
    Probed,
    QuotaWritten,
    Rechecked,
    Registered,
    Report,
    RequestBegan,
    ResizeConfirmed,
    ResizeDoubted,
    ResizeSettled,
    ResizeTakenBack,
    ScopeSet,
    Superseded,
    TimePassed,
    WritesMissed,
    Written,
)
from nri_policy.delivery.occupancy import Occupancy
from nri_policy.delivery.overlap_times import OverlapTimes
from nri_policy.delivery.partition_records import PartitionRecords
from nri_policy.delivery.pod_quota_records import PodQuotaRecords
from nri_policy.delivery.record import (
    LIVING,
    SETTLED,
    Cpuset,
    Delivery,
    InFlight,
    Phase,
    cpuset_of,
)
from nri_policy.delivery.record_table import NEW, RETRY_WRITE
from nri_policy.engine.grant import Changes, Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet

SETTLE = 0.1  # seconds between an event and the writing of those that get more by it
LAST_SETTLE = 2.0  # seconds between tries, at most, while another container has to leave first
FIRST_LOOK, LAST_LOOK = 0.05, 0.5  # seconds between looks at what is not in force yet
GRACE = 2.0  # seconds until a change in flight counts as overdue
BLIND_GRACE = 10.0  # the same, where no cgroup shows whether it has
RETRY_SCOPE = 10.0  # seconds until systemd is asked again after a failure
PATIENCE = 1.0  # seconds for an answer to come by, before a call of our own
PATIENCE_TO_REGISTER = 5.0  # seconds, where it takes a new registration
PAUSE = 1.0  # seconds without an answer, before one informs of what is in force already
MAX_TRIES = 4  # times that a change is sent again; each call waits twice as long as the one before
RESIZE_DOUBT = 10.0  # seconds that a resize may still come into force that seems refused
RESIZE_LOOK = 0.5  # seconds between looks for that


class DeliveryState(Occupancy):
    """The deliveries of one runtime's containers.

    `apply` takes an input in; `plan` says when which action is due, the other methods what it is
    about. Queries change nothing.
    """

    def __init__(self, desired: Desired, *, has_files: bool) -> None:
        """*has_files* is whether there are cgroups that can be read and written."""
        super().__init__(desired, has_files=has_files)
        self.calls_are_safe = True  # whether no call of ours can hang the runtime (§3.7)
        self.proven = False  # whether a cgroup was written since the runtime's list
        self.latest = -math.inf  # when the latest request came
        self.requests = 0  # of the runtime, so far
        self._answered = -math.inf  # when the latest answer was given that could carry updates
        self._probed: float | None = None  # when the probe failed
        # the schedule has no `Action.SEND`, which follows from these two
        self._send_since = self._hurry_at = math.inf
        # containers whose resize ended since the call under way began; None: there is no call
        self._resized: set[str] | None = None
        self._write_delay, self._read_delay = SETTLE, FIRST_LOOK
        self.pod_quotas = PodQuotaRecords(self.schedule)
        self.kernel_partitions = PartitionRecords(self)
        self._overlap_times = OverlapTimes(self.schedule)
        # actions that are due only while an index has entries
        self._concerned = (
            (Action.PERSIST, self.volatile),
            (Action.INFORM, self.unrecorded),
            (Action.RESIZES, self.resizes),
        )
        self._handlers = self._list_handlers()

    # ---- inputs

    @property
    def now(self) -> float:
        """The time of the latest input."""
        return self.schedule.now

    def apply(self, event: Input, now: float) -> Sequence[Report]:
        """Handle an input at a time of the clock; return events for the log."""
        self.schedule.now = now
        return self._handlers[type(event)](event) or ()

    def _list_handlers(self) -> dict[type, Callable[[Any], Sequence[Report] | None]]:
        return {
            Decided: self._decided,
            RequestBegan: self._request_began,
            Superseded: self._superseded,
            Answered: self._note_answer,
            PhaseChanged: self._phase_changed,
            Observed: self._observed,
            BatchBegan: self.batch_began,
            BatchEnded: self.batch_ended,
            Written: self._written,
            Checked: self._checked,
            WritesMissed: self._writes_missed,
            Rechecked: self._rechecked,
            ActionBegan: self._action_began,
            ActionEnded: self._action_ended,
            Probed: self._note_probe,
            CallSent: self._call_sent,
            CallEnded: self._call_ended,
            CallLost: self._call_lost,
            Listed: self._listed,
            Registered: self._registered,
            ScopeSet: self._scope_set,
            ResizeConfirmed: self._resize_confirmed,
            ResizeTakenBack: self._resize_taken_back,
            ResizeDoubted: self._resize_doubted,
            ResizeSettled: self._resize_settled,
            OverlapsSeen: self._overlaps_seen,
            CpusetsTouched: self._cpusets_touched,
            PodsChanged: self.pod_quotas.pods_changed,
            PodGone: self.pod_quotas.pod_gone,
            QuotaWritten: self.pod_quotas.quota_written,
            PartitionsSettled: self.kernel_partitions.settled,
            Gone: self._gone,
            Leaving: self._leave,
            TimePassed: self._time_passed,
        }

    def _decided(self, event: Decided) -> None:
        self._note(event.changes, hurry=event.hurry)

    def _note(self, changes: Changes, *, hurry: bool = False) -> None:
        """Have changes come into force."""
        if not changes:
            return
        for each, change in changes.items():
            known = self.records.get(each, NEW)
            flight = known.in_flight
            if flight is not None and flight.written and flight.request < self.requests:
                known = replace(known, in_flight=None)  # the answer arrived; the file had set it
            new = self.unless_leaving(each, change)
            if known.pending is not None:
                new = new.after(known.pending)
            self.put(each, replace(known, pending=new, attempts=0, late=False, refused=None))
        self._write_delay = SETTLE
        self.schedule.hasten(Action.WRITE, self.now + SETTLE)
        if hurry:
            self._hurry_at = min(self._hurry_at, self.now + PATIENCE)

    def unless_leaving(self, container_id: str, decided: Placement) -> Placement:
        """Return *decided*, or what the container gets when the daemon leaves."""
        if not self.leaves:
            return decided
        left = self.desired.unmanaged(container_id)
        return replace(left, shares=decided.shares, limits=decided.limits)

    def _request_began(self, _: RequestBegan) -> None:
        self.requests += 1
        self.latest = self.now

    def _superseded(self, event: Superseded) -> None:
        self._drop_pending(event.container_id)

    def _drop_pending(self, container_id: str) -> None:
        if container_id in self.pending:
            self.put(container_id, _without_pending(self.records[container_id]))

    def _note_answer(self, event: Answered) -> None:
        self._answered = self.now
        about, own = event.about, event.own
        self._drop_pending(about)
        if event.updates:
            self._send(event.updates, answer=True, carrier=about if event.creating else "")
        if not self.pending:
            self._send_since = self._hurry_at = math.inf
        if own is None:
            return
        known = self.records.get(about, NEW)
        if event.creating:
            cpuset = Cpuset(cpus=own.cpus, mems=own.mems)
            known = replace(known, recorded=cpuset, observed=cpuset, visible=False)
        else:
            known = _informed(known, own, lost=False)
        self.put(about, replace(known, in_flight=self._flight(lost=False)))
        self._look_soon()

    def _send(self, updates: Changes, *, answer: bool = False, carrier: str = "") -> None:
        """Take note of updates that are sent beside what the runtime asked about (§3.7a 9)."""
        for each, placement in updates.items():
            known = _without_pending(self.records.get(each, NEW))
            has = known.observed if known.visible else None
            sent = self._sent(known, placement)
            # a call's end shows that it has arrived
            if answer and has is not None and placement.cpus and has.has(placement):
                assert sent.in_flight is not None, "it was sent"
                sent = replace(sent, in_flight=replace(sent.in_flight, written=True))
            self.put(each, replace(sent, carrier=carrier) if carrier else sent)
        if updates:
            self._look_soon()

    def _sent(self, known: Delivery, placement: Placement) -> Delivery:
        """Return a record after a *placement* was sent beside what the runtime asked about."""
        flight = self._flight(lost=known.phase is not Phase.RUNNING)
        return replace(_informed(known, placement, lost=flight.lost), in_flight=flight)

    def _flight(self, *, lost: bool) -> InFlight:
        return InFlight(since=self.now, request=self.requests, lost=lost)

    def _phase_changed(self, event: PhaseChanged) -> None:
        known = self.records.get(event.container_id, NEW)
        self.put(event.container_id, replace(known, phase=event.phase))
        if event.phase is Phase.STARTING:  # the answer about its creation has arrived
            for each in [*self.carried.get(event.container_id, ())]:
                self.put(each, replace(self.records[each], carrier=""))
        if event.phase is Phase.RUNNING:
            self._look_soon()
            if not known.persistent:
                self.schedule.hasten(Action.PERSIST, self.now)

    def _observed(self, event: Observed) -> None:
        known = self.records.get(event.container_id, NEW)
        self.put(event.container_id, _seen(known, event.cpuset))

    def _written(self, event: Written) -> Sequence[Report]:
        each, cpus = event.container_id, event.cpus
        if self.desired.placement(each) is None:  # it has ended meanwhile
            return ()
        known = self.records.get(each, NEW)
        if cpus is None:
            self.put(each, _seen(known, None))
            return ()
        new = self._with_written(known, event.placement, cpus)
        if event.error:
            self.put(each, replace(new, failed_at=self.now))
            return _failure(each, known, event.error)
        self.proven = True
        new = replace(new, failed_at=None)
        done = known.pending is event.placement and cpus == event.placement.cpus
        self.put(each, _without_pending(new) if done else new)
        return ()

    def _with_written(self, known: Delivery, placement: Placement, cpus: CPUSet) -> Delivery:
        """Return a record after *cpus* were written for a *placement* (§3.7a 8)."""
        before = known.observed or Cpuset()
        recorded = known.recorded
        agrees = recorded is not None and recorded.cpus == cpus and recorded.has(placement)
        since = self.now if known.unrecorded is None else known.unrecorded
        self.schedule.hasten(Action.PERSIST, self.now)
        return replace(
            known,
            observed=Cpuset(cpus=cpus, mems=before.mems),
            persistent=False,
            unrecorded=None if agrees else since,
        )

    def _writes_missed(self, _: WritesMissed) -> None:
        for each in self.shrink():
            self.put(each, replace(self.records[each], late=True))

    def _rechecked(self, _: Rechecked) -> None:
        for each in [*self.late]:
            self.put(each, replace(self.records[each], late=False))
        for each in [*self.unwritable]:
            self.put(each, self.records[each])  # its time may be over

    def _action_began(self, event: ActionBegan) -> None:
        self.schedule.due[event.action] = math.inf
        if event.action is Action.SEND:
            self._resized = set()

    def _action_ended(self, event: ActionEnded) -> None:
        """Have an action be done again later, if there is more to do."""
        match event.action:
            case Action.WRITE | Action.READ | Action.PERSIST:
                self._retry_files(event.action)
            case Action.SEND:
                self._resized = None
                self._send_since = self.now if self.pending else math.inf
                self._hurry_at = math.inf
            case Action.INFORM:
                self.schedule.due[Action.INFORM] = self.now + event.pause
            case Action.RESIZES:
                self._end_resizes()
            case Action.QUOTAS:
                self.pod_quotas.ended()
            case Action.OVERLAPS:
                self._overlap_times.ended(event.pause)
            case Action.PARTITIONS:
                self.schedule.hasten(Action.PARTITIONS, self.now + event.pause)

    def _retry_files(self, action: Action) -> None:
        """Schedule the next run, unless an input has already done so."""
        if action is Action.PERSIST:
            self.schedule.hasten(action, self.now + RETRY_SCOPE)
        elif self.schedule.due[action] < math.inf:
            return
        elif action is Action.READ and self._is_polled():
            self.schedule.due[action] = self.now + self._read_delay
            self._read_delay = min(2 * self._read_delay, LAST_LOOK)
        elif action is Action.WRITE and self.by_file:  # some have still to leave
            self._write_delay = min(2 * self._write_delay, LAST_SETTLE)
            self.schedule.due[action] = self.now + self._write_delay

    def put(self, container_id: str, new: Delivery) -> None:
        """Replace a record; a change that a file can make from now on is written soon."""
        before = container_id in self.by_file
        super().put(container_id, new)
        if not before and container_id in self.by_file:
            self.schedule.hasten(Action.WRITE, self.now + SETTLE)

    def _end_resizes(self) -> None:
        for each in [*self.resizes]:
            until = self.records[each].resize_until
            if until is not None and self.now >= until:
                self.put(each, replace(self.records[each], resize_until=None))
        if self.resizes:
            self.schedule.hasten(Action.RESIZES, self.now + RESIZE_LOOK)

    def _cpusets_touched(self, _: CpusetsTouched) -> None:
        self._overlap_times.cpusets_touched()
        self.kernel_partitions.cpusets_touched()

    def _is_polled(self) -> bool:
        """Whether anything is in flight that can come into force without another request."""
        return any(self.records[each].phase in LIVING for each in self.in_flight)

    def _note_probe(self, event: Probed) -> None:
        self.trouble, self.proven = event.error, event.proven
        self._probed = self.now if event.error else None
        if event.error:
            self.schedule.hasten(Action.WRITE, self.now + RETRY_WRITE)
        self.reindex()

    def _call_sent(self, event: CallSent) -> None:
        self._send(event.changes)

    def _call_ended(self, event: CallEnded) -> Sequence[Report]:
        sent = {each: new for each, new in event.changes.items() if each not in event.failed}
        if event.informing:
            self._repeat_overtaken(sent)
            return ()
        for each, placement in sent.items():
            known = self.records.get(each, NEW)
            new = self._sent(known, placement)
            if each in (self._resized or ()):
                new = replace(new, recorded=None)  # the runtime may have recorded the resize last
            done = known.pending is placement
            self.put(each, _without_pending(new) if done else new)
        reports = [
            report
            for each in event.changes
            if each in event.failed and (report := self._retry_later(each)) is not None
        ]
        self._repeat_overtaken(sent)
        self._look_soon()
        return reports

    def _retry_later(self, each: str) -> Report | None:
        """Schedule a failed change again, at most `MAX_TRIES` times."""
        due = self.desired.placement(each)
        if due is None:
            self.drop(each)
            return None
        known = self.records.get(each, NEW)
        change, attempts = known.pending or self.unless_leaving(each, due), known.attempts + 1
        if attempts < MAX_TRIES:
            self.put(each, replace(known, pending=change, attempts=attempts))
            return None
        self.put(each, replace(_without_pending(known), refused=change))
        return Report(event=Event.REFUSED, container_id=each, cpus=change.cpus, mems=change.mems)

    def _repeat_overtaken(self, sent: Changes) -> None:
        """Send containers again that were decided anew during a call: answers overtake it."""
        due = ((each, self.desired.placement(each)) for each in sent)
        now = {each: self.unless_leaving(each, new) for each, new in due if new is not None}
        again = {
            each: new
            for each, new in now.items()
            if (new.cpus, new.mems) != (sent[each].cpus, sent[each].mems)
        }
        for each in again:  # the runtime may have recorded the call's change after the answer's
            self.put(each, replace(self.records.get(each, NEW), recorded=None))
        self._note(again, hurry=True)

    def _call_lost(self, event: CallLost) -> None:
        for each in event.changes:
            self.put(each, replace(self.records.get(each, NEW), recorded=None))
        self._note(event.changes)

    def _listed(self, event: Listed) -> None:
        assert event.observed.keys() <= event.recorded.keys(), "only listed containers are read"
        for each in [*self.records]:
            known = self.records[each]
            self.put(
                each,
                replace(
                    _seen(known, event.observed.get(each)),
                    recorded=event.recorded.get(each),
                    unrecorded=None,
                    persistent=known.persistent or each not in event.observed,
                ),
            )
        for each, recorded in event.recorded.items():
            if each not in self.records:
                new = replace(NEW, recorded=recorded)
                self.put(each, _seen(new, event.observed.get(each)))

    def _registered(self, event: Registered) -> None:
        # The list has no disk limits: their changes stay pending.
        limits = {
            each: replace(now, limits=waiting.limits)
            for each in self.pending
            if (waiting := self.records[each].pending) is not None
            if waiting.limits and (now := self.desired.placement(each)) is not None
        }
        for each in [*self.records]:
            known = _without_pending(self.records[each])
            phase = event.phases.get(each, Phase.RUNNING)
            if each not in event.phases and self.desired.placement(each) is None:
                self.drop(each)
                continue
            self.put(
                each,
                replace(
                    known,
                    phase=phase,
                    in_flight=None,
                    refused=None,
                    failed_at=None,
                    carrier="",
                    partition=replace(known.partition, tries=0),
                ),
            )
        for each, phase in event.phases.items():
            if each not in self.records:
                self.put(each, replace(NEW, phase=phase))
        # They were answered before, and may have missed what was decided since (§3.6).
        flight = self._flight(lost=True)
        for each, phase in event.phases.items():
            if phase is Phase.CREATING:
                self.put(each, replace(self.records[each], in_flight=flight))
        self._answered, self.proven = -math.inf, False
        self._note(limits)
        self._note(
            {each: new for each, new in event.changes.items() if not self._can_wait(each, new)}
        )
        if self.leaves:
            self._note({each: self.desired.unmanaged(each) for each in self.desired})
        self._note(event.unseen)
        self._note_in_place(event)
        self._look_soon()

    def _note_in_place(self, event: Registered) -> None:
        """Have systemd and the runtime informed of containers that an earlier daemon placed."""
        for each, placement in event.listed.items():
            known = self.records[each]
            if known.observed is None or not known.observed.has(placement):
                continue
            recorded = known.recorded is not None and known.recorded.has(placement)
            if not recorded or (each in event.new and placement.cpus):
                # An earlier daemon may have written it, and ended before it had asked systemd.
                known = known if recorded else self._unrecorded_now(known)
                self.put(each, replace(known, persistent=False))
                self.schedule.due[Action.PERSIST] = self.now

    def _can_wait(self, container_id: str, change: Placement) -> bool:
        """Have a container informed later of which only the quota changes, and return True.

        It runs where it is to; and after an upgrade that can be all of a node's owners of CPUs.
        """
        known = self.records.get(container_id, NEW)
        has = known.observed
        if change.quota is None or change.limits or has is None or not has.has(change):
            return False
        self.put(container_id, self._unrecorded_now(known))
        return True

    def _unrecorded_now(self, known: Delivery) -> Delivery:
        return known if known.unrecorded is not None else replace(known, unrecorded=self.now)

    def _scope_set(self, event: ScopeSet) -> None:
        known = self.records.get(event.container_id)
        if known is None:
            return
        if event.error:
            self.schedule.hasten(Action.PERSIST, self.now + RETRY_SCOPE)
        else:
            self.put(event.container_id, replace(known, persistent=True))

    def _resize_confirmed(self, event: ResizeConfirmed) -> None:
        if self.desired.placement(event.container_id) is None:
            return
        known = self.records.get(event.container_id, NEW)
        flight = known.in_flight
        if known.phase is not Phase.UPDATING or flight is None or flight.lost:
            # What the runtime has set now may be older than what it was sent since.
            known = replace(known, recorded=None)
        if known.phase is Phase.UPDATING:
            known = replace(known, phase=Phase.RUNNING)
        flight = flight or self._flight(lost=False)
        self.put(event.container_id, replace(known, in_flight=flight, refused_resize=None))
        if self._resized is not None:
            self._resized.add(event.container_id)
        self._look_soon()

    def _resize_taken_back(self, event: ResizeTakenBack) -> None:
        known = self.records.get(event.container_id, NEW)
        has = known.observed
        if has is not None and event.mems is not None:  # the runtime may have set these, and failed
            known = replace(known, observed=Cpuset(cpus=has.cpus, mems=event.mems))
        # The runtime may record what it was answered, and may not.
        new = replace(known, phase=Phase.RUNNING, in_flight=None, resent=0, recorded=None)
        self.put(event.container_id, new)

    def _resize_doubted(self, event: ResizeDoubted) -> None:
        if self.desired.placement(event.container_id) is None:
            return
        known = self.records.get(event.container_id, NEW)
        until = self.now + RESIZE_DOUBT
        new = replace(known, refused_resize=event.refused, resize_until=until)
        self.put(event.container_id, new)
        self.schedule.hasten(Action.RESIZES, self.now + RESIZE_LOOK)

    def _resize_settled(self, event: ResizeSettled) -> None:
        known = self.records.get(event.container_id)
        if known is not None:
            self.put(event.container_id, replace(known, refused_resize=None, resize_until=None))

    def _overlaps_seen(self, event: OverlapsSeen) -> None:
        for each in [*self.overlapping]:
            if each not in event.container_ids:
                self.put(each, replace(self.records[each], overlap=EMPTY))

    def _gone(self, event: Gone) -> None:
        """Send again what its creation's answer carried: that seems to have failed."""
        carried = self.carried.get(event.container_id, {})
        again = [each for each in carried if self.records[each].pending is None]
        for each in [*carried]:
            self.put(each, replace(self.records[each], carrier=""))
        self.drop(event.container_id)
        due = ((each, self.desired.placement(each)) for each in again)
        self._note({each: new for each, new in due if new is not None})

    def _leave(self, _: Leaving) -> None:
        self.leaves = True
        self._note({each: self.desired.unmanaged(each) for each in self.desired})
        self.reindex()

    def _time_passed(self, _: TimePassed) -> None:
        """Start the patience of changes that wait for a message."""
        if not self.pending:
            self._send_since = self._hurry_at = math.inf
        elif self.waiting and self._send_since == math.inf:
            self._send_since = self.now
        if self.unrecorded and self.schedule.due[Action.INFORM] == math.inf:
            self.schedule.due[Action.INFORM] = self.now

    # ---- looks at what is in flight

    def _look_soon(self) -> None:
        if self.in_flight or self.waiting:
            self._read_delay = FIRST_LOOK
            self.schedule.hasten(Action.READ, self.now + FIRST_LOOK)

    def may_be_lost(self, container_id: str) -> bool:
        """Return whether a container may never get what it was sent."""
        flight = self.records.get(container_id, NEW).in_flight
        return flight is not None and flight.lost

    def needs_look(self, container_id: str, *, takes: bool) -> bool:
        """Whether a request about a container has to wait for a look; *takes*: it gets own CPUs."""
        doubtful = container_id in self.waiting or self.may_be_lost(container_id)
        return doubtful or (takes and len(self.in_flight) > 1)

    def begin_check(self, *also: str) -> Sequence[CpusetCheck]:
        """Return checks of all changes in flight, of all that wait for a message, and of *also*."""
        if self.leaves:
            return ()
        checks = []
        for each in dict.fromkeys([*also, *self.in_flight, *self.waiting]):
            placement = self.desired.placement(each)
            if placement is None:
                continue
            known = self.records.get(each, NEW)
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

    def _checked(self, event: Checked) -> Sequence[Report]:
        for each in [*self.in_flight]:
            if self.desired.placement(each) is None:  # it has ended during a call
                self.drop(each)
        return [report for each in event.checks for report in self._conclude(each)]

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
        known = self.records.get(each, NEW)
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
                self.put(each, replace(_seen(known, has), in_flight=None, resent=0))
        elif running and (late or flight.lost):
            yield from self._again(each, check.placement, hurry=bool(check.error))

    def _note_overlap(self, check: CpusetCheck) -> Iterator[Report]:
        """Report an overlap that no change in flight explains; a lasting one only once."""
        each = check.container_id
        if not check.overlap or not (check.settled or check.error):
            return
        known = self.records.get(each, NEW)
        if check.error and known.overlap == check.overlap:
            return
        if check.error:
            self.put(each, replace(known, overlap=check.overlap))
        yield Report(event=Event.OVERLAP, container_id=each, cpus=check.overlap, error=check.error)

    def _note_enforced(self, check: CpusetCheck, due: Placement) -> Iterator[Report]:
        """Store the result of a check's write; the runtime is informed later."""
        each = check.container_id
        known = self.records.get(each, NEW)
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

    def overdue_resizes(self, checks: Sequence[CpusetCheck]) -> Sequence[CpusetCheck]:
        """Return the checks of containers with an overdue resize."""
        return [each for each in checks if self._is_overdue(each)]

    def _is_overdue(self, check: CpusetCheck) -> bool:
        known = self.records.get(check.container_id, NEW)
        if known.in_flight is None or known.phase is not Phase.UPDATING:
            return False
        grace = BLIND_GRACE if check.found is None else GRACE
        return self.now - known.in_flight.since > grace

    def _again(self, each: str, placement: Placement, *, hurry: bool) -> Iterator[Report]:
        """Send a change again, at most `MAX_TRIES` times."""
        known = self.records[each]
        resent = known.resent + 1
        if resent < MAX_TRIES:
            self.put(each, replace(known, in_flight=None, resent=resent))
            self._note({each: placement}, hurry=hurry)
            yield Report(event=Event.SENT_AGAIN, container_id=each, cpus=placement.cpus)
            return
        refused = placement if known.pending is None else None
        self.put(each, replace(known, in_flight=None, resent=0, refused=refused))
        yield Report(event=Event.NOT_IN_FORCE, container_id=each, cpus=placement.cpus)

    # ---- what is to be done

    def plan(self, now: float) -> Mapping[Action, float]:
        """Return when which action is due; `TimePassed` comes before it."""
        due = self.schedule.due | {Action.SEND: self._send_at()}
        for action, ids in self._concerned:
            if not ids:
                due[action] = math.inf
        return {each: max(at, now) for each, at in due.items() if at < math.inf}

    def is_due_before(self, at: float) -> bool:
        """Whether the plan has anything to do before a time: after each input, so it is cheap."""
        due = self.schedule.due
        files = min(due[Action.WRITE], due[Action.READ], due[Action.QUOTAS])
        if min(files, due[Action.PARTITIONS], due[Action.OVERLAPS]) < at:
            return True
        for action, ids in self._concerned:
            if ids and (due[action] < at or (action is Action.INFORM and due[action] == math.inf)):
                return True  # `TimePassed` says when the first INFORM is due
        return bool(self.waiting) and (self._send_since == math.inf or self._send_at() < at)

    def _send_at(self) -> float:
        """Return when changes that no answer has carried are sent another way (§3.7)."""
        if not self.waiting or self._send_since == math.inf:
            return math.inf
        patience = PATIENCE if self.calls_are_safe else PATIENCE_TO_REGISTER
        attempts = min(self.records[each].attempts for each in self.waiting)
        return min(self._send_since + patience * 2.0**attempts, self._hurry_at)

    def answer(self, about: str, most: int, now: float) -> dict[str, Placement]:
        """Return what an answer about a container may carry for others, most urgent first.

        *most* is how many of them may be in force already: each costs the node's requests 14 to
        22 ms (§3.7a 9b), so none in an answer that comes soon after another.
        """
        carried = {}
        for each in self.waiting:
            known = self.records[each]
            # An answer would not tell whether what a call failed to do fails again.
            if each != about and not known.attempts and known.pending is not None:
                carried[each] = known.pending
        if self.unrecorded and now - self._answered >= PAUSE:
            carried |= self.inform(most, about)
        return carried

    def changes_to_send(self) -> dict[str, Placement]:
        """Return the changes that need a message."""
        changes = ((each, self.records[each].pending) for each in self.waiting)
        return {each: new for each, new in changes if new is not None}

    def inform(self, most: int, about: str = "") -> dict[str, Placement]:
        """Return what the runtime may hear of containers that are in force, most urgent first.

        Those come first that systemd may undo. Never the one of the request, nor one in flight.
        """
        volatile, records = self.volatile, self.records
        urgent = (each for each in volatile if each in self.unrecorded)
        rest = (each for each in self.unrecorded if each not in volatile)
        free = (
            each
            for each in chain(urgent, rest)
            if each != about
            and each not in self.pending
            and each not in self.in_flight
            and records[each].phase is Phase.RUNNING
        )
        due = ((each, self.desired.placement(each)) for each in free)
        return dict(islice(((each, new) for each, new in due if new is not None), most))

    def persistable(self) -> Sequence[str]:
        """Return those that systemd can be asked to keep, those first that were written first.

        None but those that run: runc attaches its device program to the scope of a container that
        it starts, and fails if systemd exchanges that meanwhile, as with any property.
        """
        return [each for each in self.volatile if self.records[each].phase is Phase.RUNNING]

    def latest_change(self, container_id: str) -> Placement | None:
        """Return the change to write for a container, even if it was sent meanwhile."""
        due = self.desired.placement(container_id)
        pending = self.records.get(container_id, NEW).pending
        return None if due is None else pending or due

    def refusal(self, container_id: str) -> Placement | None:
        """Return the placement of a container that the runtime failed to apply, if there is one."""
        return self.records.get(container_id, NEW).refused

    def probe_is_due(self, now: float) -> bool:
        """Whether it is time to see again if cgroups can be written (§3.7a 13)."""
        return self._probed is not None and now - self._probed >= RETRY_WRITE

    def overdue(self, now: float) -> int:
        """Return how many changes in flight had more time than a runtime needs."""
        flights = (self.records[each].in_flight for each in self.in_flight)
        return sum(each is not None and now - each.since > GRACE for each in flights)


def _without_pending(known: Delivery) -> Delivery:
    if known.pending is None:
        return known
    return replace(known, pending=None, attempts=0, late=False)


def _seen(known: Delivery, cpuset: Cpuset | None) -> Delivery:
    """Return a record after its cgroup was read; None: it is not visible."""
    return replace(known, observed=cpuset, visible=cpuset is not None)


def _informed(known: Delivery, placement: Placement, *, lost: bool) -> Delivery:
    """Return a record after the runtime was sent a *placement*.

    It has systemd set it, too, unless it is busy with the container: then that may be *lost*.
    """
    recorded = (known.recorded or Cpuset()).overlaid(placement)
    persistent = known.persistent or not lost
    return replace(known, recorded=recorded, unrecorded=None, persistent=persistent)


def _failure(container_id: str, known: Delivery, error: str) -> Sequence[Report]:
    """Return what to say of a cgroup that could not be written: the first time."""
    if known.failed_at is not None:
        return ()
    return (Report(event=Event.NOT_WRITABLE, container_id=container_id, error=error),)
