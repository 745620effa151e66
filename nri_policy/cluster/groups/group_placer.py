"""Attempts to place groups: those that wait, and what others have lost with a host.

Owns the queue, the choice of victims of preemption, and counts of attempts. The result of an
attempt is a status to write, whose places are promised: they count before another group is tried.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.engine.reservation import find_assigned_nodes
from nri_policy.cluster.groups.assembly import pod_set_names
from nri_policy.cluster.groups.group_statistics import GroupStatistics
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.pod_writes import PendingPodWrites
from nri_policy.cluster.groups.record import NONE, Group, QueuePlace, SeenGroup, rank_of
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.unbound_pods import UnboundPod
from nri_policy.cluster.groups.ungating import CrowdedPlace, remove_places
from nri_policy.cluster.groups.waiting import WaitingGroups, topology_name
from nri_policy.cluster.groups.writes import NODE_FAILED, Notice, Write, WriteStatus
from nri_policy.cluster.numa.promises import REPORT_SECONDS, LiveZones
from nri_policy.cluster.numa.service_spread import RecentFailures
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import (
    GROUP_LABEL,
    Condition,
    GroupStatus,
    HoldStatus,
    PlacementGroup,
    hosts_of,
)
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.units import format_time
from nri_policy.foundation.wording import counted


class GroupPlacer:
    """The groups that wait, and how they are placed."""

    def __init__(  # noqa: PLR0913 - keywords: what it is given to work with
        self,
        clock: Clock,
        *,
        engine: Engine,
        zones: LiveZones,
        groups: GroupTable,
        members: Members,
        placed_pods: PlacedPods,
        pod_writes: PendingPodWrites,
    ) -> None:
        self.waiting = WaitingGroups(engine, groups)
        self.queue = self.waiting.queue
        self.statistics = GroupStatistics()
        self._clock = clock
        self._epoch = (
            clock.now() - clock.date()
        )  # the time by our own clock when the epoch of dates began
        self._engine = engine
        self._zones = zones
        self._freed = 0  # promises that had ended when groups were tried last
        self._groups = groups
        self._members = members
        self._placed_pods = placed_pods
        self._pod_writes = pod_writes
        self._crashes: RecentFailures[Key] = RecentFailures(clock)
        self._left = -inf  # when a pod of a group without places was gone

    def see_pod(self, pod: Pod, group: Key | None, *, ends: bool) -> None:
        """Take in a pod of a group, or of none; *ends*: it was running when it was seen last."""
        if ends and group is not None and pod.node and pod.phase == "Failed":
            self._crashes.add(group, pod.node)
        if ends:
            self._note_end(group)

    def remove_pod(self, pod: Pod | None, group: Key | None) -> None:
        """Remove a pod, with or without a group."""
        if pod is not None and pod.node:
            self._note_end(group)
        self.queue.note_change()

    def _note_end(self, group: Key | None) -> None:
        """Note when the last pods of groups without places were deleted."""
        known = None if group is None else self._engine.state.groups.get(group)
        if known is not None and not known.status.assignments:
            self._left = self._clock.now()

    def queue_place(self, group: PlacementGroup, since: float, created: str = "") -> QueuePlace:
        """Return the place in the queue of a new group, with the holds that its status tells of."""
        hold = group.status.hold or HoldStatus()
        runs = bool(group.status.assignments)
        return QueuePlace(
            rank_of(group.priority, since, created, runs=runs),
            topology=topology_name(group),
            holds=bool(group.status.reserved),
            ended=hold.ended,
            paused_until=self._moment(hold.paused_until, -inf),
        )

    def restore(self, group: PlacementGroup) -> None:
        """Take in the hosts that the status of a group says are set aside for it."""
        hold = group.status.hold or HoldStatus()
        since = self._moment(hold.since, self._clock.now())
        key = group.key
        self.waiting.restore(key, tuple(group.status.reserved), since)

    def _with_hold(self, key: Key, status: GroupStatus) -> GroupStatus:
        """Return a status of a group of the queue with its holds, which another leader goes by."""
        held, place = self._groups.holding.get(key), self.queue.place(key)
        pauses, hold = place.paused_until > self._clock.now(), None
        if held is not None or place.ended or pauses:
            hold = HoldStatus(
                since="" if held is None else self._date(held.since),
                ended=place.ended,
                paused_until=self._date(place.paused_until) if pauses else "",
            )
        return replace(status, reserved=[*(held.hosts if held else ())], hold=hold)

    def _date(self, moment: float) -> str:
        return format_time(round(moment - self._epoch))

    def _moment(self, date: str, other: float) -> float:
        """Return when a date is by our own clock; *other* if it is none."""
        try:
            return self._epoch + datetime.fromisoformat(date).timestamp()
        except ValueError:
            return other

    def hold(self) -> None:
        """See anew for which groups hosts are set aside."""
        self.waiting.hold(self._clock.now(), lambda key: self._groups.object(key).group)

    def begin_step(self) -> None:
        """Requeue groups if promised places in zones became free."""
        self._zones.expire()
        if self._zones.freed != self._freed:
            self._freed = self._zones.freed
            self.waiting.note_freed_zones()

    def place(self, key: Key) -> Iterator[Write]:
        """Try to place a group of the queue, or what it has lost."""
        seen = self._groups.object(key)
        if seen.group.status.unhealthy_nodes:
            yield from self.replace(seen, seen.group.status.unhealthy_nodes)
            return
        if seen.group.status.assignments:
            yield from self._grow(key, seen)
            return
        asked = replace(seen.group, status=GroupStatus())
        try:
            status = self.waiting.place(key, asked, self._crashes.of(key))
            hopeless = not status.assignments and self.waiting.is_hopeless(asked)
            if not status.assignments:
                status = self.waiting.refusal(asked, status)
        except DocumentError as error:
            status, hopeless = GroupStatus(state="Unplaceable", message=str(error)), True
        if status.assignments:
            yield from self._take_places(key, seen, status)
        else:
            leaving = False
            if self._engine.state.settings.groups.preemption and not hopeless:
                leaving = self._is_any_leaving() or self._waits_for_reports(status)
                if not leaving and not (yield from self._preempt(key, asked)):
                    return  # it is tried again in the next step
                leaving = leaving or self._is_any_leaving()
            self.waiting.note_refusal(key, asked, hopeless=hopeless, holds=leaving)
            no_room = "no room in zones" if status.conditions else "no room"
            self.statistics.tries["unplaceable" if hopeless else no_room] += 1
            standing = ""
            if not hopeless:
                standing = self.waiting.standing(key, asked, self.queue.rank(key))
            record, status = self._groups[key], self._with_hold(key, status)
            self._groups.say(key, status.message)
            yield from report_refusal(record, status, self._clock.now(), standing)
            if record.is_busy(self._clock.now()):
                self.queue.note_edit(key)  # try again after that write, and then report the refusal

    def _take_places(self, key: Key, seen: SeenGroup, status: GroupStatus) -> Iterator[Write]:
        """Yield the status of a group of the queue that got what it waited for."""
        self.statistics.count_placement(self._clock.now() - self.queue.place(key).since)
        self.queue.remove(key)
        yield seen.write(status, promised=True)
        yield Notice(key, "Placed", status.message)

    def _try(self, key: Key, group: PlacementGroup, more: Mapping[str, int] = NONE) -> GroupStatus:
        """Return the status of a placed group with its missing places, or why it gets none."""
        try:
            return self.waiting.place(key, group, more=more)
        except DocumentError as error:
            return GroupStatus(state="Unplaceable", message=str(error))

    def _grow(self, key: Key, seen: SeenGroup) -> Iterator[Write]:
        """Try to find places for the pods that a group has more; the others stay."""
        group = seen.group
        if self._pod_writes.under_way(key) or self._groups[key].is_busy(self._clock.now()):
            return
        more = self._placed_pods.missing_places(group, owned=bool(seen.owners))
        found = self._try(key, group, more)
        if found.assignments:
            self._groups.say(key, "")
            given_back = max(0, group.status.given_back - sum(more.values()))
            status = replace(
                group.status,
                assignments=found.assignments,
                given_back=given_back,
                message="",
                reserved=[],
                hold=None,
            )
            yield from self._take_places(key, seen, status)
            return
        self.queue.note_refusal(key, hopeless=False)
        self.statistics.tries["no room"] += 1
        text = f"{counted(sum(more.values()), 'more pod')} cannot be placed: {found.message}"
        if self._groups.say(key, text):
            yield Notice(key, "Waiting", text)
        message = self.message_of(key, self._groups[key])
        status = self._with_hold(key, replace(group.status, state="Placed", message=message))
        if status != group.status:
            yield seen.write(status)

    def message_of(self, key: Key, record: Group) -> str:
        """Return the message of a group that lacks pods: its place in the queue, its problem."""
        standing = ""
        if record.place is not None and record.seen is not None:
            standing = self.waiting.standing(key, record.seen.group, record.place.rank)
        return "; ".join(filter(None, (standing, record.problem)))

    def _preempt(self, own: Key, group: PlacementGroup) -> Generator[Write, None, bool]:
        """Yield writes that take the places of victims, so that *group* fits; their pods go next.

        Return False while a victim has a pending write.
        """
        found = find_victims(self._engine, group) or []
        keys = [each.key for each in found]
        now = self._clock.now()
        if any(self._groups[key].is_busy(now) or self._pod_writes.under_way(key) for key in keys):
            return False
        if keys:
            then = self._engine.fork()
            then.state.take_out(keys)
            self.waiting.reserve(own, find_assigned_nodes(then.place(group), then.state.view), now)
        for key in keys:
            message = f"preempted by {group.full_name} of priority {group.priority}"
            seen = self._groups.object(key)
            self.statistics.preemptions += 1
            lost = GroupStatus(message=message, evicted="Preempted")
            yield seen.write(lost, promised=True)
            yield Notice(key, "Preempted", message)
        return True

    def _is_any_leaving(self) -> bool:
        """Whether pods of groups that have no places any more are still there."""
        groups = {*self._members.leaving, *self._groups.evicted}
        return any(
            not self._engine.state.groups[key].status.assignments
            for key in groups
            if key in self._engine.state.groups
        ) or any(
            isinstance(write := self._groups[key].write, WriteStatus) and write.group.status.evicted
            for key in self._groups.pending
        )

    def _waits_for_reports(self, status: GroupStatus) -> bool:
        """Whether only zones refuse a group, of which nodes may still report pods that went."""
        return bool(status.conditions) and self._clock.now() < self._left + REPORT_SECONDS

    def move(
        self, seen: SeenGroup, unbound: Sequence[UnboundPod], condition: Condition
    ) -> Generator[Write, None, bool]:
        """Give pods that kube-scheduler does not bind other places, on other hosts; the rest stays.

        Only pods with a controller move. Without room elsewhere, nothing changes. Return whether
        the group gets another status.
        """
        group = seen.group
        key = group.key
        names = {
            each.pod.name for each in unbound if any(own.controller for own in each.pod.owners)
        }
        if not names or self._pod_writes.under_way(key):
            return False
        moved = self._place_elsewhere(group, names)
        if moved is None:
            return False
        yield seen.write(replace(moved, conditions=[condition]), promised=True)
        yield Notice(key, "Replaced", condition.message)
        return True

    def move_place(self, seen: SeenGroup, crowded: CrowdedPlace) -> Generator[Write, None, bool]:
        """Move a place that has no room for a pod of another template to a host that has.

        Without such a host, nothing changes. Return whether the group gets another status.
        """
        group, pod = seen.group, crowded.pod
        if self._pod_writes.under_way(group.key):
            return False
        there = crowded.opening.opened(self._pod_writes.gate)
        full = self._engine.state.nodes.keys() - crowded.roomy
        moved = self._place_elsewhere(group, [pod.name], there, full)
        if moved is None:
            return False
        yield seen.write(moved, promised=True)
        text = f"{pod.name} needs more than host {crowded.host} has left: its place moves"
        yield Notice(group.key, "Replaced", text)
        return True

    def _place_elsewhere(
        self,
        group: PlacementGroup,
        leaving: Collection[str],
        coming: Pod | None = None,
        full: Collection[str] = (),
    ) -> GroupStatus | None:
        """Return the status of a group once the pods that are *leaving* have other hosts, if any.

        *coming* is the one whose gate is still closed, if any. Nodes that are *full* get no pod.
        """
        members = [
            each for each in self._members.live(group.key) if GROUP_LABEL in each.pod.annotations
        ]
        state, status = self._engine.state, group.status
        pods: dict[str, list[Pod]] = {}
        for name, each in zip(
            pod_set_names(members, state.levels, group.pod_sets), members, strict=True
        ):
            pods.setdefault(name, []).append(each.pod)
        if coming is not None:
            pods.setdefault(group.pod_sets[0].name, []).append(coming)
        kept, more, hosts = remove_places(status.assignments, pods, leaving, state.nodes)
        if not more:
            return None
        given_back = status.given_back + more.total()
        lost = replace(status, assignments=kept, given_back=given_back, unhealthy_nodes=[])
        nodes = {one.name for host in hosts for one in state.view.on_host(host)}
        elsewhere = self._engine.without_nodes(nodes.union(full))
        try:
            found = elsewhere.place(replace(group, status=lost), more=more)
        except DocumentError:
            return None
        before, places = (hosts_of(replace(group, status=each)) for each in (lost, found))
        if not found.assignments or any(places[host] > before[host] for host in hosts):
            return None
        self.statistics.replacements += 1
        return replace(status, assignments=found.assignments)

    def note_lost(self, seen: SeenGroup, unhealthy: list[str]) -> None:
        """Have a group wait for places instead of those on failed hosts, before it is tried."""
        group = seen.group
        if self._pod_writes.under_way(group.key):
            return  # a pod may be on its way to a place that the group would no longer have
        status = replace(group.status, unhealthy_nodes=unhealthy)
        self._engine.state.set_group(replace(group, status=status))
        if group.key not in self.queue:
            self.queue.put(group.key, self.queue_place(group, self._clock.now()))

    def replace(self, seen: SeenGroup, unhealthy: list[str]) -> Generator[Write, None, bool]:
        """Try to place anew what failed hosts had of a group; the rest stays.

        Return whether the group gets another status.
        """
        group = seen.group
        key = group.key
        if self._pod_writes.under_way(key):
            return False
        degraded = replace(group.status, state="Degraded", unhealthy_nodes=unhealthy, conditions=[])
        found = self._try(key, replace(group, status=degraded))
        given_back = group.status.given_back
        if not found.assignments and self._pod_writes.are_all_gated(key):
            with suppress(DocumentError):
                anew = self.waiting.place_anew(key, replace(group, status=degraded))
                found, given_back = (anew, 0) if anew.assignments else (found, given_back)
        if found.assignments:
            self.queue.remove(key)
            self.statistics.replacements += 1
            status = replace(found, given_back=given_back)
            problem, reason = status.message, "Replaced"
        elif self._engine.state.settings.failure.fail_fast and all(
            any(owner.controller for owner in each.pod.owners) for each in self._members.live(key)
        ):
            self.queue.remove(key)
            status = GroupStatus(state="Unplaceable", message=found.message, evicted=NODE_FAILED)
            problem, reason = status.message, "Unplaceable"
        else:
            self.queue.note_refusal(key, hopeless=False)
            problem = found.message
            asked = replace(group, status=degraded)
            standing = self.waiting.standing(key, asked, self.queue.rank(key))
            message = "; ".join(filter(None, (standing, problem)))
            status = replace(degraded, message=message, conditions=found.conditions)
            status = self._with_hold(key, status)
            reason = "Degraded"
        if status == group.status or self._groups[key].is_busy(self._clock.now()):
            return False
        yield seen.write(status, promised=True)
        text = f"failed: {', '.join(unhealthy)}"
        text += f"; {problem}" if problem else ""
        news = self._groups.say(key, text if reason == "Degraded" else "")
        if news or reason != "Degraded":
            yield Notice(key, reason, text)
        return True


def report_refusal(
    record: Group, found: GroupStatus, now: float, standing: str = ""
) -> Iterator[Write]:
    """Yield the status that says why a group waits, and an Event, unless they are said.

    It is what was *found*, and the group's *standing*, which changes often.
    """
    assert record.seen is not None
    group = record.seen.group
    status = replace(
        group.status,
        state=found.state,
        message="; ".join(filter(None, (standing, found.message))),
        reserved=found.reserved,
        hold=found.hold,
        conditions=found.conditions,
    )
    if status != group.status and not record.is_busy(now):
        yield record.seen.write(status)
    if found.message and found.message != record.problem:
        yield Notice(group.key, found.state, found.message)
