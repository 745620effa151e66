"""Which group a pod belongs to, by labels and annotations, or by its owner.

| the first that a pod has | name of the group | pods in all | rank |
|---|---|---|---|
| `placement.nri/group` | that | `placement.nri/group-size` | completion index |
| `kueue.x-k8s.io/pod-group-name` | that | `…/pod-group-total-count` | `…/pod-group-pod-index` |
| a PodGroup that is a gang | `podgroup-NAME` | `minCount`, or more | completion index |
| a sub-group of a LeaderWorkerSet that is exclusive | `lws-NAME-GROUP-SUB-GROUP` | its own | in it |
| the label of a LeaderWorkerSet | `lws-NAME-GROUP` | `…/size` | `…/worker-index` |
| a Job of a JobSet that is exclusive | `job-NAME` | the Job's | completion index |
| the label of a JobSet | `jobset-NAME`, or `jobset-NAME.STEP` | those of its other Jobs that start together | the Job's index, then the pod's |
| an owner of a kind that is followed (`replica_kinds`) | `KIND-NAME` | those of its `spec` | `…/replica-index` |
| a Job that owns it | `job-NAME` | the Job's | completion index |
| none of it | `pod-NAME` | 1 | |

Groups by owner have names that a group by label is unlikely to have; if one still has it, its pods
disagree. `object_name` turns a name that Kubernetes would refuse into a valid one.

Exclusive: it has a domain to itself by an annotation of the JobSet or LeaderWorkerSet.
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256

from msgspec import Struct, field

from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import DocumentError, convert, join
from nri_policy.cluster.objects.metadata import (
    Key,
    Namespaced,
    ObjectIdentity,
    ObjectMeta,
    OwnerReference,
    StatusCondition,
)
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.annotations import (
    GROUP_SIZE,
    JOBSET_EXCLUSIVE,
    LWS_EXCLUSIVE,
    LWS_SUBGROUP_EXCLUSIVE,
    POD_GROUP,
    POD_GROUP_INDEX,
    POD_GROUP_TOTAL,
    POD_SET,
    read_size,
)
from nri_policy.cluster.requests.group import GROUP_LABEL, PlacementGroup
from nri_policy.cluster.workloads.replica_kinds import REPLICA_INDEX, ReplicaOwner, pod_set_of
from nri_policy.foundation.wording import quoted

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET = "jobset.sigs.k8s.io/jobset-name"
JOBSET_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_JOBS = "jobset.sigs.k8s.io/replicatedjob-replicas"
JOBSET_ALL_JOBS = "jobset.sigs.k8s.io/global-replicas"
JOBSET_INDEX = "jobset.sigs.k8s.io/job-index"
_JOBSET_LABELED_NODES = "alpha.jobset.sigs.k8s.io/node-selector"
LWS = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
LWS_SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-index"
_LWS_SUBGROUP_SIZE = "leaderworkerset.sigs.k8s.io/subgroup-size"
_LWS_SUBGROUP_POLICY = "leaderworkerset.sigs.k8s.io/subgroup-policy-type"
LEADER_EXCLUDED = "LeaderExcluded"
LEADER, WORKERS = "leader", "workers"  # pod sets of a LeaderWorkerSet
_OVER = ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")  # conditions of a Job
MAX_NAME = 253  # characters of an object's name
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DIGITS = 10  # of the hash that keeps changed names apart

POD_GROUP_API = ("scheduling.k8s.io", "v1alpha2")  # Kubernetes 1.36; v1alpha1 has no such object


class Job(Namespaced, frozen=True, gc=False):
    """A Job, as far as its pods make a group."""

    pods: int  # at once: the smaller of `parallelism` and `completions`
    completions: int | None = None
    succeeded: int = 0  # pods so far, deleted ones included
    failed_indexes: int = 0  # of which no pod is made again
    active: bool = True  # whether it makes pods: it is neither suspended, nor over, nor deleted
    uid: str = ""
    jobset: str = ""  # of which it is one
    exclusive: bool = False  # a group with its own domain, apart from the JobSet's group


class PodGroup(Namespaced, frozen=True, gc=False):
    """A PodGroup of Kubernetes."""

    least: int | None = None  # size of its gang; None: kube-scheduler binds each pod alone
    uid: str = ""


class JobSet(Namespaced, frozen=True):
    """A JobSet, as far as its Jobs start together; without those that are groups of their own."""

    steps: dict[str, str]  # by replicated Job: the step in which its Jobs start; "": the first
    jobs: dict[str, int]  # by step
    # groups of steps that run at the same time, where some name a level to share
    together: tuple[tuple[PlacementGroup, ...], ...] = ()


class JobSetJob(Struct, frozen=True, gc=False):
    """A Job of a JobSet."""

    job: str
    pods: int
    jobs: int  # Jobs of the JobSet, or its Jobs of this name
    named: str = ""  # whose number `jobs` is; empty: all


class Membership(Struct, frozen=True, gc=False):
    """What a pod says of its group."""

    group: Key
    size: int | None  # None: the sum of its parts
    pod_set: str | None = None  # None: the set of equal pods
    rank: int | None = None  # among the pods of its pod set
    part: JobSetJob | None = None
    alone: bool = False  # the group can have no other pod
    at_least: bool = False  # the group may have more than its size
    owner: OwnerReference | None = None  # of the group, if the pod has another owner
    leads: bool = False  # the other pods are only made once this one is bound, or ready
    lws: str = ""  # the LeaderWorkerSet of its workers; empty: they equal it


class _Gang(Struct, rename="camel"):
    min_count: int


class _Policy(Struct):
    gang: _Gang | None = None


class _PodGroupSpec(Struct, rename="camel"):
    scheduling_policy: _Policy = field(default_factory=_Policy)


class _PodGroup(Struct):
    metadata: ObjectIdentity
    spec: _PodGroupSpec


class _Spec(Struct):
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None


class _Status(Struct, rename="camel"):
    succeeded: int | None = None
    failed_indexes: str | None = None  # such as 1,3-5
    conditions: list[StatusCondition] | None = None


class _Job(Struct):
    metadata: ObjectMeta
    spec: _Spec
    status: _Status | None = None


def read_job(value: object, path: str) -> Job:
    """Return the Job in a Kubernetes object; raises DocumentError."""
    document = convert(value, _Job, path)
    at_once = 1 if document.spec.parallelism is None else document.spec.parallelism
    if document.spec.completions is not None:
        at_once = min(at_once, document.spec.completions)
    if not 0 <= at_once <= MAX_COUNT:
        raise DocumentError(join(path, "spec.parallelism"), f"{at_once} is not a number of pods")
    namespace, name = document.metadata.key(path, "a Job")
    status = document.status or _Status()
    over = any(each.type in _OVER and each.holds for each in status.conditions or ())
    return Job(
        namespace,
        name,
        at_once,
        document.spec.completions,
        status.succeeded or 0,
        _count_indexes(status.failed_indexes or ""),
        active=not (over or document.spec.suspend or document.metadata.deletion_timestamp),
        uid=document.metadata.uid,
        jobset=(document.metadata.labels or {}).get(JOBSET, ""),
        exclusive=JOBSET_EXCLUSIVE in (document.metadata.annotations or {}),
    )


def _count_indexes(text: str) -> int:
    """Return how many indexes a status of a Job lists."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text, re.ASCII)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)


