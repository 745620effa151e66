"""The next writes of a group, derived from the objects in the cluster, never from past actions.

Owns the life of one group: its PlacementGroup is created, follows the size and the priority of its
pods, waits in the queue, gets places, loses unclaimed ones, gets more, and has its pods let go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.pod_set_order import order_in
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.unit_capacity import is_overbooked
from nri_policy.cluster.groups.assembly import (
    Incomplete,
    Member,
    assemble_group,
    check_complete,
    check_gated,
    check_members,
    owner_names,
    pod_set_names,
)
from nri_policy.cluster.groups.failed_hosts import FailedHosts
from nri_policy.cluster.groups.group_placer import GroupPlacer
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.pod_writes import PendingPodWrites
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
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key, OwnerReference
from nri_policy.cluster.objects.scheduler_constraints import describe
from nri_policy.cluster.requests.group import (
    Condition,
    GroupStatus,
    PlacementGroup,
    hosts_of,
    places_by_pod_set,
)
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.wording import counted


class View(Struct, frozen=True):
    """What the writes of a group follow from."""

    clock: Clock
    state: ClusterState
    members: Members
    groups: GroupTable
    placed_pods: PlacedPods
    changes: PendingPodWrites
    failures: FailedHosts
    placer: GroupPlacer
    is_contested: Callable[[Key], bool]


def reconcile(key: Key, view: View) -> Iterator[Write]:
    """Yield what follows from what is there of a group; or have it wait in the queue."""
    record = view.groups[key]
    seen = record.seen
    members = view.members.live(key)
    if record.is_busy(view.clock.now()):
        return
    if seen is None:
        if _is_any_gated(view, members):
            yield from _create(view, key, members)
        else:
            view.groups.update(key, problem="", back_off=NO_FAILURE)
        return
    status = seen.group.status
    if not _is_theirs(seen, members):
        view.placer.queue.remove(key)
        message = "the PlacementGroup of this name belongs to others than these pods"
        if view.groups.say(key, message):
            yield Notice(key, "OtherOwner", message)
    elif members and seen.group.priority != (priority := _priority_of(members)):
        yield WriteSpec(replace(seen.group, priority=priority), seen.revision)
    elif status.assignments:
        yield from _keep(view, seen, members)
    elif status.evicted:
        yield from view.changes.evict(seen.group, members)
        if all(view.changes.gate in each.pod.gates for each in members):  # all others went
            yield WriteStatus(with_status(seen.group, replace(status, evicted="")), seen.revision)
    else:
        yield from _wait(view, seen, members)


def _is_any_gated(view: View, members: Collection[Member]) -> bool:
    return any(view.changes.gate in each.pod.gates for each in members)


def _create(view: View, key: Key, members: list[Member]) -> Iterator[Write]:
    try:
        check_gated(members, view.changes.gate)
        spared, led = view.members.count_spared(key), view.members.led(key)
        group = assemble_group(key, members, view.state.levels, spared, led)
    except (Incomplete, DocumentError) as problem:
        if isinstance(problem, Incomplete) and view.members.is_ending(key):
            return
        reason = "Incomplete" if isinstance(problem, Incomplete) else "Malformed"
        if view.groups.say(key, str(problem)):  # there is no group yet to look at
            first = min(each.pod.name for each in members)
            yield Notice((key[0], first), reason, str(problem), pod=True)
        return
    view.groups.say(key, "")
    owners = {owner.uid: owner for each in members for owner in _owners_of(each)}
    yield CreateGroup(group, (*owners.values(),))


def _wait(view: View, seen: SeenGroup, members: list[Member]) -> Iterator[Write]:
    """Have a group without places wait in the queue, if all of its pods are there."""
    group = seen.group
    key = (group.namespace, group.name)
    if not (members or seen.owners) and (group.made or group.status.state == "Finished"):
        yield from _finish(view, seen)
        return
    try:
        fitting = _fit_to_pods(view, seen, members)
        check_gated(members, view.changes.gate)
    except (Incomplete, DocumentError) as problem:
        view.placer.queue.remove(key)
        resized = _resize(view, seen, members)
        if resized is not None:
            yield WriteSpec(resized, seen.revision, resized=True)
        elif isinstance(problem, Incomplete) and view.members.is_ending(key):
            pass  # its last pods are being deleted
        elif (
            members or group.status.state != "Unplaceable"
        ):  # that message tells why the pods were deleted
            yield from view.placer.report(seen, GroupStatus(message=str(problem)))
    else:
        if fitting is not group:
            view.placer.queue.remove(key)
            yield WriteSpec(fitting, seen.revision, resized=True)
        elif members:
            _put(view, key, group, members)


def _fit_to_pods(view: View, seen: SeenGroup, members: list[Member]) -> PlacementGroup:
    """Return a complete group with the pod sets that its pods request.

    If new pods use the name of a finished group again, their requests replace the old ones.
    Raises Incomplete and DocumentError.
    """
    group = seen.group
    key = (group.namespace, group.name)
    spared = view.members.count_spared(key)
    try:
        check_members(group, members, view.state.levels, spared)
    except (Incomplete, DocumentError):
        if seen.owners or not (members and group.made):
            raise
        found = assemble_group(key, members, view.state.levels, spared)
        return replace(group, pod_sets=found.pod_sets, together=found.together)
    return group


def _finish(view: View, seen: SeenGroup) -> Iterator[Write]:
    """Mark a group without an owner as finished, which Kubernetes does not delete.

    A new pod of its name has it wait again.
    """
    key = (seen.group.namespace, seen.group.name)
    view.placer.queue.remove(key)
    view.groups.say(key, "")
    finished = GroupStatus(state="Finished")
    if seen.group.status != finished:
        yield WriteStatus(with_status(seen.group, finished), seen.revision)


def _put(view: View, key: Key, group: PlacementGroup, members: list[Member]) -> None:
    """Have a group wait in the queue, from when the last of its pods was created."""
    if key not in view.placer.queue:
        created = max((each.pod.created for each in members), default="")
        since = view.clock.now() - seconds_between(created, view.members.latest)
        view.placer.enqueue(group, since, created)


def _resize(view: View, seen: SeenGroup, members: list[Member]) -> PlacementGroup | None:
    """Return a group with the size that its owner has by now, if all of its pods are there."""
    key = (seen.group.namespace, seen.group.name)
    if not seen.owners or not members:
        return None  # a user wrote this group
    try:
        check_complete(key, members, view.members.count_spared(key))
    except (Incomplete, DocumentError):
        return None
    counts = Counter(pod_set_names(members, view.state.levels, seen.group.pod_sets))
    pod_sets = tuple(replace(each, count=counts.pop(each.name, 0)) for each in seen.group.pod_sets)
    return (
        None
        if counts or pod_sets == seen.group.pod_sets
        else replace(seen.group, pod_sets=pod_sets)
    )


def _keep(view: View, seen: SeenGroup, members: list[Member]) -> Iterator[Write]:
    """Yield the next writes of a placed group, or of one that lost its places."""
    group = seen.group
    key = (group.namespace, group.name)
    status = view.placed_pods.give_back(key, group, seen.owners)
    if status != group.status and not view.changes.under_way(key):
        yield WriteStatus(with_status(group, status), seen.revision)
        return
    if not places_by_pod_set(group).total():
        yield from _empty(view, seen, members)
        return
    if _is_crowded_out(view, group, members):
        yield WriteStatus(with_status(group, GroupStatus()), seen.revision)
        yield Notice(key, "Waiting", "other pods were bound to its hosts before its own")
        return
    unhealthy = _unhealthy(view, group)
    yield from view.changes.fail_lost(group, members, unhealthy)
    moved = False  # whether it has other places soon
    if unhealthy and (key not in view.placer.queue or unhealthy != group.status.unhealthy_nodes):
        moved = yield from view.placer.replace(seen, unhealthy)
    elif not unhealthy:
        moved = yield from _keep_healthy(view, seen, members)
    if not moved:
        if _is_any_gated(view, members) and view.is_contested(key):
            view.groups.look_again(key, view.clock.now())  # in the next step: pods have news
        else:
            yield from view.changes.open(group, _members_to_serve(view, seen), unhealthy)


def _keep_healthy(
    view: View, seen: SeenGroup, members: list[Member]
) -> Generator[Write, None, bool]:
    """Yield the next writes of a group on healthy hosts; return whether pods get other places."""
    key = (seen.group.namespace, seen.group.name)
    lacking = view.placed_pods.missing_places(key, seen.group, owned=bool(seen.owners))
    if not lacking:
        view.placer.queue.remove(key)
    elif (yield from _grow(view, seen, members, lacking)):
        return False
    moved, conditions = yield from _move_unbound(view, seen, members)
    if not moved:
        yield from _run(view, seen, lacking, conditions)
    return moved


def _empty(view: View, seen: SeenGroup, members: Collection[Member]) -> Iterator[Write]:
    """Have a group wait again, or end, that has given all of its places back."""
    key = (seen.group.namespace, seen.group.name)
    view.placer.queue.remove(key)
    if not (members or seen.owners):
        yield from _finish(view, seen)
    elif _is_any_gated(view, members) or not view.members.of(key):
        yield WriteStatus(with_status(seen.group, GroupStatus()), seen.revision)


def _is_crowded_out(view: View, group: PlacementGroup, members: Collection[Member]) -> bool:
    """Whether a host of a group is full of other pods before any of its own was let go."""
    key = (group.namespace, group.name)
    if not members or any(view.changes.gate not in each.pod.gates for each in members):
        return False
    if view.changes.under_way(key) or view.is_contested(key):
        return False
    return is_overbooked(view.state, group)


def _grow(
    view: View, seen: SeenGroup, members: list[Member], lacking: dict[str, int]
) -> Generator[Write, None, bool]:
    """Queue a group for more places, after its `spec` has the new number of pods.

    Its status says before that there are fewer: at no time do the two contradict each other.
    Return whether a write has to come before that.
    """
    group = seen.group
    places = places_by_pod_set(group)
    pod_sets = tuple(
        replace(each, count=max(each.count, places[each.name] + lacking.get(each.name, 0)))
        for each in group.pod_sets
    )
    missing = sum(each.count for each in pod_sets) - places.total()
    if pod_sets == group.pod_sets:
        _put(view, (group.namespace, group.name), group, members)
        return False
    if group.status.given_back < missing:
        status = replace(group.status, given_back=missing)
        yield WriteStatus(with_status(group, status), seen.revision)
    else:
        yield WriteSpec(replace(group, pod_sets=pod_sets), seen.revision, resized=True)
    return True


def _unhealthy(view: View, group: PlacementGroup) -> list[str]:
    """Return the hosts of a group that failed, but for those that it no longer needs."""
    key = (group.namespace, group.name)
    hosts, busy = view.placed_pods.hosts(key, group)
    tolerations = [
        (*each.template.spec.tolerations, *(topology.tolerations if topology else ()))
        for each in group.pod_sets
        for topology in [view.state.topology_of(each)]
    ]
    known = group.status.unhealthy_nodes
    unhealthy, again = view.failures.failed_hosts(hosts, tolerations, busy, known)
    if again < inf:
        view.groups.look_again(key, again)
    return unhealthy


def _move_unbound(
    view: View, seen: SeenGroup, members: Sequence[Member]
) -> Generator[Write, None, tuple[bool, list[Condition]]]:
    """Move pods that kube-scheduler does not bind; return whether, and conditions to report."""
    key = (seen.group.namespace, seen.group.name)
    unbound, again = find_overdue(view.members.records(members), view.clock.now())
    if again < inf:
        view.groups.look_again(key, again)
    if not unbound:
        return False, []
    for each in unbound:
        pod = (key[0], each.pod.name)
        if view.members.say(pod, each.words):
            yield Notice(pod, NOT_BOUND, each.words, pod=True)
    first = unbound[0]
    pods = f"{len(unbound)} of {counted(len(members), 'pod')} not bound"
    text = f"{pods}: {first.pod.name}: {first.words}"
    condition = Condition(type=NOT_BOUND, reason="Unschedulable", message=text)
    moved = yield from view.placer.move(seen, unbound, condition)
    return moved, [condition]


def _run(
    view: View, seen: SeenGroup, lacking: dict[str, int], conditions: list[Condition]
) -> Iterator[Write]:
    """Yield the state of a group on healthy hosts: whether all of its pods run, or did."""
    group = seen.group
    key = (group.namespace, group.name)
    phases = view.placed_pods.phases(key)
    running = phases["Running"] + max(phases["Succeeded"], group.status.given_back)
    enough = running >= sum(each.count for each in group.pod_sets)
    status = replace(
        group.status,
        state="Running" if enough and not lacking else "Placed",
        message=_message(view, group, lacking)
        or ("" if enough else _unjudged(view, key))
        or order_in(group.status.message),
        unhealthy_nodes=[],
        reserved=group.status.reserved if lacking else [],
        hold=group.status.hold if lacking else None,
        conditions=conditions,
    )
    if status != group.status:
        yield WriteStatus(with_status(group, status), seen.revision)
        if group.status.unhealthy_nodes:
            yield Notice(key, "Healthy", "")


def _message(view: View, group: PlacementGroup, lacking: dict[str, int]) -> str:
    """Return the message of a placed group."""
    key = (group.namespace, group.name)
    if lacking:
        return view.placer.message_of(group)
    if many := _too_many(view, group):
        of = ", ".join(owner_names(many)) or key[1]
        return f"it has {counted(len(many), 'pod')}, more than places: those of {of}"
    return _lost_label(view, group)


def _unjudged(view: View, key: Key) -> str:
    """Return what of a group's pods only kube-scheduler can judge, which may keep them."""
    levels = view.state.levels
    every = [
        (*each.pod.constraints, *each.pod.own.names(levels)) for each in view.members.live(key)
    ]
    found = tuple(dict.fromkeys(each for one in every for each in one))
    return describe(found) if found else ""


