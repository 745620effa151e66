"""The controller of placement groups, without I/O: objects as they are seen in, writes out.

The steps of a group:

1. Its pods wait behind a gate. Once all are there, a PlacementGroup is created.
2. The group waits in the queue until it has places, which are written to its status.
3. When that status has been *seen* in the cluster, and not before, the gates are opened.

Every step follows from the objects that are there, none from what was done before. So after a crash
between any two writes the next controller goes on.

A write is pending until the watch shows another revision of its object. Until then it is not sent
again, and its promised places stay reserved (`pending_writes`).

An error of one group, a refused write or a bug of ours, is reported in that group, which is tried
again later. The others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.failed_hosts import FailedHosts
from nri_policy.cluster.groups.group_placer import GroupPlacer
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.outcome import PodMove, Reconciled, Replacement, View
from nri_policy.cluster.groups.pending_writes import PendingWrites
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.pod_writes import PendingPodWrites
from nri_policy.cluster.groups.reconcile import reconcile
from nri_policy.cluster.groups.record import INTERNAL_ERROR, NO_FAILURE, Group, SeenGroup
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.ungating import CrowdedPlace
from nri_policy.cluster.groups.writes import (
    GroupWrite,
    Notice,
    OpenGate,
    Write,
    WriteStatus,
    group_of,
)
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.zone_limits import ZoneLimits
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import (
    Condition,
    GroupStatus,
    PlacementGroup,
    PodSet,
    find_disagreement,
)
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.workloads.kueue import GROUP_PREFIX
from nri_policy.cluster.workloads.membership import Job, JobSet, PodGroup
from nri_policy.cluster.workloads.replica_kinds import ReplicaOwner
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.clock import Clock

log = logging.getLogger(__name__)

# pods that are looked at in a step, but for those of one group: some 20 ms of CPU time
SLICE = 2000


class Controller:
    """Groups, their pods, and what is under way."""

    def __init__(
        self,
        settings: ClusterSettings,
        view: ClusterView,
        clock: Clock,
        zones: LiveZones,
        *,
        is_contested: Callable[[Key], bool] = lambda _key: False,
    ) -> None:
        """Place groups on the nodes of *view*, and in their *zones*.

        Gates stay closed while the places of a group *are contested* by pods on their way.
        """
        self.engine = Engine(settings, view, partial(ZoneLimits, lambda: zones))
        self.groups = GroupTable()
        self.members = Members(clock)
        self._placed_pods = PlacedPods(self.engine.state, self.members)
        self._pod_writes = PendingPodWrites(
            self.engine.state, self.members, self._placed_pods, clock
        )
        self._clock = clock
        self._pending = PendingWrites(
            self.engine.state, self.groups, self.members, self._placed_pods, clock
        )
        self._failed_hosts = FailedHosts(self.engine.state, clock)
        self.errors = 0  # of ours, each of which stopped some of the work
        self.placer = GroupPlacer(
            clock,
            engine=self.engine,
            zones=zones,
            groups=self.groups,
            members=self.members,
            placed_pods=self._placed_pods,
            pod_writes=self._pod_writes,
        )
        self.queue = self.placer.queue
        self._view = View(
            clock=clock,
            state=self.engine.state,
            members=self.members,
            groups=self.groups,
            placed_pods=self._placed_pods,
            pod_writes=self._pod_writes,
            failed_hosts=self._failed_hosts,
            placer=self.placer,
            is_contested=is_contested,
        )
        self._dirty: dict[Key, None] = {}  # groups whose pods changed
        self._counted: dict[Key, None] = {}  # groups to reconcile once all are counted
        self._lost: dict[Key, Reconciled] = {}  # groups that lost places with a host
        self._notices: list[Write] = []

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings; groups that wait are looked at anew."""
        self.engine.state.configure(settings)
        self.placer.waiting.see_cluster()
        self._dirty |= dict.fromkeys([*self.groups.known(), *self.members.groups()])

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Update a node; look at the groups with places there, or with pods that lost theirs."""
        self.engine.state.change_node(old, new)
        self.placer.waiting.see_cluster()
        for host in self._failed_hosts.change_node(old, new):
            for key in (*self.groups.on_host(host), *self.members.elsewhere):
                self._dirty[key] = None

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Take in what a node's zones have left, or that its report went."""
        self.engine.state.change_zones(node, old, new)
        self.placer.waiting.see_cluster()

    def set_job(self, job: Job) -> None:
        """Update a Job."""
        for pod in self.members.set_job(job):
            self.set_pod(pod)
        group = self.members.group_of_job(job.key)
        if group is not None:
            self._dirty[group] = None
        self._dirty |= dict.fromkeys(self.groups.owned_by(job.uid))

    def remove_job(self, namespace: str, name: str) -> None:
        """Remove a Job; each pod reports its own removal."""
        job = self.members.remove_job((namespace, name))
        if job is not None:
            self._dirty |= dict.fromkeys(self.groups.owned_by(job.uid))

    def set_job_set(self, job_set: JobSet) -> None:
        """Update a JobSet."""
        self.engine.state.usages.plan(job_set.key, job_set.together)
        for pod in self.members.set_job_set(job_set):
            self.set_pod(pod)

    def remove_job_set(self, key: Key) -> None:
        """Remove a JobSet; each pod reports its own removal."""
        self.engine.state.usages.plan(key, ())
        self.members.remove_job_set(key)

    def set_pod_group(self, group: PodGroup) -> None:
        """Update a PodGroup of Kubernetes."""
        for pod in self.members.set_pod_group(group):
            self.set_pod(pod)

    def remove_pod_group(self, namespace: str, name: str) -> None:
        """Remove a PodGroup of Kubernetes; each pod reports its own removal."""
        self.members.remove_pod_group((namespace, name))

    def set_owner(self, owner: ReplicaOwner) -> None:
        """Update an object of a followed kind."""
        for pod in self.members.set_owner(owner):
            self.set_pod(pod)

    def set_leader_workers(self, key: Key, workers: PodSet | None) -> None:
        """Store the *workers* that a LeaderWorkerSet creates after their leader, if any."""
        for pod in self.members.set_led(key, workers):
            self.set_pod(pod)

    def set_unreadable(self, kind: str, why: str) -> None:
        """Note why objects of a kind that makes pods may not be read; empty: they may be."""
        for pod in self.members.set_unreadable(kind, why):
            self.set_pod(pod)
        self._dirty |= dict.fromkeys([*self.groups.known(), *self.members.groups()])

    def set_pod(self, pod: Pod) -> None:
        """Update a pod."""
        key = pod.key
        old = self.members.pod(key)
        joined = self.members.set_pod(pod)
        for group in (joined.left, joined.group):
            if group is not None:
                self._dirty[group] = None
        ended = pod.finished and (old is None or not old.finished)
        self.placer.see_pod(pod, joined.group, ends=ended and old is not None)
        if (
            joined.problem
            and self._pod_writes.gate in pod.gates
            and self.members.say(key, joined.problem)
        ):
            reason = "Incomplete" if joined.waits else "Malformed"
            self._notices.append(Notice(key, reason, joined.problem, pod=True))
        self._placed_pods.count(joined.group, pod)
        if ended:
            self.queue.note_change()

    def remove_pod(self, namespace: str, name: str) -> None:
        """Remove a pod."""
        key = (namespace, name)
        pod, group = self.members.pod(key), self.members.remove_pod(key)
        self.placer.remove_pod(pod, group)
        if group is not None:
            self._dirty[group] = None
        self.engine.state.remove_pod(namespace, name)

    def set_group(
        self, group: PlacementGroup, revision: str, owners: frozenset[str] = frozenset()
    ) -> None:
        """Update a PlacementGroup; *owners* are the uids of its owners.

        A status that does not fit the group itself is not believed.
        """
        key = group.key
        lie = find_disagreement(group)
        if lie:
            self._notices.append(Notice(key, "Malformed", lie))
            group = replace(group, status=GroupStatus(message=lie))
        record = self.groups[key]
        old, pending = record.seen, record.write
        seen = SeenGroup(group, revision, owners)
        changed: dict[str, Any] = {"seen": seen}
        settled = not (isinstance(pending, WriteStatus) and pending.revision == revision)
        if settled and pending is not None:
            changed |= {"write": None, "unanswered": False, "back_off": NO_FAILURE}
        if old is not None and old.has_failed and not seen.has_failed:
            changed["error"] = NO_FAILURE
        self.groups.update(key, **changed)
        self.queue.prioritize(key, group.priority)
        if old is not None and old.lacks_other_pods(group):
            self.queue.note_edit(key)
        if old is not None and old.makes_way(group):
            self.placer.waiting.see_step(group)
            self.queue.note_change()
        if settled:
            self.engine.state.set_group(group)
            self.placer.restore(group)
        self._dirty[key] = None

    def remove_group(self, namespace: str, name: str) -> None:
        """Remove a PlacementGroup; its gated pods form a new group."""
        key = (namespace, name)
        if (seen := self.groups[key].seen) is not None:
            self.placer.waiting.see_step(seen.group)
        self.groups.put(key, Group(problem=self.groups[key].problem))
        self.queue.remove(key)
        self.engine.state.remove_group(namespace, name)
        self._placed_pods.recount(key, None)
        self.queue.note_change()
        self._dirty[key] = None

    def set_assigned(self, group: PlacementGroup) -> None:
        """Take in where Kueue has assigned the pods of a Workload: its places are reserved.

        Kueue's pods count at their assigned nodes.
        """
        key = group.key
        if group.status.assignments:
            self.engine.state.set_group(group)
        elif key in self.engine.state.groups:
            self.engine.state.remove_group(*key)
            self.queue.note_change()

    def remove_assigned(self, workload: Key) -> None:
        """Remove a Workload of Kueue."""
        self.engine.state.remove_group(workload[0], GROUP_PREFIX + workload[1])
        self.queue.note_change()

    def note_failure(self, write: Write, reason: str = "", wait: float = 0.0) -> None:
        """Drop a write that failed; the group is decided again.

        After a pause of *wait* seconds at least, if there is a *reason*: it is said of the object.
        """
        if not isinstance(write, Notice):
            self._notices += self._pending.drop(write, reason, wait)
            self._dirty[group_of(write)] = None

    def note_no_answer(self, write: Write, wait: float = 0.0) -> None:
        """Repeat a write without an answer, after a pause.

        Its revision makes the API server accept it once at most.
        """
        if isinstance(write, OpenGate | GroupWrite):
            self._pending.await_answer(write, wait)
        else:
            self.note_failure(write, "no answer", wait)

    def uid_of(self, notice: Notice) -> str:
        """Return the uid of what a notice is about; nothing if that is not there."""
        if notice.pod:
            pod = self.members.pod(notice.about)
            return pod.uid if pod else ""
        seen = self.groups[notice.about].seen
        return seen.group.uid if seen else ""

    def settle(self) -> None:
        """Drop pending writes of groups: the list of PlacementGroups is complete without them."""
        for key in [*self.groups.pending]:
            if (write := self.groups[key].write) is not None:
                self.note_failure(write)
        for group in [*self.members.unanswered.values()]:
            for key in [*group]:
                self.members.update(key, write=None, unanswered=False)

    @property
    def busy(self) -> bool:
        """Whether there is more to do at once: a step looks at a slice of the groups."""
        return bool(self._dirty or self._counted)

    def step(self) -> list[Write]:
        """Return the next writes, in order; while `busy`, more follow.

        Groups wait for their turn until all have been looked at that changed.
        """
        self.placer.begin_step()
        writes, self._notices = self._notices, []
        now = self._clock.now()
        writes += self._pending.repeat()
        for key in [key for key in self.groups.delayed if self.groups[key].look_at <= now]:
            self.groups.update(key, look_at=inf)
            self._dirty[key] = None
        for key in self._slice(self._dirty):
            writes += self._guard(key, self._recount(key))
            self._counted[key] = None
        if not self._dirty:  # count all groups before any gets other places
            writes += self._reconcile_counted()
        if self.busy:
            return writes
        self._set_aside()
        self.placer.waiting.begin_round()
        for key in self.placer.waiting.worth_trying(self.queue.due()):
            writes += self._guard(key, self.placer.place(key))
        return writes

    def _reconcile_counted(self) -> Iterator[Write]:
        """Yield the writes for a slice of the groups.

        What groups have lost is placed anew once it is known what all of them have lost.
        """
        for key in self._slice(self._counted):
            pause = self.groups[key].error.until
            if pause <= self._clock.now():
                yield from self._guard(key, self._reconcile(key))
            else:
                self.groups.look_again(key, pause)
        lost, self._lost = self._lost, {}
        for key, found in lost.items():
            yield from self._guard(key, self._replace(key, found))

    def _slice(self, keys: dict[Key, None]) -> list[Key]:
        """Take out so many groups that they have a slice of pods, one group at least."""
        pods, taken = 0, []
        for key in keys:
            taken.append(key)
            pods += 1 + self.members.number(key)
            if pods >= SLICE:
                break
        for key in taken:
            del keys[key]
        return taken

    def _set_aside(self) -> None:
        """See anew which hosts are set aside; after an error of ours they are those of before."""
        try:
            self.placer.hold()
        except Exception:
            log.exception("hosts-not-set-aside")
            self.errors += 1

    def _recount(self, key: Key) -> Iterator[Write]:
        """Recompute which pods occupy the places of a group; this needs no write."""
        if self._placed_pods.recount(key, self.engine.state.groups.get(key)):
            self.queue.note_change()
        yield from ()

    def _reconcile(self, key: Key) -> Iterator[Write]:
        """Apply what `reconcile` finds for a group; yield the writes."""
        found = reconcile(key, self._view)
        if found.record is not self.groups[key]:
            self.groups.put(key, found.record)
        for pod, problem in found.problems.items():
            self.members.update(pod, problem=problem)
        yield from found.writes
        has_other_places = False
        if isinstance(found.attempt, Replacement):
            self.placer.note_lost(self.groups.object(key), found.attempt.hosts)
            self._lost[key] = found
            return
        if isinstance(found.attempt, PodMove):
            pods, condition = found.attempt.pods, found.attempt.condition
            seen = self.groups.object(key)
            has_other_places = yield from self.placer.move(seen, pods, condition)
        elif isinstance(found.attempt, CrowdedPlace):
            seen = self.groups.object(key)
            has_other_places = yield from self.placer.move_place(seen, found.attempt)
        if not has_other_places:
            yield from found.otherwise

    def _replace(self, key: Key, found: Reconciled) -> Iterator[Write]:
        """Try to place anew what a group has lost; yield the writes."""
        assert isinstance(found.attempt, Replacement)
        seen = self.groups.object(key)
        if not (yield from self.placer.replace(seen, found.attempt.hosts)):
            yield from found.otherwise

    def _guard(self, key: Key, writes: Iterator[Write]) -> Iterator[Write]:
        """Yield the writes for a group; an internal error stops only this group."""
        try:
            yield from self._pending.send(writes)
        except Exception as error:
            log.exception("group-failed", extra={"group": "/".join(key)})
            self.errors += 1
            try:
                yield from self._pending.send(self._mark(key, error))
            except Exception:
                # the same error again: it is left alone, without a word in its status
                log.exception("group-not-marked", extra={"group": "/".join(key)})
                self.errors += 1
                self._back_off(key)

    def _mark(self, key: Key, error: Exception) -> Iterator[Write]:
        """Report an internal error in the group's status, and retry the group later."""
        name, text = type(error).__name__, f"internal error: {type(error).__name__}: {error}"
        self.queue.remove(key)
        record = self.groups[key]
        seen = record.seen
        if seen is not None and not record.is_busy(self._clock.now()):
            self.engine.state.set_group(seen.group)  # undo the unwritten promise
            condition = Condition(type=INTERNAL_ERROR, reason=name, message=str(error))
            status = replace(seen.group.status, message=text, conditions=[condition])
            if status != seen.group.status:
                yield seen.write(status)
        self._back_off(key, text)
        if record.error.text != text:
            yield self._pending.notice(key, "InternalError", text)

    def _back_off(self, key: Key, text: str = "") -> None:
        """Leave a group alone for a while after an error of ours."""
        error = self.groups[key].error.after_failure(self._clock.now(), text)
        self.groups.update(key, error=error)
        self.groups.look_again(key, error.until)
