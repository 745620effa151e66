"""The next writes of a group, derived from the objects in the cluster, never from past actions.

`reconcile` is a function: it changes nothing, and returns the group's next record and the writes.
Owns the life of one group: its PlacementGroup is created, follows the size and the priority of its
pods, waits in the queue, gets places, loses unclaimed ones, gets more, and has its pods let go.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from nri_policy.cluster.engine.group_placement import is_apart
from nri_policy.cluster.engine.search.pod_set_order import find_order
from nri_policy.cluster.engine.unit_capacity import is_overbooked
from nri_policy.cluster.groups.assembly import (
    Incomplete,
    Member,
    assemble_group,
    check_gated,
    find_unlike,
    is_owned_by,
    owner_names,
    owners_of,
    priority_of,
)
from nri_policy.cluster.groups.group_placer import report_refusal
from nri_policy.cluster.groups.group_size import fit_to_pods, grow, resize_to_pods
from nri_policy.cluster.groups.outcome import PodMove, Reconciled, Replacement, View
from nri_policy.cluster.groups.queue import seconds_between
from nri_policy.cluster.groups.record import NO_FAILURE, SeenGroup
from nri_policy.cluster.groups.restored_places import follow_pods, restore_places, split_let_go
from nri_policy.cluster.groups.unbound_pods import (
    NOT_BOUND,
    UNBOUND_SECONDS,
    find_overdue,
)
from nri_policy.cluster.groups.ungating import CrowdedPlace
from nri_policy.cluster.groups.updated_pods import find_successor, with_new_template
from nri_policy.cluster.groups.writes import CreateGroup, Notice, Write, WriteSpec
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.scheduler_constraints import VOLUME, describe
from nri_policy.cluster.requests.group import (
    Condition,
    GroupStatus,
    PlacementGroup,
    hosts_of,
    places_by_pod_set,
)
from nri_policy.foundation.wording import counted, some


def reconcile(key: Key, view: View) -> Reconciled:
    """Return a group's next record and its writes; changes nothing itself."""
    record = view.groups[key]
    now = view.clock.now()
    if record.is_busy(now):
        return Reconciled(record.with_look(record.back_off.until) if record.pauses(now) else record)
    members = view.members.live(key)
    if record.seen is not None and view.members.is_unreadable(key):
        return Reconciled(record)
    if record.seen is not None:
        return _Reconciliation(key, view, record.seen, members).run()
    before, let_go = split_let_go(view.state, view.members, key[1], members)
    if any(view.pod_writes.gate in each.pod.gates for each in members) or (
        let_go and not view.members.is_ending(key)
    ):
        return _create(view, key, before)
    return Reconciled(replace(record, problem="", back_off=NO_FAILURE))


def _create(view: View, key: Key, members: Sequence[Member]) -> Reconciled:
    """Return the creation of a group's object, once all of its pods exist, or what they lack."""
    record = view.groups[key]
    try:
        check_gated(members, view.pod_writes.gate)
        spared, led = view.members.count_spared(key), view.members.led(key)
        group = assemble_group(key, members, view.state.levels, spared, led)
    except (Incomplete, DocumentError) as problem:
        if isinstance(problem, Incomplete) and view.members.is_ending(key):
            return Reconciled(record)
        reason = "Incomplete" if isinstance(problem, Incomplete) else "Malformed"
        first = min(each.pod.name for each in members)  # there is no group yet to look at
        notice = Notice((key[0], first), reason, str(problem), pod=True)
        writes = [notice] if notice.message != record.problem else []
        return Reconciled(replace(record, problem=notice.message), writes=writes)
    owners = {owner.uid: owner for each in members for owner in owners_of(each)}
    create = CreateGroup(group, (*owners.values(),))
    return Reconciled(replace(record, problem=""), writes=[create])


