"""The controller of placement groups, without I/O: what was seen in, what is to be written out.

Owns the way of a group: its pods wait behind a gate; once all are there a PlacementGroup is
created; it waits in the queue; its assignment is written to its status; and only when that was
*seen* in the cluster are its gates opened. Every step is derived from what is there, none from what
was done before: after a crash between any two writes the next controller goes on.

What was asked to be written and is not seen yet is kept apart, so that it is neither asked twice
nor promised twice; `failed` says that it did not come to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.gates import openings
from nri_policy.cluster.gathering import Incomplete, Member, check_members, gather, pod_set_names
from nri_policy.cluster.group import GROUP_LABEL, PlacementGroup, Status
from nri_policy.cluster.membership import Job, Key, membership, owning_job
from nri_policy.cluster.node import Node
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.queue import Queue
from nri_policy.cluster.settings import Settings
from nri_policy.cluster.writes import (
    CreateGroup,
    Notice,
    OpenGate,
    Write,
    WriteStatus,
    with_status,
)
from nri_policy.cluster.zone import NodeZones
from nri_policy.units import parse_duration


class _Seen(Struct, frozen=True):
    """A PlacementGroup as it was seen."""

    group: PlacementGroup
    revision: str


class Controller:
    """Groups, their pods, and what is under way."""

    def __init__(self, settings: Settings, now: Callable[[], float]) -> None:
        self.engine = Engine(settings)
        self.queue: Queue[Key] = Queue(parse_duration(settings.groups.timeout))
        self.problems: dict[Key, str] = {}  # what a group lacks, or what is wrong with it
        self._gate = settings.groups.gate
        self._levels = {level for each in settings.topologies for level in each.levels}
        self._now = now
        self._empty = Engine(settings)  # the same nodes, with nothing on them
        self._jobs: dict[Key, Job] = {}
        self._pods: dict[Key, Pod] = {}
        self._group_of: dict[Key, Key] = {}  # by pod
        self._members: dict[Key, dict[Key, Member]] = {}
        self._seen: dict[Key, _Seen] = {}
        self._asked: dict[Key, Write] = {}  # groups that are to be created or get a status
        self._opened: set[Key] = set()  # pods whose gates are to be opened
        self._dirty: dict[Key, None] = {}
        self._notices: list[Write] = []

    def set_node(self, node: Node) -> None:
        """Take in that a node came or changed."""
        if self.engine.nodes.get(node.name) != node:
            self.engine.set_node(node)
            self._empty.set_node(node)
            self.queue.changed()

    def remove_node(self, name: str) -> None:
        """Take in that a node went."""
        self.engine.remove_node(name)
        self._empty.remove_node(name)

    def set_zones(self, zones: NodeZones) -> None:
        """Take in what a node's zones have left."""
        self.engine.set_zones(zones)
        every = tuple(replace(each, free=each.total) for each in zones.zones)
        self._empty.set_zones(replace(zones, zones=every))
        self.queue.changed()

    def remove_zones(self, node: str) -> None:
        """Take in that a node's zones went, or are not to be trusted."""
        self.engine.remove_zones(node)
        self._empty.remove_zones(node)

    def pods(self) -> Collection[Key]:
        """Return the pods that are known."""
        return self._pods.keys()

    def jobs(self) -> Collection[Key]:
        """Return the Jobs that are known."""
        return self._jobs.keys()

    def groups(self) -> Collection[Key]:
        """Return the PlacementGroups that are known."""
        return self._seen.keys()

    def set_job(self, job: Job) -> None:
        """Take in that a Job came or changed."""
        key = (job.namespace, job.name)
        if self._jobs.get(key) != job:
            self._jobs[key] = job
            for pod in [*self._pods.values()]:
                if (pod.namespace, owning_job(pod)) == key:
                    self.set_pod(pod)

    def remove_job(self, namespace: str, name: str) -> None:
        """Take in that a Job went; its pods go by themselves."""
        self._jobs.pop((namespace, name), None)

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        key = (pod.namespace, pod.name)
        old = self._pods.get(key)
        self._leave(key)
        self._pods[key] = pod
        if self._gate not in pod.gates:
            self._opened.discard(key)
        group = self._join(key, pod)
        if group is not None:
            pod = replace(pod, annotations={**pod.annotations, GROUP_LABEL: group[1]})
        self.engine.set_pod(pod)
        if pod.finished and (old is None or not old.finished):
            self.queue.changed()

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        key = (namespace, name)
        self._leave(key)
        self._opened.discard(key)
        self.engine.remove_pod(namespace, name)
        if self._pods.pop(key, None) is not None:
            self.queue.changed()

    def set_group(self, group: PlacementGroup, revision: str) -> None:
        """Take in that a PlacementGroup came or changed."""
        key = (group.namespace, group.name)
        self._seen[key] = _Seen(group, revision)
        asked = self._asked.get(key)
        if not isinstance(asked, WriteStatus) or asked.revision != revision:
            self._asked.pop(key, None)
            self.engine.set_group(group)
        self._dirty[key] = None

    def remove_group(self, namespace: str, name: str) -> None:
        """Take in that a PlacementGroup went: its pods that wait are a new group."""
        key = (namespace, name)
        self._seen.pop(key, None)
        self._asked.pop(key, None)
        self.queue.remove(key)
        self.engine.remove_group(namespace, name)
        self.queue.changed()
        self._dirty[key] = None

    def failed(self, write: Write) -> None:
        """Take in that a write did not come to be: it is decided anew."""
        if isinstance(write, OpenGate):
            pod = write.opening.pod
            self._opened.discard((pod.namespace, pod.name))
            self._dirty[pod.namespace, write.group] = None
        elif not isinstance(write, Notice):
            key = (write.group.namespace, write.group.name)
            self._asked.pop(key, None)
            seen = self._seen.get(key)
            if seen is not None:
                self.engine.set_group(seen.group)
            self._dirty[key] = None

    def step(self) -> list[Write]:
        """Return what is to be written now, in this order."""
        writes, self._notices = self._notices, []
        dirty, self._dirty = self._dirty, {}
        for key in dirty:
            writes += self._look_at(key)
        for key in self.queue.due(self._now()):
            writes += self._place(key)
        for write in writes:
            if isinstance(write, OpenGate):
                self._opened.add((write.opening.pod.namespace, write.opening.pod.name))
            elif not isinstance(write, Notice):
                self._asked[write.group.namespace, write.group.name] = write
        return writes

    def _look_at(self, key: Key) -> Iterator[Write]:
        """Yield what follows from what is there of a group; or have it wait in the queue."""
        seen = self._seen.get(key)
        members = self._live(key)
        if key in self._asked:
            return
        if seen is None:
            if any(self._gate in each.pod.gates for each in members):
                yield from self._create(key, members)
            else:
                self._say(key, "")
            return
        group = seen.group
        if group.status.assignments:
            self.queue.remove(key)
            yield from self._open(key, group)
            yield from self._run(seen, members)
            return
        try:
            check_members(group, members, self._levels)
        except (Incomplete, DocumentError) as problem:
            self.queue.remove(key)
            yield from self._tell(seen, "Waiting", str(problem))
        else:
            if key not in self.queue:
                self.queue.put(key, group.priority, self._now())

    def _create(self, key: Key, members: list[Member]) -> Iterator[Write]:
        try:
            group = gather(key, members, self._levels)
        except (Incomplete, DocumentError) as problem:
            reason = "Incomplete" if isinstance(problem, Incomplete) else "Malformed"
            if self._say(key, str(problem)):
                yield Notice(key, reason, str(problem))
            return
        self._say(key, "")
        owners = {
            owner.uid: owner for each in members for owner in each.pod.owners if owner.controller
        }
        yield CreateGroup(group, (*owners.values(),))

    def _place(self, key: Key) -> Iterator[Write]:
        """Try to place a group of the queue."""
        seen = self._seen[key]
        try:
            asked = with_status(seen.group, Status())
            status = self.engine.place(asked)
            hopeless = not status.assignments and not self._empty.place(asked).assignments
        except DocumentError as error:
            status, hopeless = Status(state="Unplaceable", message=str(error)), True
        if status.assignments:
            self.queue.remove(key)
            placed = with_status(seen.group, status)
            self.engine.set_group(placed)  # promised from now on
            yield WriteStatus(placed, seen.revision)
            yield Notice(key, "Placed", "")
        else:
            self.queue.refused(key, hopeless=hopeless)
            yield from self._tell(seen, "Unplaceable" if hopeless else "Waiting", status.message)

    def _open(self, key: Key, group: PlacementGroup) -> Iterator[Write]:
        """Yield the pods that may go; one that is about to end has its place until it has ended."""
        members = [
            each
            for each in self._members.get(key, {}).values()
            if not each.pod.finished and not (each.pod.deleted and each.pod.gates)
        ]
        names = pod_set_names(members, self._levels, group.pod_sets)
        for assignment in group.status.assignments:
            own = [
                each
                for each, name in zip(members, names, strict=True)
                if name == assignment.pod_set
            ]
            for opening in openings(assignment, own, self._gate, self.engine.nodes):
                if (key[0], opening.pod.name) not in self._opened:
                    yield OpenGate(opening, key[1], self._gate)

    def _run(self, seen: _Seen, members: list[Member]) -> Iterator[Write]:
        """Yield the state of a group that has its places: whether all of its pods run."""
        group = seen.group
        running = sum(each.pod.phase == "Running" for each in members)
        state = "Running" if running >= sum(each.count for each in group.pod_sets) else "Placed"
        if group.status.state in ("Placed", "Running") and group.status.state != state:
            changed = with_status(group, replace(group.status, state=state))
            yield WriteStatus(changed, seen.revision)

    def _tell(self, seen: _Seen, state: str, message: str) -> Iterator[Write]:
        """Yield the status that says why a group waits, and an Event, unless they are said."""
        group = seen.group
        key = (group.namespace, group.name)
        said = (group.status.state, group.status.message) == (state, message)
        if not said and key not in self._asked:
            status = replace(group.status, state=state, message=message)
            yield WriteStatus(with_status(group, status), seen.revision)
        if self._say(key, message):
            yield Notice(key, state, message)

    def _say(self, key: Key, problem: str) -> bool:
        """Note what a group lacks; return whether that is news."""
        if not problem:
            self.problems.pop(key, None)
            return False
        news = self.problems.get(key) != problem
        self.problems[key] = problem
        return news

    def _live(self, key: Key) -> list[Member]:
        members = self._members.get(key, {}).values()
        return [each for each in members if not (each.pod.finished or each.pod.deleted)]

    def _join(self, key: Key, pod: Pod) -> Key | None:
        """Make a pod a member of its group; None where it has none."""
        name = owning_job(pod)
        job = self._jobs.get((pod.namespace, name)) if name is not None else None
        if name is not None and job is None:
            return None  # it comes again with its Job
        try:
            member = Member(pod, membership(pod, job))
        except DocumentError as error:
            if self._gate in pod.gates and self._say(key, str(error)):
                self._notices.append(Notice(key, "Malformed", str(error)))
            return None
        group = member.membership.group
        self._group_of[key] = group
        self._members.setdefault(group, {})[key] = member
        self._dirty[group] = None
        return group

    def _leave(self, key: Key) -> None:
        group = self._group_of.pop(key, None)
        if group is not None:
            del self._members[group][key]
            if not self._members[group]:
                del self._members[group]
            self._dirty[group] = None
