"""The controller of placement groups, without I/O: what was seen in, what is to be written out.

Owns the way of a group: its pods wait behind a gate; once all are there a PlacementGroup is
created; it waits in the queue; its assignment is written to its status; and only when that was
*seen* in the cluster are its gates opened. Every step is derived from what is there, none from what
was done before: after a crash between any two writes the next controller goes on.

What was asked to be written is kept apart until its object is seen at another revision, so that
it is neither asked twice nor promised twice. `failed` says that it did not come to be, `unanswered`
that nobody knows: what it promises stays promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from msgspec.structs import replace

from nri_policy.cluster.attempts import Attempts
from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.failure import Failures
from nri_policy.cluster.gathering import (
    Incomplete,
    Member,
    check_gated,
    check_members,
    gather,
    owner_names,
)
from nri_policy.cluster.group import PlacementGroup, Status, disagreement, hosts_of
from nri_policy.cluster.members import Members
from nri_policy.cluster.membership import Job, Key
from nri_policy.cluster.node import ClusterNode
from nri_policy.cluster.occupancy import Occupancy
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.pod_changes import PodChanges
from nri_policy.cluster.problems import Problems
from nri_policy.cluster.queue import seconds_between
from nri_policy.cluster.seen_groups import SeenGroup, SeenGroups
from nri_policy.cluster.settings import ClusterSettings
from nri_policy.cluster.writes import (
    CreateGroup,
    GroupWrite,
    Notice,
    OpenGate,
    PodWrite,
    Write,
    WriteStatus,
    pod_of,
    with_status,
)
from nri_policy.cluster.zone import NodeZones
from nri_policy.wording import counted


class Controller:
    """Groups, their pods, and what is under way."""

    def __init__(self, settings: ClusterSettings, now: Callable[[], float]) -> None:
        self.engine = Engine(settings)
        self.members = Members()
        self._levels = {level for each in settings.topologies for level in each.levels}
        self._occupancy = Occupancy(self.engine, self.members, self._levels)
        self._gate = settings.groups.gate
        self._changes = PodChanges(self._gate, self._levels, self._occupancy)
        self._now = now
        self._failures = Failures(settings.failure, now)
        self.groups = SeenGroups()
        self.problems = Problems(self.groups)
        self.attempts = Attempts(
            settings,
            now,
            engine=self.engine,
            groups=self.groups,
            members=self.members,
            occupancy=self._occupancy,
            changes=self._changes,
            problems=self.problems,
        )
        self.queue = self.attempts.queue
        self._again: dict[Key, float] = {}  # when to look at a group again without news
        self._latest = ""  # the time of the cluster, as far as it is known
        self._dirty: dict[Key, None] = {}
        self._notices: list[Write] = []

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings; groups that wait are looked at anew."""
        self.engine.configure(settings)
        self.attempts.configure(settings)
        self._gate = self._changes.gate = settings.groups.gate
        self._failures.configure(settings.failure)
        self._levels.clear()  # others read the same set
        self._levels.update(level for each in settings.topologies for level in each.levels)
        self._dirty |= dict.fromkeys([*self.groups.keys(), *self.members.groups()])

    def set_node(self, node: ClusterNode) -> None:
        """Take in that a node came or changed."""
        old = self.engine.nodes.get(node.name)
        if old != node:
            self.engine.set_node(node)
            self.attempts.set_node(node)
            self._look_at_hosts(old, node)

    def remove_node(self, name: str) -> None:
        """Take in that a node went."""
        old = self.engine.nodes.get(name)
        self.engine.remove_node(name)
        self.attempts.remove_node(name)
        self._look_at_hosts(old, None)

    def set_zones(self, zones: NodeZones) -> None:
        """Take in what a node's zones have left."""
        self.engine.set_zones(zones)
        self.attempts.set_zones(zones)

    def remove_zones(self, node: str) -> None:
        """Take in that a node's zones went, or are not to be trusted."""
        self.engine.remove_zones(node)
        self.attempts.remove_zones(node)

    def set_job(self, job: Job) -> None:
        """Take in that a Job came or changed."""
        for pod in self.members.set_job(job):
            self.set_pod(pod)
        group = self.members.group_of_job((job.namespace, job.name))
        if group is not None:
            self._dirty[group] = None

    def remove_job(self, namespace: str, name: str) -> None:
        """Take in that a Job went; its pods go by themselves."""
        self.members.remove_job((namespace, name))

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        key = (pod.namespace, pod.name)
        old = self.members.pod(key)
        self._latest = max(self._latest, pod.created)
        self._changes.see(pod)
        joined = self.members.set_pod(pod)
        for group in (joined.left, joined.group):
            if group is not None:
                self._dirty[group] = None
        ended = pod.finished and (old is None or not old.finished)
        self.attempts.see_pod(pod, joined.group, ends=ended and old is not None)
        if joined.problem and self._gate in pod.gates and self.problems.say(key, joined.problem):
            self._notices.append(Notice(key, "Malformed", joined.problem, pod=True))
        if joined.group is None:
            self.engine.set_pod(pod)
        else:
            self._occupancy.count(joined.group, pod)
        if ended:
            self.queue.changed()

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        key = (namespace, name)
        self._changes.forget(key)
        self.attempts.remove_pod(key)
        self.problems.forget(key)
        group = self.members.remove_pod(key)
        if group is not None:
            self._dirty[group] = None
        self.engine.remove_pod(namespace, name)

    def set_group(
        self, group: PlacementGroup, revision: str, owners: frozenset[str] = frozenset()
    ) -> None:
        """Take in that a PlacementGroup came or changed; *owners* are the uids of its owners.

        A status that does not fit the group itself is not believed.
        """
        key = (group.namespace, group.name)
        lie = disagreement(group)
        if lie:
            self._notices.append(Notice(key, "Malformed", lie))
            group = with_status(group, Status(message=lie))
        old, settled = self.groups.see(key, SeenGroup(group, revision, owners))
        if old is not None and old.group.status.given_back < group.status.given_back:
            self.queue.changed()
        if settled:
            self.engine.set_group(group)
        self._dirty[key] = None

    def remove_group(self, namespace: str, name: str) -> None:
        """Take in that a PlacementGroup went: its pods that wait are a new group."""
        key = (namespace, name)
        self.groups.remove(key)
        self._again.pop(key, None)
        self.queue.remove(key)
        self.engine.remove_group(namespace, name)
        self._occupancy.recount(key, None)
        self.queue.changed()
        self._dirty[key] = None

    def failed(self, write: Write) -> None:
        """Take in that a write did not come to be: it is decided anew."""
        if isinstance(write, PodWrite):
            pod = pod_of(write)
            self._changes.forget((pod.namespace, pod.name))
            self._dirty[pod.namespace, write.group] = None
        elif not isinstance(write, Notice):
            key = (write.group.namespace, write.group.name)
            seen = self.groups.failed(key)
            if seen is not None:
                self.engine.set_group(seen.group)
            self._dirty[key] = None

    def unanswered(self, write: Write) -> None:
        """Take in that nobody knows whether a write came to be: it is asked again.

        It names the revision that it rests on, so that it comes to be once at most.
        """
        if isinstance(write, OpenGate):
            self._changes.unanswered(write)
            self._dirty[write.opening.pod.namespace, write.group] = None
        elif isinstance(write, GroupWrite):
            self.groups.unanswered(write)
        else:
            self.failed(write)

    def settle(self) -> None:
        """Take in that all groups are known as they are: what was asked did not come to be."""
        for write in self.groups.under_way():
            self.failed(write)
        self._changes.settle()

    def step(self) -> list[Write]:
        """Return what is to be written now, in this order."""
        writes, self._notices = self._notices, []
        writes += self.groups.again()
        now = self._now()
        for key in [key for key, at in self._again.items() if at <= now]:
            del self._again[key]
            self._dirty[key] = None
        dirty, self._dirty = self._dirty, {}
        for key in dirty:  # of all, before any of them gets other places
            if self._occupancy.recount(key, self.engine.groups.get(key)):
                self.queue.changed()
        for key in dirty:
            writes += self._asking(self._look_at(key))
        for key in self.queue.due(now):
            writes += self._asking(self.attempts.place(key))
        return writes

    def _asking(self, writes: Iterator[Write]) -> Iterator[Write]:
        """Yield *writes*, each of which is under way from then on."""
        for write in writes:
            if isinstance(write, PodWrite):
                self._changes.ask(write)
            elif not isinstance(write, Notice):
                self.groups.ask(write)
            yield write

    def _look_at(self, key: Key) -> Iterator[Write]:
        """Yield what follows from what is there of a group; or have it wait in the queue."""
        seen = self.groups.get(key)
        members = self.members.live(key)
        if self.groups.is_under_way(key):
            return
        if seen is None:
            if any(self._gate in each.pod.gates for each in members):
                yield from self._create(key, members)
            else:
                self.problems.say(key, "")
            return
        owners = {one.uid for each in members for one in each.pod.owners if one.controller}
        if seen.owners and owners and not seen.owners & owners:
            self.queue.remove(key)
            message = "the PlacementGroup of this name belongs to others than these pods"
            if self.problems.say(key, message):
                yield Notice(key, "OtherOwner", message)
        elif seen.group.status.assignments:
            yield from self._keep(seen, members)
        elif seen.group.status.evicted:
            yield from self._changes.evict(seen.group, members)
            if all(self._gate in each.pod.gates for each in members):  # all others went
                status = replace(seen.group.status, evicted="")
                yield WriteStatus(with_status(seen.group, status), seen.revision)
        else:
            yield from self._wait(seen, members)

    def _create(self, key: Key, members: list[Member]) -> Iterator[Write]:
        try:
            check_gated(members, self._gate)
            group = gather(key, members, self._levels, self.members.spared(key))
        except (Incomplete, DocumentError) as problem:
            reason = "Incomplete" if isinstance(problem, Incomplete) else "Malformed"
            if self.problems.say(key, str(problem)):  # there is no group yet that one could look at
                first = min(each.pod.name for each in members)
                yield Notice((key[0], first), reason, str(problem), pod=True)
            return
        self.problems.say(key, "")
        owners = {
            owner.uid: owner for each in members for owner in each.pod.owners if owner.controller
        }
        yield CreateGroup(group, (*owners.values(),))

    def _wait(self, seen: SeenGroup, members: list[Member]) -> Iterator[Write]:
        """Have a group without places wait in the queue, if all of its pods are there."""
        group = seen.group
        key = (group.namespace, group.name)
        try:
            check_members(group, members, self._levels, self.members.spared(key))
            check_gated(members, self._gate)
        except (Incomplete, DocumentError) as problem:
            self.queue.remove(key)
            if members or group.status.state != "Unplaceable":  # else it says why they had to go
                yield from self.problems.tell(seen, "Waiting", str(problem))
        else:
            if key not in self.queue:
                created = max((each.pod.created for each in members), default="")
                since = self._now() - seconds_between(created, self._latest)
                self.queue.put(key, group.priority, since, created)

    def _keep(self, seen: SeenGroup, members: list[Member]) -> Iterator[Write]:
        """Yield what follows for a group that has its places."""
        group = seen.group
        key = (group.namespace, group.name)
        status = self._occupancy.give_back(key, group)
        if status != group.status and not self._changes.under_way(key):
            yield WriteStatus(with_status(group, status), seen.revision)
            return
        if not members:  # nobody needs the places now
            self._again.pop(key, None)
            self.queue.remove(key)
            return
        unhealthy = self._unhealthy(group)
        yield from self._changes.fail_lost(group, members, unhealthy)
        if unhealthy and (key not in self.queue or unhealthy != group.status.unhealthy_nodes):
            yield from self.attempts.replace(seen, unhealthy)
        elif not unhealthy:
            self.queue.remove(key)
            yield from self._run(seen)
        if self.engine.groups[key] is group:  # else it has other places soon
            yield from self._changes.open(group, self._first_served(seen), unhealthy)

    def _unhealthy(self, group: PlacementGroup) -> list[str]:
        """Return the hosts of a group that failed, but for those that it no longer needs."""
        key = (group.namespace, group.name)
        self._again.pop(key, None)
        hosts, busy = self._occupancy.hosts(key, group)
        tolerations = [
            (*each.template.spec.tolerations, *(topology.tolerations if topology else ()))
            for each in group.pod_sets
            for topology in [self.engine.topology_of(each)]
        ]
        known = group.status.unhealthy_nodes
        unhealthy, again = self._failures.failed(hosts, tolerations, busy, known)
        if again < inf:
            self._again[key] = again
        return unhealthy

    def _run(self, seen: SeenGroup) -> Iterator[Write]:
        """Yield the state of a group on healthy hosts: whether all of its pods run, or did."""
        group = seen.group
        key = (group.namespace, group.name)
        phases = self._occupancy.phases(key)
        running = phases["Running"] + max(phases["Succeeded"], group.status.given_back)
        state = "Running" if running >= sum(each.count for each in group.pod_sets) else "Placed"
        message = self._unlabelled(group)
        if many := self._too_many(group):
            of = ", ".join(owner_names(many))
            message = (
                f"it has {counted(len(many), 'pod')}, more than places: those of {of or key[1]}"
            )
        status = replace(group.status, state=state, message=message, unhealthy_nodes=[])
        if status != group.status:
            yield WriteStatus(with_status(group, status), seen.revision)
            if group.status.unhealthy_nodes:
                yield Notice(key, "Healthy", "")

    def _too_many(self, group: PlacementGroup) -> list[Member]:
        """Return the pods of a group if they are more than its places."""
        members = self.members.live((group.namespace, group.name))
        places = sum(place.count for each in group.status.assignments for place in each.domains)
        return members if len(members) > places else []

    def _first_served(self, seen: SeenGroup) -> list[Member]:
        """Return the pods that may get places: where they are too many, not those of new owners."""
        members = self.members.of((seen.group.namespace, seen.group.name))
        if not seen.owners or not self._too_many(seen.group):
            return members
        return [
            each
            for each in members
            if self._gate not in each.pod.gates
            or any(one.uid in seen.owners for one in each.pod.owners)
        ]

    def _unlabelled(self, group: PlacementGroup) -> str:
        """Return which of a group's hosts have lost a label: nothing more goes there."""
        topologies = [self.engine.topology_of(each) for each in group.pod_sets]
        levels = {level for each in topologies if each is not None for level in each.levels}
        missing = self._failures.missing_label(hosts_of(group), levels)
        return "" if missing is None else f"{missing[0]} has no label {missing[1]} any more"

    def _look_at_hosts(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Look at the groups that have places on hosts whose health has changed."""
        for host in self._failures.set_node(old, new):
            for key in self.groups.on_host(host):
                self._dirty[key] = None