def read_pod_group(value: object, path: str) -> PodGroup:
    """Return the PodGroup in a Kubernetes object; raises DocumentError."""
    document = convert(value, _PodGroup, path)
    gang = document.spec.scheduling_policy.gang
    if gang is not None and not 1 <= gang.min_count <= MAX_COUNT:
        place = join(path, "spec.schedulingPolicy.gang.minCount")
        raise DocumentError(place, f"{gang.min_count} is not a number of pods")
    namespace, name = document.metadata.key(path, "a PodGroup")
    return PodGroup(
        namespace=namespace,
        name=name,
        least=None if gang is None else gang.min_count,
        uid=document.metadata.uid,
    )


def object_name(name: str) -> str:
    """Return *name* if an object can have it, else one that begins alike, and ends in its hash.

    A name from here is returned unchanged.
    """
    if len(name) <= MAX_NAME and _OBJECT_NAME.fullmatch(name):
        return name
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[: MAX_NAME - _DIGITS - 1].strip("-")
    return f"{plain}-{digest}" if plain else digest


def find_owning_job(pod: Pod) -> str | None:
    """Return the name of the Job that a pod is of."""
    for owner in pod.owners:
        if owner.controller and owner.kind == "Job":
            return owner.name
    return None


class Made(Struct, frozen=True):
    """The objects that a pod was made from; None: it was made without one."""

    job: Job | None = None
    pod_group: PodGroup | None = None  # that it names
    owner: ReplicaOwner | None = None
    job_set: JobSet | None = None  # None: not known, its Jobs start together
    exclusive_jobs: int = 0  # separate groups: so many Jobs of its JobSet
    led: str = ""  # pod set of the workers that its LeaderWorkerSet makes after their leader