class _Reconciliation:
    """The steps of `reconcile` for a group with an object; all that they change is their own."""

    def __init__(self, key: Key, view: View, seen: SeenGroup, members: list[Member]) -> None:
        self._key = key
        self._view = view
        self._seen = seen
        self._group = seen.group
        self._members = members
        self._record = view.groups[key]
        self._problems: dict[Key, str] = {}
        self._writes: list[Write] = []
        self._attempt: Replacement | PodMove | CrowdedPlace | None = None
        self._otherwise: list[Write] = []

    def run(self) -> Reconciled:
        """Return what follows."""
        self._decide()
        self._look_again(self._view.pod_writes.next_try(self._members))
        return Reconciled(
            self._record, self._problems, self._writes, self._attempt, self._otherwise
        )

    def _decide(self) -> None:
        group, status = self._group, self._group.status
        if not is_owned_by(self._seen.owners, self._members):
            self._leave_queue()
            message = "the PlacementGroup of this name belongs to others than these pods"
            if message != self._record.problem:
                self._writes.append(Notice(self._key, "OtherOwner", message))
            self._change(problem=message)
        elif self._members and group.priority != (priority := priority_of(self._members)):
            self._writes.append(WriteSpec(replace(group, priority=priority), self._seen.revision))
        elif status.assignments:
            self._keep()
        elif status.evicted:
            self._writes += self._view.pod_writes.evict(group, self._members)
            if all(self._is_gated(each) for each in self._members):  # all others went
                self._write_status(replace(status, evicted=""))
        else:
            self._wait()

    def _change(self, **fields: Any) -> None:
        self._record = replace(self._record, **fields)

    def _leave_queue(self) -> None:
        if self._record.place is not None:
            self._change(place=None)

    def _join_queue(self) -> None:
        """Have the group wait in the queue, from when the last of its pods was created."""
        if self._record.place is None:
            created = max((each.pod.created for each in self._members), default="")
            waited = seconds_between(created, self._view.members.latest)
            since = self._view.clock.now() - waited
            self._change(place=self._view.placer.queue_place(self._group, since, created))

    def _look_again(self, at: float) -> None:
        self._record = self._record.with_look(at)

    def _write_status(self, status: GroupStatus) -> None:
        self._writes.append(self._seen.write(status))

    def _write_size(self, group: PlacementGroup) -> None:
        self._writes.append(WriteSpec(group, self._seen.revision, resized=True))

    def _is_gated(self, member: Member) -> bool:
        return self._view.pod_writes.gate in member.pod.gates

    def _is_any_gated(self) -> bool:
        return any(map(self._is_gated, self._members))

    def _are_all_gated(self) -> bool:
        return bool(self._members) and all(map(self._is_gated, self._members))

    def _wait(self) -> None:
        """Have a group without places wait in the queue, if all of its pods are there."""
        group = self._group
        if not (self._members or self._seen.owners) and (
            group.made or group.status.state == "Finished"
        ):
            self._finish()
            return
        known, levels = self._view.members, self._view.state.levels
        pod_writes = self._view.pod_writes
        members, let_go = split_let_go(self._view.state, known, group.name, self._members)
        try:
            fitting = fit_to_pods(self._seen, members, known, levels)
            check_gated(members, pod_writes.gate)
            restored = None
            if let_go and fitting is group:
                restored = restore_places(self._view.state, group, let_go)
        except (Incomplete, DocumentError) as problem:
            self._leave_queue()
            self._report(problem)
        else:
            if fitting is not group:
                self._leave_queue()
                self._write_size(fitting)
            elif restored is not None:
                self._leave_queue()
                self._writes.append(self._seen.write(restored, promised=True))
            elif self._members:
                self._join_queue()

    def _report(self, problem: Incomplete | DocumentError) -> None:
        """Have a group without places follow the size of its owner, or say what it lacks."""
        known, levels = self._view.members, self._view.state.levels
        resized = resize_to_pods(self._seen, self._members, known, levels)
        if resized is not None:
            self._write_size(resized)
        elif isinstance(problem, Incomplete) and self._view.members.is_ending(self._key):
            pass  # its last pods are being deleted
        elif self._members or self._group.status.state != "Unplaceable":
            # the message of an unplaceable group says why its pods were deleted
            found = GroupStatus(message=str(problem))
            self._writes += report_refusal(self._record, found, self._view.clock.now())
            self._change(problem=found.message)

    def _finish(self) -> None:
        """Mark a group without an owner as finished, which Kubernetes does not delete.

        A new pod of its name has it wait again.
        """
        self._leave_queue()
        self._change(problem="")
        finished = GroupStatus(state="Finished")
        if self._group.status != finished:
            self._write_status(finished)

    def _keep(self) -> None:
        """Find the next writes of a placed group, or of one that lost its places."""
        group, pod_writes = self._group, self._view.pod_writes
        status = self._view.placed_pods.give_back(group, self._seen.owners)
        if status != group.status and not pod_writes.under_way(self._key):
            self._write_status(status)
            return
        if not places_by_pod_set(group).total():
            self._empty()
            return
        if message := self._lost_places():
            self._write_status(GroupStatus())
            self._writes.append(Notice(self._key, "Waiting", message))
            return
        unhealthy = self._unhealthy()
        self._writes += pod_writes.fail_lost(group, self._members, unhealthy)
        if not unhealthy:
            self._keep_healthy()
        elif self._record.place is None or unhealthy != group.status.unhealthy_nodes:
            self._attempt = Replacement(unhealthy)
        if unhealthy and not pod_writes.under_way(self._key) and self._are_all_gated():
            return  # its gates open once all its pods have healthy hosts
        if self._is_any_gated() and self._view.is_contested(self._key):
            self._look_again(self._view.clock.now())  # in the next step: pods have news
        else:
            members = self._members_to_serve()
            self._otherwise += pod_writes.open(group, members, unhealthy, self._successor)
            crowded = None if unhealthy else self._crowded
            if crowded is not None and self._attempt is None and _may_move(crowded.pod):
                self._attempt = crowded

    def _keep_healthy(self) -> None:
        """Find the next writes of a group on healthy hosts, but for gates to open."""
        if (followed := self._follow_pods()) is not None:
            self._writes.append(self._seen.write(followed, promised=True))
            hosts = some(sorted(hosts_of(replace(self._group, status=followed))))
            self._writes.append(Notice(self._key, "Healthy", f"its pods still run on {hosts}"))
            return
        if renewed := with_new_template(self._group, self._members, self._unlike):
            self._write_size(renewed)
            return
        lacking = self._view.placed_pods.missing_places(self._group, owned=bool(self._seen.owners))
        if not lacking:
            self._leave_queue()
        elif self._grow(lacking):
            return
        self._run(lacking, self._find_unbound())

    def _empty(self) -> None:
        """Have a group wait again, or end, that has given all of its places back."""
        self._leave_queue()
        if not (self._members or self._seen.owners):
            self._finish()
        elif self._is_any_gated() or not self._view.members.of(self._key):
            self._write_status(GroupStatus())

    def _lost_places(self) -> str:
        """Return why a group has to be placed anew before any gate is opened; empty if not."""
        if not self._are_all_gated():
            return ""
        if self._view.pod_writes.under_way(self._key) or self._view.is_contested(self._key):
            return ""
        if is_overbooked(self._view.state, self._group):
            return "other pods were bound to its hosts before its own"
        if self._unlike:
            return "its new pods are not like those that its places are for"
        if is_apart(self._view.state, self._group):
            return "other steps of its JobSet are in another domain than its places"
        return ""

    @cached_property
    def _unlike(self) -> list[Member]:
        """The pods that are not like those of the group's pod sets, if the service made it."""
        if not self._group.made:
            return []
        return find_unlike(self._group, self._members, self._view.state.levels)

    def _grow(self, lacking: dict[str, int]) -> bool:
        """Queue the group for more places, after its `spec` has the new number of pods.

        Its status says before that there are fewer: at no time do the two contradict each other.
        Return whether a write has to come before that.
        """
        group, pod_sets = self._group, grow(self._group, lacking)
        missing = sum(each.count for each in pod_sets) - places_by_pod_set(group).total()
        if pod_sets == group.pod_sets:
            self._join_queue()
            return False
        if group.status.given_back < missing:
            self._write_status(replace(group.status, given_back=missing))
        else:
            self._write_size(replace(group, pod_sets=pod_sets))
        return True

    def _follow_pods(self) -> GroupStatus | None:
        """Return the status of a group whose pods still run on hosts that are in order again.

        Its places there went to other hosts. None if that is not so.
        """
        if not self._pods_elsewhere():
            return None
        found = follow_pods(self._view.state, self._view.members, self._group, self._members)
        hosts = [*hosts_of(replace(self._group, status=found))]
        failed, _ = self._failed(hosts, busy=(), known=hosts)
        return None if failed or found == self._group.status else found

    def _pods_elsewhere(self) -> list[Pod]:
        """Return the pods that were let go to hosts where the group has no place for them."""
        elsewhere = self._view.members.elsewhere.get(self._key, ())
        return [each.pod for each in self._members if each.pod.key in elsewhere]

    def _unhealthy(self) -> list[str]:
        """Return the hosts of the group that failed, but for those that it no longer needs."""
        hosts, busy = self._view.placed_pods.hosts(self._group)
        known = self._group.status.unhealthy_nodes
        unhealthy, again = self._failed(hosts, busy, known)
        self._look_again(again)
        return unhealthy

    def _failed(
        self, hosts: Collection[str], busy: Collection[str], known: Collection[str]
    ) -> tuple[list[str], float]:
        """Return which of *hosts* have failed for the group, and when to ask again."""
        tolerations = [
            (*each.template.spec.tolerations, *(topology.tolerations if topology else ()))
            for each in self._group.pod_sets
            for topology in [self._view.state.topology_of(each)]
        ]
        return self._view.failed_hosts.failed_hosts(hosts, tolerations, busy, known)

    def _find_unbound(self) -> list[Condition]:
        """Attempt to move pods that kube-scheduler does not bind; return conditions to report."""
        records = self._view.members.records(self._members)
        unbound, again = find_overdue(records, self._view.clock.now())
        self._look_again(again)
        if not unbound:
            return []
        for each in unbound:
            pod = (self._key[0], each.pod.name)
            if each.words != self._view.members.state(pod).problem:
                self._problems[pod] = each.words
                self._writes.append(Notice(pod, NOT_BOUND, each.words, pod=True))
        first = unbound[0]
        pods = f"{len(unbound)} of {counted(len(self._members), 'pod')} not bound"
        text = f"{pods}: {first.pod.name}: {first.words}"
        condition = Condition(type=NOT_BOUND, reason="Unschedulable", message=text)
        self._attempt = PodMove(unbound, condition)
        return [condition]

    def _run(self, lacking: dict[str, int], conditions: list[Condition]) -> None:
        """Report the state of a group on healthy hosts: whether all of its pods run, or did."""
        group = self._group
        phases = self._view.placed_pods.phases(self._key)
        running = phases["Running"] + max(phases["Succeeded"], group.status.given_back)
        enough = running >= sum(each.count for each in group.pod_sets)
        updated = "" if lacking else self._describe_updated()
        status = replace(
            group.status,
            state="Running" if enough and not lacking and not updated else "Placed",
            message=updated
            or self._message(lacking)
            or ("" if enough else self._unjudged())
            or find_order(group.status.message),
            unhealthy_nodes=[],
            reserved=group.status.reserved if lacking else [],
            hold=group.status.hold if lacking else None,
            conditions=conditions,
        )
        if status != group.status:
            self._otherwise.append(self._seen.write(status))
            if group.status.unhealthy_nodes:
                self._otherwise.append(Notice(self._key, "Healthy", ""))
            if updated and updated != group.status.message:
                self._otherwise.append(Notice(self._key, "Waiting", updated))

    def _message(self, lacking: dict[str, int]) -> str:
        """Return the message of a placed group."""
        if lacking:
            return self._view.placer.message_of(self._key, self._record)
        if many := self._too_many():
            of = ", ".join(owner_names(many)) or self._key[1]
            return f"it has {counted(len(many), 'pod')}, more than places: those of {of}"
        nodes = self._view.state.nodes
        if away := sorted(each.name for each in self._pods_elsewhere() if each.node in nodes):
            return f"pods run where the group has no place: {some(away)}"
        return self._lost_label()

    def _describe_updated(self) -> str:
        """Return the names of the pods of a new template that wait; empty without any."""
        new = [each.pod.name for each in self._unlike if self._is_gated(each)]
        if not new:
            return ""
        why = ""
        if self._crowded is not None:
            pod = self._crowded.pod
            why = f"; {pod.name} needs more than host {self._crowded.host} has left, and "
            if _may_move(pod):
                why += "no other host that the group may use has room for it"
            else:
                why += "stays there as it has a persistent volume"
        return (
            f"{counted(len(new), 'pod')} with another template than those that its places are for:"
            f" {some(new)}{why}; the group is placed anew once none of the old is there"
        )

    def _unjudged(self) -> str:
        """Return what of the group's pods only kube-scheduler can judge, which may keep them."""
        every = [
            (*each.pod.constraints, *each.pod.own.names(placed=True)) for each in self._members
        ]
        found = tuple(dict.fromkeys(each for one in every for each in one))
        return describe(found, self._view.state.levels) if found else ""

    def _too_many(self) -> list[Member]:
        """Return the pods of the group if they are more than its places."""
        places = places_by_pod_set(self._group).total()
        return self._members if len(self._members) > places else []

    @cached_property
    def _successor(self) -> Member | None:
        """The pod of another template that may go next to a place of the group, if any."""
        if not self._is_any_gated():
            return None
        gate, levels = self._view.pod_writes.gate, self._view.state.levels
        found = find_successor(self._group, self._unlike, levels, gate)
        if found is not None:  # there may be room on its host later
            self._look_again(self._view.clock.now() + UNBOUND_SECONDS)
        return found

    @cached_property
    def _crowded(self) -> CrowdedPlace | None:
        """The place that the successor would get, if its host lacks room for it."""
        members = self._members_to_serve()
        return self._view.pod_writes.find_crowded(self._group, members, (), self._successor)

    def _members_to_serve(self) -> list[Member]:
        """Return the pods that may get places: where they are too many, not those of new owners.

        Of those of another template that wait for the old ones to go, only the successor may.
        """
        members = self._view.members.of(self._key)
        unlike = {
            each.pod.name
            for each in self._unlike
            if each is not self._successor
            and self._is_gated(each)
            # LWS replaces all pods of a group
            and (each.membership.lws or each.membership.pod_set is None)
        }
        members = [each for each in members if each.pod.name not in unlike]
        if not self._seen.owners or not self._too_many():
            return members
        return [
            each
            for each in members
            if not self._is_gated(each)
            or any(one.uid in self._seen.owners for one in owners_of(each))
        ]

    def _lost_label(self) -> str:
        """Return which of the group's hosts have lost a label: nothing more goes there."""
        topologies = [self._view.state.topology_of(each) for each in self._group.pod_sets]
        levels = {level for each in topologies if each is not None for level in each.levels}
        missing = self._view.failed_hosts.missing_label(hosts_of(self._group), levels)
        return "" if missing is None else f"{missing[0]} has no label {missing[1]} any more"


def _may_move(successor: Pod) -> bool:
    """Whether a pod may go to another host than its predecessor: its volume may be bound there."""
    return VOLUME not in successor.constraints
