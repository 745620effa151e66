"""The next writes of a group, derived from the objects in the cluster, never from past actions.

Owns the life of one group: its PlacementGroup is created, follows the size and the priority of its
pods, waits in the queue, gets places, loses unclaimed ones, gets more, and has its pods let go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from math import inf

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.pod_set_order import order_in
from nri_policy.cluster.engine.room import is_overbooked
from nri_policy.cluster.groups.attempts import Attempts
from nri_policy.cluster.groups.failure import Failures
from nri_policy.cluster.groups.gathering import (
    Incomplete,
    Member,
    check_complete,
    check_gated,
    check_members,
    gather,
    owner_names,
    pod_set_names,
)
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.occupancy import Occupancy
from nri_policy.cluster.groups.pod_changes import PodChanges
from nri_policy.cluster.groups.queue import seconds_between
from nri_policy.cluster.groups.record import NO_FAILURE, SeenGroup
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.unbound_pods import NOT_BOUND, find_overdue
from nri_policy.cluster.groups.writes import (
    CreateGroup,
    Notice,
    Write,
    WriteSpec,
    WriteStatus,
    with_status,
)
from nri_policy.cluster.objects.constraints import describe
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.group import (
    Condition,
    GroupStatus,
    PlacementGroup,
    hosts_of,
    places_by_pod_set,
)
from nri_policy.cluster.objects.metadata import Key, Owner
from nri_policy.cluster.objects.pod import Pod
from nri_policy.foundation.wording import counted


class Progress:
    """The next writes of a group."""

    def __init__(  # noqa: PLR0913 - keywords: what it is given to work with
        self,
        now: Callable[[], float],
        *,
        engine: Engine,
        members: Members,
        groups: GroupTable,
        occupancy: Occupancy,
        changes: PodChanges,
        failures: Failures,
        attempts: Attempts,
        is_contested: Callable[[Key], bool],
    ) -> None:
        self._now = now
        self._engine = engine
        self._members = members
        self._groups = groups
        self._occupancy = occupancy
        self._changes = changes
        self._failures = failures
        self._attempts = attempts
        self._queue = attempts.queue
        self._is_contested = is_contested
        self._latest = ""  # the time of the cluster, as far as it is known

    def see_pod(self, pod: Pod) -> None:
        """Take in a pod: what time it is in the cluster, at least."""
        self._latest = max(self._latest, pod.created)

    def next(self, key: Key) -> Iterator[Write]:
        """Yield what follows from what is there of a group; or have it wait in the queue."""
        record = self._groups[key]
        seen = record.seen
        members = self._members.live(key)
        if record.is_busy(self._now()):
            return
        if seen is None:
            if self._is_any_gated(members):
                yield from self._create(key, members)
            else:
                self._groups.update(key, problem="", back_off=NO_FAILURE)
            return
        status = seen.group.status
        if not _is_theirs(seen, members):
            self._queue.remove(key)
            message = "the PlacementGroup of this name belongs to others than these pods"
            if self._groups.say(key, message):
                yield Notice(key, "OtherOwner", message)
        elif members and seen.group.priority != (priority := _priority_of(members)):
            yield WriteSpec(replace(seen.group, priority=priority), seen.revision)
        elif status.assignments:
            yield from self._keep(seen, members)
        elif status.evicted:
            yield from self._changes.evict(seen.group, members)
            if all(self._changes.gate in each.pod.gates for each in members):  # all others went
                yield WriteStatus(
                    with_status(seen.group, replace(status, evicted="")), seen.revision
                )
        else:
            yield from self._wait(seen, members)

    def _is_any_gated(self, members: Collection[Member]) -> bool:
        return any(self._changes.gate in each.pod.gates for each in members)

    def _create(self, key: Key, members: list[Member]) -> Iterator[Write]:
        try:
            check_gated(members, self._changes.gate)
            spared, led = self._members.count_spared(key), self._members.led(key)
            group = gather(key, members, self._engine.levels, spared, led)
        except (Incomplete, DocumentError) as problem:
            if isinstance(problem, Incomplete) and self._members.is_ending(key):
                return
            reason = "Incomplete" if isinstance(problem, Incomplete) else "Malformed"
            if self._groups.say(key, str(problem)):  # there is no group yet to look at
                first = min(each.pod.name for each in members)
                yield Notice((key[0], first), reason, str(problem), pod=True)
            return
        self._groups.say(key, "")
        owners = {owner.uid: owner for each in members for owner in _owners_of(each)}
        yield CreateGroup(group, (*owners.values(),))

    def _wait(self, seen: SeenGroup, members: list[Member]) -> Iterator[Write]:
        """Have a group without places wait in the queue, if all of its pods are there."""
        group = seen.group
        key = (group.namespace, group.name)
        if not (members or seen.owners) and (group.made or group.status.state == "Finished"):
            yield from self._finish(seen)
            return
        try:
            fitting = self._fit_to_pods(seen, members)
            check_gated(members, self._changes.gate)
        except (Incomplete, DocumentError) as problem:
            self._queue.remove(key)
            resized = self._resize(seen, members)
            if resized is not None:
                yield WriteSpec(resized, seen.revision, resized=True)
            elif isinstance(problem, Incomplete) and self._members.is_ending(key):
                pass  # its last pods are being deleted
            elif (
                members or group.status.state != "Unplaceable"
            ):  # that message tells why the pods were deleted
                yield from self._attempts.report(seen, GroupStatus(message=str(problem)))
        else:
            if fitting is not group:
                self._queue.remove(key)
                yield WriteSpec(fitting, seen.revision, resized=True)
            elif members:
                self._put(key, group, members)

    def _fit_to_pods(self, seen: SeenGroup, members: list[Member]) -> PlacementGroup:
        """Return a complete group with the pod sets that its pods request.

        If new pods use the name of a finished group again, their requests replace the old ones.
        Raises Incomplete and DocumentError.
        """
        group = seen.group
        key = (group.namespace, group.name)
        spared = self._members.count_spared(key)
        try:
            check_members(group, members, self._engine.levels, spared)
        except (Incomplete, DocumentError):
            if seen.owners or not (members and group.made):
                raise
            found = gather(key, members, self._engine.levels, spared)
            return replace(group, pod_sets=found.pod_sets, together=found.together)
        return group

    def _finish(self, seen: SeenGroup) -> Iterator[Write]:
        """Mark a group without an owner as finished, which Kubernetes does not delete.

        A new pod of its name has it wait again.
        """
        key = (seen.group.namespace, seen.group.name)
        self._queue.remove(key)
        self._groups.say(key, "")
        finished = GroupStatus(state="Finished")
        if seen.group.status != finished:
            yield WriteStatus(with_status(seen.group, finished), seen.revision)

    def _put(self, key: Key, group: PlacementGroup, members: list[Member]) -> None:
        """Have a group wait in the queue, from when the last of its pods was created."""
        if key not in self._queue:
            created = max((each.pod.created for each in members), default="")
            since = self._now() - seconds_between(created, self._latest)
            self._attempts.enqueue(group, since, created)

    def _resize(self, seen: SeenGroup, members: list[Member]) -> PlacementGroup | None:
        """Return a group with the size that its owner has by now, if all of its pods are there."""
        key = (seen.group.namespace, seen.group.name)
        if not seen.owners or not members:
            return None  # a user wrote this group
        try:
            check_complete(key, members, self._members.count_spared(key))
        except (Incomplete, DocumentError):
            return None
        counts = Counter(pod_set_names(members, self._engine.levels, seen.group.pod_sets))
        pod_sets = tuple(
            replace(each, count=counts.pop(each.name, 0)) for each in seen.group.pod_sets
        )
        return (
            None
            if counts or pod_sets == seen.group.pod_sets
            else replace(seen.group, pod_sets=pod_sets)
        )

    def _keep(self, seen: SeenGroup, members: list[Member]) -> Iterator[Write]:
        """Yield the next writes of a placed group, or of one that lost its places."""
        group = seen.group
        key = (group.namespace, group.name)
        status = self._occupancy.give_back(key, group, seen.owners)
        if status != group.status and not self._changes.under_way(key):
            yield WriteStatus(with_status(group, status), seen.revision)
            return
        if not places_by_pod_set(group).total():
            yield from self._empty(seen, members)
            return
        if self._is_crowded_out(group, members):
            yield WriteStatus(with_status(group, GroupStatus()), seen.revision)
            yield Notice(key, "Waiting", "other pods were bound to its hosts before its own")
            return
        unhealthy = self._unhealthy(group)
        yield from self._changes.fail_lost(group, members, unhealthy)
        if unhealthy and (key not in self._queue or unhealthy != group.status.unhealthy_nodes):
            yield from self._attempts.replace(seen, unhealthy)
        elif not unhealthy:
            lacking = self._occupancy.missing_places(key, group, owned=bool(seen.owners))
            if lacking:
                yield from self._grow(seen, members, lacking)
            else:
                self._queue.remove(key)
            if not self._groups[key].is_busy(self._now()):
                conditions = yield from self._move_unbound(seen, members)
                yield from self._run(seen, lacking, conditions)
        if self._engine.groups[key] is group:  # else it has other places soon
            if self._is_any_gated(members) and self._is_contested(key):
                self._groups.look_again(key, self._now())  # in the next step: pods have news
            else:
                yield from self._changes.open(group, self._members_to_serve(seen), unhealthy)

    def _empty(self, seen: SeenGroup, members: Collection[Member]) -> Iterator[Write]:
        """Have a group wait again, or end, that has given all of its places back."""
        key = (seen.group.namespace, seen.group.name)
        self._queue.remove(key)
        if not (members or seen.owners):
            yield from self._finish(seen)
        elif self._is_any_gated(members) or not self._members.of(key):
            yield WriteStatus(with_status(seen.group, GroupStatus()), seen.revision)

    def _is_crowded_out(self, group: PlacementGroup, members: Collection[Member]) -> bool:
        """Whether a host of a group is full of other pods before any of its own was let go."""
        key = (group.namespace, group.name)
        if not members or any(self._changes.gate not in each.pod.gates for each in members):
            return False
        if self._changes.under_way(key) or self._is_contested(key):
            return False
        return is_overbooked(self._engine, group)

    def _grow(
        self, seen: SeenGroup, members: list[Member], lacking: dict[str, int]
    ) -> Iterator[Write]:
        """Queue a group for more places, after its `spec` has the new number of pods.

        Its status says before that there are fewer: at no time do the two contradict each other.
        """
        group = seen.group
        places = places_by_pod_set(group)
        pod_sets = tuple(
            replace(each, count=max(each.count, places[each.name] + lacking.get(each.name, 0)))
            for each in group.pod_sets
        )
        missing = sum(each.count for each in pod_sets) - places.total()
        if pod_sets == group.pod_sets:
            self._put((group.namespace, group.name), group, members)
        elif group.status.given_back < missing:
            status = replace(group.status, given_back=missing)
            yield WriteStatus(with_status(group, status), seen.revision)
        else:
            yield WriteSpec(replace(group, pod_sets=pod_sets), seen.revision, resized=True)

    def _unhealthy(self, group: PlacementGroup) -> list[str]:
        """Return the hosts of a group that failed, but for those that it no longer needs."""
        key = (group.namespace, group.name)
        hosts, busy = self._occupancy.hosts(key, group)
        tolerations = [
            (*each.template.spec.tolerations, *(topology.tolerations if topology else ()))
            for each in group.pod_sets
            for topology in [self._engine.topology_of(each)]
        ]
        known = group.status.unhealthy_nodes
        unhealthy, again = self._failures.failed_hosts(hosts, tolerations, busy, known)
        if again < inf:
            self._groups.look_again(key, again)
        return unhealthy

    def _move_unbound(
        self, seen: SeenGroup, members: Sequence[Member]
    ) -> Generator[Write, None, list[Condition]]:
        """Move pods that kube-scheduler does not bind; return the conditions to report."""
        key = (seen.group.namespace, seen.group.name)
        unbound, again = find_overdue(self._members.records(members), self._now())
        if again < inf:
            self._groups.look_again(key, again)
        if not unbound:
            return []
        for each in unbound:
            pod = (key[0], each.pod.name)
            if self._members.say(pod, each.words):
                yield Notice(pod, NOT_BOUND, each.words, pod=True)
        first = unbound[0]
        pods = f"{len(unbound)} of {counted(len(members), 'pod')} not bound"
        text = f"{pods}: {first.pod.name}: {first.words}"
        condition = Condition(type=NOT_BOUND, reason="Unschedulable", message=text)
        yield from self._attempts.move(seen, unbound, condition)
        return [condition]

    def _run(
        self, seen: SeenGroup, lacking: dict[str, int], conditions: list[Condition]
    ) -> Iterator[Write]:
        """Yield the state of a group on healthy hosts: whether all of its pods run, or did."""
        group = seen.group
        key = (group.namespace, group.name)
        phases = self._occupancy.phases(key)
        running = phases["Running"] + max(phases["Succeeded"], group.status.given_back)
        enough = running >= sum(each.count for each in group.pod_sets)
        status = replace(
            group.status,
            state="Running" if enough and not lacking else "Placed",
            message=self._message(group, lacking)
            or ("" if enough else self._unjudged(key))
            or order_in(group.status.message),
            unhealthy_nodes=[],
            reserved=group.status.reserved if lacking else [],
            hold=group.status.hold if lacking else None,
            conditions=conditions,
        )
        if status != group.status and not self._groups[key].is_busy(self._now()):
            yield WriteStatus(with_status(group, status), seen.revision)
            if group.status.unhealthy_nodes:
                yield Notice(key, "Healthy", "")

    def _message(self, group: PlacementGroup, lacking: dict[str, int]) -> str:
        """Return the message of a placed group."""
        key = (group.namespace, group.name)
        if lacking:
            return self._attempts.message_of(group)
        if many := self._too_many(group):
            of = ", ".join(owner_names(many)) or key[1]
            return f"it has {counted(len(many), 'pod')}, more than places: those of {of}"
        return self._lost_label(group)

    def _unjudged(self, key: Key) -> str:
        """Return what of a group's pods only kube-scheduler can judge, which may keep them."""
        levels = self._engine.levels
        every = [
            (*each.pod.constraints, *each.pod.own.names(levels)) for each in self._members.live(key)
        ]
        found = tuple(dict.fromkeys(each for one in every for each in one))
        return describe(found) if found else ""

    def _too_many(self, group: PlacementGroup) -> list[Member]:
        """Return the pods of a group if they are more than its places."""
        members = self._members.live((group.namespace, group.name))
        return members if len(members) > places_by_pod_set(group).total() else []

    def _members_to_serve(self, seen: SeenGroup) -> list[Member]:
        """Return the pods that may get places: where they are too many, not those of new owners."""
        members = self._members.of((seen.group.namespace, seen.group.name))
        if not seen.owners or not self._too_many(seen.group):
            return members
        return [
            each
            for each in members
            if self._changes.gate not in each.pod.gates
            or any(one.uid in seen.owners for one in _owners_of(each))
        ]

    def _lost_label(self, group: PlacementGroup) -> str:
        """Return which of a group's hosts have lost a label: nothing more goes there."""
        topologies = [self._engine.topology_of(each) for each in group.pod_sets]
        levels = {level for each in topologies if each is not None for level in each.levels}
        missing = self._failures.missing_label(hosts_of(group), levels)
        return "" if missing is None else f"{missing[0]} has no label {missing[1]} any more"


def _is_theirs(seen: SeenGroup, members: Collection[Member]) -> bool:
    """Whether a group has no owner, or shares one with these pods."""
    owners = {one.uid for each in members for one in _owners_of(each)}
    owners |= {one.uid for each in members for one in each.pod.owners if one.controller}
    return not seen.owners or not owners or bool(seen.owners & owners)


def _owners_of(member: Member) -> list[Owner]:
    """Return the owners of a pod's group: the pod's controller, or the pod itself if alone.

    The PodGroup, if it is that one's.
    """
    pod = member.pod
    if member.membership.owner is not None:
        return [member.membership.owner]
    if member.membership.alone:
        return [Owner(kind="Pod", name=pod.name, uid=pod.uid, api_version="v1")]
    return [each for each in pod.owners if each.controller]


def _priority_of(members: Collection[Member]) -> int:
    """Return a group's priority: the highest of its pods', which their PriorityClasses decide."""
    return max(each.pod.priority for each in members)