def read_membership(pod: Pod, made: Made) -> Membership:
    """Return the membership that *pod* declares; raises DocumentError for contradictions."""
    given = _Given(pod)
    name = given.get(GROUP_LABEL)
    if name is None:
        return _unnamed(pod, made, given)
    if not name:
        raise given.error(GROUP_LABEL, "is no name of a group")
    size = read_size(pod.annotations, pod.labels, "metadata")
    if size is not None:
        rank = given.index(COMPLETION_INDEX)
        return Membership(_key(pod, name), size, given.get(POD_SET), rank)
    found = _unnamed(pod, made, given)
    if found.group != _key(pod, name):  # else it is what we wrote when the pod was let go
        raise given.error(GROUP_LABEL, f"needs {GROUP_SIZE}")
    return found


def _unnamed(pod: Pod, made: Made, given: _Given) -> Membership:
    """Return what a pod without `placement.nri/group` says."""
    pod_set, job, pod_group = given.get(POD_SET), made.job, made.pod_group
    if (name := given.get(POD_GROUP)) is not None:
        size = given.count(POD_GROUP_TOTAL, POD_GROUP)
        return Membership(_key(pod, name), size, pod_set, given.index(POD_GROUP_INDEX))
    if pod_group is not None and pod_group.least is not None:
        name, uid = pod_group.name, pod_group.uid
        return Membership(
            _key(pod, f"podgroup-{name}"),
            pod_group.least,
            pod_set,
            given.index(COMPLETION_INDEX),
            at_least=True,
            owner=OwnerReference(
                kind="PodGroup", name=name, uid=uid, api_version="/".join(POD_GROUP_API)
            ),
        )
    if (name := given.get(LWS)) is not None:
        return _of_lws(pod, given, name, led=made.led)
    if job is not None:
        return _of_job(pod, job, given, made)
    if (owner := made.owner) is not None:
        name = pod_set or pod_set_of(pod.labels)
        rank = given.index(REPLICA_INDEX)
        return Membership(_key(pod, owner.group), sum(owner.pods.values()), name, rank)
    return Membership(_key(pod, f"pod-{pod.name}"), 1, pod_set, alone=True)


def _of_job(pod: Pod, job: Job, given: _Given, made: Made) -> Membership:
    """Return the membership of a pod of a Job, perhaps in the group of a JobSet."""
    jobset = given.get(JOBSET)
    exclusive = jobset is not None and given.get(JOBSET_EXCLUSIVE) is not None
    if jobset is not None and not exclusive:
        return _of_jobset(pod, job, given, jobset, made)
    rank = given.index(COMPLETION_INDEX)
    leads = exclusive and rank == 0 and given.get(_JOBSET_LABELED_NODES) is None
    return Membership(_key(pod, f"job-{job.name}"), job.pods, given.get(POD_SET), rank, leads=leads)


def _key(pod: Pod, name: str) -> Key:
    return pod.namespace, object_name(name)


def find_sub_group(number: int, size: int, pods: int, *, leader: bool = True) -> range:
    """Return the worker indices of a sub-group of a LeaderWorkerSet's group, which has *pods*.

    Where sub-groups of *size* leave one pod over, that is the *leader*, 0: it is in the first one,
    or in none.
    """
    over = (pods - 1) % size == 0
    first = 0 if over and leader and not number else number * size + over
    return range(first, min((number + 1) * size + over, pods))


