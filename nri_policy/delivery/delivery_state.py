"""Delivery state: the records of all deliveries, and what each input changes in them.

It is pure: no clock, file, socket, task or log. The executor and the NRI plugin pass events as
inputs, and carry out the plan. Read first `record`, then `next_actions`, which has the table of
states and next actions, and `observations`, about what cgroups have. Here is what the engine and
the runtime say: decisions, answers, calls, lists and resizes.

A *change* has only the settings to change; `Desired.placement` has all. Times are of a monotonic
clock, read by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from nri_policy.delivery import inputs
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.inputs import Action, Input, Report
from nri_policy.delivery.observations import Observations
from nri_policy.delivery.record import LIVING, Cpuset, Delivery, InFlight, Phase
from nri_policy.engine.grant import Changes, Placement

LAST_SETTLE = 2.0  # seconds between tries, at most, while another container has to leave first
LAST_LOOK = 0.5  # seconds between looks at what is not in force yet, at most
RETRY_SCOPE = 10.0  # seconds until systemd is asked again after a failure
RESIZE_DOUBT = 10.0  # seconds that a resize may still come into force that seems refused
RESIZE_LOOK = 0.5  # seconds between looks for that


class DeliveryState(Observations):
    """The deliveries of one runtime's containers.

    `apply` takes an input in; `plan` says when which action is due, the other queries what it is
    about. Queries change nothing.
    """

    def __init__(self, desired: Desired, *, has_files: bool) -> None:
        """*has_files* is whether there are cgroups that can be read and written."""
        super().__init__(desired, has_files=has_files)
        self.latest = -math.inf  # when the latest request came
        # containers whose resize ended since the call under way began; None: there is no call
        self._resized: set[str] | None = None
        self._handlers = self._list_handlers()

    def apply(self, event: Input, now: float) -> Sequence[Report]:
        """Handle an input at a time of the clock; return events for the log."""
        self.now = now
        return self._handlers[type(event)](event) or ()

    def _list_handlers(self) -> dict[type, Callable[[Any], Sequence[Report] | None]]:
        return {
            inputs.Decided: self._decided,
            inputs.RequestBegan: self._request_began,
            inputs.Superseded: self._superseded,
            inputs.Answered: self._note_answer,
            inputs.PhaseChanged: self._phase_changed,
            inputs.StartAnswered: self._start_answered,
            inputs.Observed: self._observed,
            inputs.Written: self._written,
            inputs.Checked: self._checked,
            inputs.WritesMissed: self._writes_missed,
            inputs.Rechecked: self._rechecked,
            inputs.ActionBegan: self._action_began,
            inputs.ActionEnded: self._action_ended,
            inputs.Probed: self._note_probe,
            inputs.CallSent: self._call_sent,
            inputs.CallEnded: self._call_ended,
            inputs.CallLost: self._call_lost,
            inputs.Listed: self._listed,
            inputs.Registered: self._registered,
            inputs.ScopeSet: self._scope_set,
            inputs.ResizeConfirmed: self._resize_confirmed,
            inputs.ResizeTakenBack: self._resize_taken_back,
            inputs.ResizeDoubted: self._resize_doubted,
            inputs.ResizeSettled: self._resize_settled,
            inputs.OverlapsSeen: self._overlaps_seen,
            inputs.CpusetsTouched: self._cpusets_touched,
            inputs.PodsChanged: self.pod_quotas.pods_changed,
            inputs.PodGone: self.pod_quotas.pod_gone,
            inputs.QuotaWritten: self.pod_quotas.quota_written,
            inputs.PartitionsSettled: self.kernel_partitions.settled,
            inputs.Gone: self._gone,
            inputs.Leaving: self._leave,
            inputs.TimePassed: self._time_passed,
        }

    # ---- decisions and requests

    def _decided(self, event: inputs.Decided) -> None:
        self._note(event.changes, hurry=event.hurry)

    def _request_began(self, _: inputs.RequestBegan) -> None:
        self.requests += 1
        self.latest = self.now

    def _superseded(self, event: inputs.Superseded) -> None:
        self._drop_pending(event.container_id)

    def _drop_pending(self, container_id: str) -> None:
        if container_id in self.pending:
            self.put(container_id, self.records[container_id].without_pending())

    def _note_answer(self, event: inputs.Answered) -> None:
        self._answered = self.now
        about, own = event.about, event.own
        self._drop_pending(about)
        grows = any(map(self._only_grows, event.updates))
        if event.updates:
            self._send(event.updates, answer=True, carrier=about if event.creating else "")
        if grows and not self.waiting:
            self._grew = self.now
        if not self.pending:
            self._send_since = self._hurry_at = math.inf
        if own is None:
            return
        known = self.known(about)
        if event.creating:
            cpuset = Cpuset(cpus=own.cpus, mems=own.mems)
            known = replace(known, recorded=cpuset, observed=cpuset, visible=False)
        else:
            known = known.informed(own, lost=False)
        self.put(about, replace(known, in_flight=self._flight(lost=False)))
        if known.phase is not Phase.CREATING:  # its cgroup shows that only after START
            self._look_soon()

    def _send(self, updates: Changes, *, answer: bool = False, carrier: str = "") -> None:
        """Take note of updates that are sent beside what the runtime asked about (§3.7a 9)."""
        for each, placement in updates.items():
            known = self.known(each).without_pending()
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
        # The runtime would not set a container that still starts (§3.6).
        unsure = flight.lost or known.started_at is not None
        return replace(known.informed(placement, lost=unsure), in_flight=flight)

    def _flight(self, *, lost: bool) -> InFlight:
        return InFlight(since=self.now, request=self.requests, lost=lost)

    def _phase_changed(self, event: inputs.PhaseChanged) -> None:
        if event.phase is Phase.RUNNING:
            self._note_run(event.container_id)
            self._look_soon()
            return
        self.change(event.container_id, phase=event.phase, started_at=None)
        if event.phase is Phase.STARTING:  # the answer about its creation has arrived
            for each in [*self.carried.get(event.container_id, ())]:
                self.change(each, carrier="")

    def _start_answered(self, event: inputs.StartAnswered) -> None:
        if self.phase(event.container_id) is Phase.STARTING and not self.hears_starts:
            self.change(event.container_id, started_at=self.now)
            self._look_soon()

    def _gone(self, event: inputs.Gone) -> None:
        """Send again what its creation's answer carried: that seems to have failed."""
        carried = self.carried.get(event.container_id, {})
        again = [each for each in carried if self.records[each].pending is None]
        for each in [*carried]:
            self.change(each, carrier="")
        self.drop(event.container_id)
        self._note(dict(self.desired.decided(again)))

    def _leave(self, _: inputs.Leaving) -> None:
        self.leaves = True
        self._note({each: self.desired.unmanaged(each) for each in self.desired})
        self.reindex()

    # ---- calls

    def _call_sent(self, event: inputs.CallSent) -> None:
        self._send(event.changes)

    def _call_ended(self, event: inputs.CallEnded) -> Sequence[Report]:
        sent = {each: new for each, new in event.changes.items() if each not in event.failed}
        if event.informing:
            self._repeat_overtaken(sent)
            return ()
        for each, placement in sent.items():
            known = self.known(each)
            new = self._sent(known, placement)
            if each in (self._resized or ()):
                new = replace(new, recorded=None)  # the runtime may have recorded the resize last
            done = known.pending is placement
            self.put(each, new.without_pending() if done else new)
        reports = [
            report
            for each in event.changes
            if each in event.failed and (report := self._retry_later(each)) is not None
        ]
        self._repeat_overtaken(sent)
        self._look_soon()
        return reports

    def _repeat_overtaken(self, sent: Changes) -> None:
        """Send containers again that were decided anew during a call: answers overtake it."""
        due = self.desired.decided(sent)
        now = ((each, self.unless_leaving(each, placement)) for each, placement in due)
        again = {
            each: new
            for each, new in now
            if (new.cpus, new.mems) != (sent[each].cpus, sent[each].mems)
        }
        for each in again:  # the runtime may have recorded the call's change after the answer's
            self.change(each, recorded=None)
        self._note(again, hurry=True)

    def _call_lost(self, event: inputs.CallLost) -> None:
        for each in event.changes:
            self.change(each, recorded=None)
        self._note(event.changes)

    # ---- lists

    def _listed(self, event: inputs.Listed) -> None:
        assert event.observed.keys() <= event.recorded.keys(), "only listed containers are read"
        self.blind = self.blind or event.blind
        self._read_if_starts_are_missed()
        for each in dict.fromkeys([*self.records, *event.recorded]):
            known = self.known(each)
            self.put(
                each,
                replace(
                    known.seen(event.observed.get(each)),
                    recorded=event.recorded.get(each),
                    unrecorded=None,
                    persistent=known.persistent or each not in event.observed,
                ),
            )

    def _registered(self, event: inputs.Registered) -> None:
        # The list has no disk limits: their changes stay pending.
        limits = {
            each: replace(now, limits=waiting.limits)
            for each in self.pending
            if (waiting := self.records[each].pending) is not None
            if waiting.limits and (now := self.desired.placement(each)) is not None
        }
        for each in dict.fromkeys([*self.records, *event.phases]):
            if each in event.phases or self.desired.placement(each) is not None:
                self._begin_anew(each, event.phases.get(each, Phase.RUNNING))
            else:
                self.drop(each)
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

    def _begin_anew(self, container_id: str, phase: Phase) -> None:
        """Forget what was under way about a container."""
        known = self.known(container_id).without_pending()
        # It was answered before, and may have missed what was decided since (§3.6). So may a
        # container whose start has begun, which the list shows as created.
        unsure = phase is Phase.CREATING or (phase is Phase.CREATED and self.hears_starts)
        missed = self._flight(lost=True) if unsure else None
        new = replace(
            known,
            phase=phase,
            started_at=None,
            in_flight=missed,
            refused=None,
            failed_at=None,
            carrier="",
            partition=replace(known.partition, tries=0),
        )
        self.put(container_id, self._perhaps_started(new, seen=new.visible))

    def _note_in_place(self, event: inputs.Registered) -> None:
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
                self.due[Action.PERSIST] = self.now

    def _can_wait(self, container_id: str, change: Placement) -> bool:
        """Have a container informed later of which only the quota changes, and return True.

        It runs where it is to; and after an upgrade that can be all of a node's owners of CPUs.
        """
        known = self.known(container_id)
        has = known.observed
        if change.quota is None or change.limits or has is None or not has.has(change):
            return False
        self.put(container_id, self._unrecorded_now(known))
        return True

    def _unrecorded_now(self, known: Delivery) -> Delivery:
        return known if known.unrecorded is not None else replace(known, unrecorded=self.now)

    # ---- actions

    def _action_began(self, event: inputs.ActionBegan) -> None:
        self.due[event.action] = math.inf
        if event.action is Action.SEND:
            self._resized = set()

    def _action_ended(self, event: inputs.ActionEnded) -> None:
        """Schedule an action again that left work undone."""
        unplanned = self.due[event.action] == math.inf  # no input has planned another run since
        match event.action:
            case Action.WRITE if unplanned and self.by_file:  # some have still to leave
                self._write_delay = min(2 * self._write_delay, LAST_SETTLE)
                self.due[Action.WRITE] = self.now + self._write_delay
            case Action.READ if unplanned and self._is_polled():
                self.due[Action.READ] = self.now + self._read_delay
                self._read_delay = min(2 * self._read_delay, LAST_LOOK)
            case Action.PERSIST:
                self.hasten(Action.PERSIST, self.now + RETRY_SCOPE)
            case Action.SEND:
                self._resized = None
                self._send_since = self.now if self.pending else math.inf
                self._hurry_at = math.inf
            case Action.INFORM:
                self.due[Action.INFORM] = self.now + event.pause
            case Action.RESIZES:
                self._end_resizes()
            case Action.QUOTAS:
                self.pod_quotas.ended()
            case Action.OVERLAPS:
                self._overlap_times.ended(event.pause)
            case Action.PARTITIONS:
                self.hasten(Action.PARTITIONS, self.now + event.pause)
            case _:
                pass

    def _is_polled(self) -> bool:
        """Whether anything is in flight that can come into force without another request."""
        phases = {self.records[each].phase for each in self.in_flight}
        unheard = Phase.CREATED in phases and not self.hears_starts
        return bool(self.starting) or unheard or not phases.isdisjoint(LIVING)

    def _end_resizes(self) -> None:
        for each in [*self.resizes]:
            until = self.records[each].resize_until
            if until is not None and self.now >= until:
                self.change(each, resize_until=None)
        if self.resizes:
            self.hasten(Action.RESIZES, self.now + RESIZE_LOOK)

    def _cpusets_touched(self, event: inputs.CpusetsTouched) -> None:
        self._overlap_times.cpusets_touched()
        if event.partitions or self.partitions:
            self.kernel_partitions.cpusets_touched()

    def _time_passed(self, _: inputs.TimePassed) -> None:
        """Start the patience of changes that wait for a message."""
        if not self.pending:
            self._send_since = self._hurry_at = math.inf
        elif self.waiting and self._send_since == math.inf:
            self._send_since = self.now
        if self.unrecorded and self.due[Action.INFORM] == math.inf:
            self.due[Action.INFORM] = self.now

    def _scope_set(self, event: inputs.ScopeSet) -> None:
        known = self.records.get(event.container_id)
        if event.error:
            self.hasten(Action.PERSIST, self.now + RETRY_SCOPE)
        elif known is not None:
            kept = known.observed == event.asked
            if not kept:  # it was written meanwhile, and systemd has undone that
                self.hasten(Action.PERSIST, self.now)
            self.change(event.container_id, persistent=kept)

    # ---- resizes

    def _resize_confirmed(self, event: inputs.ResizeConfirmed) -> None:
        if self.desired.placement(event.container_id) is None:
            return
        known = self.known(event.container_id)
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

    def _resize_taken_back(self, event: inputs.ResizeTakenBack) -> None:
        known = self.known(event.container_id)
        has = known.observed
        if has is not None and event.mems is not None:  # the runtime may have set these, and failed
            known = replace(known, observed=Cpuset(cpus=has.cpus, mems=event.mems))
        # The runtime may record what it was answered, and may not.
        known = replace(known, phase=Phase.RUNNING, started_at=None)
        self.put(event.container_id, replace(known, in_flight=None, resent=0, recorded=None))

    def _resize_doubted(self, event: inputs.ResizeDoubted) -> None:
        if self.desired.placement(event.container_id) is None:
            return
        until = self.now + RESIZE_DOUBT
        self.change(event.container_id, refused_resize=event.refused, resize_until=until)
        self.hasten(Action.RESIZES, self.now + RESIZE_LOOK)

    def _resize_settled(self, event: inputs.ResizeSettled) -> None:
        if event.container_id in self.records:
            self.change(event.container_id, refused_resize=None, resize_until=None)
