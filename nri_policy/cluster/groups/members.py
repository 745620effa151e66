"""The pods of each group, and the Jobs that own them, or the PodGroups that they name.

A pod of a Job, a PodGroup, or an owner of a followed kind is in no group until that object is
known. Nor is a pod with labels that make no sense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.groups.assembly import Incomplete, Member
from nri_policy.cluster.groups.makers import Makers
from nri_policy.cluster.groups.place_claims import count_claims, count_spared
from nri_policy.cluster.groups.record import IDLE, NO_FAILURE, PodRecord, PodState
from nri_policy.cluster.groups.unbound_pods import is_unbound
from nri_policy.cluster.groups.writes import OpenGate, pod_of
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import PlacementGroup, PodSet, named_group
from nri_policy.cluster.workloads.membership import (
    JOBSET,
    LWS,
    Job,
    JobSet,
    Made,
    PodGroup,
    find_owning_job,
    object_name,
    read_membership,
)
from nri_policy.cluster.workloads.replica_kinds import FOLLOWED, ReplicaOwner, find_followed_owner
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.wording import quoted

Of = TypeVar("Of")
OwnerKey = tuple[str, str, str]  # kind, namespace and name
_PLURALS = {kind: plural for (_, kind), plural in FOLLOWED.items()}
_LEADER_WORKER_SETS, _POD_GROUPS = "leaderworkersets", "podgroups"


class Joined(Struct, frozen=True, gc=False):
    """A new or changed pod: its group, and the group that it left; or what is wrong with it."""

    pod: Pod
    group: Key | None
    left: Key | None = None
    problem: str = ""
    waits: bool = False  # that is wrong with what made it, not with the pod


class Members:
    """Pods, and indexes of them; only `_put` replaces a record, and only it changes these."""

    def __init__(self, clock: Clock) -> None:
        # pods by group
        self.opening: dict[Key, dict[Key, None]] = {}  # about to be let go
        self.unanswered: dict[Key, dict[Key, None]] = {}  # their write is repeated
        self.elsewhere: dict[Key, dict[Key, None]] = {}  # bound where their group has no place
        self.leaving: dict[Key, dict[Key, None]] = {}  # bound, and about to end
        self._strays: dict[Key, dict[Key, None]] = {}  # whose owner or PodGroup is not known
        self.latest = ""  # when the last pod was created: the time of the cluster, at least
        self._clock = clock
        self._jobs: Makers[Key, Job] = Makers()
        self._jobs_by_uid: dict[str, Key] = {}
        self._exclusive_jobs: dict[Key, set[str]] = {}  # that are groups, by JobSet
        self._job_sets: Makers[Key, JobSet] = Makers()
        self._pods: dict[Key, PodRecord] = {}
        self._by_group: dict[Key, dict[Key, Member]] = {}
        self._owners: Makers[OwnerKey, ReplicaOwner] = Makers()
        self._led: dict[Key, PodSet] = {}  # workers created after their leader, by LeaderWorkerSet
        self._pod_groups: Makers[Key, PodGroup] = Makers()
        self._unreadable: dict[str, str] = {}  # kinds of what makes pods, and why

    def pods(self) -> Collection[Key]:
        """Return the pods that are known."""
        return self._pods.keys()

    def jobs(self) -> Collection[Key]:
        """Return the Jobs that are known."""
        return self._jobs.objects.keys()

    def groups(self) -> Collection[Key]:
        """Return the groups that have pods."""
        return self._by_group.keys()

    def job(self, key: Key) -> Job | None:
        """Return a Job, None where it is not known."""
        return self._jobs.objects.get(key)

    def pod(self, key: Key) -> Pod | None:
        """Return a pod, None where it is not known."""
        found = self._pods.get(key)
        return None if found is None else found.pod

    def state(self, key: Key) -> PodState:
        """Return what is under way for a pod, or wrong with it; nothing where it is not known."""
        found = self._pods.get(key)
        return IDLE if found is None else found.state

    def records(self, members: Sequence[Member]) -> Iterator[PodRecord]:
        """Yield the records of pods of a group."""
        return (self._pods[each.pod.key] for each in members)

    def of(self, group: Key) -> list[Member]:
        """Return all pods of a group, those that ended included."""
        return [*self._by_group.get(group, {}).values()]

    def as_asked(self, pod: Pod) -> Pod:
        """Return a pod as it is once its gate is open, if that is under way."""
        write = self.state(pod.key).write
        return write.opening.opened(write.gate) if isinstance(write, OpenGate) else pod

    def number(self, group: Key) -> int:
        """Return how many pods a group has, those that ended included."""
        return len(self._by_group.get(group, ()))

    def live(self, group: Key) -> list[Member]:
        """Return the pods of a group that are neither finished nor being deleted."""
        return [each for each in self.of(group) if not (each.pod.finished or each.pod.deleted)]

    def count_spared(self, group: Key) -> int:
        """Return how many pods of a group are not created again; see `place_claims`."""
        return count_spared(self.of(group), self.job)

    def is_ending(self, group: Key) -> bool:
        """Whether the pods of a group are ending: all owners are Jobs without new pods."""
        names = {find_owning_job(each.pod) for each in self.of(group)}
        jobs = [self.job((group[0], name or "")) for name in names]
        return (
            bool(names)
            and None not in names
            and not any(job is not None and job.active for job in jobs)
        )

    def count_claims(
        self, group: PlacementGroup, names: Sequence[str], owners: Collection[str]
    ) -> Counter[str]:
        """Return how many places of each pod set may be claimed, by pods and their owners.

        *names* are the pod sets of all of its pods, *owners* the uids of the group's owners.
        """
        members = self.of(group.key)
        jobs = {(each.pod.namespace, find_owning_job(each.pod) or "") for each in members}
        jobs |= {self._jobs_by_uid[uid] for uid in owners if uid in self._jobs_by_uid}
        known = [job for each in sorted(jobs) if (job := self.job(each)) is not None]
        owner = next((key for each in members if (key := find_followed_owner(each.pod))), None)
        known_owner = None if owner is None else self._owners.objects.get(owner)
        wanted = None if known_owner is None else known_owner.pods
        return count_claims(group, members, names, known, wanted)

    def set_job(self, job: Job) -> list[Pod]:
        """Store a new or changed Job; return its pods, for another `set_pod`.

        For a Job that is a group of its own, also the pods of its JobSet's group, which may now
        be complete.
        """
        key = job.key
        old = self.remove_job(key)
        pods = {*self._jobs.set(key, job)}
        self._jobs_by_uid[job.uid] = key
        if job.exclusive:
            self._exclusive_jobs.setdefault((job.namespace, job.jobset), set()).add(job.name)
        if old is not None:
            done = {"succeeded": job.succeeded, "failed_indexes": job.failed_indexes}
            if replace(old, active=job.active, **done) == job:
                return []
        if job.exclusive:
            jobset = object_name(f"jobset-{job.jobset}")
            pods |= self._by_group.get((job.namespace, jobset), {}).keys()
        return self._sorted(pods)

    def _sorted(self, pods: Iterable[Key]) -> list[Pod]:
        return [self._pods[each].pod for each in sorted(pods)]

    def group_of_job(self, key: Key) -> Key | None:
        """Return the group of a Job's pods, None where it has none."""
        pods = self._jobs.pods(key)
        return _group_of(self._pods[next(iter(pods))]) if pods else None

    def remove_job(self, key: Key) -> Job | None:
        """Remove a Job and return it; each pod reports its own removal."""
        job = self._jobs.objects.pop(key, None)
        if job is None:
            return None
        self._jobs_by_uid.pop(job.uid, None)
        if job.exclusive:
            jobset = (job.namespace, job.jobset)
            self._exclusive_jobs[jobset].discard(job.name)
            if not self._exclusive_jobs[jobset]:
                del self._exclusive_jobs[jobset]
        return job

    def job_sets(self) -> Collection[Key]:
        """Return the JobSets that are known."""
        return self._job_sets.objects.keys()

    def set_job_set(self, job_set: JobSet) -> list[Pod]:
        """Store a JobSet; return its pods, for another `set_pod`."""
        return self._sorted(self._job_sets.set(job_set.key, job_set))

    def remove_job_set(self, key: Key) -> None:
        """Remove a JobSet; each pod reports its own removal."""
        self._job_sets.objects.pop(key, None)

    def owners(self, kind: str) -> Collection[Key]:
        """Return the followed objects of a kind that are known."""
        return [key[1:] for key in self._owners.objects if key[0] == kind]

    def set_owner(self, owner: ReplicaOwner) -> list[Pod]:
        """Store a followed object; return its pods, for another `set_pod`."""
        key = (owner.kind, owner.namespace, owner.name)
        return self._sorted(self._owners.set(key, owner))

    def remove_owner(self, key: OwnerKey) -> None:
        """Remove a followed object; each pod reports its own removal."""
        self._owners.objects.pop(key, None)

    def leader_worker_sets(self) -> Collection[Key]:
        """Return the LeaderWorkerSets that are known to make workers after their leader."""
        return self._led.keys()

    def set_led(self, leader_workers: Key, workers: PodSet | None) -> list[Pod]:
        """Store the workers that a LeaderWorkerSet creates after their leader, if any.

        The workers may complete its groups: return the pods of these, for another `set_pod`.
        """
        if self._led.get(leader_workers) == workers:
            return []
        if workers is None:
            del self._led[leader_workers]
            return []
        self._led[leader_workers] = workers
        namespace, name = leader_workers
        groups = [pods for key, pods in self._by_group.items() if key[0] == namespace]
        return [
            each.pod for pods in groups for each in pods.values() if each.membership.lws == name
        ]

    def led(self, group: Key) -> PodSet | None:
        """Return the pod set of the workers that a leader starts; None if they equal the leader.

        Raises Incomplete if that is not known.
        """
        for each in self.of(group):
            lws = each.membership.lws if each.membership.leads else ""
            if lws and (group[0], lws) not in self._led:
                why = self._unreadable.get(_LEADER_WORKER_SETS, "")
                raise Incomplete(f"LeaderWorkerSet {quoted(lws)} is not known{why and f': {why}'}")
            if lws:
                return self._led[group[0], lws]
        return None

    def pod_groups(self) -> Collection[Key]:
        """Return the PodGroups that are known."""
        return self._pod_groups.objects.keys()

    def set_pod_group(self, group: PodGroup) -> list[Pod]:
        """Store a PodGroup; return its pods, for another `set_pod`."""
        return self._sorted(self._pod_groups.set(group.key, group))

    def remove_pod_group(self, key: Key) -> None:
        """Remove a PodGroup; each pod reports its own removal."""
        self._pod_groups.objects.pop(key, None)

    def set_unreadable(self, kind: str, why: str) -> list[Pod]:
        """Note why objects of a kind may not be read; empty: they may be.

        Return the pods that wait for such an object, for another `set_pod`.
        """
        if self._unreadable.get(kind, "") == why:
            return []
        self._unreadable.pop(kind, None)
        if why:
            self._unreadable[kind] = why
        pods = (each.pod for each in self._pods.values() if each.member is None)
        return [each for each in pods if kind in _kinds_of_makers(each)]

    def is_unreadable(self, group: Key) -> bool:
        """Whether a group has places for pods whose owners may not be read: it is left alone."""
        return bool(self._unreadable) and group in self._strays

    def set_pod(self, pod: Pod) -> Joined:
        """Store a pod."""
        key = pod.key
        self.latest = max(self.latest, pod.created)
        old, left = self._pods.get(key), self.remove_pod(key)
        made, member, problem = self._made_from(pod), None, ""
        if made is not None:
            try:
                member = Member(pod, read_membership(pod, made))
            except DocumentError as error:
                problem = str(error)
        self._put(key, self._follow(old, pod, member))
        for kind in _kinds_of_makers(pod) if made is None and self._unreadable else ():
            if kind in self._unreadable:
                problem = f"it waits, as {kind} may not be read: {self._unreadable[kind]}"
        group = None if member is None else member.membership.group
        return Joined(pod, group, left, problem, waits=made is None)

    def _follow(self, old: PodRecord | None, pod: Pod, member: Member | None) -> PodRecord:
        """Return the record of a pod as it is seen now; news of it settle its pending write."""
        state = IDLE if old is None else old.state
        new, changed = PodRecord(pod, member, state), dict[str, Any]()
        if state.write is not None and pod_of(state.write).revision != pod.revision:
            changed = {"write": None, "unanswered": False, "back_off": NO_FAILURE}
        if is_unbound(pod):
            changed["unbound"] = state.unbound or (self._clock.now(), pod.unschedulable)
        elif state.unbound is not None:
            changed["unbound"] = None
        if state.elsewhere and old is not None and _group_of(old) != _group_of(new):
            changed["elsewhere"] = False
        return replace(new, state=replace(state, **changed)) if changed else new

    def update(self, key: Key, **changed: Any) -> None:
        """Replace fields of the state of a pod, if it is still there."""
        old = self._pods.get(key)
        if old is not None:
            self._put(key, replace(old, state=replace(old.state, **changed)))

    def say(self, key: Key, problem: str) -> bool:
        """Record what is wrong with a pod; return whether that is news."""
        if key not in self._pods or self.state(key).problem == problem:
            return False
        self.update(key, problem=problem)
        return bool(problem)

    def _put(self, key: Key, new: PodRecord | None) -> None:
        """Replace or remove a record, and bring the indexes up to date."""
        old = self._pods.pop(key, None)
        if new is not None:
            new.check()
            self._pods[key] = new
        before, after = None if old is None else old.member, None if new is None else new.member
        if before is not after:
            if before is not None:
                _drop(self._by_group, before.membership.group, key)
            if after is not None:
                self._by_group.setdefault(after.membership.group, {})[key] = after
        for index, group in self._marks(key, old):
            _drop(index, group, key)
        for index, group in self._marks(key, new):
            index.setdefault(group, {})[key] = None

    def _marks(
        self, key: Key, record: PodRecord | None
    ) -> Iterator[tuple[dict[Key, dict[Key, None]], Key]]:
        """Yield the indexes of rare states that contain a pod, each with its group there."""
        if record is None:
            return
        pod, state = record.pod, record.state
        if record.member is None and (name := named_group(pod)) and _kinds_of_makers(pod):
            yield self._strays, (key[0], object_name(name))
        if state.write is not None:
            group = (key[0], state.write.group)
            if isinstance(state.write, OpenGate):
                yield self.opening, group
            if state.unanswered:
                yield self.unanswered, group
        if record.member is not None:
            if state.elsewhere:
                yield self.elsewhere, record.member.membership.group
            if pod.deleted and pod.node and not pod.finished:
                yield self.leaving, record.member.membership.group

    def _made_from(self, pod: Pod) -> Made | None:
        """Return the objects that a pod was made from, None where one of them is not known yet."""
        key = pod.key
        job = pod_group = owner = None
        if (name := find_owning_job(pod)) is not None:
            job = self._jobs.join((pod.namespace, name), key)
            if job is None:
                return None
        if pod.pod_group:
            pod_group = self._pod_groups.join((pod.namespace, pod.pod_group), key)
            if pod_group is None:
                return None
        if (owner_key := find_followed_owner(pod)) is not None:
            owner = self._owners.join(owner_key, key)
            if owner is None:
                return None
        jobset = (pod.namespace, pod.labels.get(JOBSET, ""))
        job_set = self._job_sets.join(jobset, key) if jobset[1] else None
        workers = self._led.get((pod.namespace, pod.labels.get(LWS, "")))
        led = "" if workers is None else workers.name
        exclusive_jobs = len(self._exclusive_jobs.get(jobset, ()))
        return Made(job, pod_group, owner, job_set, exclusive_jobs, led=led)

    def remove_pod(self, key: Key) -> Key | None:
        """Remove a pod; return its group."""
        record = self._pods.get(key)
        if record is None:
            return None
        pod = record.pod
        self._put(key, None)
        self._jobs.leave((pod.namespace, find_owning_job(pod) or ""), key)
        self._pod_groups.leave((pod.namespace, pod.pod_group), key)
        self._job_sets.leave((pod.namespace, pod.labels.get(JOBSET, "")), key)
        if (owner := find_followed_owner(pod)) is not None:
            self._owners.leave(owner, key)
        return _group_of(record)


def _kinds_of_makers(pod: Pod) -> list[str]:
    """Return the kinds that a pod waits for, beside a Job, as the API's paths name them."""
    owner = find_followed_owner(pod)
    kinds = [_PLURALS[owner[0]]] if owner is not None else []
    return kinds + [_POD_GROUPS] * bool(pod.pod_group)


def _group_of(record: PodRecord) -> Key | None:
    return None if record.member is None else record.member.membership.group


def _drop(index: dict[Key, dict[Key, Of]], group: Key, key: Key) -> None:
    del index[group][key]
    if not index[group]:
        del index[group]