def _of_lws(pod: Pod, given: _Given, name: str, *, led: str) -> Membership:
    """Return what a pod says of its group of a LeaderWorkerSet, or of its sub-group."""
    group = f"lws-{name}-{given.count(LWS_GROUP, LWS, least=0)}"
    pods, number = given.count(LWS_SIZE, LWS), given.index(LWS_SUBGROUP)
    every, pod_set, rank = range(pods), given.get(POD_SET), given.index(LWS_WORKER)
    exclusive = given.get(LWS_EXCLUSIVE) is not None
    if exclusive or led == WORKERS:
        pod_set = pod_set or (WORKERS if rank else LEADER)
    if given.get(LWS_SUBGROUP_EXCLUSIVE) is not None:
        if exclusive:
            raise given.error(LWS_SUBGROUP_EXCLUSIVE, f"may not be set when {LWS_EXCLUSIVE} is")
        leader = given.get(_LWS_SUBGROUP_POLICY) != LEADER_EXCLUDED
        if number is None:
            every = range(1)  # a leader that is in none
        else:
            size = given.count(_LWS_SUBGROUP_SIZE, LWS_SUBGROUP)
            group, every = f"{group}-{number}", find_sub_group(number, size, pods, leader=leader)
    return Membership(
        group=_key(pod, group),
        size=len(every),
        pod_set=pod_set,
        rank=every.index(rank) if rank is not None and rank in every else None,
        leads=(exclusive or (led != "" and len(every) > 1)) and rank == 0,
        lws=name,
    )


def _of_jobset(pod: Pod, job: Job, given: _Given, name: str, made: Made) -> Membership:
    kind, job_set = given.get(JOBSET_JOB) or "", made.job_set
    step = None if job_set is None else job_set.steps.get(kind)
    if job_set is not None and step is not None:
        jobs, named = job_set.jobs[step], ""
    elif given.get(JOBSET_ALL_JOBS) is None:
        jobs, named = given.count(JOBSET_JOBS, JOBSET), kind
    else:
        jobs, named = given.count(JOBSET_ALL_JOBS, JOBSET) - made.exclusive_jobs, ""
    number, index = given.index(JOBSET_INDEX), given.index(COMPLETION_INDEX)
    return Membership(
        group=_key(pod, name_step(f"jobset-{name}", step)),
        size=None,
        pod_set=given.get(POD_SET) or kind or None,
        rank=None if number is None or index is None else number * job.pods + index,
        part=JobSetJob(job.name, job.pods, jobs, named),
    )


def name_step(name: str, step: str | None) -> str:
    """Return the name of the group of a JobSet's Jobs that start in a step.

    A JobSet's name has no dot.
    """
    return f"{name}.{step}" if step else name


class _Given:
    """Labels and annotations of a pod; the annotation decides where both are there."""

    def __init__(self, pod: Pod) -> None:
        self._values: Mapping[str, str] = {**pod.labels, **pod.annotations}
        self._annotated = pod.annotations

    def get(self, key: str) -> str | None:
        """Return a value, None where there is none."""
        return self._values.get(key)

    def error(self, key: str, text: str) -> DocumentError:
        """Return the error of one label or annotation, which it quotes."""
        where = "annotations" if key in self._annotated else "labels"
        return DocumentError(
            join(join("metadata", where), key), f"{quoted(self._values.get(key))} {text}"
        )

    def count(self, key: str, of: str, *, least: int = 1) -> int:
        """Return the number that must accompany *of*."""
        if key not in self._values:
            raise self.error(of, f"needs {key}")
        number = self.index(key)
        if number is None or number < least:
            raise self.error(key, f"is not a number from {least} on")
        return number

    def index(self, key: str) -> int | None:
        """Return a number from 0 on, None for anything else: a rank that is doubtful is none."""
        value = self._values.get(key, "")
        if not (value.isascii() and value.isdecimal() and len(value) <= 10):
            return None
        return int(value) if int(value) <= MAX_COUNT else None
