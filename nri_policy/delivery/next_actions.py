"""The next action of each delivery, and when it is due; a part of the delivery state, and as pure.

The next action of a container follows from its record:

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
| none | any | STARTING | READ `FIRST_LOOK` after START: it runs | 6 |
| none | written | RUNNING | PERSIST; again after `RETRY_SCOPE` | 7a 7 |
| none | in force | records another | INFORM: few in each answer, or a call | 7a 9 |
| any | not the partition due | any | PARTITIONS; again with pauses | |
| none | another's own CPUs | any | OVERLAPS, READ, then written at once | 7a 5 |
| none, refused | any | any | nothing till it is decided anew or listed | 7 |
| none | in force, persistent | records it | nothing | |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from msgspec.structs import replace

from nri_policy.delivery.desired import Desired
from nri_policy.delivery.inputs import Action, Event, Report
from nri_policy.delivery.occupancy import Occupancy
from nri_policy.delivery.overlap_times import OverlapTimes
from nri_policy.delivery.partition_records import PartitionRecords
from nri_policy.delivery.pod_quota_records import PodQuotaRecords
from nri_policy.delivery.record import Delivery, Phase
from nri_policy.engine.grant import Changes, Placement

SETTLE = 0.1  # seconds between an event and the writing of those that get more by it
FIRST_LOOK = 0.05  # seconds until the first look at what is not in force yet
PATIENCE = 1.0  # seconds for an answer to come by, before a call of our own
PATIENCE_TO_REGISTER = 5.0  # seconds, where it takes a new registration
PAUSE = 1.0  # seconds without an answer, before one informs of what is in force already
MAX_TRIES = 4  # times that a change is sent again; each call waits twice as long as the one before
_UNCONDITIONAL = (Action.WRITE, Action.READ, Action.QUOTAS, Action.PARTITIONS, Action.OVERLAPS)


class NextActions(Occupancy):
    """The records of containers, and the actions that follow from these.

    `plan` says when which action is due, the other queries what it is about; they change nothing.
    """

    def __init__(self, desired: Desired, *, has_files: bool) -> None:
        """*has_files* is whether there are cgroups that can be read and written."""
        super().__init__(desired, has_files=has_files)
        self.calls_are_safe = True  # whether no call of ours can hang the runtime (§3.7)
        self.hears_starts = not has_files  # whether the runtime tells the end of each start (§3.6)
        self.blind = False  # whether containers run whose cgroups cannot be seen
        self.requests = 0  # of the runtime, so far
        self._answered = -math.inf  # when the latest answer was given that could carry updates
        self._grew = -math.inf  # when the latest answer was given that carried all growth
        # when `Action.SEND` is due follows from these two
        self._send_since = self._hurry_at = math.inf
        self._write_delay, self._read_delay = SETTLE, FIRST_LOOK
        self.pod_quotas = PodQuotaRecords(self)
        self.kernel_partitions = PartitionRecords(self)
        self._overlap_times = OverlapTimes(self)
        # actions that are due only while an index has entries
        self._concerned = (
            (Action.PERSIST, self.volatile),
            (Action.INFORM, self.unrecorded),
            (Action.RESIZES, self.resizes),
        )

    # ---- when

    def plan(self, now: float) -> Mapping[Action, float]:
        """Return when which action is due; `TimePassed` comes before it."""
        due = self.due | {Action.SEND: self._send_at()}
        for action, ids in self._concerned:
            if not ids:
                due[action] = math.inf
        return {each: max(at, now) for each, at in due.items() if at < math.inf}

    def next_due(self) -> float:
        """Return when the plan has something to do: after each input, so it is cheap."""
        due = self.due
        at = min(map(due.__getitem__, _UNCONDITIONAL))
        if self.unrecorded:  # `TimePassed` says when the first INFORM and SEND are due
            at = min(at, due[Action.INFORM] if due[Action.INFORM] < math.inf else -math.inf)
        if self.volatile:
            at = min(at, due[Action.PERSIST])
        if self.resizes:
            at = min(at, due[Action.RESIZES])
        if self.waiting:
            at = min(at, -math.inf if self._send_since == math.inf else self._send_at())
        return at

    def _send_at(self) -> float:
        """Return when changes that no answer has carried are sent another way (§3.7)."""
        if not self.waiting or self._send_since == math.inf:
            return math.inf
        patience = PATIENCE if self.calls_are_safe else PATIENCE_TO_REGISTER
        attempts = min(self.records[each].attempts for each in self.waiting)
        return min(self._send_since + patience * 2.0**attempts, self._hurry_at)

    # ---- what

    def answer(self, about: str, most: int, now: float) -> dict[str, Placement]:
        """Return what an answer about a container may carry for others, most urgent first.

        *most* is how many of them may be in force already: each costs the node's requests 14 to
        22 ms (§3.7a 9b), so none in an answer that comes soon after another. Nor growth, if a call
        can follow: ends in a row would have the same containers grow with each.
        """
        grown = self.calls_are_safe and now - self._grew < PATIENCE
        carried = {
            each: change
            for each, change in self.changes_to_send().items()
            # An answer would not tell whether what a call failed to do fails again.
            if each != about and not self.records[each].attempts
            if not (grown and self._only_grows(each))
        }
        if self.unrecorded and now - self._answered >= PAUSE:
            carried |= self.inform(most, about)
        return carried

    def _only_grows(self, container_id: str) -> bool:
        """Whether a container's pending change only gives it more CPUs."""
        known = self.records[container_id]
        new, has = known.pending, known.recorded
        if new is None or has is None or not has.cpus:
            return False
        others = new.shares is not None or new.quota is not None or new.limits
        return has.cpus <= new.cpus and has.has(replace(new, cpus=has.cpus)) and not others

    def changes_to_send(self) -> dict[str, Placement]:
        """Return the changes that need a message."""
        changes = ((each, self.records[each].pending) for each in self.waiting)
        return {each: new for each, new in changes if new is not None}

    def inform(self, most: int, about: str = "") -> dict[str, Placement]:
        """Return what the runtime may hear of containers that are in force, most urgent first.

        Those come first that systemd may undo. Never the one of the request, nor one in flight.
        """
        urgent = (each for each in self.volatile if each in self.unrecorded)
        rest = (each for each in self.unrecorded if each not in self.volatile)
        free = (
            each
            for each in chain(urgent, rest)
            if each != about
            and each not in self.pending
            and each not in self.in_flight
            and self.records[each].phase is Phase.RUNNING
        )
        return dict(islice(self.desired.decided(free), most))

    def persistable(self) -> Sequence[str]:
        """Return the containers whose cpusets systemd can store now, in the order of writing.

        Only running ones: runc attaches its device program to the scope of a starting container,
        and fails if systemd replaces the program meanwhile, as it does for any property.
        """
        return [each for each in self.volatile if self.records[each].phase is Phase.RUNNING]

    def latest_change(self, container_id: str) -> Placement | None:
        """Return the change to write for a container, even if it was sent meanwhile."""
        due = self.desired.placement(container_id)
        return None if due is None else self.known(container_id).pending or due

    # ---- changes that are due

    def _note(self, changes: Changes, *, hurry: bool = False) -> None:
        """Have changes come into force."""
        if not changes:
            return
        for each, change in changes.items():
            known = self.known(each)
            flight = known.in_flight
            if flight is not None and flight.written and flight.request < self.requests:
                known = replace(known, in_flight=None)  # the answer arrived; the file had set it
            new = self.unless_leaving(each, change)
            if known.pending is not None:
                new = new.after(known.pending)
            self.put(each, replace(known, pending=new, attempts=0, late=False, refused=None))
        self._write_delay = SETTLE
        self.hasten(Action.WRITE, self.now + SETTLE)
        if hurry:
            self._hurry_at = min(self._hurry_at, self.now + PATIENCE)

    def unless_leaving(self, container_id: str, decided: Placement) -> Placement:
        """Return *decided*, or what the container gets when the daemon leaves."""
        if not self.leaves:
            return decided
        left = self.desired.unmanaged(container_id)
        return replace(left, shares=decided.shares, limits=decided.limits)

    def put(self, container_id: str, new: Delivery) -> None:
        """Replace a record; a change that a file can make from now on is written soon."""
        before = container_id in self.by_file
        super().put(container_id, new)
        if not before and container_id in self.by_file:
            self.hasten(Action.WRITE, self.now + SETTLE)

    def _look_soon(self) -> None:
        if self.in_flight or self.waiting or self.starting:
            self._read_delay = FIRST_LOOK
            self.hasten(Action.READ, self.now + FIRST_LOOK)

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

    def _retry_later(self, each: str) -> Report | None:
        """Schedule a failed change again, at most `MAX_TRIES` times."""
        due = self.desired.placement(each)
        if due is None:
            self.drop(each)
            return None
        known = self.known(each)
        change, attempts = known.pending or self.unless_leaving(each, due), known.attempts + 1
        if attempts < MAX_TRIES:
            self.put(each, replace(known, pending=change, attempts=attempts))
            return None
        self.put(each, replace(known.without_pending(), refused=change))
        return Report(event=Event.REFUSED, container_id=each, cpus=change.cpus, mems=change.mems)