def _too_many(view: View, group: PlacementGroup) -> list[Member]:
    """Return the pods of a group if they are more than its places."""
    members = view.members.live((group.namespace, group.name))
    return members if len(members) > places_by_pod_set(group).total() else []


def _members_to_serve(view: View, seen: SeenGroup) -> list[Member]:
    """Return the pods that may get places: where they are too many, not those of new owners."""
    members = view.members.of((seen.group.namespace, seen.group.name))
    if not seen.owners or not _too_many(view, seen.group):
        return members
    return [
        each
        for each in members
        if view.changes.gate not in each.pod.gates
        or any(one.uid in seen.owners for one in _owners_of(each))
    ]


def _lost_label(view: View, group: PlacementGroup) -> str:
    """Return which of a group's hosts have lost a label: nothing more goes there."""
    topologies = [view.state.topology_of(each) for each in group.pod_sets]
    levels = {level for each in topologies if each is not None for level in each.levels}
    missing = view.failures.missing_label(hosts_of(group), levels)
    return "" if missing is None else f"{missing[0]} has no label {missing[1]} any more"


def _is_theirs(seen: SeenGroup, members: Collection[Member]) -> bool:
    """Whether a group has no owner, or shares one with these pods."""
    owners = {one.uid for each in members for one in _owners_of(each)}
    owners |= {one.uid for each in members for one in each.pod.owners if one.controller}
    return not seen.owners or not owners or bool(seen.owners & owners)


def _owners_of(member: Member) -> list[OwnerReference]:
    """Return the owners of a pod's group: the pod's controller, or the pod itself if alone.

    The PodGroup, if it is that one's.
    """
    pod = member.pod
    if member.membership.owner is not None:
        return [member.membership.owner]
    if member.membership.alone:
        return [OwnerReference(kind="Pod", name=pod.name, uid=pod.uid, api_version="v1")]
    return [each for each in pod.owners if each.controller]


def _priority_of(members: Collection[Member]) -> int:
    """Return a group's priority: the highest of its pods', which their PriorityClasses decide."""
    return max(each.pod.priority for each in members)
